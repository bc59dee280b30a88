// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// executeRequest asks for code to be run.
type executeRequest struct {
	Context  string // its id; "": the default one of the language
	Language string // "": that of the context, else python
	Code     string
	Env      map[string]string // of this execution alone
}

// codeEvent is what happens in an execution, as E2B's clients read it.
type codeEvent struct {
	Type string `json:"type"`

	ExecutionCount int64 `json:"execution_count,omitempty"`

	Text      string `json:"text,omitempty"`      // of stdout and stderr; of a result its text
	Timestamp string `json:"timestamp,omitempty"` // of stdout and stderr, RFC 3339

	*codeResult

	Name      *string `json:"name,omitempty"` // of error
	Value     *string `json:"value,omitempty"`
	Traceback *string `json:"traceback,omitempty"`
}

// codeResult is a value in all forms it has.
type codeResult struct {
	HTML       json.RawMessage            `json:"html,omitempty"`
	Markdown   json.RawMessage            `json:"markdown,omitempty"`
	SVG        json.RawMessage            `json:"svg,omitempty"`
	PNG        json.RawMessage            `json:"png,omitempty"`
	JPEG       json.RawMessage            `json:"jpeg,omitempty"`
	PDF        json.RawMessage            `json:"pdf,omitempty"`
	Latex      json.RawMessage            `json:"latex,omitempty"`
	JSON       json.RawMessage            `json:"json,omitempty"`
	JavaScript json.RawMessage            `json:"javascript,omitempty"`
	Data       json.RawMessage            `json:"data,omitempty"`
	Chart      json.RawMessage            `json:"chart,omitempty"`
	Extra      map[string]json.RawMessage `json:"extra"`
	Main       bool                       `json:"is_main_result"`
}

// Types of events.
const (
	eventCount     = "number_of_executions"
	eventStdout    = "stdout"
	eventStderr    = "stderr"
	eventResult    = "result"
	eventError     = "error"
	eventKeepalive = "keepalive"
	eventEnd       = "end_of_execution"
)

// newResult makes an event of what a kernel says of a value.
func newResult(e *kernelEvent) *codeEvent {
	data := maps.Clone(e.Data)
	take := func(mime string) json.RawMessage {
		value := data[mime]
		delete(data, mime)
		if string(value) == "null" {
			return nil
		}
		return value
	}
	var text string
	_ = json.Unmarshal(take("text/plain"), &text) // the box's word
	if n := len(text); n > 1 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		text = text[1 : n-1]
	}
	r := &codeResult{
		HTML: take("text/html"), Markdown: take("text/markdown"), SVG: take("image/svg+xml"), PNG: take("image/png"), JPEG: take("image/jpeg"),
		PDF: take("application/pdf"), Latex: take("text/latex"), JSON: take("application/json"), JavaScript: take("application/javascript"),
		Data: take("e2b/data"), Chart: take("e2b/chart"), Main: e.Main,
	}
	if r.Extra = data; data == nil {
		r.Extra = map[string]json.RawMessage{}
	}
	return &codeEvent{Type: eventResult, Text: text, codeResult: r}
}

func newError(name, value, traceback string) *codeEvent {
	return &codeEvent{Type: eventError, Name: &name, Value: &value, Traceback: &traceback}
}

// Times of executions.
const (
	keepaliveAfter = 5 * time.Second
	lineAfter      = 200 * time.Millisecond // a piece of a line waits so long for the rest
	againAfter     = 2 * time.Second        // what has not ended is interrupted again
)

// errLost means that the client has taken nothing for so long that the program has not waited any more.
var errLost = errors.New("output of the code was lost: the client did not read it")

// maxText is how much output one event has at most.
const maxText = 64 << 10

// execute runs code and hands on what happens, from number_of_executions to end_of_execution. It waits while other code runs in the
// context. When ctx ends, so does the code, as by Ctrl-C, and the next one finds the context as that leaves it. An error of emit does
// the same. Other errors mean that nothing has run.
func (c *contexts) execute(ctx context.Context, sb *sandbox, req *executeRequest, emit func(*codeEvent) error) error {
	if err := checkCode(req.Code, req.Env); err != nil {
		return err
	}
	x, language, err := c.choose(ctx, sb, req)
	if err != nil {
		return err
	}
	if err := x.takeTurn(ctx, emit); err != nil {
		return err
	}
	defer func() {
		x.touch()
		<-x.turn
	}()
	p, fresh, err := c.kernel(ctx, sb, x)
	if err != nil {
		return err
	}
	a, err := p.Attach(ctx, process.AttachOptions{Write: true, TakeOver: true, Lossless: true})
	if err != nil {
		return err
	}
	defer a.Close()
	run := &execution{
		kernel: kernels()[x.Language], process: p, client: a, emit: emit,
		request: kernelRequest{Op: opRun, ID: rand.Text(), Code: req.Code, Lang: language, Env: req.Env},
	}
	for i := range run.streams {
		run.streams[i] = stream{number: i, frames: newFrames(run.kernel.nonce(p.Spec().Command.Argv))}
	}
	known := x.clean || fresh
	run.interrupted, x.interrupted = x.interrupted, false
	x.clean = false
	err = run.do(ctx, known)
	switch {
	case errors.Is(err, io.EOF):
		return c.died(ctx, sb.Session, p, x, run)
	case err != nil:
		run.interrupt(ctx)
		x.interrupted = true
		return err
	}
	x.clean = true
	return emit(&codeEvent{Type: eventEnd})
}

