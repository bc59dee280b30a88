// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Limits of a managed process.
const (
	keptOutput = 4 * quantity.MiB // of each stream, for a later attach
	stopGrace  = 5 * time.Second
	// previewBytes is enough for a preview, however many bytes each character has.
	previewBytes   = 16 << 10
	previewTimeout = 2 * time.Second
)

// processKey names a process of a session.
type processKey struct{ session, process string }

// Start starts a process; a process of the same id is stopped first.
func (b *Boxes) Start(ctx context.Context, t Tenant, logical string, spec *processSpec) (*processInfo, error) {
	physical, err := t.physical(logical)
	if err != nil {
		return nil, err
	}
	s, err := b.find(physical)
	if err != nil {
		return nil, err
	}
	release, _, err := b.starts.take(ctx, physical)
	if err != nil {
		return nil, err
	}
	defer release()
	b.reap(ctx)
	unreserve, err := b.reserveProcess(processKey{physical, spec.ID})
	if err != nil {
		return nil, err
	}
	defer unreserve()
	if old, err := s.Process(spec.ID); err == nil {
		if err := s.RemoveProcess(ctx, old); err != nil {
			return nil, explain(err, physical)
		}
	}
	p, err := b.launch(ctx, s, spec)
	if err != nil {
		return nil, explain(err, physical)
	}
	s.Touch(time.Now())
	return b.process(ctx, t, s, p), nil
}

func (b *Boxes) launch(ctx context.Context, s *session.Session, spec *processSpec) (*process.Process, error) {
	argv, dir := append([]string{spec.Command}, spec.Args...), clean(spec.Cwd)
	if !isolation.UnderRoots(dir) { // boxd makes no directory there, but the shell can cd to it
		argv, dir = append([]string{shell, "-c", enter, dir}, argv...), isolation.Workspace
	}
	req := &session.ProcessRequest{
		ID: spec.ID, Managed: true, Stdin: true, Output: new(keptOutput), Stop: &process.Stop{Signal: "SIGTERM", Grace: new(stopGrace)},
		Exec: session.ExecRequest{Argv: argv, Env: spec.Env, Dir: dir},
	}
	if s.Enforced()[policy.LimitMemory] == policy.MechanismGroup && spec.MemoryMB > 0 {
		memory := min(quantity.Size(min(spec.MemoryMB, 1<<30))*quantity.MiB, s.Current().Memory)
		req.Exec.Limits.Memory = &memory
	}
	p, _, err := s.StartProcess(ctx, req)
	return p, err
}

// A shell that changes to a directory of the image and then executes the requested program.
const (
	shell = "/bin/sh"
	enter = `cd -- "$0" && exec "$@"`
)

// unwrap returns the program and directory that LangBot has requested.
func unwrap(argv []string, dir string) (program []string, cwd string) {
	if len(argv) > 4 && argv[0] == shell && argv[2] == enter {
		return argv[4:], argv[3]
	}
	return argv, dir
}

// reserveProcess admits one more process, within LangBot's maximum. One of the same id is replaced and not counted.
func (b *Boxes) reserveProcess(k processKey) (release func(), err error) {
	limit := b.Init().Limits.MaxManagedProcesses
	b.mu.Lock()
	defer b.mu.Unlock()
	running := map[processKey]struct{}{}
	for _, info := range b.list() {
		s, err := b.find(info.ID)
		if err != nil {
			continue
		}
		for _, p := range s.Processes() {
			if other := (processKey{info.ID, p.Spec().ID}); p.Spec().Managed && other != k && !hasEnded(p) {
				running[other] = struct{}{}
			}
		}
	}
	for other := range b.starting {
		running[other] = struct{}{}
	}
	if int64(len(running)) >= limit {
		return nil, wire.Refusef("BoxCapacityExceededError", "Box managed process capacity reached (%d)", limit)
	}
	b.starting[k] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.starting, k)
	}, nil
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// expired reports whether a process ended so long ago that it is forgotten.
func (b *Boxes) expired(p *process.Process) bool {
	return hasEnded(p) && time.Since(p.Info().EndedAt) > b.Init().Limits.Retention
}

// known returns the managed processes of a session that LangBot may see.
func (b *Boxes) known(s *session.Session) []*process.Process {
	return slices.DeleteFunc(s.Processes(), func(p *process.Process) bool { return !p.Spec().Managed || b.expired(p) })
}

