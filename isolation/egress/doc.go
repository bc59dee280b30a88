// SPDX-License-Identifier: Apache-2.0

// Package egress defines which DNS names a box may reach, in the form that boxd passes to the egress proxy.
package egress
