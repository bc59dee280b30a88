// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// workerArgs returns the arguments of a worker with these rules.
func workerArgs(state string, allow []string) []string { return append([]string{state}, allow...) }

// keptCapabilities are what a worker needs: to access paths as the caller (SETUID, SETGID), as root if that is the caller
// (DAC_OVERRIDE), to make and attach mounts (SYS_ADMIN), and to enter the mount namespace of a box (SYS_CHROOT, SYS_PTRACE). It
// is the root process that faces the filesystems of users.
const keptCapabilities = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE

// RunWorker runs a worker with the arguments of workerArgs until the keeper closes its socket.
func RunWorker(args []string) error {
	if err := linux.KeepCapabilities(keptCapabilities); err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("the rules are missing")
	}
	w := sourceWorker{rules: SourceRules{State: args[0]}}
	for _, text := range args[1:] {
		rule, err := parseAllowRule(text)
		if err != nil {
			return err
		}
		w.rules.Allow = append(w.rules.Allow, rule)
	}
	return serveWorker(w.do)
}

// sourceWorker does jobs for the keeper, which has validated what boxd has sent.
type sourceWorker struct{ rules SourceRules }

// do does one job.
func (w *sourceWorker) do(request []byte, files []int) ([]byte, []int) {
	owner := make([]byte, 0, ownerLen)
	var reply isolation.KeeperReply
	out := -1
	mounted, err := &isolation.Mounted{}, error(unix.EINVAL)
	step := isolation.StepMountSource
	switch kind, place, req := decode(request); {
	case req == nil:
	case kind == askOpen:
		var src *Source
		if src, err = w.rules.Open(req.Caller, req.Mount); err == nil {
			for _, word := range src.Owner.words() {
				owner = binary.LittleEndian.AppendUint32(owner, word)
			}
			out = src.FD
		}
	case kind == askTree && len(files) > 0:
		step = isolation.StepIDMap
		out, err = source(req, files).tree(mapOf(files))
	case kind == askChange && len(files) > 0:
		step = isolation.StepMount
		mounted, err = change(place, req, files)
	case kind == askOutside:
		opener := Opener{Rules: &w.rules}
		mounted, err = opener.outside(req)
	case kind == askFollow:
		mounted.Made, err = filepath.EvalSymlinks(req.Mount.Source)
	}
	var descriptors []int
	switch {
	case err != nil:
		reply = sourceFailed(step, err)
	case out >= 0:
		descriptors = []int{out}
		reply = &isolation.Done{}
	default:
		reply = mounted
	}
	return append(append(owner, make([]byte, ownerLen-len(owner))...), isolation.EncodeKeeperReply(0, reply)...), descriptors
}

// sourceFailed turns an error of a job into the one that boxd gets.
func sourceFailed(step isolation.Step, err error) *isolation.StepError {
	if s, ok := errors.AsType[*isolation.StepError](err); ok {
		return s
	}
	s := &isolation.StepError{Step: step, Errno: unix.EPROTO}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		s.Errno = errno
	}
	return s
}

// decode decodes a job; the request is nil if it is malformed.
func decode(request []byte) (kind byte, place []byte, req *isolation.ChangeMount) {
	if len(request) == 0 {
		return 0, nil, nil
	}
	kind, request = request[0], request[1:]
	if kind == askChange && len(request) >= placeLen {
		place, request = request[:placeLen], request[placeLen:]
	}
	_, keeperReq, err := isolation.DecodeKeeperRequest(request)
	req, ok := keeperReq.(*isolation.ChangeMount)
	if err != nil || !ok || kind == askChange && place == nil {
		return 0, nil, nil
	}
	return kind, place, req
}

// source returns a source that an earlier job has opened; files are the descriptors it is mounted
// with.
func source(req *isolation.ChangeMount, files []int) *Source {
	return &Source{Mount: req.Mount, FD: files[0], Owner: Owner{Mapped: len(files) > 1}}
}

// mapOf returns a function that opens the id map among the files of a source.
func mapOf(files []int) func() (int, error) {
	return func() (int, error) { return unix.FcntlInt(uintptr(files[1]), unix.F_DUPFD_CLOEXEC, 3) }
}

// change changes a mount of a live box: files are a pidfd of its PID 1, the source and the id map
// of that.
func change(place []byte, req *isolation.ChangeMount, files []int) (*isolation.Mounted, error) {
	pidfd := files[0]
	b := &Box{
		PID: int(binary.LittleEndian.Uint32(place)), IDBase: binary.LittleEndian.Uint32(place[4:]),
		Alive: func() bool { return Alive(pidfd) },
	}
	if len(files) == 1 {
		if req.Op == isolation.MountAdd || req.Op == isolation.MountReplace {
			return nil, unix.EINVAL
		}
		return Change(b, req, nil, nil)
	}
	return Change(b, req, source(req, files[1:]), mapOf(files[1:]))
}
