// SPDX-License-Identifier: Apache-2.0

// Package egress is which DNS names a box may reach, in the form in which boxd tells the egress proxy.
package egress
