// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// mount adds a mount, which must be new, to a session.
func mount(t *testing.T, d *boxtest.Daemon, id string, req api.MountRequest) api.SessionMount {
	t.Helper()
	if req.Mode == "" {
		req.Mode = "ro"
	}
	m, isNew, err := d.AddMount(t.Context(), id, &req)
	if err != nil || !isNew {
		t.Fatalf("mount %+v: new %v, %v", req, isNew, err)
	}
	return m
}

func unmount(t *testing.T, d *boxtest.Daemon, id, target string) {
	t.Helper()
	if err := d.RemoveMount(t.Context(), id, target, false); err != nil {
		t.Fatal(err)
	}
}

// problemOf returns the problem of a refusal by boxd.
func problemOf(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("not refused by boxd: err = %v, want ok == true", err)
	}
	return e
}

// A mount is added and removed while a program runs, which sees it at once and cannot write to it; directories that were created
// as its mount point are removed with it, wherever they are.
func TestALivingSessionIsGivenMounts(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for _, target := range []string{"/mnt/deep/er", "/data", "/workspace/.in/one", "/home/box/one", "/tmp/one"} {
		before := d.Sh(t, "s", "find /mnt /data /workspace /home/box /tmp | sort")
		m := mount(t, d, "s", api.MountRequest{Source: source, Target: target, NoSymlinks: true})
		if !m.Live || m.Since == nil || !slices.Equal(m.Attributes, []string{"ro", "nosuid", "nodev", "nosymfollow"}) {
			t.Errorf("mounted %+v", m)
		}
		if got := d.Sh(t, "s", "cat "+target+"/name; ! touch "+target+"/x; grep -c ' "+target+" ro,nosuid,nodev' /proc/self/mountinfo"); !strings.HasPrefix(got, "one1\n") {
			t.Errorf(`%s in the box: got %q, want got starting with "one1\n"`, target, got)
		}
		if _, isNew, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: source, Target: target, Mode: "ro", NoSymlinks: true}); err != nil || isNew {
			t.Errorf("once more: new %v, %v", isNew, err)
		}
		list, err := d.Mounts(t.Context(), "s")
		if err != nil || len(list) != 1 || list[0].Target != target {
			t.Errorf("listed %+v, %v", list, err)
		}
		unmount(t, d, "s", target)
		if after := d.Sh(t, "s", "find /mnt /data /workspace /home/box /tmp | sort"); after != before {
			t.Errorf("%s has left something: before %q, after %q", target, before, after)
		}
		if e := problemOf(t, d.RemoveMount(t.Context(), "s", target, false)); e.Status != 404 {
			t.Errorf("removed twice: e.Problem = %+v, want e.Status == 404", e.Problem)
		}
	}
	if _, err := os.Stat(filepath.Join(source, "name")); err != nil {
		t.Error(err)
	}
}

// A program that reads during replacements always finds one of the two directories; one whose working directory is the old one
// stays there.
func TestAMountIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	one := d.NamedMountSource(t, "one", 0)
	d.NamedMountSource(t, "two", 0)
	two := filepath.Join(filepath.Dir(one), "two")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	mount(t, d, "s", api.MountRequest{Source: one, Target: "/mnt/x"})
	process(t, d, "s", "sits", &api.ProcessRequest{Argv: []string{"sh", "-c", "cd /mnt/x; touch /tmp/sits; exec sleep 10000"}})
	boxtest.Eventually(t, "a process is in the first directory", func() bool { return d.Result(t, "s", boxtest.Shell("test -e /tmp/sits && echo yes")).Stdout == "yes\n" })
	process(t, d, "s", "reads", &api.ProcessRequest{Argv: []string{"sh", "-c", `
		while ! [ -e /workspace/stop ]; do
			read -r name </mnt/x/name || [ -n "$name" ] || echo gap >>/workspace/gaps
			case $name in one) one=1 ;; two) [ -z "$two" ] && two=1 && touch /workspace/two ;; *) echo "$name" >>/workspace/gaps ;; esac
		done; touch /workspace/stopped`}})
	other := api.MountRequest{Source: one, Target: "/mnt/x", Mode: "ro"}
	if _, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: two, Target: "/mnt/x", Mode: "ro"}); problemOf(t, err).Status != 409 {
		t.Errorf("replaced without replace = true: err = %v, want problemOf(t, err).Status == 409", err)
	}
	const rounds = 50 // fewer than can be stacked on an old kernel
	for i := range rounds {
		other.Source, other.Replace = []string{two, one}[i%2], true
		if _, isNew, err := d.AddMount(t.Context(), "s", &other); err != nil || isNew {
			t.Fatalf("replaced: new %v, %v", isNew, err)
		}
		if i == 0 {
			boxtest.Eventually(t, "the reader finds the second directory", func() bool {
				return strings.Contains(d.Sh(t, "s", "ls /workspace"), "two\n")
			})
		}
	}
	d.Sh(t, "s", "touch /workspace/stop")
	boxtest.Eventually(t, "the reader stops", func() bool { return strings.Contains(d.Sh(t, "s", "ls /workspace"), "stopped") })
	if got := d.Sh(t, "s", "cat /workspace/gaps 2>&1; ls /workspace"); !strings.Contains(got, "two\n") || strings.Contains(got, "gap\n") || strings.Contains(got, "\ngaps\n") {
		t.Errorf(`the reader has found %q, want got containing "two\n" and got without "gap\n" and got without "\ngaps\n"`,
			got)
	}
	// The process in the first directory keeps it, and no process holds up the removal.
	unmount(t, d, "s", "/mnt/x")
	if got := d.Sh(t, "s", "grep -c /mnt/x /proc/self/mountinfo || ls -A /mnt"); got != "0\n" {
		t.Errorf(`left of all mounts: got %q, want "0\n"`, got)
	}
}

