// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/client/mounts"
)

const lends = "[mounts]\nallow = [\"%DIR%/lent\"]\n"

// lent makes a directory that is lent, of an owner, with a file in it.
func lent(t *testing.T, d *boxtest.Daemon, name string, owner int) string {
	t.Helper()
	dir := filepath.Join(d.Dir, "lent", name)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o644)
	}
	if err == nil {
		err = os.Chown(dir, owner, owner)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tables lists the mounts of a box and of this host, without those that come and go by themselves.
func tables(t *testing.T, d *boxtest.Daemon, id string) (box, host string) {
	t.Helper()
	r := sh(t, d, id, "cut -d' ' -f5 /proc/self/mountinfo | sort")
	mine, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(mine), "\n") {
		if strings.Contains(line, d.Dir) {
			host += line + "\n"
		}
	}
	return r, host
}

func sh(t *testing.T, d *boxtest.Daemon, id, line string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Command: &line})
	if err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%s: %+v, %v", line, r, err)
	}
	return r.Stdout
}

// A program renames the directories of a target, and puts links to all that matters in their places, while mounts
// are made there and taken away (T20, T23). Each is where it was asked for, or refused; the files of the box's own
// system stay what they are, and in the end nothing is left, in the box or on the host.
func TestARenamerCatchesNoMount(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, lends)
	source := lent(t, d, "one", 0)
	work := lent(t, d, "work", 1000)
	if _, _, err := d.Create(t.Context(), &api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: work, Target: "/workspace", Mode: "rw"}}}); err != nil {
		t.Fatal(err)
	}
	box, host := tables(t, d, "s")
	hash := "sha256sum /etc/passwd /etc/group /proc/sys/kernel/ostype; ls -la /etc /proc/self/ns | grep -v total | sed 's/[0-9:]* *self//' | sort | sha256sum | head -c0"
	system := sh(t, d, "s", hash)
	script := `i=0
		while ! [ -e stop ]; do
			mkdir -p a/b 2>/dev/null
			mv a c 2>/dev/null
			ln -s /etc a 2>/dev/null || ln -s /proc/sys a
			rm -f a; mv c a 2>/dev/null
			mv a/b a/x 2>/dev/null; ln -s /proc/1 a/b 2>/dev/null; rm -f a/b; mv a/x a/b 2>/dev/null
			i=$((i+1)); [ $i = 3 ] && touch /workspace/goes
		done; touch /workspace/stopped`
	if _, _, err := d.StartProcess(t.Context(), "s", "renamer", &api.ProcessRequest{Argv: []string{"sh", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Lstat(filepath.Join(work, name)); return err == nil }
	}
	boxtest.Eventually(t, "the renamer renames", exists("goes"))
	made, refused := 0, 0
	for range 300 {
		_, _, err := mounts.Add(t.Context(), d.Client, "s", &api.MountRequest{Source: source, Target: "/workspace/a/b/t", Mode: "ro"})
		if err == nil {
			made++
			// It may be moved about, and is found all the same.
			if err := mounts.Remove(t.Context(), d.Client, "s", "/workspace/a/b/t", true); err != nil {
				t.Fatalf("not removed: %v", err)
			}
			continue
		}
		refused++
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 400 && e.Status != 409 || e.Status == 400 && e.Field != "target" {
			t.Fatalf("%v", err)
		}
	}
	t.Logf("%d made, %d refused", made, refused)
	if err := os.WriteFile(filepath.Join(work, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the renamer stops", exists("stopped"))
	if after, now := tables(t, d, "s"); after != box || now != host {
		t.Errorf("mounts of the box: before %q, after %q; of the host: before %q, after %q", box, after, host, now)
	}
	if now := sh(t, d, "s", hash); now != system {
		t.Errorf("the box's own system: before %q, after %q", system, now)
	}
	if data, err := os.ReadFile(filepath.Join(source, "name")); err != nil || string(data) != "one" {
		t.Errorf("the directory that was mounted has %q, %v", data, err)
	}
}

// Targets that a program has put links at are refused, live and when a box is made of a directory that another box
// has prepared (T22, T23): nothing is mounted anywhere else.
func TestMountsFollowNoLinkOfABox(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, lends)
	source := lent(t, d, "one", 0)
	work := lent(t, d, "work", 1000)
	given := []api.Mount{{Source: work, Target: "/workspace", Mode: "rw"}}
	if _, _, err := d.Create(t.Context(), &api.SessionRequest{ID: "s", Mounts: given}); err != nil {
		t.Fatal(err)
	}
	sh(t, d, "s", "cd /workspace; ln -s /etc etc; ln -s /proc/sys sys; ln -s /dev/null null; ln -s .. up; mkdir d; ln -s /proc/self/root/etc d/t; mkfifo fifo; echo >file")
	box, host := tables(t, d, "s")
	for _, target := range []string{
		"/workspace/etc", "/workspace/etc/x", "/workspace/sys/kernel", "/workspace/null", "/workspace/up/etc", "/workspace/d/t", "/workspace/d/t/x", "/workspace/fifo",
		"/workspace/file", "/workspace/file/x",
	} {
		_, _, err := mounts.Add(t.Context(), d.Client, "s", &api.MountRequest{Source: source, Target: target, Mode: "ro"})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 400 || e.Field != "target" {
			t.Errorf("%s, live: %v", target, err)
		}
		_, _, err = d.Create(t.Context(), &api.SessionRequest{ID: "other", Mounts: append(given[:1:1], api.Mount{Source: source, Target: target, Mode: "ro"})})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 400 || e.Field != "mounts[1].target" {
			t.Errorf("%s, made with: %v", target, err)
		}
	}
	if after, now := tables(t, d, "s"); after != box || now != host {
		t.Errorf("mounts of the box: before %q, after %q; of the host: before %q, after %q", box, after, host, now)
	}
	// Nor of the directory that is lent, where that leads out of what is.
	if err := os.Symlink("/etc", filepath.Join(d.Dir, "lent", "out")); err != nil {
		t.Fatal(err)
	}
	_, _, err := mounts.Add(t.Context(), d.Client, "s", &api.MountRequest{Source: filepath.Join(d.Dir, "lent", "out"), Target: "/mnt/x", Mode: "ro"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 403 || e.Field != "source" {
		t.Errorf("a source that is a link: %v", err)
	}
}

// What is mounted read-only stays so: no program of the box writes to it, mounts something else there, takes it away
// or changes it (T08, T09, T24).
func TestALiveMountIsNotTheBoxsToChange(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, lends)
	source := lent(t, d, "one", 1000) // as whom the box is there
	if _, _, err := d.Create(t.Context(), &api.SessionRequest{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/mnt/x", "/workspace/x"} {
		if _, _, err := mounts.Add(t.Context(), d.Client, "s", &api.MountRequest{Source: source, Target: target, Mode: "ro", NoSymlinks: true}); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			"touch %[1]s/new", "echo >%[1]s/name", "rm -f %[1]s/name", "chmod 777 %[1]s/name", "mv %[1]s %[1]s.old", "rmdir %[1]s", "mv %[1]s/name /tmp", "ln %[1]s/name /tmp/name",
			"umount %[1]s", "mount -o remount,rw,bind %[1]s", "mount --bind /tmp %[1]s", "mount -t tmpfs tmpfs %[1]s",
		} {
			line = fmt.Sprintf(line, target)
			if r, err := d.Exec(t.Context(), "s", &api.ExecRequest{Command: &line}); err != nil || r.ExitCode == nil || *r.ExitCode == 0 {
				t.Errorf("%s: %+v, %v", line, r, err)
			}
		}
	}
	entries, err := os.ReadDir(source)
	data, rerr := os.ReadFile(filepath.Join(source, "name"))
	if err != nil || rerr != nil || len(entries) != 1 || string(data) != "one" {
		t.Errorf("%v, %q; %v, %v", entries, data, err, rerr)
	}
}
