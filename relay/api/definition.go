// SPDX-License-Identifier: Apache-2.0

package api

import "encoding/json"

// SessionDefinition is what another session like this one is made from, on this host or another: the answer to GET
// /v1/sessions/{id}/definition. It has values of the environment, which no other answer has.
type SessionDefinition struct {
	// Session is a SessionRequest, with all settings spelled out. Its max_lifetime is what is left of it.
	Session json.RawMessage `json:"session"`
	// ImageDigest is that of its image, which may have another under its name elsewhere; "": it has the host's programs.
	ImageDigest string `json:"image_digest,omitempty"`
	// Processes are the ProcessRequests, by id, of what a stopped session would have again: with the restart policy "always".
	Processes map[string]json.RawMessage `json:"processes"`
	// Paths are the directories in the box whose files are the session's own and on disk: an archive of each has them.
	Paths []string `json:"paths"`
	// LeftOut says in words what the session has besides, which neither this nor these archives have.
	LeftOut []string `json:"left_out"`
}
