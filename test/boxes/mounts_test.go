// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
)

// belongs checks the owner on the host of what a box has created.
func belongs(t *testing.T, dir string, uid, gid uint32, names ...string) {
	t.Helper()
	for _, name := range names {
		if st := statOf(t, filepath.Join(dir, name)); st.Uid != uid || st.Gid != gid {
			t.Errorf("%s belongs to %d:%d on the host, want %d:%d", name, st.Uid, st.Gid, uid, gid)
		}
	}
}

func TestWhatABoxMakesInAMountBelongsToItsOwner(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "rw", owner)
	for _, target := range []string{"/mnt/rw", "/workspace", "/data", "/home/box/project"} {
		b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: target, Mode: "rw"}))
		b.sh("cd " + target + "; echo text > file; mkdir -p dir/sub; ln -s file link; ln file hard; mkfifo fifo; cp /usr/bin/env program; ./program true")
		if got := b.sh("cd " + target + "; stat -c %u:%g . file dir/sub link fifo | sort -u"); got != "1000:1000\n" {
			t.Errorf("%s: in the box they belong to %q", target, got)
		}
		belongs(t, dir, owner, owner, "file", "dir", "dir/sub", "link", "hard", "fifo", "program")
		b.try(all("EPERM|EOVERFLOW", "chown=0,"+target+"/file", "chown=1,"+target+"/file", "chown=65534,"+target+"/file")...)
		// Conversely: files that the owner puts there belong to the box user.
		put(t, filepath.Join(dir, "given"), "given", 0o600, owner)
		b.try(attempt{"rdwr=" + target + "/given", "OK"}, attempt{"chmod=0644," + target + "/given", "OK"})
		b.sh("rm -r " + target + "/*")
		b.remove()
	}
}

func TestFilesOfOthersInAMountStayTheirs(t *testing.T) {
	const thousand = 1000 // the box user's uid inside, which on the host is just another user
	d := start(t)
	for _, own := range []int{owner, thousand} {
		dir := d.MountSource(t, fmt.Sprint("rw", own), own)
		others := map[int]string{0: "root", 1: "one", stranger: "stranger", owner: "owner", thousand: "thousand"}
		delete(others, own)
		for uid, name := range others {
			put(t, filepath.Join(dir, name), "secret", 0o640, uid)
			put(t, filepath.Join(dir, name+"-open"), "known", 0o666, uid)
		}
		b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "rw"}))
		if got := b.sh("cd /mnt; stat -c %u:%g * | sort -u"); got != "65534:65534\n" {
			t.Errorf(`in a directory of %d the others are %q, want got == "65534:65534\n"`, own, got)
		}
		for _, name := range others {
			b.try(
				attempt{"read=/mnt/" + name, "EACCES"}, attempt{"read=/mnt/" + name + "-open", "OK"}, attempt{"write=/mnt/" + name + "-open", "EACCES"},
				attempt{"chmod=0666,/mnt/" + name, "EPERM|EOVERFLOW"}, attempt{"chown=1000,/mnt/" + name, "EPERM|EOVERFLOW"},
			)
		}
		b.try(attempt{"create=/mnt/own", "OK"})
		belongs(t, dir, uint32(own), uint32(own), "own")
	}
}

func TestDirectoryOfAnotherGroupCanBeWrittenButNotJoined(t *testing.T) {
	d := start(t)
	for group, mode := range map[int]os.FileMode{0: 0o755, 5555: 0o770, 5556: 0o2770} {
		dir := d.MountSource(t, fmt.Sprint("group", group), owner)
		put(t, filepath.Join(dir, "theirs"), "for the group", 0o640, stranger)
		for _, path := range []string{dir, filepath.Join(dir, "theirs")} {
			if err := os.Lchown(path, -1, group); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Chmod(dir, uint32(mode)); err != nil {
			t.Fatal(err)
		}
		b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "rw"}))
		b.try(attempt{"create=/mnt/file", "OK"}, attempt{"read=/mnt/theirs", "EACCES"})
		if mode&0o2000 != 0 { // by setgid the directory's owner has requested its group
			belongs(t, dir, owner, uint32(group), "file")
			continue
		}
		b.try(attempt{"chgrp=65535,/mnt/file", "EPERM"})
		belongs(t, dir, owner, owner, "file")
	}
}

