// SPDX-License-Identifier: Apache-2.0

// Package wire has the format of LangBot's action RPC: handshakes, messages, ids, uploads, bounds. boxd speaks it, as does a gateway of a
// fleet that passes it on.
package wire
