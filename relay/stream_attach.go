// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Process attaches a client to a process, which continues when the client goes. An error is for a plain HTTP response.
func (o *streamOpening) Process(ctx context.Context, s *session.Session, p *process.Process) error {
	return o.serve(ctx, func(ctx context.Context, hangUp func(), c *conn) (*api.ExecResult, error) {
		first, err := c.first(ctx)
		if err != nil {
			return nil, err
		}
		if first.Attach == nil {
			return nil, fault.Field("attach", fault.Word("missing"), "an object in the first message")
		}
		if o.Observe != nil {
			o.Observe(first.Attach)
		}
		c.noInput = errors.New("attach.write was not set")
		return c.attend(ctx, hangUp, s, p, first.Attach, nil)
	})
}

// attend relays between a process and its client until one of them has ended. Its first message is started, or if that
// is nil, what the client is attached to.
func (c *conn) attend(ctx context.Context, hangUp func(), s *session.Session, p *process.Process, req *api.StreamAttach, started *api.StreamStarted) (*api.ExecResult, error) {
	if err := p.Started(ctx); ctx.Err() != nil { // before that, the amount of output is unknown
		return nil, err
	}
	options, err := attachOptions(p.Info(), req)
	if err != nil {
		return nil, err
	}
	a, err := p.Attach(ctx, options)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	out := newOutput(c, req, options.From, a.Position())
	sent := a.Taken() // by earlier writers
	if req.Stdin != nil {
		sent = *req.Stdin
		a.Resume(sent)
	}
	c.in = newInput(nil, req.Lines, c.writer(ctx, a, sent))
	c.in.repeated = uint64(max(a.Taken()-sent, 0))
	if !req.Write {
		c.in.refusal = c.noInput
	}
	if req.Lines {
		c.ws.SetReadLimit(api.MaxLine + 1)
	}
	greeting := api.ServerControl{Started: started}
	if started == nil {
		greeting.Attached = &api.StreamAttached{
			Process: processAnswer(s.ID, p.Info(), nil), Stdout: out.start[0], Stderr: out.start[1], Stdin: a.Taken(), Writer: a.Writer(),
		}
	}
	c.control(ctx, greeting)
	defer c.in.close()
	if c.ws.Subprotocol() == api.StreamForget {
		c.forgotten = make(chan struct{})
	}
	broken := func() {}
	if p.Spec().Unlisted {
		broken = p.RequestStop
	} else {
		c.tasks.Go(func() { c.watch(ctx, hangUp, pingEvery, pongTimeout) })
	}
	c.tasks.Go(func() { // ends with the connection
		defer hangUp()
		c.receive(ctx, func(msg *api.ClientControl) error {
			if msg.Forget {
				return c.forget(ctx, s, p)
			}
			return steer(p, msg)
		}, broken)
	})
	c.tasks.Go(func() { // ends with the input, or with ctx
		c.in.pump(func(read uint64) { c.control(ctx, api.ServerControl{StdinTaken: uint64(sent) + read}) })
	})
	if a.Writer() {
		c.tasks.Go(func() { c.watchWriter(ctx, hangUp, a) })
	}
	return c.relayToEnd(ctx, s, p, a, out)
}

