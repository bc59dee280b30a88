// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// NewSession creates a session that must not exist yet.
func (d *Daemon) NewSession(t testing.TB, req api.SessionRequest) api.Session {
	t.Helper()
	s, isNew, err := d.CreateSession(t.Context(), &req)
	if err != nil || !isNew {
		t.Fatalf("create %q: new %v, %v", req.ID, isNew, err)
	}
	return s
}

// Shell returns a request to run a shell line.
func Shell(line string) api.ExecRequest { return api.ExecRequest{Command: &line} }

// Result runs something in a session, and returns its result whatever that is.
func (d *Daemon) Result(t testing.TB, session string, req api.ExecRequest) api.ExecResult {
	t.Helper()
	r, err := d.Exec(t.Context(), session, &req)
	if err != nil {
		t.Fatalf("exec in %q: %v", session, err)
	}
	return r
}

// Output runs something in a session that must exit with 0, and returns its standard output. Unless req says how long
// it may take, it is Longest, or ten minutes after BePatient: the time that a host takes decides no test.
func (d *Daemon) Output(t testing.TB, session string, req api.ExecRequest) string {
	t.Helper()
	if req.Timeout == nil {
		req.Timeout = new(quantity.Duration(Longest))
		if os.Getenv(maxTimeoutVariable) != "" {
			req.Timeout = Duration("10m") // an emulated machine may need that long
		}
	}
	r := d.Result(t, session, req)
	if r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf(`in %q: r = %s, want r.Status == "exited" and *r.ExitCode == 0`, session, Show(r))
	}
	return r.Stdout
}

// Sh is Output for a shell line.
func (d *Daemon) Sh(t testing.TB, session, line string) string {
	t.Helper()
	return d.Output(t, session, Shell(line))
}

// Show formats a result for a message of a test.
func Show(r api.ExecResult) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// ShellProcess returns a request to start a shell line as a process.
func ShellProcess(line string) *api.ProcessRequest { return &api.ProcessRequest{Command: &line} }

// NewProcess starts a process that must not exist yet.
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
		t.Fatalf(`%q does not end: p = %+v, err = %v, want no error and p.State == "ended" and p.Result != nil`,
			process, p, err)
	}
	return p
}

// Refused checks that boxd has refused a request with this status and field, and returns its
// error.
func Refused(t testing.TB, err error, status int, field string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Field != field {
		t.Fatalf("got %v (%+v), want %d about %q", err, e, status, field)
	}
	return e
}

// StatusOf returns the HTTP status in an error of the client; 0: it has none.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Status
	}
	return 0
}

// Duration parses a duration for a request, such as "2m"; an invalid text is a mistake in the
// test.
func Duration(text string) *quantity.Duration {
	d, err := quantity.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return &d
}
