// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// ExecRequest asks for one execution: exactly one of Argv, Command and Code.
type ExecRequest struct {
	Argv        []string
	Command     *string // for the shell
	Code        *string // in Language
	Language    string
	Env         map[string]string
	Dir         string // "": the workspace
	Stdin       []byte // what the program reads, if StdinPipe is not set
	Timeout     *quantity.Duration
	OutputLimit *quantity.Size // per stream; "": the configured one

	// Follow hands the output over as it comes, with nothing cut; see Execution.Follow.
	Follow bool
	// StdinPipe gives the program a standard input that is written to while it runs.
	StdinPipe bool
}

// Status is how an execution ended.
type Status string

// The statuses; the set is closed.
const (
	StatusExited      Status = "exited"
	StatusSignaled    Status = "signaled"
	StatusTimedOut    Status = "timed_out"
	StatusOOMKilled   Status = "oom_killed"
	StatusCanceled    Status = "canceled"
	StatusLost        Status = "lost"
	StatusStartFailed Status = "start_failed"
)

// Result is what an execution came to.
type Result struct {
	Status   Status
	ExitCode int    // for StatusExited
	Signal   string // "SIGKILL", whenever a signal ended it
	Streams  [2]Stream
	Duration time.Duration
	UserTime time.Duration
	SysTime  time.Duration
	MaxRSS   quantity.Size
	// Leftovers is how many processes the command had left running; they have been killed.
	Leftovers int
	Timeout   time.Duration
	Clamped   []Clamp
	Failed    *isolation.StepError // for StatusStartFailed
}

// Clamp says that less was given than asked for.
type Clamp struct {
	Field, Asked, Got string
}

// maxArg is the longest argument the kernel takes, without its NUL (MAX_ARG_STRLEN, execve(2)).
const maxArg = 128<<10 - 1

// Share of the kept output that is its beginning; the rest is its end.
const headShare = 0.6

// followWindow is how far a program may be ahead of who follows its output before it waits.
const followWindow = quantity.MiB

// killPatience is what PID 1 gets to report an end that was due; after that the box counts as lost.
const killPatience = 20 * time.Second

// Execution is a program under way.
type Execution struct {
	v       *Supervisor
	session *Session
	program *client.Program
	timeout time.Duration
	clamped []Clamp
	done    sync.Once
}

// Exec starts a program in a session and waits for it. If ctx ends, so does the program.
func (v *Supervisor) Exec(ctx context.Context, s *Session, req *ExecRequest) (*Result, error) {
	e, err := v.Start(s, req)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Wait(ctx)
}

// Start starts a program in a session. The caller must call Close, which ends it if it still runs.
func (v *Supervisor) Start(s *Session, req *ExecRequest) (*Execution, error) {
	cmd, script, clamped, err := v.command(s, req)
	if err != nil {
		return nil, err
	}
	files, err := openFiles(script, req)
	if err != nil {
		return nil, err
	}
	defer files.close()
	box, err := s.begin(v.cfg.Exec.MaxPerSession, time.Now())
	if err != nil {
		return nil, err
	}
	p, err := box.Start(cmd, files.Files)
	if err != nil {
		s.finish(time.Now())
		if errors.Is(err, client.ErrBoxLost) {
			return nil, gone(s.ID)
		}
		return nil, err
	}
	v.mu.Lock()
	v.executed++
	v.mu.Unlock()
	return &Execution{v: v, session: s, program: p, timeout: cmd.Timeout, clamped: clamped}, nil
}

// Started waits until a followed program runs. A program that could not be started is no error
// here: Wait tells.
func (e *Execution) Started(ctx context.Context) error {
	err := e.program.Started(ctx)
	if ctx.Err() != nil {
		return err
	}
	return nil
}

// Exited is closed when the program has ended.
func (e *Execution) Exited() <-chan struct{} { return e.program.Exited() }

// Clamped lists what was given less of than asked for.
func (e *Execution) Clamped() []Clamp { return e.clamped }

// Stdin is the program's standard input if StdinPipe was asked for. Closing it is its end of file.
func (e *Execution) Stdin() *os.File { return e.program.Stdin() }

// Signal sends a signal to the program's process group.
func (e *Execution) Signal(sig syscall.Signal) error { return e.program.Signal(sig) }

// Kill ends the program and everything it started; Wait tells when that is done.
func (e *Execution) Kill() error { return e.program.Kill() }

// Follow hands the output to emit as it comes, until there is no more; stream 0 is standard output,
// 1 standard error. The program waits while emit does.
func (e *Execution) Follow(ctx context.Context, emit func(stream int, data []byte) error) error {
	err := e.program.Follow(ctx, emit)
	if errors.As(err, new(*isolation.StepError)) || errors.Is(err, client.ErrBoxLost) {
		return nil // Wait tells
	}
	return err
}

