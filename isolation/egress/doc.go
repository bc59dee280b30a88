// SPDX-License-Identifier: Apache-2.0

// Package egress is which DNS names a box may reach, in the form that boxd and the egress proxy
// exchange.
package egress
