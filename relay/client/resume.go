// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/api"
)

// reconnectTimes are the times of reconnects.
type reconnectTimes struct {
	first, longest time.Duration // between tries; doubled after each
	total          time.Duration // after which it gives up
	writer         time.Duration // for boxd to notice that the old connection has ended
}

func defaultReconnectTimes() reconnectTimes {
	return reconnectTimes{first: 50 * time.Millisecond, longest: 2 * time.Second, total: 30 * time.Second, writer: 2 * time.Second}
}

// retries are the tries since a connection was lost.
type retries struct {
	since time.Time
	delay time.Duration
}

// wait waits before the next try. An error means that there is none.
func (r *retries) wait(ctx context.Context, p *reconnectTimes, why error) error {
	if r.delay == 0 {
		r.since, r.delay = time.Now(), p.first
	}
	if time.Since(r.since)+r.delay > p.total {
		if lost, ok := errors.AsType[lostError](why); ok {
			why = lost.error
		}
		if errors.Is(why, ErrStreamEnded) {
			return why
		}
		return fmt.Errorf("%w: %w", ErrStreamEnded, why)
	}
	timer := time.NewTimer(r.delay)
	defer timer.Stop()
	r.delay = min(2*r.delay, p.longest)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lostError is a connection that has ended unexpectedly.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// retryable reports whether another connection may succeed.
func retryable(err error) bool {
	if errors.As(err, new(lostError)) {
		return true
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
	}
	return errors.As(err, new(*ConnectError)) || errors.As(err, new(*net.OpError)) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// stream is the client's side of one stream, over all its connections.
type stream struct {
	client  *Client
	stdio   Stdio
	signals <-chan string
	options AttachOptions

	to     target             // of the first connection
	first  *api.ClientControl // its first message
	again  target             // of later connections; without a path there are none
	attach api.StreamAttach   // first message of those

	forget    bool // boxd must forget the process when its end was read
	forgotten bool // it has

	sent     bool     // boxd may have received the first message
	started  bool     // the program has started
	at       [2]int64 // bytes of stdout and stderr that have been delivered
	skip     [2]int64 // bytes that are delivered again
	progress bool     // the connection has delivered something
	forwards sync.Once
	pumps    sync.Once
	cancel   context.CancelFunc // of the whole stream
	done     <-chan struct{}    // closed by cancel

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond // signaled when one of them changes
	in      outbox
	ended   bool
	failed  error // why the stream must end
}

func newStream(c *Client, stdio Stdio, signals <-chan string) *stream {
	s := &stream{client: c, stdio: stdio, signals: signals}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// run relays until the result comes, over as many connections as it takes.
func (s *stream) run(ctx context.Context) (*api.ExecResult, error) {
	if s.to.err != nil {
		return nil, s.to.err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.done = ctx.Done()
	defer s.cancel()
	r, err := s.connection(ctx, s.to, s.first)
	var tries retries
	// If boxd has answered that it starts nothing, there is nothing to resume.
	unanswered := s.sent && errors.As(err, new(lostError))
	for err != nil && (s.started || unanswered) && s.again.path != "" && retryable(err) && ctx.Err() == nil {
		if s.started && s.progress {
			tries = retries{}
		}
		if werr := tries.wait(ctx, &s.client.pace, err); werr != nil {
			err = werr
			break
		}
		r, err = s.connection(ctx, s.again, s.next())
		switch {
		case !errors.Is(err, NotFound):
		case s.started:
			err = ErrProcessGone
		case s.first.Start != nil: // boxd did not get the start, or nothing came of it
			err = ErrStreamEnded
		}
		if s.attach.Write && notWriter(err) { // boxd may not have noticed yet that the last connection has ended
			if time.Since(tries.since) > s.client.pace.writer {
				s.loseWriter()
			}
			err = lostError{err}
		}
	}
	return s.end(ctx, r, err)
}

// errNotWriter means that boxd accepts standard input from another client.
var errNotWriter = errors.New("another client writes to the process")

func notWriter(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusConflict || errors.Is(err, errNotWriter)
}

// end stops the stream's goroutines, and returns its outcome.
func (s *stream) end(ctx context.Context, r *api.ExecResult, err error) (*api.ExecResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
	lost, isLost := errors.AsType[lostError](err)
	switch {
	case s.failed != nil:
		return nil, s.failed
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case isLost:
		return nil, lost.error
	case err != nil:
		return nil, err
	}
	return r, nil
}

// fail ends the stream because of an error on this side.
func (s *stream) fail(err error) {
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	s.cancel()
}

// next returns the first message of a connection that resumes where the last one was lost.
func (s *stream) next() *api.ClientControl {
	if !s.started && s.first.Attach != nil {
		return s.first
	}
	a := s.attach
	a.Stdout, a.Stderr = new(s.at[0]), new(s.at[1])
	s.mu.Lock()
	a.Stdin = new(s.in.base)
	s.mu.Unlock()
	return &api.ClientControl{Attach: &a}
}

// needsOf tells a gateway what a program needs that leaves no session behind.
func needsOf(first *api.ClientControl) http.Header {
	if first == nil || first.Start == nil || first.Start.Session == nil {
		return nil
	}
	request, needs := first.Start.Session, url.Values{}
	if request.Image != nil {
		needs.Set("image", *request.Image)
	}
	for _, name := range request.Skills {
		needs.Add("skill", name)
	}
	for _, name := range request.Drives {
		needs.Add("drive", name)
	}
	if request.Workspace != "" {
		needs.Set("workspace", request.Workspace)
	}
	for i := range request.Inputs {
		needs.Add("input", request.Inputs[i].Workspace)
	}
	if len(needs) == 0 {
		return nil
	}
	return http.Header{api.NeedsHeader: {needs.Encode()}}
}

// connection uses one connection. After a lostError another one may follow.
func (s *stream) connection(ctx context.Context, to target, first *api.ClientControl) (*api.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.progress = false
	options := &websocket.DialOptions{HTTPClient: s.client.streams, HTTPHeader: needsOf(first)}
	if s.forget {
		options.Subprotocols = []string{api.StreamForget}
	}
	ws, resp, err := websocket.Dial(ctx, "ws://boxd"+to.path, options) //nolint:bodyclose // the library has closed it
	if err != nil {
		return nil, dialError(resp, err)
	}
	defer ws.CloseNow() //nolint:errcheck // a closed one is fine
	ws.SetReadLimit(-1) // boxd is trusted; its frames are small, and the last one holds no output
	data, err := encode(first)
	if err != nil {
		return nil, err
	}
	s.sent = true
	if err := ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ChannelControl}, data...)); err != nil {
		return nil, lostError{fmt.Errorf("%w: %w", ErrStreamEnded, err)}
	}
	s.mu.Lock()
	s.in.renew()
	s.mu.Unlock()
	wake := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer wake()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel() // before that, and while wake can signal
	sending.Go(func() { s.send(ctx, ws) })
	s.forwards.Do(func() { go s.forward(s.signals, s.stdio.Resize) }) // ends with the stream
	r, err := s.receive(ctx, ws)
	if err == nil {
		s.close(ctx, ws)
	}
	return r, err
}

// close closes a connection that has delivered the result. A boxd that knows StreamForget closes it only after it has
// forgotten the process.
func (s *stream) close(ctx context.Context, ws *websocket.Conn) {
	sent := false
	if ws.Subprotocol() == api.StreamForget {
		data, err := encode(&api.ClientControl{Forget: true})
		sent = err == nil && ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ChannelControl}, data...)) == nil
	}
	err := ws.Close(websocket.StatusNormalClosure, "")
	s.forgotten = sent && err == nil
}

