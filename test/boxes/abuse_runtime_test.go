// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// ways returns all the ways to start a program; each runs a shell line and returns its result.
func ways(b *box) map[string]func(line string) api.ExecResult {
	stream := func(stdin io.Reader) func(string) api.ExecResult {
		return func(line string) api.ExecResult {
			out := &boxtest.Buffer{}
			r, err := b.d.ExecStream(b.t.Context(), b.ID, &api.ExecRequest{Command: &line}, client.Stdio{Stdin: stdin, Stdout: out, Stderr: out}, nil)
			if err != nil {
				b.t.Fatal(err)
			}
			r.Stdout = out.String()
			return *r
		}
	}
	return map[string]func(string) api.ExecResult{
		"argv":    func(line string) api.ExecResult { return b.exec(&api.ExecRequest{Argv: []string{"sh", "-c", line}}) },
		"command": func(line string) api.ExecResult { return b.exec(&api.ExecRequest{Command: &line}) },
		"code":    func(line string) api.ExecResult { return b.exec(&api.ExecRequest{Code: &line, Language: "sh"}) },
		"script": func(line string) api.ExecResult {
			line = "#" + strings.Repeat("long", 40_000) + "\n" + line // longer than the kernel accepts as one argument
			return b.exec(&api.ExecRequest{Command: &line})
		},
		"stdin":  func(line string) api.ExecResult { return b.exec(&api.ExecRequest{Command: &line, Stdin: "input"}) },
		"stream": stream(nil), "stream with stdin": stream(strings.NewReader("input")),
	}
}

func TestT12EveryProgramIsConfinedHoweverItIsStarted(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			for way, run := range ways(b) {
				// The program itself, a child, and a process that has left its session and its parent.
				r := run("cat /proc/$$/status; cat /proc/self/status; setsid sh -c 'cat /proc/self/status &' | cat")
				blocks := strings.Split(r.Stdout, "Name:")[1:]
				if len(blocks) != 3 {
					t.Errorf("%s: %s, %d processes checked", way, boxtest.Show(r), len(blocks))
				}
				for i, block := range blocks {
					s := statusFields("Name:" + block)
					for field, want := range sandboxed() {
						if s[field] != want {
							t.Errorf("%s: %s of process %d is %s, want s[field] == %v", way, field, i, s[field], want)
						}
					}
					if s["Uid"] != repeat(1000) || s["TracerPid"] != "0" {
						t.Errorf("%s: process %d has the ids %s and the tracer %s", way, i, s["Uid"], s["TracerPid"])
					}
				}
			}
			b.try(all("EPERM", "raise", "ambient")...)
			b.try(attempt{"newprivs", "EINVAL"}, attempt{"seccomp_off", "EINVAL"})
		})
	})
}

func TestT13PID1sProgramCannotBeOverwritten(t *testing.T) {
	program, err := filepath.EvalSymlinks(filepath.Join(boxtest.Programs(t), "boxinit"))
	if err != nil {
		t.Fatal(err)
	}
	before := fingerprint(t, program)
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		b.sh("cp " + probe + " /workspace/probe; ln -s /proc/self/exe /workspace/self; printf '#!/proc/self/exe\\n' > /workspace/script; chmod +x /workspace/script")
		b.try(all("EACCES|EROFS", "write=/proc/self/exe", "rdwr="+probe, "trunc=/proc/self/exe", "chmod=0777,"+probe)...)
		b.try(attempt{"write=/proc/1/exe", "ENOENT"})
		// It may write its own file, but not while that is running.
		for _, call := range []string{"write=/proc/self/exe", "rdwr=/workspace/probe", "trunc=/proc/self/exe"} {
			if got := b.run("/workspace/probe", "try", call); got != call+" ETXTBSY\n" {
				t.Errorf(`on itself: got %q, want call + " ETXTBSY\n"`, got)
			}
		}
		// For the process that starts a program, a link to "self" is PID 1's own program; so a program may try to become that.
		chase := b.hold(probe, "chase")
		for range 100 {
			b.run("true")
			for _, name := range []string{"self", "script"} {
				if r := b.exec(&api.ExecRequest{Argv: []string{"/workspace/" + name}}); r.Status == "lost" {
					t.Fatalf(`%s: r = %s, want r.Status != "lost"`, name, boxtest.Show(r))
				}
			}
		}
		answers, _ := chase.Release()
		got := fields(lines(answers))
		if len(got["rounds"]) < 3 || len(got) < 2 {
			t.Errorf(`the chase did not run often enough: got %v, want len(got["rounds"]) >= 3 and len(got) >= 2`, got)
		}
		delete(got, "rounds")
		for answer := range got {
			if !slices.Contains([]string{"ENOENT", "EACCES", "ESRCH", "ETXTBSY", "EROFS"}, answer) {
				t.Errorf(`a program of another process was opened for writing: got %v, want []string{"ENOENT", "EACCES", "ESRCH", "ETXTBSY", "EROFS"} containing %v`,
					got, answer)
			}
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", b.PID)); err != nil || exe != program {
			t.Errorf("PID 1 runs %q, %v", exe, err)
		}
	})
	if now := fingerprint(t, program); now != before {
		t.Errorf("boxinit is\n%s, was\n%s", now, before)
	}
}

