// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// restored waits until a boxd has taken a process of an earlier one over.
func restored(t *testing.T, d *boxtest.Daemon, session, process, state string) {
	t.Helper()
	boxtest.Eventually(t, "the next boxd has restored the process "+process, func() bool {
		p, err := d.Process(t.Context(), session, process, 0)
		return err == nil && p.State == state
	})
}

// noSleepIn waits until a session has no sleep any more: one that was killed may be dying when its group is said to be empty.
func noSleepIn(t *testing.T, d *boxtest.Daemon, session string) {
	t.Helper()
	boxtest.Eventually(t, "no sleep is left", func() bool { return d.Result(t, session, boxtest.Shell("pgrep -c sleep")).Stdout == "0\n" })
}

// lasting is a request for a shell that takes part in a conversation, which may be slow.
func lasting(line string) api.ExecRequest {
	req := boxtest.Shell(line)
	req.Timeout = boxtest.Duration("2m")
	return req
}

func process(t *testing.T, d *boxtest.Daemon, id, p string, req *api.ProcessRequest) api.Process {
	t.Helper()
	state, _, err := d.StartProcess(t.Context(), id, p, req)
	if err != nil {
		t.Fatalf("start %q: %v", p, err)
	}
	return state
}

// A session is the same after boxd was stopped and started, or killed: its box, its processes with their results, and the secret
// values that are in no file.
func TestSessionsOutliveBoxd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*boxtest.Daemon){"killed": (*boxtest.Daemon).Kill, "stopped": (*boxtest.Daemon).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, boxtest.Kept)
			d.Warm()
			before := d.Look()
			const secret = "s3cr3t-of-the-session"
			s := d.NewSession(t, api.SessionRequest{ID: "s1", Env: map[string]string{"SECRET": secret}, Labels: map[string]string{"a": "b"}, Patch: limits.Patch{TTL: new(quantity.Duration(time.Hour))}})
			d.NewSession(t, api.SessionRequest{ID: "frozen"})
			lives := process(t, d, "s1", "lives", &api.ProcessRequest{
				Command: new("trap 'echo stopped; exit 0' TERM; echo begun; while :; do sleep 0.05; done"), Env: map[string]string{"OTHER": secret + "2"},
				Restart: &api.Restart{Policy: "always"}, Labels: map[string]string{"c": "d"}, Stop: &api.Stop{Grace: length(time.Minute)},
			})
			boxtest.Eventually(t, "the process has started", func() bool {
				p, err := d.Process(t.Context(), "s1", "lives", 0)
				return err == nil && p.Output[0].Bytes == int64(len("begun\n"))
			})
			process(t, d, "s1", "stopped", &api.ProcessRequest{Argv: []string{"sleep", "1000"}, Restart: &api.Restart{Policy: "always"}})
			stopped, err := d.StopProcess(t.Context(), "s1", "stopped")
			if err != nil || stopped.Reason != "stopped" {
				t.Fatalf(`stopped = %+v, err = %v, want no error and stopped.Reason == "stopped"`, stopped, err)
			}
			once := api.ExecRequest{ID: "once", Command: new("echo ran >> ran; echo out; echo err >&2; exit 3")}
			first := d.Result(t, "s1", once)
			end(d)
			d.Restart()
			restored(t, d, "s1", "lives", "running")
			restored(t, d, "s1", "stopped", "ended")
			now, err := d.Session(t.Context(), "s1")
			if err != nil || now.PID != s.PID || now.IDBase != s.IDBase || !now.CreatedAt.Equal(s.CreatedAt) || !maps.Equal(now.Labels, s.Labels) || now.TTL != s.TTL || now.Running != 1 {
				t.Fatalf("%+v, %v: was %+v, want no error and now.PID == %v and now.IDBase == %v and now.CreatedAt.Equal(s.CreatedAt) and now.Labels == %v and now.TTL == %v and now.Running == 1",
					now, err, s, s.PID, s.IDBase, s.Labels, s.TTL)
			}
			if _, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1", Env: map[string]string{"SECRET": secret}}); isNew || err != nil {
				t.Errorf("the same request again: isNew = %v, err = %v, want isNew == false and no error", isNew, err)
			}
			if got := d.Sh(t, "s1", "echo $SECRET"); got != secret+"\n" {
				t.Errorf(`got %q, want secret + "\n"`, got)
			}
			if p, err := d.Process(t.Context(), "s1", "lives", 0); err != nil || p.State != "running" || p.PID != lives.PID || p.Starts != 1 || p.Labels["c"] != "d" || !p.StartedAt.Equal(lives.StartedAt) {
				t.Errorf(`%+v, %v: was %+v, want no error and p.State == "running" and p.PID == %v and p.Starts == 1 and p.Labels["c"] == "d" and p.StartedAt.Equal(lives.StartedAt)`,
					p, err, lives, lives.PID)
			}
			if p, err := d.Process(t.Context(), "s1", "stopped", 0); err != nil || p.State != "ended" || p.Reason != "stopped" || p.Starts != 1 || !p.EndedAt.Equal(*stopped.EndedAt) {
				t.Errorf(`p = %+v, err = %v, want no error and p.State == "ended" and p.Reason == "stopped" and p.Starts == 1 and p.EndedAt.Equal(*stopped.EndedAt)`,
					p, err)
			}
			if again := d.Result(t, "s1", once); again.Stdout != first.Stdout || again.Stderr != first.Stderr || *again.ExitCode != 3 {
				t.Errorf("%s, and was %s, want again.Stdout == %v and again.Stderr == %v and *again.ExitCode == 3",
					boxtest.Show(again), boxtest.Show(first), first.Stdout, first.Stderr)
			}
			if got := d.Sh(t, "s1", "cat ran"); got != "ran\n" {
				t.Errorf(`it has run again: got %q, want "ran\n"`, got)
			}
			if p, err := d.StopProcess(t.Context(), "s1", "lives"); err != nil || p.Result == nil || p.Result.Stdout != "begun\nstopped\n" {
				t.Errorf(`p = %+v, err = %v, want no error and p.Result != nil and p.Result.Stdout == "begun\nstopped\n"`,
					p, err)
			}
			holds(t, d.Dir, secret)
			for _, id := range []string{"s1", "frozen"} {
				if err := d.DeleteSession(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			d.NothingLeft(before)
		})
	}
}

