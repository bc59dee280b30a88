// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Image is what / of a session can be made from.
type Image struct {
	Name      string      `json:"name"`
	Digest    string      `json:"digest"` // "sha256:…": of its manifest, or of what stands for it
	Form      string      `json:"form"`   // of the archive it came in: "oci", "docker" or "rootfs"; "commit": a session has made it
	Bytes     int64       `json:"bytes"`
	Entries   int         `json:"entries"`
	LeftOut   int         `json:"left_out,omitempty"` // devices and FIFOs of the archive
	Layers    int         `json:"layers"`
	Sessions  int         `json:"sessions"` // that have it
	Config    ImageConfig `json:"config"`
	CreatedAt time.Time   `json:"created_at"` // when it was imported
}

// ImageConfig is what an image says about programs that run in it.
type ImageConfig struct {
	Architecture string   `json:"architecture,omitempty"`
	Env          []string `json:"env,omitempty"`
	WorkingDir   string   `json:"working_dir,omitempty"`
	User         string   `json:"user,omitempty"` // programs run as the box user all the same
	Entrypoint   []string `json:"entrypoint,omitempty"`
	Cmd          []string `json:"cmd,omitempty"`
}

// ImageCommit makes an image of what programs of a session have made of its image. What is left out is as in that one.
type ImageCommit struct {
	Name       string            `json:"name"`                    // an image of that name gives way
	Env        map[string]string `json:"env,omitempty" max:"256"` // beside what it has, or instead of one of the same name
	WorkingDir *string           `json:"working_dir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitzero" max:"1000"` // [] is none
	Cmd        []string          `json:"cmd,omitzero" max:"1000"`        // [] is none
}

// ImageList is a list of images, by name.
type ImageList struct {
	Images []Image `json:"images"`
}
