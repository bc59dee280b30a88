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
)

// tables lists the mounts of a box and of this host, except those that come and go by themselves.
func tables(t *testing.T, d *boxtest.Daemon, id string) (box, host string) {
	t.Helper()
	r := d.Sh(t, id, "cut -d' ' -f5 /proc/self/mountinfo | sort")
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

// renamer moves what is above a target to names that it never gives up again, at intervals of all lengths, and replaces it by
// links to sensitive paths. A directory in which nothing is mounted right afterwards gets the name bare.
const renamer = `
	use strict;
	my @links = ("/etc", "/proc/sys", "/proc/1/root", "..");
	my $long = "x y\n" x 40;
	for (my $i = 0; !-e "stop"; $i++) {
		mkdir "a"; mkdir "a/b"; mkdir "a/b/t";
		for (my $spin = 2 ** rand 14; $spin > 0; $spin--) {}
		my ($from, $t) = $i % 2 ? ("a", "b/t") : ("a/b", "t");
		if (rename $from, "moved $long$i") {
			symlink $links[rand @links], $from;
			rename "moved $long$i", "bare$i" unless -e "moved $long$i/$t/name";
			unlink $from;
		}
		my $old = $i - 100;
		for my $dir ("moved $long$old", "bare$old") { rmdir "$dir/b/t"; rmdir "$dir/b"; rmdir "$dir/t"; rmdir $dir; }
		if ($i == 3) { open my $f, ">", "goes"; }
	}
	open my $f, ">", "stopped";`

// A program renames the directories of a target, and replaces them by links to sensitive paths, while mounts are added and
// removed there (T20, T23). Each mount is where it was requested, or refused; the files of the box's own system are unchanged,
// and in the end nothing is left, in the box or on the host.
func TestARenamerCatchesNoMount(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "perl")
	d := boxtest.Beside(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	work := d.NamedMountSource(t, "work", 1000)
	s := d.NewSession(t, api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: work, Target: "/workspace", Mode: "rw"}}})
	box, host := tables(t, d, "s")
	hash := `{ find /etc -type f -exec sha256sum {} + | sort; find /etc /proc/sys/kernel -printf '%p %l %m %U\n' | sort; readlink /proc/1/root; cat /proc/sys/kernel/ostype; } 2>&1 | sha256sum`
	system := d.Sh(t, "s", hash)
	d.NewProcess(t, "s", "renamer", &api.ProcessRequest{Argv: []string{"perl", "-e", renamer}})
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Lstat(filepath.Join(work, name)); return err == nil }
	}
	boxtest.Eventually(t, "the renamer renames", exists("goes"))
	const enough, most = 20, 5000
	made, moved, refused := 0, 0, 0
	for i := 0; i < 300 || i < most && min(made, moved, refused) < enough; i++ {
		_, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: source, Target: "/workspace/a/b/t", Mode: "ro"})
		if err == nil {
			made++
			if at := mountedBelow(t, s.PID, "/workspace/"); len(at) != 1 || strings.HasPrefix(at[0], "/workspace/bare") {
				t.Errorf("the mount is on %q, and never was on its target", at)
			}
			// It is removed even if it was moved meanwhile.
			if err := d.RemoveMount(t.Context(), "s", "/workspace/a/b/t", true); err != nil {
				t.Fatalf("not removed: %v", err)
			}
			continue
		}
		switch e, ok := errors.AsType[*client.Error](err); {
		case ok && e.Status == 409 && strings.Contains(e.Detail, "a program in the box moved"):
			moved++
		case ok && (e.Status == 409 || e.Status == 400 && e.Field == "target"):
			refused++
		default:
			t.Fatalf("%v", err)
		}
		if at := mountedBelow(t, s.PID, "/workspace/"); len(at) > 0 {
			t.Errorf("it was refused (%v), and is on %q", err, at)
		}
	}
	t.Logf("%d mounted, %d unmounted because they were outside their target, %d refused before", made, moved, refused)
	if made == 0 || moved == 0 || refused == 0 {
		t.Error("one of the three outcomes (mounted, moved, refused) never happened")
	}
	if err := os.WriteFile(filepath.Join(work, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the renamer stops", exists("stopped"))
	if after, now := tables(t, d, "s"); after != box || now != host {
		t.Errorf("mounts of the box: before %q, after %q; of the host: before %q, after %q", box, after, host, now)
	}
	if now := d.Sh(t, "s", hash); now != system {
		t.Errorf("the box's own system: before %q, after %q", system, now)
	}
	if data, err := os.ReadFile(filepath.Join(source, "name")); err != nil || string(data) != "one" {
		t.Errorf(`the directory that was mounted has %q, %v, want no error and data == "one"`, data, err)
	}
}

// mountedBelow lists the mount points of a box below a directory, as the kernel writes them.
func mountedBelow(t *testing.T, pid uint32, dir string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, " "); strings.HasPrefix(f[4], dir) {
			list = append(list, f[4])
		}
	}
	return list
}

