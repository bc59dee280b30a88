// SPDX-License-Identifier: Apache-2.0

// The WebSocket protocol of boxd: programs with live input and output, and processes that clients attach to and leave.
// relay/api has the messages.

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor"
)

// Timeouts of a stream.
const (
	startTimeout = 10 * time.Second // for the first message
	drainTimeout = time.Minute      // for a client to take the rest of the output of an ended program

	pingEvery    = 30 * time.Second
	pongTimeout  = time.Minute      // for the answer to a ping
	stallTimeout = 10 * time.Minute // for a client to take anything at all of the pending output
)

// streamOpening is a request for a stream.
type streamOpening struct {
	W   http.ResponseWriter
	R   *http.Request
	Sup *supervisor.Supervisor
	Log *slog.Logger
	// Reserve waits for memory for n bytes from the caller, and Lines for n bytes of a line to it.
	Reserve, Lines memoryReserver
	// Unsent returns how many bytes the caller's socket holds that the caller has not received.
	Unsent func() int
	// Observe is called with the first message's request, and Ended with the outcome; both may be nil.
	Observe func(any)
	Ended   func(*api.ExecResult, *api.Problem)
}

// memoryReserver waits until n more bytes may be held for a caller; release returns them.
type memoryReserver func(ctx context.Context, n int64) (release func(), err error)

// conn is one WebSocket.
type conn struct {
	*streamOpening
	ws       *websocket.Conn // to read from
	frames   *frames         // to write to
	in       *input          // nil as long as input is impossible
	noInput  error           // the error for input that the client did not announce
	tasks    sync.WaitGroup
	cutOff   atomic.Bool  // the client has violated the protocol
	replaced sync.Once    // the client was told that another one writes now
	writing  atomic.Int32 // messages that are being sent
	lastSent atomic.Int64 // when the last message was sent, in Unix nanoseconds

	forgotten chan struct{} // closed when the client has its process forgotten; nil: it cannot
}

// server runs one stream; hangUp ends its ctx, and so does the end of the connection.
type server func(ctx context.Context, hangUp func(), c *conn) (*api.ExecResult, error)

// serve runs a WebSocket from its upgrade to its end. An error is for a plain HTTP response.
func (o *streamOpening) serve(ctx context.Context, run server) error {
	if !strings.EqualFold(o.R.Header.Get("Upgrade"), "websocket") {
		return fault.Field("Upgrade", o.R.Header.Get("Upgrade"), "websocket (RFC 6455)")
	}
	ws, below, err := accept(o.W, o.R)
	if err != nil {
		return nil // accept has answered
	}
	defer ws.CloseNow() //nolint:errcheck // a closed one is fine
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{streamOpening: o, ws: ws, frames: below}
	c.lastSent.Store(time.Now().UnixNano())
	result, err := run(ctx, cancel, c)
	end := api.ServerControl{Exit: result}
	if err != nil {
		end = api.ServerControl{Error: problemAnswer(ctx, o.Log, err)}
	}
	if o.Ended != nil {
		o.Ended(result, end.Error)
	}
	if !c.cutOff.Load() { // otherwise receive closes, with the reason
		timeoutCtx, stop := context.WithTimeout(ctx, drainTimeout)
		c.control(timeoutCtx, end)
		if result != nil && c.forgotten != nil { // the client may still send forget
			select {
			case <-c.forgotten:
			case <-timeoutCtx.Done():
			}
		}
		stop()
		_ = ws.Close(websocket.StatusNormalClosure, "")
		cancel() // ends receive if the close did not
	}
	c.tasks.Wait()
	cancel()
	if c.in != nil {
		c.in.drain()
	}
	return nil
}

// send writes a message, and waits until the client's socket has room for it.
func (c *conn) send(ctx context.Context, channel byte, data []byte) error {
	c.writing.Add(1)
	defer c.writing.Add(-1)
	err := c.frames.send(ctx, []byte{channel}, data)
	c.lastSent.Store(time.Now().UnixNano())
	return err
}

