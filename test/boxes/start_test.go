// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// TestProgramsThatCannotStartLeaveNothing starts programs that the kernel refuses to execute, next to others that run: each gets
// its own result, and PID 1 keeps no process and no descriptor.
func TestProgramsThatCannotStartLeaveNothing(t *testing.T) {
	b, patience := newBox(t, start(t)), quantity.Duration(2*time.Minute) // a busy host may stall for long
	b.sh(`printf 'no program' >/workspace/text; chmod 755 /workspace/text; printf '\177ELF' >/workspace/short; chmod 755 /workspace/short; touch /workspace/plain; mkdir /workspace/dir
		printf '#!/no/such/interpreter\n' >/workspace/script; chmod 755 /workspace/script`)
	open := func() (files []string) {
		dir := fmt.Sprintf("/proc/%d/fd/", b.PID)
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			target, _ := os.Readlink(dir + e.Name())
			if target != "anon_inode:[eventpoll]" && target != "anon_inode:[eventfd]" { // the Go runtime opens some of these on demand
				files = append(files, target)
			}
		}
		return files
	}
	var before []string
	boxtest.Eventually(t, "PID 1 has closed the pipes of the first program", func() bool { // PID 1 reports the end of a program before
		last := before
		before = open()
		return slices.Equal(before, last) && !slices.ContainsFunc(before, func(file string) bool { return strings.HasPrefix(file, "pipe:") })
	})
	want := map[string]string{"/workspace/text": "ENOEXEC", "/workspace/short": "ENOEXEC", "/workspace/plain": "EACCES", "/workspace/dir": "EACCES", "/workspace/script": "ENOENT", "/workspace/none": "ENOENT"}
	var clients sync.WaitGroup
	for path, errno := range want {
		clients.Go(func() {
			for range 25 {
				r, err := b.d.Exec(t.Context(), b.ID, &api.ExecRequest{Argv: []string{path}, Timeout: &patience})
				if err != nil || r.Status != "start_failed" || r.Failure.Step != "exec" || r.Failure.Errno != errno {
					t.Errorf("%s: %+v %v, want %s", path, r, err, errno)
				}
				r, err = b.d.Exec(t.Context(), b.ID, &api.ExecRequest{Argv: []string{"/bin/sh", "-c", "echo " + path + "; exit 7"}, Timeout: &patience})
				if err != nil || r.ExitCode == nil || *r.ExitCode != 7 || r.Stdout != path+"\n" {
					t.Errorf(`beside %s: r = %+v, err = %v, want no error and r.ExitCode != nil and *r.ExitCode == 7 and r.Stdout == path + "\n"`,
						path, r, err)
				}
			}
		})
	}
	clients.Wait()
	var after []string
	defer func() {
		if t.Failed() {
			t.Logf("PID 1 has %q open, and had %q", after, before)
		}
	}()
	boxtest.Eventually(t, "PID 1 has as many open files as before", func() bool { // it reports the end of a program before it closes the output
		after = open()
		return len(after) == len(before)
	})
	if left := strings.TrimSpace(b.sh(`for d in /proc/[0-9]*; do read -r _ _ state _ <$d/stat && [ "$state" = Z ] && echo $d; done; true`)); left != "" {
		t.Errorf(`zombies: left = %s, want ""`, left)
	}
}

// TestOutputOfProgramsThatCloseItEarly runs programs that close their output before they exit, and others that leave a process
// that has it open: the answer has all that was written.
func TestOutputOfProgramsThatCloseItEarly(t *testing.T) {
	b, patience := newBox(t, start(t)), quantity.Duration(2*time.Minute) // a busy host may stall for long
	for range 20 {
		r := b.exec(&api.ExecRequest{Argv: []string{"/bin/sh", "-c", "echo out; echo err >&2; exec >&- 2>&-; sleep 0.01; exit 4"}, Timeout: &patience})
		if r.ExitCode == nil || *r.ExitCode != 4 || r.Stdout != "out\n" || r.Stderr != "err\n" {
			t.Fatalf(`closed early: r = %+v, want r.ExitCode != nil and *r.ExitCode == 4 and r.Stdout == "out\n" and r.Stderr == "err\n"`,
				r)
		}
		r = b.exec(&api.ExecRequest{Argv: []string{"/bin/sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; sleep 1000 & exit 5"}, Timeout: &patience})
		if r.ExitCode == nil || *r.ExitCode != 5 || len(r.Stdout) != 200000 || r.LeftoversKilled == 0 {
			t.Fatalf("left behind: status %s, %d bytes, %d killed", r.Status, len(r.Stdout), r.LeftoversKilled)
		}
	}
}