func dialError(resp *http.Response, err error) error {
	if e, ok := errors.AsType[*ConnectError](err); ok {
		return e
	}
	if resp == nil || resp.Body == nil {
		return lostError{err}
	}
	return refusal(resp)
}

// receive handles boxd's messages until the result comes.
func (s *stream) receive(ctx context.Context, ws *websocket.Conn) (*api.ExecResult, error) {
	buf := make([]byte, 0, api.MaxOutput+1)
	for {
		data, err := nextMessage(ctx, ws, buf)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || len(data) == 0 {
			return nil, streamEnd(err)
		}
		switch data[0] {
		case api.ChannelStdout:
			err = s.deliver(0, s.stdio.Stdout, data[1:])
		case api.ChannelStderr:
			err = s.deliver(1, s.stdio.Stderr, data[1:])
		case api.ChannelControl:
			r, cerr := s.handle(data[1:])
			if r != nil || cerr != nil {
				return r, cerr
			}
		}
		if err != nil {
			return nil, fmt.Errorf("write output: %w", err)
		}
	}
}

// streamEnd returns the error of a stream that has ended without a result: lost, unless boxd reports that its client has
// violated the protocol.
func streamEnd(err error) error {
	e, ok := errors.AsType[websocket.CloseError](err)
	if ok && (e.Code == websocket.StatusPolicyViolation || e.Code == websocket.StatusMessageTooBig) {
		return fmt.Errorf("%w: boxd says %q", ErrStreamEnded, e.Reason)
	}
	return lostError{ErrStreamEnded}
}