// fingerprint returns the content, mode and location of a file.
func fingerprint(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st := statOf(t, path)
	return fmt.Sprintf("%x mode %o inode %d changed %v", sha256.Sum256(data), st.Mode, st.Ino, st.Ctim)
}

// leak opens the host's root so that everything this process starts inherits it, unless it is careful; many service managers and
// shells leak worse things.
func leak(t *testing.T) {
	t.Helper()
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	fd, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD, 40)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// heldByPID1 checks that PID 1 of a box has no directory of the host open except the cgroups of its programs, nor anything else
// it does not need.
func heldByPID1(t *testing.T, b *box) {
	t.Helper()
	known := regexp.MustCompile(`^(` + regexp.QuoteMeta(b.Group+"/work") + `(/e\d+)?|/dev/null|socket:.*|/run/boxd-ids|/|/proc|anon_inode:\[(eventpoll|pidfd|eventfd)\]|pipe:.*|/memfd:.*)$`)
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.PID))
	if err != nil || len(files) < 5 {
		t.Fatalf("descriptors of PID 1: files = %v, err = %v, want no error and len(files) >= 5", files, err)
	}
	host := statOf(t, "/")
	for _, f := range files {
		link, err := os.Readlink(f)
		var st unix.Stat_t
		if err == nil {
			err = unix.Stat(f, &st)
		}
		switch {
		case errors.Is(err, os.ErrNotExist): // of a program that has just ended, and closed since the directory was read
		case err != nil || !known.MatchString(link):
			t.Errorf("PID 1 holds %s, %v", link, err)
		case link == "/" && st.Dev == host.Dev:
			t.Error("PID 1 holds the root of the host")
		}
	}
}

func TestT14ProgramHasThreeDescriptors(t *testing.T) {
	leak(t)
	want := map[string]string{
		"argv": "0 device\n1 pipe\n2 pipe\n", "command": "0 device\n1 pipe\n2 pipe\n", "code": "0 device\n1 pipe\n2 pipe\n",
		"script": "0 device\n1 pipe\n2 pipe\n", "stdin": "0 file\n1 pipe\n2 pipe\n", "stream": "0 device\n1 pipe\n2 pipe\n",
		"stream with stdin": "0 pipe\n1 pipe\n2 pipe\n",
	}
	attack(t, func(h *host) {
		h.each(func(b *box) {
			held := b.hold(probe, "hold") // its descriptors must not leak into other programs
			for way, run := range ways(b) {
				r := run(probe + " fds")
				if diff := cmp.Diff(want[way], r.Stdout); diff != "" {
					t.Errorf("%s (-want +got):\n%s", way, diff)
				}
			}
			heldByPID1(t, b)
			held.Release()
		})
	})
}