// relayToEnd relays the output of a process, and returns its result.
func (c *conn) relayToEnd(ctx context.Context, s *session.Session, p *process.Process, a *process.Attachment, out *attachedOutput) (_ *api.ExecResult, err error) {
	waitCtx := ctx
	if p.Spec().Unlisted {
		err = c.relayUnlisted(ctx, p, a, out)
		if ctx.Err() != nil {
			err, waitCtx = nil, context.WithoutCancel(ctx) // the result is for the observers of boxd
		}
	} else {
		err = out.relay(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	select {
	case <-a.Lost(): // before the exit, even if the program has ended by what the other writer sent
		c.tellReplaced(waitCtx)
	default:
	}
	r, err := s.ProcessEnd(waitCtx, p) // the client has the output
	if err != nil {
		return nil, err
	}
	res := execAnswer(s.ID, r, "")
	return &res, nil
}

// relayUnlisted relays for a client that alone has the process, which ends when the client does not read all its output.
// The output of an ended process is not kept forever.
func (c *conn) relayUnlisted(ctx context.Context, p *process.Process, a *process.Attachment, out *attachedOutput) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c.tasks.Go(func() { // ends with ctx
		select {
		case <-p.Done():
		case <-ctx.Done():
			return
		}
		timer := time.NewTimer(drainTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			stop()
		case <-ctx.Done():
		}
	})
	err := out.relay(ctx, a)
	if err != nil {
		p.RequestStop()
		return fmt.Errorf("relay output: %w", err)
	}
	return nil
}

// forget removes a process whose client has read its end. Nothing that follows is read before that is done, so that a
// client whose stream is closed knows it.
func (c *conn) forget(ctx context.Context, s *session.Session, p *process.Process) error {
	select {
	case <-p.Done():
	default:
		return fault.Field("forget", "true", "false before the program has exited")
	}
	if c.forgotten == nil {
		return fault.Field("forget", "true", "false without the subprotocol "+api.StreamForget)
	}
	select {
	case <-c.forgotten:
		return nil
	default:
	}
	if err := s.RemoveProcess(ctx, p); err != nil {
		return err
	}
	close(c.forgotten)
	return nil
}

// attachOptions converts a client's attach request.
func attachOptions(info process.Info, req *api.StreamAttach) (process.AttachOptions, error) {
	o := process.AttachOptions{Write: req.Write, TakeOver: req.TakeOver, WriterID: req.WriterID, Lossless: req.Write}
	if req.Lossless != nil {
		o.Lossless = *req.Lossless
	}
	resumes := req.Stdout != nil || req.Stderr != nil
	switch {
	case req.Replay && resumes:
		return o, fault.Field("attach.replay", "true", "false with attach.stdout or attach.stderr")
	case req.Stdin != nil && *req.Stdin < 0:
		return o, fault.Field("attach.stdin", *req.Stdin, "0 or more")
	case len(req.WriterID) > api.MaxWriterID:
		return o, fault.Field("attach.writer_id", req.WriterID, fmt.Sprintf("at most %d bytes", api.MaxWriterID))
	case req.Write && !info.Stdin && info.Terminal == nil:
		return o, fault.Field("attach.write", "true", "false, as the process was started without stdin")
	case resumes:
		o.From = new([2]int64)
		for i, n := range []*int64{req.Stdout, req.Stderr} {
			if n != nil && (*n < 0 || *n > info.Output[i].Bytes) {
				return o, fault.Field("attach."+streamName(i), *n, fmt.Sprintf("0 to %d, the bytes written so far", info.Output[i].Bytes))
			}
			if n != nil {
				o.From[i] = *n
			}
		}
	case req.Replay:
		o.From = new([2]int64)
	case req.Lines && info.Output[0].Bytes > 0: // the byte before tells whether a line begins here
		o.From = &[2]int64{info.Output[0].Bytes - 1, info.Output[1].Bytes}
	}
	return o, nil
}

// writer writes the client's input to the process; sent is how many bytes the client has sent before.
func (c *conn) writer(ctx context.Context, a *process.Attachment, sent int64) writer {
	return writer{
		write: func(data []byte) error {
			err := a.Write(ctx, sent, data)
			sent += int64(len(data))
			if err == nil || errors.Is(err, unix.EPIPE) {
				return err
			}
			c.Log.Debug("cannot write standard input", "error", err)
			if a.Writer() { // nobody has replaced it, but nothing more is taken
				c.tellReplaced(ctx)
			}
			return errNotOurs
		},
		close: func() { _ = a.CloseWrite() }, // an ended process has no input
	}
}

// watchWriter tells a client that another one has replaced it as the writer. What it sends after that is discarded.
func (c *conn) watchWriter(ctx context.Context, hangUp func(), a *process.Attachment) {
	select {
	case <-a.Lost():
		if a.Again() { // this connection's peer is gone, and the program must not wait for it
			hangUp()
			return
		}
		c.tellReplaced(ctx)
	case <-ctx.Done():
	}
}

// tellReplaced tells it once, and returns when the message has been sent.
func (c *conn) tellReplaced(ctx context.Context) {
	c.replaced.Do(func() {
		c.in.discards.Store(true)
		c.control(ctx, api.ServerControl{WriterLost: true})
	})
}

// steer resizes or signals a process as a control message asks. An ended process is left alone.
func steer(p *process.Process, msg *api.ClientControl) error {
	sig, err := signalOf(msg)
	if err != nil {
		return err
	}
	if msg.Resize == nil {
		_ = p.Signal(sig)
		return nil
	}
	if err := checkTerminal("resize.", msg.Resize); err != nil {
		return err
	}
	if p.Info().Terminal == nil {
		return fault.Field("resize", fault.Word("given"), "left out for a process without a terminal")
	}
	_ = p.Resize(msg.Resize.Rows, msg.Resize.Cols)
	return nil
}

// attachedOutput is the output of a process for one client.
type attachedOutput struct {
	c     *conn
	start [2]int64 // where the client expects it to begin
	moved [2]int64 // how many bytes later it begins
	lines *cutter  // nil: pieces as they come
}

// newOutput begins an output at the position that it has; from is the requested one, nil if any will do.
func newOutput(c *conn, req *api.StreamAttach, from *[2]int64, at [2]int64) *attachedOutput {
	o := &attachedOutput{c: c, start: at}
	if req.Stdout != nil || req.Stderr != nil {
		o.start = *from
		o.moved = [2]int64{at[0] - from[0], at[1] - from[1]}
	}
	if !req.Lines {
		return o
	}
	o.lines = &cutter{reserve: c.Lines}
	switch {
	case req.Replay && at[0] > 0:
		o.lines.skipping = true
	case !req.Replay && from != nil && req.Stdout == nil && req.Stderr == nil: // see attachOptions
		o.lines.skipping, o.lines.lost = true, -1
		o.start[0]++
	}
	return o
}

// relay sends all present and future output; nil means that it has ended.
func (o *attachedOutput) relay(ctx context.Context, a *process.Attachment) error {
	defer o.lines.drop()
	for i, n := range o.moved {
		if err := o.missing(ctx, i, n); err != nil {
			return err
		}
	}
	for {
		c, err := a.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			n, why := o.lines.unfinished()
			return o.gap(ctx, 0, n, why)
		case err != nil:
			return err
		case c.Gap > 0:
			err = o.missing(ctx, c.Stream, c.Gap)
		case c.Stream == 0 && o.lines != nil:
			err = o.lines.add(ctx, c.Data, o.line, func(n int64, why string) error { return o.gap(ctx, 0, n, why) })
		default:
			for data := range slices.Chunk(c.Data, api.MaxOutput-1) {
				if err = o.c.send(ctx, api.ChannelStdout+byte(c.Stream), data); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
}

// line sends a line, without its end.
func (o *attachedOutput) line(ctx context.Context, data []byte) error {
	return o.c.send(ctx, api.ChannelStdout, data)
}

// missing skips bytes that are no longer stored.
func (o *attachedOutput) missing(ctx context.Context, stream int, n int64) error {
	if stream == 0 && o.lines != nil && n > 0 {
		o.lines.skip(n) // reported at the next line
		return nil
	}
	return o.gap(ctx, stream, n, "")
}

func (o *attachedOutput) gap(ctx context.Context, stream int, n int64, why string) error {
	if n > 0 {
		o.c.control(ctx, api.ServerControl{Gap: &api.StreamGap{Stream: streamName(stream), Bytes: n, Reason: why}})
	}
	return ctx.Err()
}
