// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net/http"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// isPaused reports whether a session is a paused sandbox.
func isPaused(info *session.Info) bool { return info.Frozen && !info.Asleep }

// pause stops the programs of a sandbox where they are. Its time goes on.
func (s *Server) pause(ctx context.Context, of *session.Session) error {
	if info := of.Info(); isPaused(&info) {
		return refusal(http.StatusConflict, "sandbox "+of.ID+" is already paused")
	}
	return of.Freeze(ctx, true)
}

// resume has a paused sandbox go on, and reports whether it was one.
func (s *Server) resume(ctx context.Context, of *session.Session) (resumed bool, err error) {
	if info := of.Info(); !isPaused(&info) {
		return false, nil
	}
	return true, of.Freeze(ctx, false)
}
