// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// PortProtocol is what GET /v1/sessions/{id}/ports/{port}/stream asks its connection to become, by
// "Connection: Upgrade" and "Upgrade: boxd-port". After the head of the answer come the bytes of the box, and those
// of the caller go there. Either end closes its half of the connection when it has said all.
const PortProtocol = "boxd-port"

// PortTokenRequest asks for the token of a preview.
type PortTokenRequest struct {
	Lifetime string `json:"lifetime,omitempty"` // "15m"; left out: that, or less if there may be no more
}

// PortToken is who may see a port of a box, for a time, whoever shows it.
type PortToken struct {
	Token string `json:"token"`
	// Host is the name under which the preview is, and the token holds under no other.
	Host string `json:"host"`
	// URL is what a browser on this host opens; left out if boxd serves nothing over TCP.
	URL       string    `json:"url,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}
