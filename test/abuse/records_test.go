// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// lockedProfile has settings that neither a request nor a record may change.
const lockedProfile = "[profiles.small]\nmemory = \"64MiB\"\npids = 50\nlocked = [\"memory\", \"pids\", \"read_only_root\"]\n"

// keyOf returns the key of a session, which names its box on the host.
func keyOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".json") }

// replaced replaces a file by something else.
func replaced(t *testing.T, path string, make func(path string) error) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(path), make(path)); err != nil {
		t.Fatal(err)
	}
}

// edited replaces a file by a text.
func edited(text string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}

// changed changes fields of a record, which are named by their path.
func changed(t *testing.T, data []byte, fields map[string]any) func(path string) error {
	t.Helper()
	var record map[string]any
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		in := record
		parts := strings.Split(name, ".")
		for _, p := range parts[:len(parts)-1] {
			in = in[p].(map[string]any)
		}
		last := parts[len(parts)-1]
		if _, exists := in[last]; !exists {
			t.Fatalf("no %s in %s", name, data)
		}
		in[last] = value
	}
	data, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	return edited(string(data))
}

// A record that boxd has not written like that makes no session: its box is ended, the log names the file, and the other sessions
// go on.
func TestT66ARecordThatIsNotBoxdsMakesNoSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, lockedProfile)
	d.Warm()
	before := d.Look()
	witness := d.NewSession(t, api.SessionRequest{ID: "witness"})
	d.Sh(t, "witness", "echo kept > file")
	other := d.Record(t, "witness")
	for name, make := range map[string]func(path string, data []byte) func(string) error{
		"empty":           func(string, []byte) func(string) error { return edited("") },
		"half":            func(_ string, data []byte) func(string) error { return edited(string(data[:len(data)/2])) },
		"noise":           func(string, []byte) func(string) error { return edited("\x00\xff\x1b[2J") },
		"null":            func(string, []byte) func(string) error { return edited("null") },
		"another version": func(string, []byte) func(string) error { return edited(`{"version":2,"session":{"id":"s1"}}`) },
		"the other's": func(string, []byte) func(string) error {
			return func(path string) error { return os.Link(other, path) }
		},
		"a link": func(string, []byte) func(string) error {
			return func(path string) error { return os.Symlink(other, path) }
		},
		"a link out": func(string, []byte) func(string) error {
			return func(path string) error { return os.Symlink("/etc/passwd", path) }
		},
		"a directory": func(string, []byte) func(string) error {
			return func(path string) error { return os.Mkdir(path, 0o700) }
		},
		"a FIFO": func(string, []byte) func(string) error {
			return func(path string) error { return unix.Mkfifo(path, 0o600) }
		},
		"a huge file": func(string, []byte) func(string) error {
			return func(path string) error { return errors.Join(edited("{")(path), os.Truncate(path, 1<<40)) }
		},
		"more memory":     field(t, "settings.memory", 1<<40),
		"more processes":  field(t, "settings.pids", 4000),
		"a network":       field(t, "settings.network", "host"),
		"a writable root": field(t, "settings.read_only_root", false),
		"an image":        field(t, "settings.image", "../../root"),
		"no profile":      field(t, "settings.profile", ""),
		"another profile": field(t, "settings.profile", "none"),
		"another owner":   field(t, "owner.name", "uid:4242"),
		"another id":      field(t, "id", "witness"),
		"another key":     field(t, "key", keyOf(other)),
		"a negative ttl":  field(t, "settings.ttl", "-1s"),
	} {
		s := d.NewSession(t, api.SessionRequest{ID: "s1", Profile: "small"})
		d.NewProcess(t, "s1", "p", boxtest.ShellProcess("sleep 1000"))
		path := d.Record(t, "s1")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d.Kill()
		replaced(t, path, make(path, data))
		seen := len(d.Log())
		d.Restart()
		if _, err := d.Session(t.Context(), "s1"); !errors.Is(err, client.NotFound) {
			t.Errorf("%s: err = %v, want err is client.NotFound", name, err)
		}
		if text := d.Log()[seen:]; !strings.Contains(text, "level=ERROR") || !strings.Contains(text, path) {
			t.Errorf("%s: the log has\n%s", name, text)
		}
		boxtest.Eventually(t, name+": the box of the session is dead", func() bool { return !boxtest.Lives(int(s.PID)) })
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the record exists: err = %v, want err is os.ErrNotExist", name, err)
		}
		if now, err := d.Session(t.Context(), "witness"); err != nil || now.PID != witness.PID {
			t.Errorf("%s: the other session is %+v, %v, want no error and now.PID == %v", name, now, err, witness.PID)
		}
	}
	if got := d.Sh(t, "witness", "cat file"); got != "kept\n" {
		t.Errorf(`got %q, want "kept\n"`, got)
	}
	if err := d.DeleteSession(t.Context(), "witness"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

// field changes one field of a record.
func field(t *testing.T, name string, value any) func(string, []byte) func(string) error {
	return func(_ string, data []byte) func(string) error { return changed(t, data, map[string]any{name: value}) }
}

// Whatever a record may say differently, it gives more rights to neither the caller that it names nor the box.
func TestT66ARecordNeverWidens(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Env: map[string]string{"TOKEN": "s3cret"}})
	path := d.Record(t, "s1")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "s3cret") {
		t.Errorf("a value of the environment is in %s", data)
	}
	d.Kill()
	replaced(t, path, changed(t, data, map[string]any{
		"owner.uid": boxtest.OtherUID, "owner.gid": boxtest.OtherGID, "settings.env": []string{"LD_PRELOAD"},
	}))
	d.Restart()
	if a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/sessions/s1", ""), boxtest.Request("GET", "/v1/sessions", "")); a[0].Code != http.StatusNotFound || strings.Contains(string(a[1].Body), "s1") {
		t.Errorf(`a[0].Body = %s, a[1].Body = %s, want a[0].Code == 404 and a[1].Body without "s1"`,
			a[0].Body, a[1].Body)
	}
	if now, err := d.Session(t.Context(), "s1"); err == nil {
		if now.PID != s.PID || now.Owner != s.Owner {
			t.Errorf("now = %+v, want now.PID == %v and now.Owner == %v", now, s.PID, s.Owner)
		}
		if got := d.Sh(t, "s1", `echo "$TOKEN:$LD_PRELOAD"`); got != "s3cret:\n" {
			t.Errorf(`got %q, want "s3cret:\n"`, got)
		}
	} else if !errors.Is(err, client.NotFound) || !strings.Contains(d.Log(), path) {
		t.Errorf("err = %v, want err is client.NotFound and d.Log() containing %q", err, path)
	}
}