// deliver writes and counts output.
func (s *stream) deliver(stream int, to io.Writer, data []byte) error {
	s.progress = true
	if s.options.Lines && stream == 0 {
		data = append(data, '\n')
	}
	if again := min(s.skip[stream], int64(len(data))); again > 0 {
		s.skip[stream] -= again
		data = data[again:]
	}
	if len(data) == 0 {
		return nil
	}
	n, err := to.Write(data)
	s.at[stream] += int64(n)
	return err
}

// handle processes a control message.
func (s *stream) handle(data []byte) (*api.ExecResult, error) {
	var msg api.ServerControl
	if err := json.Unmarshal(data, &msg); err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	switch {
	case msg.Error != nil:
		return nil, &Error{*msg.Error}
	case msg.Exit != nil:
		return msg.Exit, nil
	case msg.Started != nil:
		s.started, s.progress = true, true
		s.startInput(0, true)
	case msg.Attached != nil:
		return nil, s.attached(msg.Attached)
	case msg.Gap != nil:
		s.progress = true
		s.gap(streamNumber(msg.Gap.Stream), msg.Gap.Bytes, msg.Gap.Reason)
	case msg.WriterLost:
		s.loseWriter()
	case msg.StdinTaken > 0:
		s.progress = true
		s.mu.Lock()
		s.in.confirm(int64(msg.StdinTaken))
		s.changed.Broadcast()
		s.mu.Unlock()
	}
	return nil, nil //nolint:nilnil // neither result nor error: the stream goes on
}

func streamNumber(name string) int {
	if name == "stderr" {
		return 1
	}
	return 0
}

func (s *stream) gap(stream int, bytes int64, reason string) {
	s.at[stream] += bytes
	if s.options.Gap != nil {
		s.options.Gap(api.StreamGap{Stream: [2]string{"stdout", "stderr"}[stream], Bytes: bytes, Reason: reason})
	}
}

// attached begins or resumes a connection to a process.
func (s *stream) attached(a *api.StreamAttached) error {
	from := [2]int64{a.Stdout, a.Stderr}
	switch {
	case s.started:
	case s.first.Start != nil: // its answer was lost: nothing has been delivered
		s.started = true
		s.startInput(0, s.attach.Write)
	default:
		s.started, s.at = true, from
		if s.options.Attached != nil {
			s.options.Attached(a)
		}
		s.attach.Write = s.attach.Write && a.Writer
		s.startInput(a.Stdin, s.attach.Write)
		return nil
	}
	if s.attach.Write && !a.Writer {
		return errNotWriter
	}
	s.progress = true
	for i := range from {
		s.skip[i] = max(0, s.at[i]-from[i])
		if missing := from[i] - s.at[i]; missing > 0 {
			s.gap(i, missing, "")
		}
	}
	if !s.attach.Write {
		return nil
	}
	s.mu.Lock()
	base, end := s.in.base, s.in.end()
	if base <= a.Stdin && a.Stdin <= end {
		s.in.confirm(a.Stdin)
		s.in.ready = true
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	switch {
	case a.Stdin < base:
		return fmt.Errorf("boxd has %d bytes of standard input, not the %d it had accepted", a.Stdin, base)
	case a.Stdin > end: // another client has written meanwhile
		s.loseWriter()
	}
	return nil
}

// loseWriter continues without sending standard input.
func (s *stream) loseWriter() {
	if !s.attach.Write {
		return
	}
	s.attach.Write = false
	s.mu.Lock()
	s.in.ready, s.in.lost = false, true
	s.changed.Broadcast()
	s.mu.Unlock()
	if s.options.WriterLost != nil {
		s.options.WriterLost()
	}
}
