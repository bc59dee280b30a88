// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/relay/api"
)

// cuts is the number of power cuts.
const cuts = 2

// powered is a boxd whose state is on a disk of its own: a file, of which a copy at any moment is what a power cut leaves, since
// it lacks what the kernel has not written yet.
type powered struct {
	t           *testing.T
	d           *boxtest.Daemon
	disk, image string

	mu       sync.Mutex
	promised map[string]string // sessions whose stop was answered, with the content of their file
	made     int
}

// must runs a program of the host, which must succeed.
func must(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := cmd.CombinedOutput(); err != nil && (name != "e2fsck" || cmd.ProcessState.ExitCode() > 1) { // 1: it has fixed errors
		t.Fatalf("%s %q: err = %v, want no error or name == \"e2fsck\" and cmd.ProcessState.ExitCode() <= 1:\n%s",
			name, args, err, out)
	}
}

// attach mounts a disk image, if this host can.
func attach(t *testing.T, image, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		boxtest.Missing(t, "mount of a file: "+strings.TrimSpace(string(out)))
	}
}

// work creates sessions, writes files in them and stops them, one by one, until enough is closed.
func (p *powered) work(n int, enough <-chan struct{}) {
	for {
		select {
		case <-enough:
			return
		default:
		}
		p.mu.Lock()
		p.made++
		id := fmt.Sprintf("s%d-%d", n, p.made)
		p.mu.Unlock()
		text := strings.Repeat(id+" ", 1+rand.IntN(5000))
		if _, _, err := p.d.CreateSession(p.t.Context(), &api.SessionRequest{ID: id, Env: map[string]string{"A": id}}); err != nil {
			p.t.Errorf("create %s: %v", id, err)
			return
		}
		r, err := p.d.Exec(p.t.Context(), id, &api.ExecRequest{Argv: []string{"tee", "file"}, Stdin: text})
		if err == nil && r.Status == "exited" {
			_, err = p.d.StopSession(p.t.Context(), id)
		}
		if err != nil {
			p.t.Errorf("%s: %v, %+v", id, err, r.Failure)
			return
		}
		p.mu.Lock()
		p.promised[id] = text
		p.mu.Unlock()
	}
}

// cut simulates a power cut: it stops all processes, takes what the kernel has written as the disk, and kills everything.
func (p *powered) cut(enough chan struct{}, working *sync.WaitGroup) {
	p.t.Helper()
	var pids []int
	for _, line := range p.d.Look().Processes {
		word, _, _ := strings.Cut(line, " ")
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	pids = append(append(pids, p.d.Zygotes()...), p.d.Keeper())
	_ = unix.Kill(p.d.PID(), unix.SIGSTOP)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGSTOP)
	}
	p.mu.Lock() // what has been answered so far
	promised := maps.Clone(p.promised)
	p.mu.Unlock()
	must(p.t, "cp", "--sparse=always", p.image, p.image+".cut")
	_ = unix.Kill(p.d.PID(), unix.SIGCONT) // so that its clients end; the copy is done
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	close(enough)
	working.Wait()
	zygotes, keeper := p.d.Zygotes(), p.d.Keeper()
	p.d.Kill()
	for _, pid := range append(zygotes, keeper) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	boxtest.Eventually(p.t, "every box is dead", func() bool {
		left := p.d.Look().Processes
		for _, line := range left {
			word, _, _ := strings.Cut(line, " ")
			if pid, err := strconv.Atoi(word); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return len(left) == 0
	})
	if err := unix.Unmount(p.disk, unix.MNT_DETACH); err != nil {
		p.t.Fatal(err)
	}
	p.promised = promised
	if err := os.Rename(p.image+".cut", p.image); err != nil {
		p.t.Fatal(err)
	}
	must(p.t, "e2fsck", "-fy", p.image)
}

// After a power cut a host has every session whose stop was answered, with its files and environment, and an audit log that is
// intact up to its end.
func TestAPowerCutLosesNothingThatWasStopped(t *testing.T) {
	disk := newDisk(t)
	p := &powered{t: t, disk: disk.dir, image: disk.image, promised: map[string]string{}}
	p.d = boxtest.StartWith(t, fmt.Sprintf("state_dir = %q\n", filepath.Join(p.disk, "state")), boxtest.BestEffort, "[host]\nkeep_free_disk = \"1MiB\"\n")
	for i := range cuts {
		enough, working := make(chan struct{}), &sync.WaitGroup{}
		for n := range 2 {
			working.Go(func() { p.work(n, enough) })
		}
		boxtest.Eventually(t, "sessions are stopped", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.promised) >= 4*(i+1) || t.Failed()
		})
		<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
		p.cut(enough, working)
		if t.Failed() {
			return
		}
		if err := os.RemoveAll(filepath.Join(p.d.Dir, "run")); err != nil { // it was in memory
			t.Fatal(err)
		}
		attach(t, p.image, p.disk)
		report, err := hashchain.Verify(os.DirFS(filepath.Join(p.d.State, "audit")), nil)
		if err != nil {
			t.Fatalf("after cut %d the audit log: %v", i, err)
		}
		for _, problem := range report.Problems {
			if problem.Kind != hashchain.Torn {
				t.Errorf("after cut %d the audit log: problem = %+v, want problem.Kind == hashchain.Torn", i, problem)
			}
		}
		p.d.Restart()
		for id, text := range p.promised {
			s, err := p.d.Session(t.Context(), id)
			if err != nil || s.State != "stopped" {
				t.Errorf(`after cut %d %s is %q, %v, want no error and s.State == "stopped"`, i, id, s.State, err)
				continue
			}
			if _, err := p.d.StartSession(t.Context(), id); err != nil {
				t.Errorf("after cut %d %s does not start: %v", i, id, err)
				continue
			}
			if got := p.d.Sh(t, id, "cat file; echo; echo $A"); got != text+"\n"+id+"\n" {
				t.Errorf("after cut %d the file of %s has %d bytes, not %d", i, id, len(got), len(text))
			}
			if _, err := p.d.StopSession(t.Context(), id); err != nil {
				t.Errorf("after cut %d %s does not stop: %v", i, id, err)
			}
		}
		t.Logf("cut %d: %d sessions were promised", i, len(p.promised))
	}
	list, err := p.d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if err := p.d.DeleteSession(t.Context(), s.ID); err != nil {
			t.Errorf("remove %s: %v", s.ID, err)
		}
	}
}
