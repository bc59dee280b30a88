// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/systemd"
)

// A box has the same limits, whether the keeper or systemd creates its cgroup.
func TestAScopeIsLimitedAsABoxIs(t *testing.T) {
	t.Parallel()
	orNone := func(n uint64) string {
		if n == 0 || n == systemd.Unlimited {
			return "max"
		}
		return strconv.FormatUint(n, 10)
	}
	orDefault := func(n uint64) string {
		if n == 0 {
			return "100"
		}
		return strconv.FormatUint(n, 10)
	}
	for _, l := range []cgroup.Limits{
		{},
		{Memory: 64 << 20, Pids: 40, CPUWeight: 30, IOWeight: 70, Swap: 1 << 20, CPU: 50_000},
		{Pids: 40},
		{Memory: 64 << 20},
	} {
		p := properties(&l)
		got := map[string]string{
			"memory.max": orNone(p.MemoryMax), "pids.max": orNone(p.TasksMax), "cpu.weight": orDefault(p.CPUWeight), "io.weight": "default " + orDefault(p.IOWeight),
		}
		for _, s := range l.Scope() { // the part that the keeper writes
			got[s.File] = s.Text
		}
		for _, s := range l.Box() {
			if got[s.File] != s.Text {
				t.Errorf("%+v: %s is %q in a scope, %q elsewhere", l, s.File, got[s.File], s.Text)
			}
			delete(got, s.File)
		}
		if len(got) > 0 || p.MemorySwapMax != systemd.Unlimited || p.MemoryHigh != 0 || p.CPUQuota != 0 {
			t.Errorf("%+v: a scope has %+v, %v besides", l, p, got)
		}
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, err := range []error{fmt.Errorf("start: %w", systemd.ErrNoBus), context.DeadlineExceeded, errors.New("job of systemd is \"failed\"")} {
		f, ok := errors.AsType[*fault.Error](unavailable(err))
		if !ok || f.Kind != fault.Unavailable || !strings.Contains(f.Hint, "cgroups.driver") || errors.Is(f, context.DeadlineExceeded) {
			t.Errorf(`%v: f = %+v, want ok == true and f.Kind == fault.Unavailable and f.Hint containing "cgroups.driver" and f is not context.DeadlineExceeded`,
				err, f)
		}
	}
	if err := unavailable(systemd.ErrNoScope); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("%v: want the error of a box that does not exist", err)
	}
}

// systemd gives the scope its name, and the keeper expects the same.
func TestTheKeeperKnowsTheNamesOfScopes(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("a1", isolation.KeyLen/2)
	if a, b := systemd.ScopeName(key), isolation.ScopeOf(key); a != b {
		t.Errorf("a = %q and b = %q, want a == b", a, b)
	}
}

func TestAScopeHolderProcessLivesUntilReleased(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "holder")
	writeProgram(t, program, "#!/bin/sh\n[ \"$*\" = hold ] && read x\n")
	s, err := newHeldScope(program)
	if err != nil {
		t.Fatal(err)
	}
	pid := s.cmd.Process.Pid
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the box does not run: %v", err)
	}
	for range 2 {
		s.release()
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the box still exists: err = %v, want err is syscall.ESRCH", err)
	}
	if _, err := newHeldScope(program + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want err is os.ErrNotExist", err)
	}
}