// choose finds the context of a request, and the language of its code.
func (c *contexts) choose(ctx context.Context, sb *sandbox, req *executeRequest) (*codeContext, string, error) {
	if req.Context != "" {
		x, err := c.get(sb, req.Context)
		if err != nil || req.Language == "" {
			return x, "", err
		}
		language, runs, err := sb.language(req.Language)
		if err == nil && runs != x.Language {
			err = fault.Field("language", req.Language, "left out, or that of the context, which is "+x.Language)
		}
		return x, language, err
	}
	language, runs, err := sb.language(req.Language)
	if err != nil {
		return nil, "", err
	}
	x, err := c.fallback(ctx, sb, runs)
	return x, language, err
}

// takeTurn waits until no other code runs in the context.
func (x *codeContext) takeTurn(ctx context.Context, emit func(*codeEvent) error) error {
	for {
		select {
		case x.turn <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(keepaliveAfter):
		}
		if err := emit(&codeEvent{Type: eventKeepalive}); err != nil {
			return err
		}
	}
}

// notFound is how a shell ends that does not find the program it is to become.
const notFound = 127

// died tells of an execution that the end of its kernel has ended.
func (c *contexts) died(ctx context.Context, s *session.Session, p *process.Process, x *codeContext, run *execution) error {
	if state, lost, _ := s.State(); state != session.StateReady || lost {
		return session.NotFoundError(s.ID) // clients take an answer that breaks off for that
	}
	result, err := s.ProcessEnd(ctx, p)
	if err == nil && !run.started && result.Status == session.StatusExited && result.ExitCode == notFound {
		return run.kernel.noKernel(x.Language, unix.ENOENT)
	}
	if err == nil && result.Status == session.StatusLost {
		return session.NotFoundError(s.ID)
	}
	how := death(result, err)
	c.server.cfg.Log.Debug("kernel ended", "session", s.ID, "context", x.ID, "how", how)
	if !run.started {
		if err := run.emit(&codeEvent{Type: eventCount}); err != nil {
			return err
		}
	}
	e := newError("KernelDied", "kernel died: "+how+"; the variables of the context are lost", "")
	if x.isRemoved() || p.Info().Reason == process.ReasonStopped {
		e = newError("ContextRestarting", "Context was restarted or removed", "")
	}
	return errors.Join(run.emit(e), run.emit(&codeEvent{Type: eventEnd}))
}

// execution is code that runs.
type execution struct {
	kernel      kernel
	process     *process.Process
	client      *process.Attachment
	request     kernelRequest
	emit        func(*codeEvent) error
	streams     [2]stream
	interrupted bool // whoever was before has interrupted the kernel
	started     bool
	failed      bool // an error has been told: clients keep one
}

// stream is standard output or error of a kernel.
type stream struct {
	number  int
	frames  *frames
	open    bool   // what comes is of this execution
	ended   bool   // its end has come
	synced  bool   // the kernel waits for requests
	pending []byte // output that no event has told of
}

// do sees an execution through. io.EOF means that the kernel has ended.
func (r *execution) do(ctx context.Context, known bool) error {
	if !known { // somebody has left it, with code running perhaps
		if !r.interrupted { // else it is about to end
			r.interrupt(ctx)
		}
		sync := kernelRequest{Op: opSync, ID: r.request.ID}
		if err := r.send(ctx, &sync); err != nil {
			return err
		}
		if err := r.until(ctx, func() bool { return r.streams[0].synced && r.streams[1].synced }, func() { r.interrupt(ctx) }); err != nil {
			return err
		}
	}
	if err := r.send(ctx, &r.request); err != nil {
		return err
	}
	err := r.until(ctx, func() bool { return r.streams[0].ended && r.streams[1].ended }, func() {})
	if errors.Is(err, io.EOF) {
		for i := range r.streams {
			s := &r.streams[i]
			if bad := s.frames.flush(func(data []byte) error { return r.output(s, data) }); bad != nil {
				return bad
			}
			if bad := r.flush(s, true); bad != nil {
				return bad
			}
		}
	}
	return err
}