// holds fails the test if any file below a directory contains a text.
func holds(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // it has just gone
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			t.Errorf("%s has it", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Records that the next boxd finds are validated against its configuration, and no record gives a session more than a request
// could.
func TestADamagedRecordIsNoSession(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(r map[string]any) string{
		"half":           func(map[string]any) string { return `{"id":"s1","ke` },
		"nothing":        func(map[string]any) string { return "" },
		"another owner":  func(r map[string]any) string { r["owner"].(map[string]any)["name"] = "uid:1"; return "" },
		"another id":     func(r map[string]any) string { r["id"] = "s2"; return "" },
		"unlocked":       func(r map[string]any) string { r["settings"].(map[string]any)["pids"] = 99; return "" },
		"with a network": func(r map[string]any) string { r["settings"].(map[string]any)["network"] = "host"; return "" },
		"no profile":     func(r map[string]any) string { r["settings"].(map[string]any)["profile"] = "gone"; return "" },
		"a large number": func(r map[string]any) string { r["settings"].(map[string]any)["memory"] = "9999TiB"; return "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, boxtest.Kept+"[profiles.default]\nlocked = [\"pids\"]\n")
			d.Warm()
			before := d.Look()
			d.NewSession(t, api.SessionRequest{ID: "s1"})
			d.NewSession(t, api.SessionRequest{ID: "good"})
			d.Kill()
			records, err := filepath.Glob(filepath.Join(d.State, "sessions", "*.json"))
			if err != nil || len(records) != 2 {
				t.Fatalf("records = %v, err = %v, want no error and len(records) == 2", records, err)
			}
			damaged := ""
			for _, path := range records {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				var r map[string]any
				if err := json.Unmarshal(data, &r); err != nil {
					t.Fatal(err)
				}
				if r["id"] != "s1" {
					continue
				}
				text := damage(r)
				if text == "" && name != "nothing" {
					data, err := json.Marshal(r)
					if err != nil {
						t.Fatal(err)
					}
					text = string(data)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				damaged = path
			}
			d.Restart()
			if _, err := d.Session(t.Context(), "s1"); err == nil {
				t.Error("no error for the session of a damaged record")
			}
			if !strings.Contains(d.Log(), damaged) {
				t.Error("the log does not name the record")
			}
			if list := sessions(t, d); len(list) != 1 || list[0] != "good" {
				t.Errorf(`list = %+v, want len(list) == 1 and list[0] == "good"`, list)
			}
			if err := d.DeleteSession(t.Context(), "good"); err != nil {
				t.Error(err)
			}
			d.NothingLeft(before)
		})
	}
}

// A lossless reader resumes where it was after the death of boxd, though the program writes more than is retained.
func TestAReaderMissesNothingWhileBoxdIsStarted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*boxtest.Daemon){"killed": (*boxtest.Daemon).Kill, "stopped": (*boxtest.Daemon).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, boxtest.Kept)
			d.NewSession(t, api.SessionRequest{ID: "s1"})
			const size = 40 << 20
			process(t, d, "s1", "p", &api.ProcessRequest{
				Command: new("until [ -e go ]; do sleep 0.01; done; head -c 41943040 /dev/zero"), Output: new(64 * quantity.KiB),
			})
			var got counter
			done := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			go func() {
				_, err := d.Attach(ctx, "s1", "p", client.AttachOptions{From: &[2]int64{}, Lossless: true, Gap: func(g api.StreamGap) {
					t.Errorf("a gap of %d", g.Bytes)
				}}, client.Stdio{Stdout: &got, Stderr: &got}, nil)
				done <- err
			}()
			boxtest.Eventually(t, "the process has a reader", func() bool {
				p, err := d.Process(t.Context(), "s1", "p", 0)
				return err == nil && p.Readers == 1
			})
			d.Sh(t, "s1", "touch go")
			for range 3 {
				end(d)
				d.Restart()
				before := got.Load()
				boxtest.Eventually(t, "the reader has come back", func() bool { n := got.Load(); return n > before || n == size })
			}
			if err := <-done; err != nil || got.Load() != size {
				t.Errorf("%d bytes, %v", got.Load(), err)
			}
			if err := d.DeleteSession(t.Context(), "s1"); err != nil {
				t.Error(err)
			}
		})
	}
}

// counter counts bytes.
type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}
