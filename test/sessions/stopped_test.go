// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"

	"net/http"

	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// stop stops a session, which must then be without a process.
func stop(t *testing.T, d *boxtest.Daemon, id string) api.Session {
	t.Helper()
	s, err := d.StopSession(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "stopped" || s.PID != 0 || s.StoppedAt == nil || s.ID != id {
		t.Fatalf("it is %+v", s)
	}
	return s
}

// startAgain starts it again.
func startAgain(t *testing.T, d *boxtest.Daemon, id string) api.Session {
	t.Helper()
	s, err := d.StartSession(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "ready" || s.PID == 0 || s.StoppedAt != nil || s.ID != id {
		t.Fatalf("it is %+v", s)
	}
	return s
}

// A session that is stopped has no process and no memory. Started again it has its id, its settings, its environment, its
// workspace, what it has changed of its root, a home on disk, and the processes that are always to run.
func TestAStoppedSessionComesBackAsItWas(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	for name, req := range map[string]api.SessionRequest{
		"plain":          {},
		"writable":       {ReadOnlyRoot: new(false)},
		"home":           {HomeOnDisk: new(true)},
		"writable, home": {ReadOnlyRoot: new(false), HomeOnDisk: new(true)},
	} {
		t.Run(name, func(t *testing.T) {
			before := d.Look()
			req.ID, req.Env, req.Labels = "s", map[string]string{"TOKEN": "a value", "EMPTY": ""}, map[string]string{"for": "test"}
			was := d.NewSession(t, req)
			writes := "umask 022; echo work > /workspace/f; mkdir -p /workspace/d; chmod 700 /workspace/d; echo tmp > /tmp/f; echo home > $HOME/f"
			if req.ReadOnlyRoot != nil {
				writes += "; echo root > /usr/local/bin/mine; chmod 755 /usr/local/bin/mine; rm -f /usr/bin/env; echo etc > /etc/mine; mkdir /own; echo top > /own/f"
			}
			d.Sh(t, "s", writes)
			d.NewProcess(t, "s", "always", &api.ProcessRequest{Command: new("date +%s%N >> /workspace/started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}, Env: map[string]string{"OWN": "1"}})
			d.NewProcess(t, "s", "once", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
			env := d.Sh(t, "s", "tr '\\0' '\\n' < /proc/self/environ | sort")
			boxtest.Eventually(t, "the process has started", func() bool {
				return d.Sh(t, "s", "test ! -e /workspace/started || wc -l < /workspace/started") == "1\n"
			})

			stop(t, d, "s")
			if now := d.Look(); len(now.Processes) != len(before.Processes) || len(now.Groups) != len(before.Groups) {
				t.Errorf("there are processes and groups left: %q, %q", now.Processes, now.Groups)
			}
			listed, err := d.Sessions(t.Context(), false)
			if err != nil || len(listed) != 1 || listed[0].State != "stopped" {
				t.Errorf("the list has %+v, %v", listed, err)
			}

			now := startAgain(t, d, "s")
			was.PID, was.IDBase, was.Group, was.LastUsedAt, was.ExpiresAt, was.Executions = now.PID, now.IDBase, now.Group, now.LastUsedAt, now.ExpiresAt, now.Executions
			was.Running = now.Running
			if a, b := asJSON(t, was), asJSON(t, now); a != b {
				t.Errorf("it was\n%s and is\n%s", a, b)
			}
			if got := d.Sh(t, "s", "tr '\\0' '\\n' < /proc/self/environ | sort"); got != env {
				t.Errorf("its environment was\n%q and is\n%q", env, got)
			}
			if got := d.Sh(t, "s", "cat /workspace/f; stat -c %a%U /workspace/d; ls /tmp"); got != "work\n700box\n" {
				t.Errorf("in workspace and /tmp is %q", got)
			}
			home := "1\n"
			if req.HomeOnDisk != nil {
				home = "home\n0\n"
			}
			if got := d.Sh(t, "s", "cat $HOME/f 2>/dev/null; echo $?"); got != home {
				t.Errorf("in the home is %q", got)
			}
			if req.ReadOnlyRoot != nil {
				if got := d.Sh(t, "s", "cat /usr/local/bin/mine /etc/mine /own/f; ls /usr/bin/env 2>&1 | grep -c 'No such'; echo again > /etc/again; cat /etc/again"); got != "root\netc\ntop\n1\nagain\n" {
					t.Errorf("in its root is %q", got)
				}
			}
			boxtest.Eventually(t, "the process has started again", func() bool { return d.Sh(t, "s", "wc -l < /workspace/started") == "2\n" })
			if p, err := d.Process(t.Context(), "s", "always", 0); err != nil || p.State != "running" {
				t.Errorf("the process is %+v, %v", p, err)
			}
			if _, err := d.Process(t.Context(), "s", "once", 0); boxtest.StatusOf(err) != http.StatusNotFound {
				t.Errorf("the other process: %v", err)
			}
			// And once more: what a resumed box has made is as good as what the first has.
			stop(t, d, "s")
			startAgain(t, d, "s")
			if got := d.Sh(t, "s", "cat /workspace/f"); got != "work\n" {
				t.Errorf("the second time there is %q", got)
			}
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			d.NothingLeft(before)
		})
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
