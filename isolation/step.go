// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"strconv"
	"syscall"
)

// Step is one step of starting a box or a program. Steps are sent as numbers and never
// renumbered; they become text only where a person reads them.
type Step uint8

// The steps, in the order in which they are taken.
const (
	StepNone Step = iota
	// The keeper, before the box exists.
	StepValidate
	StepMountSource
	StepIDRange
	StepZygote
	StepWorkspace
	StepIDMap
	StepSetup
	StepClone
	// PID 1, setting up what every box has.
	StepRoot
	StepProc
	StepSysctl
	StepDevpts
	StepLoopback
	StepMask
	// PID 1, setting up this box.
	StepReceive
	StepRlimit
	StepScratch
	StepHostname
	StepFiles
	StepMount
	StepVerifyMount
	StepPrivileges
	StepSeccomp
	// PID 1, starting a program.
	StepCommand
	StepDirectory
	StepScript
	StepStdio
	StepLookup
	StepExec
	// Cgroups: the keeper before the clone, and PID 1 for a program or for freezing.
	StepGroup
	StepFreeze
	StepNetwork // the keeper, before PID 1 has its Setup
	StepUser    // PID 1, of a program that runs as root
)

var stepNames = [...]string{
	"none", "validate", "mount source", "id range", "zygote", "workspace", "id map", "setup", "clone",
	"root", "proc", "sysctl", "devpts", "loopback", "mask",
	"receive", "rlimit", "scratch", "hostname", "files", "mount", "verify mount", "privileges", "seccomp",
	"command", "directory", "script", "stdio", "lookup", "exec", "control group", "freeze", "network", "user",
}

// String returns the step's name as it appears in answers and logs.
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return "step " + strconv.Itoa(int(s))
}

// ItemMerged is the item of StepStdio if a PID 1 cannot make one pipe of both outputs.
const ItemMerged = "merged output"

// Items of StepStdio about output on disk: of a PID 1 that does not support it, and of a workspace that cannot hold it.
const (
	ItemSpooled = "spooled output"
	ItemSpool   = "output in " + Workspace
)

// StepError says where a start failed: the step, what it was about, and the kernel's reason. It
// unwraps to the Errno, so errors.Is(err, fs.ErrNotExist) works on it. Where a rule and not the
// kernel refused, Refused is set.
type StepError struct {
	Step    Step
	Item    string
	Errno   syscall.Errno
	Refused *Refusal
}

func (e *StepError) Error() string {
	s := e.Step.String()
	if e.Item != "" {
		s += " " + strconv.Quote(shorten(e.Item))
	}
	if e.Refused != nil {
		return s + ": " + e.Refused.Error()
	}
	return s + ": " + e.Errno.Error()
}

func (e *StepError) Unwrap() error {
	if e.Refused != nil {
		return e.Refused
	}
	return e.Errno
}

// NewStepError says that a step failed with an item. An err that is already a StepError stays as it is; one without an Errno
// becomes EPROTO.
func NewStepError(step Step, item string, err error) *StepError {
	if s, ok := errors.AsType[*StepError](err); ok {
		return s
	}
	s := &StepError{Step: step, Item: item, Errno: syscall.EPROTO}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		s.Errno = errno
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		s.Refused = r
	}
	return s
}

// Check is one line of a host examination.
type Check struct {
	Name   string
	Level  CheckLevel
	Detail string // what was found
	Hint   string // what to do about it
}

// CheckLevel says how a check ended.
type CheckLevel uint8

// The levels. With a Fail no box can start.
const (
	CheckOK CheckLevel = iota
	CheckWarn
	CheckFail
)
