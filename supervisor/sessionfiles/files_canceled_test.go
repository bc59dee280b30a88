// SPDX-License-Identifier: Apache-2.0

package sessionfiles

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// A file operation that the stop of its box has ended is refused as any other is then.
func TestAStopEndsAFileOperation(t *testing.T) {
	t.Parallel()
	p := &session.Params{ID: "a", Profile: &policy.Profile{}, Stopped: &session.Stopped{Since: time.Now()}}
	err := ended(session.NewStopped(&session.Hooks{}, p), &session.Result{Status: session.StatusCanceled}, "", "", io.EOF)
	if fault.KindOf(err) != fault.Conflict || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want a fault.Conflict error and err is context.Canceled", err)
	}
}
