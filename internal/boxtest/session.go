// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// NewSession makes a session that does not exist.
func (d *Daemon) NewSession(t testing.TB, req api.SessionRequest) api.Session {
	t.Helper()
	s, isNew, err := d.CreateSession(t.Context(), &req)
	if err != nil || !isNew {
		t.Fatalf("create %q: new %v, %v", req.ID, isNew, err)
	}
	return s
}

// Shell is an execution of a line for the shell.
func Shell(line string) api.ExecRequest { return api.ExecRequest{Command: &line} }

// Result runs something in a session, and returns its result however it has ended.
func (d *Daemon) Result(t testing.TB, session string, req api.ExecRequest) api.ExecResult {
	t.Helper()
	r, err := d.Exec(t.Context(), session, &req)
	if err != nil {
		t.Fatalf("exec in %q: %v", session, err)
	}
	return r
}

// Output runs something in a session that must exit with 0, and returns its standard output.
func (d *Daemon) Output(t testing.TB, session string, req api.ExecRequest) string {
	t.Helper()
	if req.Timeout == nil && os.Getenv(maxTimeoutVariable) != "" {
		req.Timeout = Duration("10m") // an emulated machine may need that
	}
	r := d.Result(t, session, req)
	if r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf("in %q: %s", session, Show(r))
	}
	return r.Stdout
}

// Sh is Output of a line for the shell.
func (d *Daemon) Sh(t testing.TB, session, line string) string {
	t.Helper()
	return d.Output(t, session, Shell(line))
}

// Show is a result for a message of a test.
func Show(r api.ExecResult) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// ShellProcess is a process of a line for the shell.
func ShellProcess(line string) *api.ProcessRequest { return &api.ProcessRequest{Command: &line} }

// NewProcess starts a process that does not exist.
func (d *Daemon) NewProcess(t testing.TB, session, process string, req *api.ProcessRequest) api.Process {
	t.Helper()
	p, isNew, err := d.StartProcess(t.Context(), session, process, req)
	if err != nil || !isNew {
		t.Fatalf("start %q: new %v, %v", process, isNew, err)
	}
	return p
}

// Ended waits for the end of a process.
func (d *Daemon) Ended(t testing.TB, session, process string) api.Process {
	t.Helper()
	p, err := d.Process(t.Context(), session, process, 5*time.Minute)
	if err != nil || p.State != "ended" || p.Result == nil {
		t.Fatalf("%q does not end: %+v, %v", process, p, err)
	}
	return p
}

// Refused is boxd's word on a request that it must not have accepted.
func Refused(t testing.TB, err error, status int, field string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Field != field {
		t.Fatalf("got %v (%+v), want %d about %q", err, e, status, field)
	}
	return e
}

// StatusOf is the status of the answer that an error of the client is; 0: it is none.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Status
	}
	return 0
}

// Duration is one for a request, such as "2m"; a text that is none is a mistake in the test.
func Duration(text string) *quantity.Duration {
	d, err := quantity.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return &d
}