// Wait waits for the end of the program. If ctx ends first the program is killed, and the result
// says canceled.
func (e *Execution) Wait(ctx context.Context) (*Result, error) {
	late := time.NewTimer(e.timeout + killPatience)
	defer late.Stop()
	canceled := false
	for done := ctx.Done(); ; {
		select {
		case <-e.program.Exited():
			return e.result(ctx, canceled)
		case <-late.C:
			// Every deadline is PID 1's; one that does not keep it serves nobody any more.
			e.v.work.Go(func() { _ = e.v.End(e.v.life, e.session, EndLost) })
			return &Result{Status: StatusLost, Timeout: e.timeout, Clamped: e.clamped}, nil
		case <-done:
			done, canceled = nil, true
			_ = e.program.Kill() // if the box is gone, Exited tells
			late.Reset(killPatience)
		}
	}
}

// Close ends the program if it still runs, and releases it.
func (e *Execution) Close() {
	e.done.Do(func() {
		select {
		case <-e.program.Exited():
		default:
			_ = e.program.Kill()
			timer := time.NewTimer(killPatience)
			defer timer.Stop()
			select {
			case <-e.program.Exited():
			case <-timer.C:
			}
		}
		e.program.Close()
		e.session.finish(time.Now())
	})
}

func (e *Execution) result(ctx context.Context, canceled bool) (*Result, error) {
	r := &Result{Timeout: e.timeout, Clamped: e.clamped}
	exit, err := e.program.Wait(context.WithoutCancel(ctx)) // has ended: does not wait
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		r.Status, r.Failed = StatusStartFailed, step
		return r, nil
	}
	if err != nil {
		r.Status = StatusLost
		if reason := e.session.endReason(); canceled || reason != "" && reason != EndLost {
			r.Status = StatusCanceled
		}
		return r, nil
	}
	r.Status = map[isolation.Reason]Status{
		isolation.ReasonExited: StatusExited, isolation.ReasonSignaled: StatusSignaled,
		isolation.ReasonTimedOut: StatusTimedOut, isolation.ReasonCanceled: StatusCanceled,
	}[exit.Reason]
	r.ExitCode = exit.Code
	if exit.Signal != 0 {
		r.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	r.Duration, r.UserTime, r.SysTime = exit.Duration, exit.UserTime, exit.SystemTime
	r.MaxRSS, r.Leftovers = quantity.Size(exit.MaxRSS), int(exit.Leftovers)
	for i := range r.Streams {
		head, tail, err := e.program.Kept(i)
		if err != nil {
			return nil, fmt.Errorf("session %q: %w", e.session.ID, err)
		}
		r.Streams[i] = newStream(head, tail, exit.Streams[i])
	}
	return r, nil
}

// command turns a request into what PID 1 is told, and the script that goes with it.
func (v *Supervisor) command(s *Session, req *ExecRequest) (*isolation.Command, []byte, []Clamp, error) {
	if err := v.validateExec(req); err != nil {
		return nil, nil, nil, err
	}
	timeout, clamped, err := s.profile.timeout(s.Settings.Profile, req.Timeout)
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := &isolation.Command{
		Env: withEnv(s.env, req.Env), Dir: req.Dir, ScriptArg: -1, Timeout: timeout,
		KeepRunning: s.profile.Leftovers == LeftoversKeep,
		Output:      isolation.Output{Follow: req.Follow, Tail: uint64(followWindow)},
	}
	if cmd.Dir == "" {
		cmd.Dir = isolation.Workspace
	}
	if !req.Follow {
		limit := v.cfg.Exec.OutputLimit
		if req.OutputLimit != nil {
			limit = *req.OutputLimit
		}
		cmd.Output.Head = uint64(float64(limit) * headShare)
		cmd.Output.Tail = uint64(limit) - cmd.Output.Head
	}
	switch {
	case req.StdinPipe:
		cmd.Stdin = isolation.StdinPipe
	case len(req.Stdin) > 0:
		cmd.Stdin = isolation.StdinFile
	}
	script := v.argv(cmd, req)
	return cmd, script, clamped, nil
}

// argv sets the arguments. It returns the code if that is too long to be one of them.
func (v *Supervisor) argv(cmd *isolation.Command, req *ExecRequest) []byte {
	if req.Argv != nil {
		cmd.Argv = req.Argv
		return nil
	}
	code, lang := req.Code, v.cfg.Languages[req.Language]
	if req.Command != nil {
		code, lang = req.Command, v.cfg.Languages["sh"]
	}
	if len(*code) <= maxArg {
		cmd.Argv = slices.Clone(lang.Inline)
		cmd.Argv[slices.Index(cmd.Argv, codePlaceholder)] = *code
		return nil
	}
	cmd.Argv = slices.Clone(lang.File)
	cmd.ScriptArg, cmd.ScriptSuffix = slices.Index(cmd.Argv, filePlaceholder), lang.Suffix
	return []byte(*code)
}

