// SPDX-License-Identifier: Apache-2.0

// Package volumes keeps the directories of callers that outlive their sessions: named workspaces, versioned
// drives.
package volumes