// A record without a box creates none, whatever it requests and whoever its owner.
func TestT66APlantedRecordMakesNoSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	path := d.Record(t, "s1")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	planted := filepath.Join(filepath.Dir(path), strings.Repeat("ab", 16)+".json")
	replaced(t, planted, edited(string(data)))
	d.Restart()
	list, err := d.Sessions(t.Context(), true)
	if err != nil || len(list) != 1 || !strings.Contains(d.Log(), planted) {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and d.Log() containing %q", list, err, planted)
	}
	if _, err := os.Lstat(planted); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record that was removed: err = %v, want err is os.ErrNotExist", err)
	}
}

// boxd does not touch foreign files among the records, and refuses to start: it names them, and the boxes live on until it does.
func TestT66WhatIsNoRecordIsNamed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Kill()
	for _, name := range []string{"notes.txt", "escape.json", strings.Repeat("g", 31) + ".json", strings.Repeat("ab", 16) + ".json"} {
		path := filepath.Join(d.State, "sessions", name)
		make := edited("{}")
		if len(name) == 37 { // one that boxd cannot remove
			make = func(path string) error { return os.MkdirAll(filepath.Join(path, "file"), 0o700) }
		}
		replaced(t, path, make)
		out, err := boxd(t, d)
		if err == nil || !strings.Contains(out, keyOf(path)) {
			t.Errorf("%s: out = %s, err = %v, want an error and out containing keyOf(path)", name, out, err)
		}
		if _, err := os.Lstat(path); err != nil || !boxtest.Lives(int(s.PID)) {
			t.Errorf("%s: %v, or the box is dead", name, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	d.Restart()
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID {
		t.Errorf("now = %+v, err = %v, want no error and now.PID == %v", now, err, s.PID)
	}
}

// A record can only name PID 1 of a box with the box's ids: a writer of records cannot make the keeper kill a process of the
// host, nor mount anything in its mount namespace.
func TestT66ARecordThatNamesAProcessOfTheHost(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	key := keyOf(d.Record(t, "s1"))
	path := filepath.Join(d.Dir, "run", "boxes", key, "record")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer victim.Wait()
	defer victim.Process.Kill()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", victim.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	began := strings.Fields(string(stat))[21] // proc(5); the name has no space
	keeper := d.Keeper()
	d.Kill()
	if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the keeper is dead", func() bool { return !boxtest.Lives(keeper) })
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		switch name, _, _ := strings.Cut(line, " "); name {
		case "pid":
			lines[i] = fmt.Sprint("pid ", victim.Process.Pid)
		case "start":
			lines[i] = "start " + began
		}
	}
	lie := strings.Join(lines, "\n")
	if lie == string(data) {
		t.Fatalf("nothing is changed in %s", data)
	}
	replaced(t, path, edited(lie))
	d.Restart()
	if _, err := d.Session(t.Context(), "s1"); !errors.Is(err, client.NotFound) || !strings.Contains(d.Log(), "it is another process") {
		t.Errorf(`err = %v, want err is client.NotFound and d.Log() containing "it is another process"`, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err == nil {
		t.Error("no error for the removal of a session whose record names a process of the host")
	}
	if !boxtest.Lives(victim.Process.Pid) || !boxtest.Lives(int(s.PID)) {
		t.Error("a process of the host, or the box, has been ended")
	}
	if err := errors.Join(unix.Kill(int(s.PID), unix.SIGKILL), os.RemoveAll(filepath.Dir(path))); err != nil {
		t.Error(err)
	}
	d.Stop()
	d.Restart() // this removes what is left of an unknown box
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "true")
}

// The keeper leaves a box alone if it cannot parse its record, and names it; the other boxes go on.
func TestT66DamagedRecordsOfTheKeeper(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(data string) func(path string) error{
		"empty":           func(string) func(string) error { return edited("") },
		"half":            func(data string) func(string) error { return edited(data[:len(data)/2]) },
		"another version": func(data string) func(string) error { return edited(strings.Replace(data, "box 1", "box 2", 1)) },
		"no process": func(data string) func(string) error {
			return edited(strings.Replace(data, "pid ", "pid 1", 1) + "more\n")
		},
		"a directory": func(string) func(string) error { return func(path string) error { return os.Mkdir(path, 0o700) } },
		"a FIFO":      func(string) func(string) error { return func(path string) error { return unix.Mkfifo(path, 0o600) } },
		"a link out": func(string) func(string) error {
			return func(path string) error { return os.Symlink("/etc/passwd", path) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := boxtest.Start(t, boxtest.Lasting)
			s, witness := d.NewSession(t, api.SessionRequest{ID: "s1"}), d.NewSession(t, api.SessionRequest{ID: "witness"})
			key := keyOf(d.Record(t, "s1"))
			path := filepath.Join(d.Dir, "run", "boxes", key, "record")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			keeper := d.Keeper()
			d.Kill()
			if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			boxtest.Eventually(t, "the keeper is dead", func() bool { return !boxtest.Lives(keeper) })
			replaced(t, path, make(string(data)))
			d.Restart()
			if now, err := d.Session(t.Context(), "witness"); err != nil || now.PID != witness.PID {
				t.Errorf("the other session: now = %+v, err = %v, want no error and now.PID == %v",
					now, err, witness.PID)
			}
			if _, err := d.Session(t.Context(), "s1"); !errors.Is(err, client.NotFound) || !strings.Contains(d.Log(), "DAMAGED RECORD") || !strings.Contains(d.Log(), key) {
				t.Errorf(`err = %v, want err is client.NotFound and d.Log() containing "DAMAGED RECORD" and d.Log() containing %q`,
					err, key)
			}
			if _, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "new"}); err != nil {
				t.Errorf("a new session: %v", err)
			}
			if !boxtest.Lives(int(s.PID)) {
				t.Error("a damaged record ended the box")
			}
			// As the log suggests: end it, and remove its directory.
			if err := errors.Join(unix.Kill(int(s.PID), unix.SIGKILL), os.RemoveAll(filepath.Dir(path))); err != nil {
				t.Error(err)
			}
			d.Stop()
			d.Restart()
			d.NewSession(t, api.SessionRequest{ID: "s1"})
			d.Sh(t, "s1", "true")
		})
	}
}
