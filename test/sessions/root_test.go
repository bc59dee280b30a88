// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// ofHost creates a directory below one of the host, with files of the given names and modes.
func ofHost(t *testing.T, parent string, files map[string]fs.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "boxd-test-") //nolint:usetesting // below a directory of the host
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	err = os.Chmod(dir, 0o755)
	for name, mode := range files {
		at := filepath.Join(dir, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("text of "+filepath.Base(name)+"\n"), 0o600), os.Chmod(at, mode))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// surface lists a directory of the host, with contents, owners, modes, times and attributes.
func surface(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err = errors.Join(err, unix.Lstat(name, &st)); err != nil {
			return err
		}
		data, _ := os.ReadFile(name)
		attributes := make([]byte, 256)
		n, _ := unix.Llistxattr(name, attributes)
		b.WriteString(strings.Join([]string{name, e.Type().String(), string(data), string(attributes[:max(n, 0)]), fs.FileMode(st.Mode).String()}, " "))
		b.WriteString(quantity.Size(st.Ino).String() + " " + quantity.Size(st.Uid).String() + " " + quantity.Size(uint64(st.Mtim.Nano())).String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheHostsProgramsInARootThatCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources+"[profiles.ready]\nread_only_root = false\nwarm = 1\n")
	lent := d.NamedMountSource(t, "one", 0)
	warm(t, d, 1)
	dir := ofHost(t, "/usr/local", map[string]fs.FileMode{"tool": 0o755, "lib/old": 0o644, "lib/other": 0o644})
	was := surface(t, dir)
	d.NewSession(t, api.SessionRequest{ID: "a", Profile: "ready"}) // taken from the warm boxes
	if took(d) != 1 {
		t.Errorf("it was not: d.Log() = %s, want took(d) == 1", d.Log())
	}
	d.NewSession(t, api.SessionRequest{ID: "b", ReadOnlyRoot: new(false)})
	if _, _, err := d.AddMount(t.Context(), "a", &api.MountRequest{Source: lent, Target: "/srv", Mode: "ro"}); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "a", "cat /srv/name"); got != "one" {
		t.Errorf(`a mount added to a running session: got %q, want "one"`, got)
	}
	d.Sh(t, "a", `set -e; cd `+dir+`; test "$(stat -c %u .)" = 1000
		echo new > lib/new; echo more >> lib/old; rm lib/other; mkdir -p /usr/lib/boxd-test; echo x > /usr/lib/boxd-test/x; mv tool tool2; chmod 700 tool2
		echo x > /etc/new; echo x >> /etc/passwd; ln -sf /bin/true /usr/local/bin/boxd-test; boxd-test; ls /etc/ld.so.cache /dev/null /proc/self/exe; cat /etc/hostname; /bin/sh -c true; python3 -c 1`)
	if got := d.Sh(t, "a", "cd "+dir+"; cat lib/*; ls"); got != "new\ntext of old\nmore\nlib\ntool2\n" {
		t.Errorf(`got %q, want "new\ntext of old\nmore\nlib\ntool2\n"`, got)
	}
	if got := d.Sh(t, "b", "cd "+dir+"; cat lib/*; ls; ls /etc/new /usr/local/bin/boxd-test 2>/dev/null; true"); got != "text of old\ntext of other\nlib\ntool\n" {
		t.Errorf(`in another session: got %q, want "text of old\ntext of other\nlib\ntool\n"`, got)
	}
	c := d.Client
	if diff, err := c.DiffRoot(t.Context(), "b", &api.RootDiff{}); err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{}", diff, err)
	}
	if now := surface(t, dir); now != was {
		t.Errorf("the host had\n%s\nand has\n%s", was, now)
	}
	d.Kill()
	d.Restart()
	if got := d.Sh(t, "a", "cat "+dir+"/lib/new && rm -r "+dir+"/lib && ls "+dir); got != "new\ntool2\n" {
		t.Errorf(`after boxd was killed: got %q, want "new\ntool2\n"`, got)
	}
	diff, err := c.DiffRoot(t.Context(), "a", &api.RootDiff{})
	paths := map[string]string{}
	for kind, list := range map[string][]api.File{"created": diff.Created, "changed": diff.Changed} {
		for _, f := range list {
			paths[f.Path] = kind
		}
	}
	for _, f := range diff.Removed {
		paths[f.Path] = "removed"
	}
	for path, kind := range map[string]string{
		dir + "/lib": "removed", dir + "/tool": "removed", dir + "/tool2": "created", "/etc/new": "created", "/etc/passwd": "changed", "/usr/lib/boxd-test": "created", "/usr/lib/boxd-test/x": "created",
	} {
		if paths[path] != kind {
			t.Errorf("%s is %q, want %s: %v, %+v", path, paths[path], kind, err, diff)
		}
	}
	if _, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{}); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "a", "cd "+dir+"; cat lib/*; ls; ls /etc/new /usr/lib/boxd-test 2>/dev/null; tail -n1 /etc/passwd"); got != "text of old\ntext of other\nlib\ntool\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" {
		t.Errorf(`undone: got %q, want "text of old\ntext of other\nlib\ntool\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"`,
			got)
	}
	if diff, err := c.DiffRoot(t.Context(), "a", &api.RootDiff{}); err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("undone: diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{}", diff, err)
	}
	if now := surface(t, dir); now != was {
		t.Errorf("the host had\n%s\nand has\n%s", was, now)
	}
	if _, err := c.CommitImage(t.Context(), "a", &api.ImageCommit{Name: "mine:1"}); boxtest.StatusOf(err) != 409 || !strings.Contains(err.Error(), "its root is the host's") {
		t.Errorf(`an image of it: err = %v, want boxtest.StatusOf(err) == 409 and err containing "its root is the host's"`,
			err)
	}
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), d.DeleteSession(t.Context(), "b")); err != nil {
		t.Fatal(err)
	}
}