// reap forgets processes that ended long ago, and those that ended first if there are too many.
func (b *Boxes) reap(ctx context.Context) {
	type one struct {
		s  *session.Session
		p  *process.Process
		at time.Time
	}
	var ended []one
	for _, info := range b.list() {
		s, err := b.find(info.ID)
		if err != nil {
			continue
		}
		for _, p := range s.Processes() {
			if p.Spec().Managed && hasEnded(p) {
				ended = append(ended, one{s, p, p.Info().EndedAt})
			}
		}
	}
	slices.SortFunc(ended, func(x, y one) int { return y.at.Compare(x.at) })
	limit := int(b.Init().Limits.MaxCompletedProcesses)
	for i, e := range ended {
		if i >= limit || b.expired(e.p) {
			_ = e.s.RemoveProcess(ctx, e.p) // it has ended: nothing to wait for
		}
	}
	b.dropSlots()
}

// processOf finds a process that LangBot may see.
func (b *Boxes) processOf(t Tenant, logical, id string) (*session.Session, *process.Process, error) {
	physical, err := t.physical(logical)
	if err != nil {
		return nil, nil, err
	}
	s, err := b.find(physical)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.Process(id)
	if err != nil || !p.Spec().Managed || b.expired(p) {
		return nil, nil, wire.Refusef("BoxManagedProcessNotFoundError", "session %s has no managed process with process_id=%s", physical, id)
	}
	return s, p, nil
}

// Process describes a process.
func (b *Boxes) Process(ctx context.Context, t Tenant, logical, id string) (*processInfo, error) {
	s, p, err := b.processOf(t, logical, id)
	if err != nil {
		return nil, err
	}
	return b.process(ctx, t, s, p), nil
}

// Stop ends a process and forgets it.
func (b *Boxes) Stop(ctx context.Context, t Tenant, logical, id string) error {
	s, p, err := b.processOf(t, logical, id)
	if err != nil {
		return err
	}
	err = s.RemoveProcess(ctx, p)
	s.Touch(time.Now())
	return explain(err, s.ID)
}

// process returns the info of a process. An ended process is reported at once, with its exit code and time.
func (b *Boxes) process(ctx context.Context, t Tenant, s *session.Session, p *process.Process) *processInfo {
	ended := hasEnded(p)
	info := p.Info()
	argv, cwd := unwrap(info.Argv, info.Dir)
	m := &processInfo{
		SessionID: t.logical(s.ID), ProcessID: info.ID, Status: statusRunning, Args: []string{}, Cwd: cwd, EnvKeys: append([]string{}, info.EnvNames...),
		Attached: info.Writer, StartedAt: wireTime(info.StartedAt), StderrPreview: preview(ctx, p, &info),
	}
	if len(argv) > 0 {
		m.Command, m.Args = argv[0], append(m.Args, argv[1:]...)
	}
	if ended {
		exit, err := p.Wait(context.WithoutCancel(ctx)) // does not block
		m.Status, m.ExitedAt, m.ExitCode = statusExited, new(wireTime(info.EndedAt)), new(codeOf(exit, err))
		if m.StderrPreview == "" && exit == nil && err != nil {
			m.StderrPreview = err.Error()
		}
	}
	return m
}

// Exit codes of a program that could not be started, as in a shell.
const (
	notExecutable = 126
	noProgram     = 127
	killed        = 137
)

func codeOf(exit *isolation.Exit, err error) int {
	switch {
	case exit != nil && exit.Signal != 0:
		return 128 + exit.Signal
	case exit != nil:
		return exit.Code
	}
	if _, ok := errors.AsType[*isolation.StepError](err); !ok {
		return killed // together with its box
	}
	if errors.Is(err, unix.ENOENT) {
		return noProgram
	}
	return notExecutable
}

// preview returns the end of what a process has written to standard error.
func preview(ctx context.Context, p *process.Process, info *process.Info) string {
	end, from := info.Output[1].Bytes, max(info.Output[1].From, info.Output[1].Bytes-previewBytes)
	if end <= from {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	a, err := p.Attach(ctx, process.AttachOptions{From: &[2]int64{info.Output[0].Bytes, from}})
	if err != nil {
		return ""
	}
	defer a.Close()
	var tail []byte
	for a.Position()[1] < end {
		c, err := a.Next(ctx)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return "" // its box is ending
			}
			break
		}
		if c.Stream == 1 {
			tail = append(tail, c.Data...)
		}
	}
	return previewText(tail)
}
