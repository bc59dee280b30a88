// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
)

// neighbour is the id of the session that Beside makes.
const neighbour = "neighbour"

// Beside is Start for a test that attacks: it runs beside a box that must be unharmed at the end of the test, with the same files
// and the same process. A daemon that the test has stopped or killed is not checked.
func Beside(t testing.TB, configuration ...string) *Daemon {
	t.Helper()
	d := Start(t, configuration...)
	d.NewSession(t, api.SessionRequest{ID: neighbour})
	d.Sh(t, neighbour, "echo kept > /workspace/file; echo kept > /dev/shm/file")
	was := d.NewProcess(t, neighbour, "sleep", &api.ProcessRequest{Argv: []string{"sleep", "100000"}})
	t.Cleanup(func() {
		if d.cmd == nil {
			return
		}
		ctx := context.Background() // the test's context has ended
		is, err := d.Process(ctx, neighbour, "sleep", 0)
		if err != nil || is.State != was.State || is.PID != was.PID {
			t.Errorf("the process of the box next to it was %+v, and is %+v: err = %v, want no error and is.State == %v and is.PID == %v",
				was, is, err, was.State, was.PID)
		}
		r, err := d.Exec(ctx, neighbour, &api.ExecRequest{Argv: []string{"sh", "-c", "cat /workspace/file /dev/shm/file; ls /workspace /dev/shm"}})
		if err != nil || r.Stdout != "kept\nkept\n/dev/shm:\nfile\n\n/workspace:\nfile\n" {
			t.Errorf(`the box next to it has %q: err = %v, want no error and r.Stdout == "kept\nkept\n/dev/shm:\nfile\n\n/workspace:\nfile\n"`,
				r.Stdout, err)
		}
		if err := d.DeleteSession(ctx, neighbour); err != nil {
			t.Errorf("the box next to it does not end: %v", err)
		}
	})
	return d
}
