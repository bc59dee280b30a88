// SPDX-License-Identifier: Apache-2.0

package api

// PortProtocol is what GET /v1/sessions/{id}/ports/{port}/stream asks its connection to become, by
// "Connection: Upgrade" and "Upgrade: boxd-port". After the head of the answer come the bytes of the box, and those
// of the caller go there. Either end closes its half of the connection when it has said all.
const PortProtocol = "boxd-port"