// A mount in use is not removed: the answer names the processes and what they have open. With force it is removed, and what was
// open stays open.
func TestABusyMountNamesWhoUsesIt(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	boxtest.RequireProgram(t, "sleep")
	program, err := os.ReadFile("/bin/sleep")
	if err == nil {
		err = os.WriteFile(filepath.Join(source, "sits"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for _, tc := range []struct{ name, run, how, path, program string }{
		{"directory", "cd /mnt/x; touch /workspace/ready; exec sleep 10000", "cwd", "/mnt/x", "sleep"},
		{"program", "exec 7</mnt/x/name; touch /workspace/ready; exec /mnt/x/sits 10000", "exe", "/mnt/x/sits", "sits"},
		{"file", "exec 7</mnt/x/name; touch /workspace/ready; read -r line </workspace/go; cat <&7 >/workspace/got; exec sleep 10000", "7", "/mnt/x/name", "sh"},
	} {
		mount(t, d, "s", api.MountRequest{Source: source, Target: "/mnt/x"})
		d.Sh(t, "s", "rm -f /workspace/*; mkfifo /workspace/go")
		process(t, d, "s", tc.name, &api.ProcessRequest{Argv: []string{"sh", "-c", tc.run}})
		boxtest.Eventually(t, "the mount is in use", func() bool { return strings.Contains(d.Sh(t, "s", "ls /workspace"), "ready") })
		var users []api.MountUser
		boxtest.Eventually(t, "the mount is in use by the expected process", func() bool {
			err := d.RemoveMount(t.Context(), "s", "/mnt/x", false)
			if e := problemOf(t, err); e.Status != 409 {
				t.Fatal(err)
			}
			users = client.MountUsersOf(err)
			return len(users) == 1 && users[0].How == tc.how && users[0].Program == tc.program
		})
		if u := users[0]; u.Path != tc.path || u.PID < 2 {
			t.Errorf("%s: in use by %+v", tc.name, u)
		}
		if err := d.RemoveMount(t.Context(), "s", "/mnt/x", true); err != nil {
			t.Errorf("%s: by force: %v", tc.name, err)
		}
		if got := d.Sh(t, "s", "ls -A /mnt"); got != "" {
			t.Errorf(`%s: left is %q, want got == ""`, tc.name, got)
		}
		if tc.name == "file" {
			d.Sh(t, "s", "echo >/workspace/go")
			boxtest.Eventually(t, "the open file was read to its end", func() bool { return d.Sh(t, "s", "cat /workspace/got || true") == "one" })
		}
		if err := d.DeleteProcess(t.Context(), "s", tc.name); err != nil {
			t.Fatal(err)
		}
	}
	mount(t, d, "s", api.MountRequest{Source: source, Target: "/mnt/x"})
	unmount(t, d, "s", "/mnt/x") // with no user left
}

// Mounts survive the death of boxd and of its keeper, and can be removed afterwards.
func TestLiveMountsOutliveBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	d.NamedMountSource(t, "two", 0)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for _, target := range []string{"/mnt/a", "/mnt/b", "/workspace/in/c"} {
		mount(t, d, "s", api.MountRequest{Source: source, Target: target})
	}
	before, err := d.Mounts(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	d.Restart()
	after, err := d.Mounts(t.Context(), "s")
	if err != nil || len(after) != 3 || len(before) != 3 {
		t.Fatalf("before %+v, after %+v, %v", before, after, err)
	}
	for i := range after {
		if after[i].Target != before[i].Target || !after[i].Since.Equal(*before[i].Since) || !slices.Equal(after[i].Attributes, before[i].Attributes) {
			t.Errorf("before %+v, after %+v", before[i], after[i])
		}
	}
	unmount(t, d, "s", "/mnt/a")
	if err := syscall.Kill(d.Keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "another keeper runs", func() bool {
		_, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: filepath.Join(filepath.Dir(source), "two"), Target: "/mnt/b", Mode: "ro", Replace: true})
		return err == nil
	})
	if got := d.Sh(t, "s", "cat /mnt/b/name /workspace/in/c/name"); got != "twoone" {
		t.Errorf(`found %q, want "twoone"`, got)
	}
	unmount(t, d, "s", "/mnt/b")
	unmount(t, d, "s", "/workspace/in/c")
	if got := d.Sh(t, "s", "ls -A /mnt /workspace"); got != "/mnt:\n\n/workspace:\n" {
		t.Errorf(`left is %q, want "/mnt:\n\n/workspace:\n"`, got)
	}
}

// Nothing that was created as a mount point stays in a host directory: neither when the mount is removed nor when the session
// ends, in any way.
func TestMountsLeaveNothingInDirectoriesOfTheHost(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	work := d.NamedMountSource(t, "work", 1000)
	files := func() []string { return entriesOf(t, work) }
	clean := []string{"name"}
	for name, end := range map[string]func(s api.Session){
		"removed": func(api.Session) {
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
		},
		"killed": func(s api.Session) {
			if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		"killed without boxd": func(s api.Session) {
			d.Kill()
			if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			d.Restart()
		},
	} {
		s := d.NewSession(t, api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: work, Target: "/workspace", Mode: "rw"}}})
		mount(t, d, "s", api.MountRequest{Source: source, Target: "/workspace/.in/deep/a"})
		mount(t, d, "s", api.MountRequest{Source: source, Target: "/workspace/.in/deep/b"})
		if got := files(); !slices.Equal(got, []string{".in", "name"}) {
			t.Errorf(`%s: while it is mounted the directory has %q, want got == []string{".in", "name"}`, name, got)
		}
		// The first has created parents that the second needs too.
		unmount(t, d, "s", "/workspace/.in/deep/a")
		if got := d.Sh(t, "s", "cat /workspace/.in/deep/b/name; ls /workspace/.in/deep"); got != "oneb\n" {
			t.Errorf(`%s: left is %q, want got == "oneb\n"`, name, got)
		}
		end(s)
		boxtest.Eventually(t, "the directory is as it was: "+name, func() bool { return slices.Equal(files(), clean) })
		boxtest.Eventually(t, "the session has ended", func() bool {
			_, err := d.Session(t.Context(), "s")
			return errors.Is(err, client.NotFound)
		})
	}
}

func entriesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// The same for mounts that a session is created with: existing files stay, and missing parts of a target are created and removed
// again, however the session ends, and even if its start fails.
func TestMountsOfTheBeginningLeaveNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	work := d.NamedMountSource(t, "work", 1000)
	d.NamedMountSource(t, "work/there", 1000)
	before := func() bool {
		return slices.Equal(entriesOf(t, work), []string{"name", "there"}) && slices.Equal(entriesOf(t, work+"/there"), []string{"name"})
	}
	request := api.SessionRequest{ID: "s", Mounts: []api.Mount{
		{Source: work, Target: "/workspace", Mode: "rw"},
		{Source: source, Target: "/workspace/.in/deep/a", Mode: "ro"},
		{Source: source, Target: "/workspace/.in/b", Mode: "ro"},
		{Source: source, Target: "/workspace/there/x", Mode: "ro"},
	}}
	kill := func(s api.Session) {
		if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for name, end := range map[string]func(s api.Session){
		"removed": func(api.Session) {
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
		},
		"killed":              kill,
		"killed without boxd": func(s api.Session) { d.Kill(); kill(s); d.Restart() },
		"boxd killed over it": func(api.Session) {
			d.Kill()
			found, err := filepath.Glob(filepath.Join(d.Dir, "state", "sessions", "*.json"))
			if err != nil || len(found) != 1 {
				t.Fatalf("records: found = %q, err = %v, want no error and len(found) == 1", found, err)
			}
			record, err := os.ReadFile(found[0])
			if err == nil {
				err = os.WriteFile(found[0], append([]byte(`{"ending":true,`), record[1:]...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			d.Restart()
		},
		"after another boxd": func(api.Session) {
			d.Kill()
			d.Restart()
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := d.NewSession(t, request)
		if got := d.Sh(t, "s", "cat /workspace/.in/deep/a/name /workspace/.in/b/name /workspace/there/x/name"); got != "oneoneone" {
			t.Errorf(`%s: mounted is %q, want got == "oneoneone"`, name, got)
		}
		end(s)
		boxtest.Eventually(t, "the directory is as it was: "+name, before)
		boxtest.Eventually(t, "the session has ended", func() bool {
			_, err := d.Session(t.Context(), "s")
			return errors.Is(err, client.NotFound)
		})
	}
	// The third mount fails after the first two were made.
	if err := os.WriteFile(work+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	request.Mounts[3].Target = "/workspace/file/x"
	if s, _, err := d.CreateSession(t.Context(), &request); err == nil {
		t.Errorf("mounted below a file: s = %+v, want an error", s)
	}
	if got := entriesOf(t, work); !slices.Equal(got, []string{"file", "name", "there"}) {
		t.Errorf(`after a start that has failed: got %q, want []string{"file", "name", "there"}`, got)
	}
}

// When sessions share a directory, the end of one removes nothing that another needs, no matter which of them created the mount
// points, and the last leaves nothing.
func TestSessionsThatShareADirectoryKeepTheirMounts(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	work := d.NamedMountSource(t, "work", 1000)
	link := filepath.Join(d.Dir, "lent", "link")
	if err := os.Symlink("work", link); err != nil {
		t.Fatal(err)
	}
	at := func(id, source string, more ...api.Mount) api.Session {
		return d.NewSession(t, api.SessionRequest{ID: id, Mounts: append([]api.Mount{{Source: source, Target: "/data/" + id, Mode: "rw"}}, more...)})
	}
	has := func(id, target string) {
		t.Helper()
		if got := d.Sh(t, id, "cat /data/"+id+"/"+target+"/name"); got != "one" {
			t.Errorf("%s has %q on %s", id, got, target)
		}
	}
	end := func(id string) {
		t.Helper()
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	at("a", work, api.Mount{Source: source, Target: "/data/a/.in/x/y", Mode: "ro"}) // creates all of it
	at("b", link, api.Mount{Source: source, Target: "/data/b/.in/x", Mode: "ro"})
	at("c", work)
	mount(t, d, "c", api.MountRequest{Source: source, Target: "/data/c/.in/x"})
	mount(t, d, "c", api.MountRequest{Source: source, Target: "/data/c/.in/z"})
	at("d", link)
	mount(t, d, "d", api.MountRequest{Source: source, Target: "/data/d/.in/z"})
	end("a")
	if got := entriesOf(t, work+"/.in/x"); len(got) != 0 {
		t.Errorf("directories that only the first session needed: %q, want len(got) == 0", got)
	}
	has("b", ".in/x")
	has("c", ".in/x")
	unmount(t, d, "c", "/data/c/.in/z") // created by c, and needed by d
	has("d", ".in/z")
	d.Kill()
	d.Restart()
	end("b")
	has("c", ".in/x")
	unmount(t, d, "c", "/data/c/.in/x")
	if got := entriesOf(t, work+"/.in"); !slices.Equal(got, []string{"z"}) {
		t.Errorf("the directory has %q when only session d is left", got)
	}
	has("d", ".in/z")
	// The box that was to remove it dies while no boxd runs.
	s, err := d.Session(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	has("d", ".in/z")
	end("d")
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("the directory has %q", left)
		}
	}()
	boxtest.Eventually(t, "the last session has left no mount point", func() bool { // what was c may still be in clean-up
		left = entriesOf(t, work)
		return slices.Equal(left, []string{"name"})
	})
	// A session with a read-only mount of the directory depends on mount points of another just the same.
	at("f", work, api.Mount{Source: source, Target: "/data/f/.in/x", Mode: "ro"})
	d.NewSession(t, api.SessionRequest{ID: "e", Mounts: []api.Mount{{Source: link, Target: "/data/e", Mode: "ro"}, {Source: source, Target: "/data/e/.in/x", Mode: "ro"}}})
	end("f")
	has("e", ".in/x")
	end("e")
	if got := entriesOf(t, work); !slices.Equal(got, []string{"name"}) {
		t.Errorf(`the read-only session has left %q, want []string{"name"}`, got)
	}
}

// Mounts of a running session follow the same rules as those of a new one.
func TestLiveMountsObeyTheRules(t *testing.T) {
	t.Parallel()
	dir := boxtest.TempDir(t)
	for _, name := range []string{"lent/ok", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../other", filepath.Join(dir, "lent", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "lent", "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := boxtest.Start(t, fmt.Sprintf("[mounts]\nallow = [%q]\n[policy.ci]\nprincipals = [\"uid:4242\"]\nmounts = [%q]\n[profiles.bare]\nmounts = \"none\"\nlocked = [\"mounts\"]\n", dir, dir+"/lent"))
	add := func(id, source, target string) string {
		return boxtest.Request("PUT", "/v1/sessions/"+id+"/mounts", fmt.Sprintf(`{"source":%q,"target":%q,"mode":"ro"}`, source, target))
	}
	all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", fmt.Sprintf(`{"id":"s","mounts":[{"source":%q,"target":"/data/made/with","mode":"ro"}]}`, dir+"/lent/ok")),
		boxtest.Request("POST", "/v1/sessions", `{"id":"bare","profile":"bare"}`), add("s", dir+"/lent/ok", "/mnt/x"))
	for _, a := range all {
		if a.Code != http.StatusCreated {
			t.Fatalf("a.Body = %s, want a.Code == 201", a.Body)
		}
	}
	for _, a := range d.AsUser(t, boxtest.OtherUID, add("s", dir+"/other", "/mnt/y"), add("s", dir+"/lent/link", "/mnt/y")) {
		denied(t, a, http.StatusForbidden, "mount", "policy.ci.mounts")
	}
	for i, tc := range []struct {
		id, source, target string
		status             int
		field              string
	}{
		{"bare", "/lent/ok", "/mnt/y", 403, "mode"},
		{"s", "/lent/closed", "/mnt/y", 400, "source"},
		{"s", "/lent/none", "/mnt/y", 400, "source"},
		{"s", "/lent/ok/../ok", "/mnt/y", 400, "source"},
		{"s", "/lent/ok", "/etc/y", 400, "target"},
		{"s", "/lent/ok", "/mnt/../etc", 400, "target"},
		{"s", "/lent/ok", "/tmp", 400, "target"},
		{"s", "/lent/ok", "/home/box", 400, "target"},
		{"s", "/lent/ok", "/workspace", 400, "target"},
		{"s", "/lent/ok", "/data/made/with", 409, "target"},
		{"s", "/lent/ok", "/data", 409, "target"},
		{"s", "/lent/ok", "/mnt", 409, "target"},
		{"none", "/lent/ok", "/mnt/y", 404, ""},
	} {
		a := d.AsUser(t, boxtest.OtherUID, add(tc.id, dir+tc.source, tc.target))[0]
		if p := a.Problem(t); p.Status != tc.status || p.Field != tc.field {
			t.Errorf("%d: tc = %+v, p = %+v, want p.Status == %v and p.Field == %v", i, tc, p, tc.status, tc.field)
		}
	}
	// A foreign session is not found.
	if a := d.AsUser(t, 4343, add("s", dir+"/lent/ok", "/mnt/y"))[0]; a.Code != http.StatusNotFound {
		t.Errorf("another caller: a.Body = %s, want a.Code == 404", a.Body)
	}
}

// Names of directories are bytes. One that is not UTF-8 is mounted at creation and in a running session, at targets that are not
// UTF-8 either, is listed unchanged, is restored with a stopped session and by the next boxd, and is removed with its directories.
func TestPathsOfMountsAreBytes(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources+boxtest.Kept)
	const name = "caf\xe9"
	one, two, work := d.NamedMountSource(t, name, 4242), d.NamedMountSource(t, name+"2", 4242), d.MountSource(t, name+"3", 4242)
	for _, dir := range []string{one, two} {
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(filepath.Base(dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	space(t, d, "in")
	s := d.NewSession(t, api.SessionRequest{
		ID: "s", Mounts: []api.Mount{{Source: one, Target: "/mnt/t\xe8", Mode: "ro"}, {Source: work, Target: "/workspace", Mode: "rw"}},
		Inputs: []api.Input{{Workspace: "in", Target: "/data/i\xea"}},
	})
	if m := s.Mounts[0]; client.PathOf(m.Source, m.SourceBase64) != one || client.PathOf(m.Target, m.TargetBase64) != "/mnt/t\xe8" || !utf8.ValidString(m.Source+m.Target) {
		t.Errorf(`m = %+v, want client.PathOf(m.Source, m.SourceBase64) == one and client.PathOf(m.Target, m.TargetBase64) == "/mnt/t\xe8" and utf8.ValidString(m.Source + m.Target)`,
			m)
	}
	if in := s.Inputs[0]; client.PathOf(in.Target, in.TargetBase64) != "/data/i\xea" {
		t.Errorf(`in = %+v, want client.PathOf(in.Target, in.TargetBase64) == "/data/i\xea"`, in)
	}
	const live = "/workspace/l\xeb/t" // directories of the host are made for it
	m := mount(t, d, "s", api.MountRequest{Source: two, Target: live})
	if client.PathOf(m.Source, m.SourceBase64) != two || client.PathOf(m.Target, m.TargetBase64) != live {
		t.Errorf("m = %+v, want client.PathOf(m.Source, m.SourceBase64) == two and client.PathOf(m.Target, m.TargetBase64) == live",
			m)
	}
	if _, isNew, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: two, Target: live, Mode: "ro"}); err != nil || isNew {
		t.Errorf("the same again: new %v, %v", isNew, err)
	}
	has := func(when string) {
		t.Helper()
		if got := d.Sh(t, "s", "(cat /mnt/t\xe8/file /workspace/l\xeb/t/file; ls -d /data/i\xea) | LC_ALL=C tr '\\351\\352' EI"); got != "cafEcafE2/data/iI\n" {
			t.Errorf(`%s it has %q, want got == "cafEcafE2/data/iI\n"`, when, got)
		}
		list, err := d.Mounts(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, m := range list {
			paths = append(paths, client.PathOf(m.Source, m.SourceBase64)+" "+client.PathOf(m.Target, m.TargetBase64))
		}
		if want := []string{one + " /mnt/t\xe8", work + " /workspace", two + " " + live}; !slices.Equal(paths, want) {
			t.Errorf("%s they are %q, want %q", when, paths, want)
		}
	}
	has("at first")
	d.Kill()
	d.Restart()
	has("with the next boxd")
	stop(t, d, "s")
	d.Kill()
	d.Restart()
	startAgain(t, d, "s")
	has("started again")
	definition, err := d.Definition(t.Context(), "s", false)
	if err != nil {
		t.Fatal(err)
	}
	var again api.SessionRequest // for a box like it: a path is there in one form
	if err := json.Unmarshal(definition.Session, &again); err != nil || len(again.Mounts) != 3 || again.Mounts[2].Target != "" || client.PathOf("", again.Mounts[2].TargetBase64) != live || again.Inputs[0].Target != "" {
		t.Errorf("%v: %s", err, definition.Session)
	}
	if err := d.RemoveMount(t.Context(), "s", live, false); err != nil {
		t.Fatal(err)
	}
	mount(t, d, "s", api.MountRequest{Source: two, Target: live})
	if a := d.Raw(t, "DELETE", "/v1/sessions/s/mounts?target_base64="+url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(live))), ""); a.Code != http.StatusNoContent {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 204", a.Code, a.Body)
	}
	if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
		t.Errorf("directories made for it are left: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
	a := d.Raw(t, "PUT", "/v1/sessions/s/mounts", `{"source":"/x","source_base64":"L3g=","target":"/mnt/x"}`)
	if p := a.Problem(t); p.Field != "source_base64" {
		t.Errorf(`p = %+v, want p.Field == "source_base64"`, p)
	}
	a = d.Raw(t, "POST", "/v1/sessions", `{"mounts":[{"source":"","source_base64":"?","target":"/mnt/x"}]}`)
	if p := a.Problem(t); p.Field != "mounts[0].source_base64" {
		t.Errorf(`p = %+v, want p.Field == "mounts[0].source_base64"`, p)
	}
}
