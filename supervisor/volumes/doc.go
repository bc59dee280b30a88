// SPDX-License-Identifier: Apache-2.0

// Package volumes stores directories of callers that outlive their sessions: named workspaces, versioned drives.
package volumes