// interruptTimeout is how long a request that something is to end waits to be taken.
const interruptTimeout = time.Second

// interrupt ends the execution that runs in the kernel, whoever has begun it, and does nothing to a kernel that waits.
func (r *execution) interrupt(ctx context.Context) {
	if r.kernel.interruptRequest {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptTimeout)
		defer cancel()
		_ = r.send(ctx, &kernelRequest{Op: opInterrupt, ID: anyExecution}) // of one that has ended nothing is left to end
	}
	_ = r.process.Signal(unix.SIGINT) // nor here
}

func (r *execution) send(ctx context.Context, req *kernelRequest) error {
	line, err := r.kernel.encode(req)
	if err != nil {
		return err
	}
	return r.client.Write(ctx, r.client.Taken(), line)
}

// until reads what the kernel writes until done says so. Again is called now and then.
func (r *execution) until(ctx context.Context, done func() bool, again func()) error {
	lastOutput, lastAsked := time.Now(), time.Now()
	for !done() {
		wait := keepaliveAfter - time.Since(lastOutput)
		if len(r.streams[0].pending)+len(r.streams[1].pending) > 0 {
			wait = lineAfter
		}
		next, cancel := context.WithTimeout(ctx, wait)
		chunk, err := r.client.Next(next)
		cancel()
		switch {
		case err == nil && chunk.Gap > 0:
			return errLost
		case err == nil:
			s := &r.streams[chunk.Stream]
			if err := s.frames.add(chunk.Data, func(data []byte) error { return r.output(s, data) }, func(e *kernelEvent) error { return r.event(s, e) }); err != nil {
				return err
			}
			if s.open {
				lastOutput = time.Now()
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		case len(r.streams[0].pending)+len(r.streams[1].pending) > 0:
			for i := range r.streams {
				if err := r.flush(&r.streams[i], false); err != nil {
					return err
				}
			}
			lastOutput = time.Now()
		default:
			if err := r.emit(&codeEvent{Type: eventKeepalive}); err != nil {
				return err
			}
			lastOutput = time.Now()
		}
		if time.Since(lastAsked) >= againAfter {
			again()
			lastAsked = time.Now()
		}
	}
	return nil
}

// output takes what code has written. Whole lines are told at once.
func (r *execution) output(s *stream, data []byte) error {
	if !s.open {
		return nil // from before, or from a program that has been left running
	}
	for len(data) > 0 {
		n := min(len(data), maxText-len(s.pending))
		s.pending, data = append(s.pending, data[:n]...), data[n:]
		if len(s.pending) == maxText {
			if err := r.flush(s, false); err != nil {
				return err
			}
		}
	}
	if end := bytes.LastIndexByte(s.pending, '\n') + 1; end > 0 {
		return r.text(s, end)
	}
	return nil
}

// flush tells what there is. all says that no more of a character that has begun will come.
func (r *execution) flush(s *stream, all bool) error {
	n := len(s.pending)
	if !all {
		n = len(output.Whole(s.pending))
	}
	return r.text(s, n)
}

func (r *execution) text(s *stream, n int) error {
	if n == 0 {
		return nil
	}
	text := strings.ToValidUTF8(string(s.pending[:n]), "\uFFFD")
	s.pending = slices.Delete(s.pending, 0, n)
	return r.emit(&codeEvent{Type: [...]string{eventStdout, eventStderr}[s.number], Text: text, Timestamp: time.Now().UTC().Format(time.RFC3339Nano)})
}

// event takes what the kernel tells. Of another execution it is nobody's.
func (r *execution) event(s *stream, e *kernelEvent) error {
	switch {
	case e.Kind == kernelSynced && e.ID == r.request.ID:
		s.synced = true
	case e.Kind == kernelBegin && e.ID == r.request.ID:
		s.open = true
		if s.number == 0 && !r.started {
			r.started = true
			return r.emit(&codeEvent{Type: eventCount, ExecutionCount: e.Count})
		}
	case !s.open:
	case e.Kind == kernelEnd && e.ID == r.request.ID:
		err := r.flush(s, true)
		s.open, s.ended = false, true
		return err
	case e.Kind == kernelResult || e.Kind == kernelError && !r.failed:
		if err := r.flush(s, true); err != nil {
			return err
		}
		if e.Kind == kernelResult {
			return r.emit(newResult(e))
		}
		r.failed = true
		return r.emit(newError(cmp.Or(e.Name, "Error"), e.Value, e.Traceback))
	}
	return nil
}
