// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Status is how an execution ended.
type Status string

// The statuses. The set is closed.
const (
	StatusExited      Status = "exited"
	StatusSignaled    Status = "signaled"
	StatusTimedOut    Status = "timed_out"
	StatusOOMKilled   Status = "oom_killed"
	StatusCanceled    Status = "canceled"
	StatusLost        Status = "lost"
	StatusStartFailed Status = "start_failed"
)

// Result is the outcome of an execution.
type Result struct {
	Status   Status
	ExitCode int    // for StatusExited
	Signal   string // such as "SIGKILL", whenever a signal ended it
	Streams  [2]Stream
	Duration time.Duration
	UserTime time.Duration
	SysTime  time.Duration
	MaxRSS   quantity.Size
	// Grouped says that the command had a cgroup: then the times are those of all its processes, and the four fields below are
	// known.
	Grouped    bool
	MemoryPeak quantity.Size
	PidsPeak   int
	Read       quantity.Size // from devices
	Written    quantity.Size // to devices
	Full       []Full
	OOM        *OOM // nil: as far as is known, none of its processes was killed for lack of memory
	// Leftovers is how many processes the command left running; they have been killed.
	Leftovers int
	Timeout   time.Duration
	Clamped   []policy.Clamp
	Failed    *isolation.StepError // for StatusStartFailed
	PID       uint32               // in the box, of a process; 0: not known, or it did not run
}

// OOM describes processes that the kernel killed for lack of memory.
type OOM struct {
	Kills   int           // number of killed processes
	Limit   quantity.Size // the limit that was reached
	Own     bool          // the limit was the execution's own, not the session's
	Shared  bool          // the limit was that of all sessions of the owner together
	Victims []string      // names of the killed processes, as far as the kernel log still has them
	Sign    string        // nothing is killed where only each process has a limit (rlimit): this suggests that it was reached
}

// retained returns what is kept of a stream of a program that has ended.
type retained func(stream int) (head, tail []byte, err error)

// result is the outcome of a program with that spec: exit, or err instead. group is the name of its cgroup in the box's. out is
// nil if the caller has had the output. canceled says that the program was ended on request.
func (s *Session) result(spec *process.Spec, exit *isolation.Exit, err error, group string, out retained, canceled bool) (*Result, error) {
	r := &Result{Timeout: spec.Command.Timeout, Clamped: spec.Clamped}
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		r.Status, r.Failed = StatusStartFailed, step
		return r, nil
	}
	if err != nil {
		r.Status = StatusLost
		if canceled || s.endsOnPurpose() {
			r.Status = StatusCanceled
		}
		return r, nil
	}
	r.Status = statusOf(exit.Reason)
	r.ExitCode = exit.Code
	if exit.Signal != 0 {
		r.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	r.Duration, r.UserTime, r.SysTime = exit.Duration, exit.UserTime, exit.SystemTime
	r.MaxRSS, r.Leftovers = quantity.Size(exit.MaxRSS), int(exit.Leftovers)
	settings := s.Current()
	s.addUse(r, &settings, &spec.Command.Limits, exit, group)
	if err := s.addOutput(r, exit, out, spec.Command.Durable); err != nil {
		return nil, err
	}
	if s.enforced[policy.LimitMemory] == policy.MechanismRlimit {
		if sign := r.memorySign(settings.Memory); sign != "" {
			r.OOM = &OOM{Limit: settings.Memory, Sign: sign}
		}
	}
	return r, nil
}

// statusOf returns the status of a program that ran and has ended.
func statusOf(reason isolation.Reason) Status {
	switch reason {
	case isolation.ReasonExited:
		return StatusExited
	case isolation.ReasonSignaled:
		return StatusSignaled
	case isolation.ReasonTimedOut:
		return StatusTimedOut
	case isolation.ReasonCanceled:
		return StatusCanceled
	case isolation.ReasonOOM:
		return StatusOOMKilled
	}
	return ""
}

// addOutput adds the output. Of a durable program more may be kept than fits into one response.
func (s *Session) addOutput(r *Result, exit *isolation.Exit, out retained, durable bool) error {
	for i, end := range exit.Streams {
		if out == nil {
			r.Streams[i].Total = end.Total
			continue
		}
		head, tail, err := out(i)
		if err != nil {
			return fmt.Errorf("session %q: %w", s.ID, err)
		}
		if retainedLen := uint64(len(head) + len(tail)); end.CutFrom == end.CutTo && retainedLen < end.Total { // the rest is on disk
			end.CutFrom, end.CutTo = uint64(len(head)), end.Total-uint64(len(tail))
		}
		if durable {
			if maximum := int(s.hooks.Config().Exec.OutputLimit); maximum > 0 && len(head)+len(tail) > maximum {
				all := append(head, tail...)
				head, tail = nil, all[len(all)-maximum:]
				end.CutFrom, end.CutTo = 0, end.Total-uint64(maximum)
			}
		}
		r.Streams[i] = newStream(head, tail, end)
	}
	return nil
}

