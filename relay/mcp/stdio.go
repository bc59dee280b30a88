// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxLine is the maximum length of an incoming message, in bytes.
const maxLine = 16 << 20

// lastAnswers is how long requests in progress at the end of the input may take: usually the client does not wait for
// their answers any more, but it may have sent all requests at once.
const lastAnswers = 3 * time.Second

// Stdio is the MCP transport over a pair of streams: JSON-RPC messages, one a line. An invalid message is answered as
// the specification says, and does not end the connection. Closing a connection does not close the streams.
type Stdio struct {
	In  io.Reader
	Out io.Writer
}

// Connect begins to read. The reading goroutine ends with its input, except for an uninterruptible Read.
func (s *Stdio) Connect(context.Context) (mcp.Connection, error) {
	c := &connection{out: s.Out, incoming: make(chan jsonrpc.Message), answered: make(chan struct{}, 1), closed: make(chan struct{})}
	go c.receive(bufio.NewReaderSize(s.In, 64<<10))
	return c, nil
}

// connection is one MCP session.
type connection struct {
	incoming chan jsonrpc.Message // closed at the end of the input
	answered chan struct{}        // signals that a call has been answered
	closed   chan struct{}
	closing  sync.Once

	mu     sync.Mutex // guards the fields below
	out    io.Writer
	greets jsonrpc.ID // id of the client's initialize
	ready  bool       // initialize has been answered
	calls  int        // unanswered calls
}

// receive reads messages until the input ends. Batches exist only in protocol versions before 2025-06-18: the client's
// initialize names its version.
func (c *connection) receive(in *bufio.Reader) {
	defer close(c.incoming)
	batches := false
	for {
		line, err := readLine(in)
		if errors.Is(err, errTooLong) {
			c.refuse(&refusal{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("a message is longer than %d bytes", maxLine)})
			continue
		}
		messages, refusal := parseMessages(line, batches)
		if refusal != nil {
			c.refuse(refusal)
		}
		for _, m := range messages {
			if greeting, version := initializes(m); greeting != nil {
				batches = version < "2025-06-18"
				c.mu.Lock()
				c.greets = greeting.ID
				c.mu.Unlock()
			}
			select {
			case c.incoming <- m:
			case <-c.closed:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

var errTooLong = errors.New("a line is too long")

// readLine reads a line without its line end. A line that is too long is skipped.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		piece, err := in.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(piece) > maxLine; tooLong {
			line = nil
		} else {
			line = append(line, piece...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case tooLong && err == nil:
			return nil, errTooLong
		default:
			return bytes.TrimSpace(line), err
		}
	}
}

// refusal is the answer to an invalid message.
type refusal struct {
	ID      json.RawMessage // the message's id, if it has a valid one; otherwise nil
	Code    int64
	Message string
}

func invalid(line []byte, text string) *refusal {
	r := &refusal{Code: jsonrpc.CodeInvalidRequest, Message: text}
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(line, &m) == nil && len(m.ID) > 0 && (m.ID[0] == '"' || m.ID[0] == '-' || m.ID[0] >= '0' && m.ID[0] <= '9') {
		r.ID = m.ID
	}
	return r
}

// parseMessages parses a line: no message if it is empty, several if it is a batch and batches are allowed.
func parseMessages(line []byte, batches bool) ([]jsonrpc.Message, *refusal) {
	switch {
	case len(line) == 0:
		return nil, nil
	case !json.Valid(line):
		return nil, &refusal{Code: jsonrpc.CodeParseError, Message: "the message is not JSON"}
	case line[0] != '[':
		m, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			return nil, invalid(line, "not a JSON-RPC 2.0 message: "+err.Error())
		}
		return []jsonrpc.Message{m}, nil
	case !batches:
		return nil, invalid(line, "this version of the protocol has no batches")
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(line, &parts); err != nil || len(parts) == 0 {
		return nil, invalid(line, "a batch must have at least one message")
	}
	messages := make([]jsonrpc.Message, 0, len(parts))
	for _, part := range parts {
		m, err := jsonrpc.DecodeMessage(part)
		if err != nil {
			return nil, invalid(part, "a batch has an element that is not a JSON-RPC 2.0 message: "+err.Error())
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// initializes returns the initialize request, and the protocol version that it asks for.
func initializes(m jsonrpc.Message) (*jsonrpc.Request, string) {
	r, ok := m.(*jsonrpc.Request)
	if !ok || r.Method != "initialize" || !r.IsCall() {
		return nil, ""
	}
	var params struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(r.Params, &params) != nil || params.ProtocolVersion == "" {
		return r, "unknown"
	}
	return r, params.ProtocolVersion
}

// refuse answers an invalid message.
func (c *connection) refuse(r *refusal) {
	data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": r.ID, "error": jsonrpc.Error{Code: r.Code, Message: r.Message}})
	if err == nil {
		_ = c.write(data) // the next Write fails if the client has stopped reading
	}
}

func (c *connection) write(line []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(append(line, '\n'))
	return err
}

// Read returns the next message, io.EOF when there are no more.
func (c *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.closed:
		return nil, io.EOF
	case m, ok := <-c.incoming:
		if !ok {
			c.awaitAnswers(ctx)
			return nil, io.EOF
		}
		if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
			c.count(1)
		}
		return m, nil
	}
}

func (c *connection) count(n int) (calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls += n
	return c.calls
}

// awaitAnswers waits until all calls have been answered, at most lastAnswers.
func (c *connection) awaitAnswers(ctx context.Context) {
	timer := time.NewTimer(lastAnswers)
	defer timer.Stop()
	for c.count(0) > 0 {
		select {
		case <-c.answered:
		case <-timer.C:
			return
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Write sends a message. An error without a code gets one, which JSON-RPC requires.
func (c *connection) Write(ctx context.Context, m jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		m = c.coded(r)
		defer func() {
			c.count(-1)
			select {
			case c.answered <- struct{}{}:
			default:
			}
		}()
	}
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	return c.write(data)
}

func (c *connection) coded(r *jsonrpc.Response) *jsonrpc.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Error == nil {
		c.ready = c.ready || c.greets.IsValid() && r.ID == c.greets
		return r
	}
	if e, ok := errors.AsType[*jsonrpc.Error](r.Error); ok && e.Code != 0 {
		return r
	}
	code := int64(jsonrpc.CodeInternalError)
	if !c.ready {
		code = jsonrpc.CodeInvalidRequest
	}
	return &jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: code, Message: r.Error.Error()}}
}

// Close ends Read.
func (c *connection) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return nil
}

// SessionID is empty: there is only one session.
func (c *connection) SessionID() string { return "" }