// control sends a control message. If that fails, the client is gone, which receive notices.
func (c *conn) control(ctx context.Context, msg api.ServerControl) {
	data, err := json.Marshal(msg)
	if err != nil {
		c.Log.Error("cannot encode a control message", "error", err)
		return
	}
	_ = c.send(ctx, api.ChannelControl, data)
}

// first reads the first message of the client.
func (c *conn) first(ctx context.Context) (*api.ClientControl, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c.ws.SetReadLimit(api.MaxStart)
	kind, data, release, err := c.read(ctx)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "no first message: %w", err).
			WithHint("send start or attach on the control channel within %v", startTimeout)
	}
	defer release()
	c.ws.SetReadLimit(api.MaxFrame)
	if kind != websocket.MessageBinary || len(data) == 0 || data[0] != api.ChannelControl {
		return nil, fault.Errorf(fault.Invalid, "the first message must be a binary message on the control channel").
			WithHint("send a binary message: the byte %d, then a JSON object", api.ChannelControl)
	}
	var msg api.ClientControl
	if err := decodeStrictly(data[1:], &msg); err != nil {
		return nil, err
	}
	if msg.Start != nil {
		if err := decodeBase64Into(msg.Start); err != nil {
			return nil, err
		}
	}
	return &msg, nil
}

// read reads a message, whose length is unknown until its end: a long one waits for memory for the longest, which
// release returns.
func (c *conn) read(ctx context.Context) (kind websocket.MessageType, data []byte, release func(), err error) {
	kind, r, err := c.ws.Reader(ctx)
	if err != nil {
		return 0, nil, nil, err
	}
	data, err = io.ReadAll(io.LimitReader(r, api.MaxFrame+1))
	if err != nil || len(data) <= api.MaxFrame {
		return kind, data, func() {}, err
	}
	if release, err = c.Reserve(ctx, api.MaxStart); err != nil {
		return 0, nil, nil, err
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		release()
		return 0, nil, nil, err
	}
	return kind, append(data, rest...), release, nil
}

// receive reads the client's messages until it hangs up or violates the protocol; then broken is called at once, as the
// peer may take its time to answer the close.
func (c *conn) receive(ctx context.Context, control func(*api.ClientControl) error, broken func()) {
	for {
		kind, data, release, err := c.read(ctx)
		if err != nil {
			return
		}
		err = errBadFrame
		if kind == websocket.MessageBinary && len(data) > 0 {
			switch data[0] {
			case api.ChannelStdin:
				err = c.in.add(data[1:], release)
				release = func() {} // now owned by the input
			case api.ChannelControl:
				var msg api.ClientControl
				if err = decodeStrictly(data[1:], &msg); err == nil {
					err = control(&msg)
				}
			}
		}
		release()
		if err != nil {
			c.cutOff.Store(true)
			broken()
			_ = c.ws.Close(websocket.StatusPolicyViolation, closeReason(err))
			return
		}
	}
}

var errBadFrame = errors.New("only binary messages on the stdin or control channel are accepted")

// maxCloseReason is how many bytes of a reason fit into a close frame (RFC 6455, 5.5).
const maxCloseReason = 123

func closeReason(err error) string {
	reason := err.Error()
	return strings.ToValidUTF8(reason[:min(len(reason), maxCloseReason)], "")
}

// watch drops a client that is gone, so that nothing is kept alive for it: one that does not answer a ping, or reads
// nothing at all for long. A client that has not read all it was sent is behind, not gone, and a ping would only be one
// more thing to read first.
func (c *conn) watch(ctx context.Context, hangUp func(), every, timeout time.Duration) {
	defer hangUp()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !c.behind() {
			timeoutCtx, cancel := context.WithTimeout(ctx, timeout)
			err := c.ws.Ping(timeoutCtx)
			cancel()
			if err != nil && !c.behind() {
				return
			}
		} else if time.Since(time.Unix(0, c.lastSent.Load())) > stallTimeout {
			return
		}
	}
}

func (c *conn) behind() bool { return c.writing.Load() > 0 || c.Unsent() > 0 }