// A writable root does not let the box user read host files that it may not read otherwise. To the attacker every file of the
// host seems to be its own.
func TestSecretsOfTheHostStayInARootThatCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	dir := ofHost(t, "/usr/local", map[string]fs.FileMode{
		"open": 0o644, "secret": 0o600, "group": 0o640, "run": 0o711, "script": 0o700, "theirs": 0o600, "theirgroup": 0o640, "suid": 0o6755, "closed/in": 0o644, "closed/deep/in": 0o644, "blind/open": 0o644, "blind/secret": 0o600,
	})
	err := errors.Join(os.Chown(dir+"/theirs", 1000, 1000), os.Chown(dir+"/theirgroup", 0, 1000), os.Chown(dir+"/group", 0, 1),
		os.Chmod(dir+"/closed", 0o700), os.Chmod(dir+"/blind", 0o711), os.Chmod(dir+"/suid", 0o755|fs.ModeSetuid|fs.ModeSetgid))
	if err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "a", ReadOnlyRoot: new(false)})
	// Every attack ends by printing what it got of a file. A file copied up by overlayfs leaves its text in the upper directory.
	attacks := `
		r=/var/lib/boxd/image
		for f; do
			n=$(basename $f); d=$(dirname $f); w=/workspace/$n
			cat $f; cat $r$f; cp $f $w && cat $w; head -c 10 $r$f; cat /proc/self/root$f; tar c $f | tr -d '\0'
			ln $f $d/hard && cat $d/hard; ln $f $w.hard && cat $w.hard; ln $r$f $w.hard2 && cat $w.hard2
			$f; sh $f; chmod 777 $r$f $r$d; chmod 777 $d && cat $f; chmod 777 $f && cat $f; touch $f && cat $f; chgrp 1 $f && cat $f; (echo >> $f) && cat $f
			mv $f $d/moved && cat $d/moved && mv $d/moved $f
		done
		python3 - "$@" <<-E
			import os, sys
			def attempt(do, *args):
			    try: print(do(*args))
			    except Exception as e: pass
			def opened(f, flags):
			    fd = os.open(f, flags)
			    return open("/proc/self/fd/%d" % fd).read(), os.sendfile(1, fd, 0, 100)
			for f in sys.argv[1:]:
			    for name in "user.overlay.metacopy", "user.overlay.redirect", "user.overlay.opaque", "trusted.overlay.metacopy", "trusted.overlay.redirect":
			        attempt(os.setxattr, f, name, b"/usr/local")
			        attempt(os.setxattr, os.path.dirname(f), name, b"/usr/local")
			    for flags in os.O_PATH, os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_NOATIME: attempt(opened, f, flags)
		E
		for f; do d=$(dirname $f); mv $d $d.moved && cat $d.moved/*; done; true`
	attack := func(id string, files ...string) string {
		r := d.Result(t, id, api.ExecRequest{Argv: append([]string{"/bin/sh", "-c", attacks, "sh"}, files...), Timeout: new(quantity.Duration(boxtest.Longest))})
		if r.Status != "exited" {
			t.Errorf(`not all of it was tried: r.Status = %s, want "exited"`, r.Status)
		}
		return r.Stdout + r.Stderr
	}
	var secrets []string
	for _, name := range []string{"secret", "group", "run", "script", "theirs", "theirgroup", "closed/in", "closed/deep/in", "blind/secret"} {
		secrets = append(secrets, dir+"/"+name)
	}
	if got := attack("a", secrets...); strings.Contains(strings.ReplaceAll(strings.ReplaceAll(got, "text of open", ""), "text of suid", ""), "text of") {
		t.Errorf(`the host's secrets: got %s, want strings.ReplaceAll(strings.ReplaceAll(got, "text of open", ""), "text of suid", "") without "text of"`,
			got)
	}
	d.NewSession(t, api.SessionRequest{ID: "b", ReadOnlyRoot: new(false)})
	for _, f := range []string{dir + "/open", dir + "/blind/open", dir + "/suid"} { // the attacks do find readable files
		if got := attack("b", f); strings.Count(got, "text of") < 15 {
			t.Errorf(`%s: got %s, want strings.Count(got, "text of") >= 15`, f, got)
		}
	}
	// Setuid bits give the box user nothing, and it cannot create a device.
	if got := d.Sh(t, "a", `cp /bin/cat /usr/local/cat; chmod 6777 /usr/local/cat; /usr/local/cat /proc/self/status | grep -c '^Uid:.*1000.1000.1000.1000'; mknod /usr/local/null c 1 3 2>/dev/null; ls /usr/local/null 2>/dev/null; true`); got != "1\n" {
		t.Errorf(`bits: got %q, want "1\n"`, got)
	}
	for line := range strings.Lines(d.Sh(t, "a", "cat /proc/self/mountinfo")) {
		f := strings.Fields(line)
		ours := f[4] == "/" || strings.HasPrefix(f[4], "/usr") || strings.HasPrefix(f[4], "/var/lib/boxd")
		if ours && (!strings.Contains(f[5], "nosuid") || !strings.Contains(f[5], "nodev")) || strings.HasPrefix(f[4], "/var/lib/boxd") && !strings.HasPrefix(f[5], "ro,") {
			t.Errorf(`mounted is %s, want (ours == false or f[5] containing "nosuid" and f[5] containing "nodev") and (f[4] not starting with "/var/lib/boxd" or f[5] starting with "ro,")`,
				line)
		}
	}
	// The upper directory of overlayfs has no secret text either.
	err = filepath.WalkDir(filepath.Join(d.State, "workspaces"), func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		for _, secret := range []string{"secret", "group", "run", "script", "theirs", "theirgroup", "in"} {
			if strings.Contains(string(data), "text of "+secret+"\n") {
				t.Errorf(`%s has %q, want data without "text of " + secret + "\n"`, name, data)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The workspace of a session with a writable root can be kept under a name, without the root's changes; a session with a named
// workspace has its root's changes beside it.
func TestAWorkspaceIsKeptBesideARootThatCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.Warm()
	before := d.Look()
	own := d.NewSession(t, api.SessionRequest{ID: "own", ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB)}})
	fill := func(id string, s *api.Session) { // with quotas on the host, the root's changes have one
		if got := d.Result(t, id, boxtest.Shell("cd /usr/lib && head -c 64M /dev/zero > big; rm -f big")).Stderr; s.Enforcement["workspace"] != "none" && !strings.Contains(got, "quota") && !strings.Contains(got, "No space") {
			t.Errorf(`64 MiB in the root of %s: got %q, want s.Enforcement["workspace"] == "none" or got containing "quota" or got containing "No space"`,
				id, got)
		}
	}
	fill("own", &own)
	d.Sh(t, "own", "mkdir upper work; echo text > file; echo x > /usr/local/boxd-test")
	if w, err := d.KeepWorkspace(t.Context(), "own", "kept"); err != nil || w.Name != "kept" {
		t.Fatalf(`w = %+v, err = %v, want no error and w.Name == "kept"`, w, err)
	}
	if left, err := filepath.Glob(filepath.Join(d.State, "workspaces", "*")); err != nil || len(left) != 0 {
		t.Errorf("left are %q, %v, want no error and len(left) == 0", left, err)
	}
	a := d.NewSession(t, api.SessionRequest{ID: "a", Workspace: "kept", ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB)}})
	fill("a", &a)
	if got := d.Sh(t, "a", "ls; ls /usr/local/boxd-test 2>/dev/null; echo x > /usr/local/boxd-test; echo more >> file"); got != "file\nupper\nwork\n" {
		t.Errorf(`got %q, want "file\nupper\nwork\n"`, got)
	}
	// The workspace of a session with a read-only root that happens to have directories of those names is kept whole.
	d.NewSession(t, api.SessionRequest{ID: "plain"})
	d.Sh(t, "plain", "mkdir upper work workspace; echo text > file")
	if _, err := d.KeepWorkspace(t.Context(), "plain", "whole"); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"kept": "file\nupper\nwork\ntext\nmore\n", "whole": "file\nupper\nwork\nworkspace\ntext\n"} {
		d.NewSession(t, api.SessionRequest{ID: name, Workspace: name})
		if got := d.Sh(t, name, "ls; cat file"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if err := errors.Join(d.DeleteSession(t.Context(), name), d.DeleteWorkspace(t.Context(), name)); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// Such roots share one copy of the host's /etc, which cannot be changed. Running boxes keep theirs when the keeper is replaced, and
// it is removed when a keeper starts without boxes.
func TestRootsShareTheirCopyOfTheHost(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\nread_only_root = false\n")
	copies := func() int {
		list, err := os.ReadDir(filepath.Join(d.State, "host-bases"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return len(list)
	}
	killed := func() {
		t.Helper()
		keeper := d.Keeper()
		if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		boxtest.Eventually(t, "another keeper runs", func() bool { return d.Keeper() != keeper })
	}
	for _, id := range []string{"a", "b"} {
		d.NewSession(t, api.SessionRequest{ID: id})
	}
	before := d.Sh(t, "b", "cat /etc/services")
	d.Sh(t, "a", "echo more >> /etc/services; rm -r /etc/alternatives; cd /var/lib/boxd/image/etc; ! touch new; ! touch services; ! chmod 600 services")
	if got := d.Sh(t, "b", "ls -d /etc/alternatives; cat /etc/services"); got != "/etc/alternatives\n"+before {
		t.Errorf(`in another session: %d bytes are %d, want got == "/etc/alternatives\n" + before`,
			len(before), len(got))
	}
	same := func(id string) string { return d.Sh(t, id, "stat -c %i /var/lib/boxd/image/etc/services") }
	for n := 1; same("a") != same("b"); n++ { // what another test has changed below /etc in between makes a new copy
		if n == 5 {
			t.Fatal("every session has a copy of its own, want a shared one")
		}
		for _, id := range []string{"a", "b"} {
			if err := d.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			d.NewSession(t, api.SessionRequest{ID: id})
		}
	}
	// A lease of one would stop each program of the others that opens the file.
	if got := d.Sh(t, "a", `python3 -c "
import fcntl
try: fcntl.fcntl(open('/var/lib/boxd/image/etc/services'), 1024, 1)
except OSError as e: print(e.errno)"`); got != "22\n" {
		t.Errorf(`a lease: got %q, want "22\n"`, got)
	}
	killed()
	d.NewSession(t, api.SessionRequest{ID: "c"})
	for _, id := range []string{"b", "c"} {
		if got := d.Sh(t, id, "cat /etc/services"); got != before {
			t.Errorf("%s, after the keeper was killed: %d bytes are %d, want got == before", id, len(before), len(got))
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	killed()
	boxtest.Eventually(t, "no copy of the host's files is left", func() bool { return copies() == 0 })
}
