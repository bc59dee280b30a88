// SPDX-License-Identifier: Apache-2.0

// Package mounts decides which directories of the host a box may have, then mounts them.
package mounts