func TestOwnerOfARuleIsWhoAMountBelongsTo(t *testing.T) {
	const group = 5555
	d := start(t, fmt.Sprintf("[mounts]\nallow = [\"%%DIR%%/lent\", {path = \"%%DIR%%/owned\", owner = \"%d:%d\"}]\n", owner, group))
	dir, others := filepath.Join(d.Dir, "owned", "dir"), filepath.Join(d.Dir, "owned", "others")
	for path, uid := range map[string]int{dir: owner, others: stranger} {
		if err := os.MkdirAll(path, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "rw"}))
	b.sh("echo root > /mnt/by-root; mkdir /mnt/sub; touch /mnt/sub/file")
	// Files get the owner that the rule names whoever the caller is, as long as the caller may write there too.
	line := "echo stranger > /mnt/by-stranger"
	mounts := []api.Mount{{Source: dir, Target: "/mnt", Mode: "rw"}}
	answer := runAs(t, d, stranger, api.OneShotRequest{Session: api.SessionRequest{Mounts: mounts}, Exec: api.ExecRequest{Command: &line}})
	if answer.Result.ExitCode == nil || *answer.Result.ExitCode != 0 {
		t.Errorf("for another user: answer = %+v, want answer.Result.ExitCode != nil and *answer.Result.ExitCode == 0",
			answer)
	}
	belongs(t, dir, owner, group, "by-root", "by-stranger", "sub", "sub/file")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Mounts: []api.Mount{{Source: others, Target: "/mnt", Mode: "rw"}}})
	refused(t, err, 403, "mounts[0].source", "owned by uid 4242")
}

func TestReadOnlyMountShowsAndTakesNothing(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "ro", owner)
	put(t, filepath.Join(dir, "file"), "text", 0o600, owner)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "sub"), owner, owner); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "ro"}))
	if got := b.sh("cat /mnt/file; stat -c %u:%g /mnt/file"); got != "text1000:1000\n" {
		t.Errorf(`the owner's file reads %q, want "text1000:1000\n"`, got)
	}
	b.try(all("EROFS",
		"create=/mnt/new", "write=/mnt/file", "trunc=/mnt/file", "rdwr=/mnt/file", "mkdir=/mnt/dir", "create=/mnt/sub/new", "remove=/mnt/file",
		"rename=/mnt/file,/mnt/other", "symlink=/etc,/mnt/link", "link=/mnt/file,/mnt/hard", "chmod=0777,/mnt/file", "chown=1000,/mnt/file",
		"setxattr=user.x,/mnt/file", "mknod=010644,0,/mnt/fifo",
	)...)
	put(t, filepath.Join(dir, "later"), "seen", 0o644, owner) // it is the directory itself, not a copy
	if got := b.run("cat", "/mnt/later"); got != "seen" {
		t.Errorf(`a later file reads %q, want "seen"`, got)
	}
}

func TestMountOfModeNoneIsNotThere(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "none", owner)
	put(t, filepath.Join(dir, "file"), "text", 0o644, owner)
	b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "none"}, api.Mount{Source: dir, Target: "/workspace", Mode: "none"}))
	if got := b.sh("ls -A /mnt /workspace | grep -v :") + fmt.Sprint(len(b.Mounts)); got != "\n1" {
		t.Errorf(`with mounts of mode none: got %q, want "\n1"`, got)
	}
	b.try(attempt{"create=/workspace/x", "OK"}, attempt{"create=/mnt/x", "EROFS"})
}