// Targets that a program has replaced by links are refused, live and when a box is created with a directory that another box has
// prepared (T22, T23): nothing is mounted anywhere else.
func TestMountsFollowNoLinkOfABox(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	work := d.NamedMountSource(t, "work", 1000)
	given := []api.Mount{{Source: work, Target: "/workspace", Mode: "rw"}}
	d.NewSession(t, api.SessionRequest{ID: "s", Mounts: given})
	d.Sh(t, "s", "cd /workspace; ln -s /etc etc; ln -s /proc/sys sys; ln -s /dev/null null; ln -s .. up; mkdir d; ln -s /proc/self/root/etc d/t; mkfifo fifo; echo >file")
	box, host := tables(t, d, "s")
	for _, target := range []string{
		"/workspace/etc", "/workspace/etc/x", "/workspace/sys/kernel", "/workspace/null", "/workspace/up/etc", "/workspace/d/t", "/workspace/d/t/x", "/workspace/fifo",
		"/workspace/file", "/workspace/file/x",
	} {
		_, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: source, Target: target, Mode: "ro"})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 400 || e.Field != "target" {
			t.Errorf(`%s, added to a running session: err = %v, want ok == true and e.Status == 400 and e.Field == "target"`, target, err)
		}
		_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "other", Mounts: append(given[:1:1], api.Mount{Source: source, Target: target, Mode: "ro"})})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 400 || e.Field != "mounts[1].target" {
			t.Errorf(`%s, made with: err = %v, want ok == true and e.Status == 400 and e.Field == "mounts[1].target"`,
				target, err)
		}
	}
	if after, now := tables(t, d, "s"); after != box || now != host {
		t.Errorf("mounts of the box: before %q, after %q; of the host: before %q, after %q", box, after, host, now)
	}
	// Nor is a link in a source followed out of the allowed directory.
	if err := os.Symlink("/etc", filepath.Join(d.Dir, "lent", "out")); err != nil {
		t.Fatal(err)
	}
	_, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: filepath.Join(d.Dir, "lent", "out"), Target: "/mnt/x", Mode: "ro"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 403 || e.Field != "source" {
		t.Errorf(`a source that is a link: err = %v, want ok == true and e.Status == 403 and e.Field == "source"`, err)
	}
}

// A read-only mount stays so: no program of the box can write to it, mount over it, remove it or change it (T08, T09, T24).
func TestALiveMountIsNotTheBoxsToChange(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 1000) // the uid of the box user
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for _, target := range []string{"/mnt/x", "/workspace/x"} {
		if _, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: source, Target: target, Mode: "ro", NoSymlinks: true}); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			"touch %[1]s/new", "echo >%[1]s/name", "rm -f %[1]s/name", "chmod 777 %[1]s/name", "mv %[1]s %[1]s.old", "rmdir %[1]s", "mv %[1]s/name /tmp", "ln %[1]s/name /tmp/name",
			"umount %[1]s", "mount -o remount,rw,bind %[1]s", "mount --bind /tmp %[1]s", "mount -t tmpfs tmpfs %[1]s",
		} {
			line = fmt.Sprintf(line, target)
			if r, err := d.Exec(t.Context(), "s", &api.ExecRequest{Command: &line}); err != nil || r.ExitCode == nil || *r.ExitCode == 0 {
				t.Errorf("%s: r = %+v, err = %v, want no error and r.ExitCode != nil and *r.ExitCode != 0",
					line, r, err)
			}
		}
	}
	entries, err := os.ReadDir(source)
	data, rerr := os.ReadFile(filepath.Join(source, "name"))
	if err != nil || rerr != nil || len(entries) != 1 || string(data) != "one" {
		t.Errorf(`entries = %v, data = %q; err = %v, rerr = %v, want no error and no error and len(entries) == 1 and data == "one"`,
			entries, data, err, rerr)
	}
}