func TestT15WorkingDirectoryIsInTheBox(t *testing.T) {
	leak(t)
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		for _, cwd := range []string{
			"/workspace/..", "/workspace/../etc", "/workspace/./x", "//workspace", "/workspace/", "workspace", ".", "/workspace/a\x00b", "/proc/self/cwd/..",
		} {
			_, err := h.Exec(t.Context(), b.ID, &api.ExecRequest{Argv: []string{"pwd"}, Cwd: cwd})
			refused(t, err, 400, "cwd", "an absolute path")
		}
		b.sh("mkdir /workspace/links /workspace/closed; chmod 000 /workspace/closed; touch /workspace/file; cd /workspace/links; ln -s loop loop; ln -s /nowhere/at/all dangling")
		for cwd, errno := range map[string]string{
			"/workspace/closed": "EACCES", "/workspace/file": "ENOTDIR", "/workspace/file/x": "ENOTDIR", "/workspace/links/loop": "ELOOP",
			"/workspace/links/dangling": "ENOENT", "/workspaces": "ENOENT", "/usr/new": "ENOENT", "/etc/passwd": "ENOTDIR", "/proc/self": "EACCES", "/proc/1": "EACCES", "/proc": "EACCES", "/data/new": "EROFS", "/srv/new": "EROFS", "/workspace/" + strings.Repeat("x", 256): "ENAMETOOLONG",
		} {
			if r := b.exec(&api.ExecRequest{Argv: []string{"pwd"}, Cwd: cwd}); r.Status != "start_failed" || r.Failure.Step != "directory" || r.Failure.Errno != errno {
				t.Errorf("%s: %s, want %s", cwd, boxtest.Show(r), errno)
			}
		}
		// A link that PID 1 follows may refer to something of PID 1 itself: whatever it has open, the program must be inside the
		// box, and not where it can see PID 1.
		for i := range 64 {
			b.sh(fmt.Sprintf("ln -s /proc/self/fd/%d /workspace/links/fd%d", i, i))
		}
		b.sh("cd /workspace/links; ln -s / root; ln -s /etc etc; ln -s /proc/self/root self; ln -s /proc/self/cwd cwd; ln -s /proc/1/root init; ln -s ../../../../../.. up; ln -s /proc/thread-self/fd fds; ln -s /proc/thread-self tasks; ln -s /proc/self me; ln -s /proc/self/task/../ns ns")
		places := []string{"/etc", "/run", "/usr/lib", "/dev", "/sys", "/proc/self/cwd", "/proc/self/root", "/proc/1/root", "/proc/self/fd/3", "/proc/self/task", "/proc/thread-self/cwd"}
		for link := range strings.FieldsSeq(b.sh("ls /workspace/links")) {
			places = append(places, "/workspace/links/"+link)
		}
		for i := range 64 {
			places = append(places, fmt.Sprintf("/proc/self/fd/%d", i))
		}
		for _, link := range places {
			r := b.exec(&api.ExecRequest{Argv: []string{"sh", "-c", `pwd -P; readlink /proc/self/cwd; stat -c %d:%i . "$(pwd -P)"`}, Cwd: link})
			if r.Status == "start_failed" && r.Failure.Step == "directory" {
				continue
			}
			f := strings.Fields(r.Stdout)
			if len(f) != 4 || !strings.HasPrefix(f[0], "/") || strings.HasPrefix(f[0], "/proc") || f[0] != f[1] || f[2] != f[3] {
				t.Errorf(`%s: r = %s, want len(f) == 4 and f[0] starting with "/" and f[0] not starting with "/proc" and f[0] == f[1] and f[2] == f[3]`,
					link, boxtest.Show(r))
			}
		}
		if got := b.exec(&api.ExecRequest{Argv: []string{"pwd"}, Cwd: "/workspace/made/on/the/way"}); got.Stdout != "/workspace/made/on/the/way\n" {
			t.Errorf(`a directory that is missing: got.Stdout = %q, want "/workspace/made/on/the/way\n"`, got.Stdout)
		}
		orphan := b.hold(probe, "orphan", "/workspace/gone", "/workspace/orphan")
		if r := b.exec(&api.ExecRequest{Argv: []string{"true"}, Cwd: "/workspace/orphan"}); r.Status != "start_failed" || r.Failure.Errno != "ENOENT" {
			t.Errorf(`a deleted directory: r = %s, want r.Status == "start_failed" and r.Failure.Errno == "ENOENT"`,
				boxtest.Show(r))
		}
		orphan.Release()
	})
}

func TestT16ProgramThatIsSwappedIsStillInTheBox(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		space := strings.TrimSpace(b.run("readlink", "/proc/self/ns/pid"))
		b.sh("mkdir /workspace/bin; cp /bin/sh /workspace/bin/own; ln -s /bin/sh /workspace/bin/sh")
		swap := []string{probe, "swap", "/workspace/bin/sh", "/bin/sh", "/workspace/bin/own", "/nowhere", "/proc/self/exe", "/proc/1/root/bin/sh", "/mnt/file", "/workspace/bin"}
		ran, failed := 0, 0
		for n := 0; n < 500 || (ran == 0 || failed == 0) && n < 20_000; { // the swapper may get little CPU time
			swapper := b.hold(swap...) // restarted, since no program runs for ever
			for range 100 {
				n++
				r := b.exec(&api.ExecRequest{Argv: []string{"/workspace/bin/sh", "-c", "readlink /proc/self/ns/pid; id -u"}})
				switch {
				case r.Status == "start_failed":
					failed++
				case r.Stdout == space+"\n1000\n":
					ran++
				case r.Stdout != "" || r.Status != "exited" || *r.ExitCode == 0: // PID 1's own program, which exits at once
					t.Errorf(`r = %s, want r.Stdout == "" and r.Status == "exited" and *r.ExitCode != 0`,
						boxtest.Show(r))
				}
			}
			if got, _ := swapper.Release(); fields(lines(got))["rounds"] == "" {
				t.Errorf(`the swapper: got %q, want fields(lines(got))["rounds"] != ""`, got)
			}
		}
		if ran == 0 || failed == 0 {
			t.Errorf("the program was never swapped in time: %d executions succeeded and %d failed", ran, failed)
		}
	})
}
