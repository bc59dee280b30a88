// SPDX-License-Identifier: Apache-2.0

// Package proxy is the DNS resolver of boxes with their transparent HTTP and TLS proxy, which filters by name
// (Host, SNI).
package proxy