func TestProfileGivesAndBoundsTheModeOfAMount(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "dir", owner)
	mount := func(profile, mode string) (api.Session, error) {
		s, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Profile: profile, Mounts: []api.Mount{{Source: dir, Target: "/mnt", Mode: mode}}})
		return s, err
	}
	for _, tc := range []struct{ profile, asked, got string }{
		{"default", "", "rw"}, {"default", "ro", "ro"}, {"offline_readonly", "", "ro"}, {"offline_readonly", "ro", "ro"},
	} {
		s, err := mount(tc.profile, tc.asked)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, t: t, d: d}
		if s.Mounts[0].Mode != tc.got {
			t.Errorf("profile %s gives %q for %q", tc.profile, s.Mounts[0].Mode, tc.asked)
		}
		r := b.exec(&api.ExecRequest{Argv: []string{"touch", "/mnt/x"}})
		if ok := *r.ExitCode == 0; ok != (tc.got == "rw") {
			t.Errorf(`profile %s, requested mode %q: writing is %v, want ok == (tc.got == "rw")`, tc.profile, tc.asked, ok)
		}
	}
	_, err := mount("offline_readonly", "rw")
	refused(t, err, 403, "mounts[0].mode", "at most ro")
}

func TestMountsNestInWhateverOrderTheyAreNamed(t *testing.T) {
	d := start(t)
	outer, inner, deep := d.MountSource(t, "outer", owner), d.MountSource(t, "inner", owner), d.MountSource(t, "deep", owner)
	for name, dir := range map[string]string{"outer": outer, "inner": inner, "deep": deep} {
		put(t, filepath.Join(dir, name), name, 0o644, owner)
	}
	for i, mounts := range [][]api.Mount{
		{{Source: outer, Target: "/mnt", Mode: "rw"}, {Source: inner, Target: "/mnt/in", Mode: "ro"}, {Source: deep, Target: "/mnt/in/sub/deep", Mode: "rw"}},
		{{Source: deep, Target: "/mnt/in/sub/deep", Mode: "rw"}, {Source: inner, Target: "/mnt/in", Mode: "ro"}, {Source: outer, Target: "/mnt", Mode: "rw"}},
	} {
		// A read-only directory must already have a mount point for what is mounted in it.
		if err := os.MkdirAll(filepath.Join(inner, "sub", "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := newBox(t, d, withMounts(mounts...))
		if got := b.run("cat", "/mnt/outer", "/mnt/in/inner", "/mnt/in/sub/deep/deep"); got != "outerinnerdeep" {
			t.Errorf(`order %d: got %q, want "outerinnerdeep"`, i, got)
		}
		b.try(attempt{"create=/mnt/new", "OK"}, attempt{"create=/mnt/in/new", "EROFS"}, attempt{"create=/mnt/in/sub/deep/new", "OK"}, attempt{"create=/mnt/in/sub/new", "EROFS"})
		belongs(t, outer, owner, owner, "in", "new") // the mount point was created with the owner of its directory
		belongs(t, deep, owner, owner, "new")
		b.try(all("EBUSY", "rename=/mnt/in,/mnt/out", "remove=/mnt/in")...)
	}
}

func TestMountBelowTheManagedWorkspace(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "dir", owner)
	put(t, filepath.Join(dir, "file"), "text", 0o644, owner)
	d.Warm()
	before := d.Look()
	b := newBox(t, d, withMounts(
		api.Mount{Source: dir, Target: "/workspace/one/two", Mode: "ro"}, api.Mount{Source: dir, Target: "/workspace/rw", Mode: "rw"},
		api.Mount{Source: dir, Target: "/home/box/dir", Mode: "ro"}, api.Mount{Source: dir, Target: "/tmp/a/b", Mode: "ro"}, api.Mount{Source: dir, Target: "/srv/a/b", Mode: "ro"},
	))
	for _, place := range []string{"/workspace/one/two", "/workspace/rw", "/home/box/dir", "/tmp/a/b", "/srv/a/b"} {
		if got := b.run("cat", place+"/file"); got != "text" {
			t.Errorf(`%s: got %q, want "text"`, place, got)
		}
	}
	b.try(attempt{"create=/workspace/x", "OK"}, attempt{"create=/workspace/one/x", "OK"}, attempt{"create=/workspace/one/two/x", "EROFS"}, attempt{"create=/workspace/rw/x", "OK"})
	b.remove()
	belongs(t, dir, owner, owner, "file", "x") // the workspace was removed, but no file that was mounted in it
	d.NothingLeft(withMaps(before, 1))
}

// A mount target can be missing in the image, at the top level or below. Nothing else in the tree changes.
func TestAMountCanBeWhereTheImageHasNothing(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "dir", owner)
	put(t, filepath.Join(dir, "file"), "text", 0o644, owner)
	plain := newBox(t, d)
	places := []string{"/repo", "/repos/one/deep", "/repos/two", "/home/alice/project", "/root/project", "/usr/local/boxd-test/a", "/etc/boxd-test", "/var/www/html"}
	mounts := []api.Mount{{Source: dir, Target: "/usr/src", Mode: "ro"}, {Source: dir, Target: "/mnt/a", Mode: "ro"}}
	for _, place := range places {
		mounts = append(mounts, api.Mount{Source: dir, Target: place, Mode: "ro"})
	}
	b := newBox(t, d, withMounts(append(mounts, api.Mount{Source: dir, Target: "/repos/rw", Mode: "rw"}, api.Mount{Source: dir, Target: "/rw", Mode: "rw"})...))
	for _, place := range append(places, "/usr/src", "/mnt/a", "/repos/rw", "/rw") {
		if got := b.run("cat", place+"/file"); got != "text" {
			t.Errorf(`%s: got %q, want "text"`, place, got)
		}
	}
	added := map[string][]string{"/": {"repo", "repos", "rw"}, "/home": {"alice"}, "/usr/local": {"boxd-test"}, "/etc": {"boxd-test"}, "/var": {"www"}}
	for _, in := range []string{"/", "/home", "/usr/local", "/etc", "/var", "/var/lib", "/dev", "/usr/bin", "/sys"} {
		before, after := lines(plain.run("ls", "-A1L", "--color=never", in)), lines(b.run("ls", "-A1L", "--color=never", in))
		want := append(before, added[in]...)
		slices.Sort(want)
		slices.Sort(after)
		if diff := cmp.Diff(want, after); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	for _, line := range []string{"cat /etc/hosts | cut -f1", "readlink /bin /etc/mtab /var/tmp", "cat /etc/passwd /proc/sys/user/max_user_namespaces", "ls /proc/acpi 2>&1", "mount | grep -c ' on /proc/'", "env -i sh -c 'cat --version'"} {
		if before, after := plain.sh(line), b.sh(line); before != after {
			t.Errorf("%s: %q, without mounts %q", line, after, before)
		}
	}
	want := plain.ask("writable", "/")
	want = append(want, "/mnt", "/repos/rw", "/rw") // /mnt contains a mount
	slices.Sort(want)
	if diff := cmp.Diff(want, b.ask("writable", "/"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("writable paths (-want +got):\n%s", diff)
	}
	b.try(all("EROFS", "create=/x", "mkdir=/repos/x", "create=/usr/local/x", "create=/etc/x", "create=/var/x", "mkdir=/home/other", "mkdir=/var/lib/x", "create=/repo/x")...)
	b.try(all("EROFS", "rename=/repo,/repo2", "remove=/rw")...)
	b.try(attempt{"create=/rw/x", "OK"}, attempt{"create=/root/x", "EROFS"}, attempt{"create=/home/box/x", "OK"}, attempt{"create=/tmp/x", "OK"})
	// A live mount can be added as in any other box.
	if _, _, err := d.AddMount(t.Context(), b.ID, &api.MountRequest{Source: dir, Target: "/srv/live/a", Mode: "ro"}); err != nil {
		t.Fatal(err)
	}
	if got := b.run("cat", "/srv/live/a/file"); got != "text" {
		t.Errorf(`a live mount has %q, want "text"`, got)
	}
	_, _, err := d.AddMount(t.Context(), b.ID, &api.MountRequest{Source: dir, Target: "/repo2", Mode: "ro"})
	refused(t, err, 400, "target", "a path below")
}

// In a writable root the mount point is created, with the box user as owner; programs can neither rename nor remove it.
func TestAMountCanBeAnywhereInAWritableRoot(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "dir", owner)
	put(t, filepath.Join(dir, "file"), "text", 0o644, owner)
	no := false
	b := newBox(t, d, func(r *api.SessionRequest) { r.ReadOnlyRoot = &no }, withMounts(api.Mount{Source: dir, Target: "/repo", Mode: "ro"},
		api.Mount{Source: dir, Target: "/usr/local/boxd-test/a", Mode: "ro"}, api.Mount{Source: dir, Target: "/home/alice/project", Mode: "ro"}))
	if got := b.run("cat", "/repo/file", "/usr/local/boxd-test/a/file", "/home/alice/project/file"); got != "texttexttext" {
		t.Errorf(`got %q, want "texttexttext"`, got)
	}
	b.try(attempt{"create=/repo/x", "EROFS"}, attempt{"rename=/repo,/repo2", "EBUSY"}, attempt{"create=/usr/local/x", "OK"})
}

// withMaps adds what the keeper keeps open on purpose: an idmap for each owner and range of ids, for the next box with the same
// ones.
func withMaps(tr boxtest.Traces, n int) boxtest.Traces {
	tr.OpenFiles = append(tr.OpenFiles, make([]string, n)...)
	return tr
}

func TestAsManyMountsAsOneMessageTakesAreFine(t *testing.T) {
	const n = isolation.MaxMounts - 1 // the other one is the probe's
	d := start(t)
	var mounts []api.Mount
	for i := range n {
		dir := d.MountSource(t, fmt.Sprint("m", i), owner)
		put(t, filepath.Join(dir, "n"), fmt.Sprintln(i), 0o644, owner)
		mounts = append(mounts, api.Mount{Source: dir, Target: fmt.Sprint("/mnt/", strings.Repeat("x", 200), i), Mode: []string{"ro", "rw"}[i%2]})
	}
	b := newBox(t, d, withMounts(mounts...))
	if got := len(lines(b.sh("cat /mnt/*/n"))); got != n {
		t.Errorf("%d of %d directories are there", got, n)
	}
}

func TestSetuidBitsAreRefusedWhereTheHostWouldHonourThem(t *testing.T) {
	d := start(t)
	dir := d.MountSource(t, "rw", owner)
	with := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/mnt", Mode: "rw"}))
	without := newBox(t, d)
	for _, b := range []*box{with, without} {
		b.sh("cd /workspace; touch f; cp /usr/bin/id id")
	}
	calls := func(dir string) []string {
		return []string{
			"chmod=04755," + dir + "/f", "chmod=02755," + dir + "/f", "fchmodat2=04755," + dir + "/f", "open=04755," + dir + "/a",
			"mkdirm=02755," + dir + "/b", "mknod=0104755,0," + dir + "/c",
		}
	}
	put(t, filepath.Join(dir, "f"), "", 0o644, owner)
	for _, place := range []string{"/mnt", "/workspace"} {
		with.try(all("EPERM", calls(place)...)...)
		with.try(attempt{"openat2=04755," + place + "/d", "ENOSYS"}, attempt{"chmod=01755," + place + "/f", "OK"}, attempt{"mkdirm=01755," + place + "/e", "OK"})
	}
	for _, name := range []string{"f", "e"} {
		if mode := statOf(t, filepath.Join(dir, name)).Mode; mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("%s has mode %o on the host", name, mode)
		}
	}
	for _, call := range calls("/workspace") {
		want := "OK"
		if strings.HasPrefix(call, "fchmodat2=") {
			want = "OK|ENOSYS" // exists since Linux 6.6
		}
		without.try(attempt{call, want})
	}
	if got := without.sh("chmod 6755 /workspace/id; stat -c %a /workspace/id; /workspace/id -u; /workspace/id -ru"); got != "6755\n1000\n1000\n" {
		t.Errorf(`a setuid program of the box user's: got %q, want "6755\n1000\n1000\n"`, got)
	}
}