func (v *Supervisor) validateExec(req *ExecRequest) error {
	given := 0
	for _, is := range []bool{req.Argv != nil, req.Command != nil, req.Code != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return fault.Errorf(fault.Invalid, "%d of argv, command and code are given, not one", given).
			WithHint("argv is a program with its arguments, command a line for the shell, code a text in language")
	case req.Argv != nil:
		if err := v.validateArgv(req.Argv); err != nil {
			return err
		}
	case req.Command != nil:
		if err := v.validateCode("command", *req.Command); err != nil {
			return err
		}
	default:
		if _, ok := v.cfg.Languages[req.Language]; !ok {
			return fault.Field("language", req.Language, strings.Join(slices.Sorted(maps.Keys(v.cfg.Languages)), ", "))
		}
		if err := v.validateCode("code", *req.Code); err != nil {
			return err
		}
	}
	if req.Code == nil && req.Language != "" {
		return fault.Field("language", req.Language, "nothing without code")
	}
	if req.Dir != "" && (!isolation.CleanAbsolute(req.Dir) || !isolation.UnderRoots(req.Dir)) {
		return fault.Field("cwd", req.Dir, "a clean absolute path at or below one of "+strings.Join(isolation.Roots(), ", "))
	}
	if size := quantity.Size(len(req.Stdin)); size > v.cfg.Exec.MaxStdin {
		return fault.Field("stdin", size, fmt.Sprintf("at most %v (exec.max_stdin); stream it instead", v.cfg.Exec.MaxStdin))
	}
	if l := req.OutputLimit; l != nil && (*l < 1 || *l > v.cfg.Exec.OutputLimit) {
		return fault.Field("output_limit", *l, fmt.Sprintf("1B to %v (exec.output_limit)", v.cfg.Exec.OutputLimit))
	}
	return validateEnvironment(req.Env)
}

func (v *Supervisor) validateArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return fault.Field("argv", fmt.Sprintf("%q", argv), "a program and its arguments")
	}
	var size quantity.Size
	for i, arg := range argv {
		field := fmt.Sprintf("argv[%d]", i)
		if strings.Contains(arg, "\x00") {
			return fault.Field(field, arg, "text without NUL")
		}
		if len(arg) > maxArg {
			return fault.Field(field, quantity.Size(len(arg)), fmt.Sprintf("at most %d bytes, by the kernel", maxArg)).
				WithHint("a command, code or stdin may be longer")
		}
		size += quantity.Size(len(arg) + 1)
	}
	if size > v.cfg.Exec.MaxCommand {
		return fault.Field("argv", size, fmt.Sprintf("at most %v (exec.max_command)", v.cfg.Exec.MaxCommand))
	}
	return nil
}

func (v *Supervisor) validateCode(field, code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return fault.Field(field, code, "something to run")
	case strings.Contains(code, "\x00"):
		return fault.Field(field, code, "text without NUL")
	case quantity.Size(len(code)) > v.cfg.Exec.MaxCommand:
		return fault.Field(field, quantity.Size(len(code)), fmt.Sprintf("at most %v (exec.max_command)", v.cfg.Exec.MaxCommand)).
			WithHint("put it into a file of the workspace, or send it by stdin")
	}
	return nil
}

// timeout is the profile's, or the request's as far as the profile goes.
func (p *Profile) timeout(name string, asked *quantity.Duration) (time.Duration, []Clamp, error) {
	if asked == nil {
		return time.Duration(p.Timeout), nil, nil
	}
	switch {
	case *asked <= 0:
		return 0, nil, fault.Field("timeout", *asked, fmt.Sprintf("more than 0, at most %v", p.MaxTimeout))
	case *asked != p.Timeout && slices.Contains(p.Locked, "timeout"):
		return 0, nil, locked("timeout", *asked, p.Timeout.String(), name)
	case *asked > p.MaxTimeout:
		return time.Duration(p.MaxTimeout), []Clamp{{"timeout", asked.String(), p.MaxTimeout.String()}}, nil
	}
	return time.Duration(*asked), nil, nil
}

// environment is the configured one with a session's on top.
func (v *Supervisor) environment(env map[string]string) []string {
	all := maps.Clone(v.cfg.Env)
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// withEnv is a session's environment with an execution's on top.
func withEnv(base []string, env map[string]string) []string {
	if len(env) == 0 {
		return base
	}
	list := make([]string, 0, len(base)+len(env))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := env[name]; !replaced {
			list = append(list, kv)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// execFiles are the memory files that travel with a command.
type execFiles struct{ client.Files }

func openFiles(script []byte, req *ExecRequest) (execFiles, error) {
	var f execFiles
	var err error
	if script != nil {
		if f.Script, err = memoryFile("script", script); err != nil {
			return f, err
		}
	}
	if len(req.Stdin) > 0 && !req.StdinPipe {
		if f.Stdin, err = memoryFile("stdin", req.Stdin); err != nil {
			f.close()
			return f, err
		}
	}
	return f, nil
}

func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := fdpass.BytesFile(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (f *execFiles) close() {
	for _, file := range []*os.File{f.Script, f.Stdin} {
		if file != nil {
			file.Close()
		}
	}
}