// searchedStderr is how much of the end of standard error is searched.
const searchedStderr = 4 << 10

// memorySign returns a sign of lack of memory in a program under RLIMIT_DATA, which makes its allocations fail: what C, C++,
// Go, Python, Java and Node print then, or a fatal signal when it has used most of its limit.
func (r *Result) memorySign(limit quantity.Size) string {
	switch {
	case r.Status == StatusExited && r.ExitCode == 0 || r.Status != StatusExited && r.Status != StatusSignaled:
		return ""
	case r.MaxRSS > limit/4*3 && slices.Contains([]string{"SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTRAP", "SIGILL"}, r.Signal):
		return r.Signal
	}
	stderr := r.Streams[1].Data
	stderr = stderr[max(0, len(stderr)-searchedStderr):]
	for _, sign := range []string{"MemoryError", "OutOfMemoryError", "std::bad_alloc", "Cannot allocate memory", "heap out of memory", "runtime: out of memory", "virtual memory exhausted", "memory allocation of"} {
		if bytes.Contains(stderr, []byte(sign)) {
			return sign
		}
	}
	return ""
}

// addUse adds what the cgroup of an execution has reported; ownLimits are its own limits.
func (s *Session) addUse(r *Result, settings *policy.Settings, ownLimits *cgroup.Limits, exit *isolation.Exit, group string) {
	if mechanism := s.enforced[policy.LimitWorkspace]; mechanism == policy.MechanismProject || mechanism == policy.MechanismStore {
		r.addFull(policy.LimitWorkspace, exit.Disks[0])
	}
	r.addFull(policy.LimitTmp, exit.Disks[1])
	if !exit.Grouped {
		return
	}
	u := exit.Use
	r.Grouped = true
	r.UserTime, r.SysTime = u.User, u.System
	r.MemoryPeak = quantity.Size(u.MemoryPeak)
	// The kernel also counts attempts that it then refuses (kernel/cgroup/pids.c, pids_try_charge).
	pids := int(ownLimits.Pids)
	if pids == 0 {
		pids = settings.Pids
	}
	r.PidsPeak = min(int(u.PidsPeak), pids)
	r.Read, r.Written = quantity.Size(u.Read), quantity.Size(u.Write)
	if u.OOMKills == 0 {
		return
	}
	r.OOM = &OOM{Kills: int(u.OOMKills), Limit: quantity.Size(ownLimits.Memory), Own: true}
	if r.OOM.Limit == 0 {
		r.OOM.Limit, r.OOM.Own = settings.Memory, false
	}
	if info := s.Info(); info.Group != "" {
		var limited string
		r.OOM.Victims, limited = oomVictims(cgroup.Mount, filepath.Join(info.Group, "work", group))
		r.OOM.markShared(limited)
	}
}

// markShared notes that the limit was that of the owner's cgroup, if it was. Its present limit is the one it had, unless that has
// just been changed.
func (o *OOM) markShared(limited string) {
	if !strings.HasPrefix(filepath.Base(limited), cgroup.OwnerPrefix) {
		return
	}
	g, err := cgroup.Open(limited)
	if err != nil {
		return // the owner's last box has ended meanwhile
	}
	defer g.Close()
	if maximum, err := g.Number("memory.max"); err == nil {
		o.Limit, o.Own, o.Shared = quantity.Size(maximum), false, true
	}
}

// Full is a filesystem of a box that an execution has left full. If the execution has removed what did not fit, that is not
// known.
type Full struct {
	Kind        string // policy.LimitWorkspace or policy.LimitTmp
	Used, Limit quantity.Size
	Files       uint64
	FilesLimit  uint64
}

// minFileSize is less than any file needs.
const minFileSize = 4 * quantity.KiB

// IsFull reports whether nothing more fits on a disk.
func IsFull(d isolation.Disk) bool {
	return d.Limit > 0 && (quantity.Size(d.Used)+minFileSize > quantity.Size(d.Limit) || d.Files >= d.FilesLimit)
}

func (r *Result) addFull(kind string, d isolation.Disk) {
	if !IsFull(d) {
		return
	}
	r.Full = append(r.Full, Full{kind, quantity.Size(d.Used), quantity.Size(d.Limit), d.Files, d.FilesLimit})
}
