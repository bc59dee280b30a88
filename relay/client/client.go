// SPDX-License-Identifier: Apache-2.0

// Package client is the Go client of boxd's API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
)

// DefaultSocket is where an installed boxd listens.
const DefaultSocket = "/run/boxd/boxd.sock"

// maxAnswer is the maximum size of a response that is read into memory, in bytes.
const maxAnswer = 512 << 20

// expectedAnswer bounds how much memory a response gets for its Content-Length alone, in bytes.
const expectedAnswer = 16 << 20

// maxProblem is the maximum size of an error response, in bytes.
const maxProblem = 1 << 20

// Error is an error that boxd reported.
type Error struct{ api.Problem }

func (e *Error) Error() string { return e.Detail }

// Is reports whether target is an *Error of the same kind, so that errors.Is works with NotFound.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Type == e.Type
}

// NotFound matches the error of a session that does not exist, with errors.Is.
var NotFound = &Error{api.Problem{Type: api.ProblemType + "not_found"}}

// ConnectError means that the connection to boxd failed.
type ConnectError struct {
	Socket string
	Err    error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Socket, e.Err) }

// Unwrap returns the reason.
func (e *ConnectError) Unwrap() error { return e.Err }

// Client is a connection to one boxd. It keeps connections open between calls; Close ends them.
type Client struct {
	socket  string
	http    *http.Client
	streams *http.Client   // for WebSockets
	pace    reconnectTimes // of reconnects
	// Owner, such as "uid:1000", makes calls about sessions apply to those of that principal. Only some callers may.
	Owner string
	// Token is sent with every request, if it is set: it authenticates the client to boxd.
	Token string
	// TLS is for https addresses.
	TLS TLS
}

// New returns a client of the boxd or fleet gateway at a Unix socket, at a loopback address, "http://127.0.0.1:5410", or
// over TLS, "https://boxd.example.org:5411". It does not connect yet.
func New(socket string) *Client {
	var c *Client
	c = Over(socket, func(ctx context.Context) (net.Conn, error) { return c.dial(ctx) })
	return c
}

// Over returns a client of the boxd that connect connects to; errors call it by name.
func Over(name string, connect func(context.Context) (net.Conn, error)) *Client {
	c := &Client{socket: name, pace: defaultReconnectTimes()}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) }
	c.http = c.httpClient(&http.Transport{DialContext: dial, MaxIdleConns: 64, MaxIdleConnsPerHost: 64})
	c.streams = c.httpClient(&http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return streamConn{conn}, nil
	}})
	return c
}

// Through returns a client whose requests are answered by rt, whatever their address; errors call that by name. It has no WebSockets.
func Through(name string, rt http.RoundTripper) *Client {
	c := &Client{socket: name, pace: defaultReconnectTimes()}
	c.http = c.clientOf(rt)
	c.streams = c.http
	return c
}

// overTCP returns the address of a boxd that is not at a Unix socket, and whether it speaks TLS.
func overTCP(socket string) (address string, byTLS, ok bool) {
	if address, ok = strings.CutPrefix(socket, "http://"); !ok {
		address, ok = strings.CutPrefix(socket, "https://")
		byTLS = ok
	}
	return strings.TrimSuffix(address, "/"), byTLS, ok
}

// bearer adds the token to every request, and the Host header if the address needs one.
type bearer struct {
	client *Client
	next   http.RoundTripper
}

// RoundTrip makes one request.
func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	b.client.sign(req)
	return b.next.RoundTrip(req)
}

// CloseIdleConnections closes those of the underlying transport.
func (b bearer) CloseIdleConnections() {
	if t, ok := b.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

func (c *Client) sign(req *http.Request) {
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	traced := trace.Of(req.Context())
	if traced.ID != "" {
		req.Header.Set("X-Request-Id", traced.ID)
	}
	if traced.Parent != "" {
		req.Header.Set("Traceparent", traced.Parent)
	}
	if address, _, ok := overTCP(c.socket); ok {
		req.Host = address
	}
}

// If the backlog of a listener is full, a non-blocking connect(2) does not wait for room in it (EAGAIN).
const queueTimeout, queuePause = 10 * time.Second, 10 * time.Millisecond

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	network, address, socket := "unix", c.socket, c.socket
	tcp, byTLS, ok := overTCP(socket)
	if ok {
		network, address = "tcp", tcp
	}
	if byTLS {
		address = withPort(address)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	for end := time.Now().Add(queueTimeout); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		select {
		case <-time.After(queuePause):
		case <-ctx.Done():
		}
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno // its wrappers name the socket again
	}
	if err != nil {
		return nil, &ConnectError{Socket: socket, Err: err}
	}
	if byTLS {
		return c.TLS.handshake(ctx, conn, socket, address)
	}
	return conn, nil
}

func (c *Client) httpClient(t *http.Transport) *http.Client {
	t.DisableCompression = true
	return c.clientOf(t)
}

func (c *Client) clientOf(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     bearer{c, rt},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // boxd sends no redirects
	}
}

// streamConn is the connection of a stream. The WebSocket library takes io.EOF inside a message for the end of the
// message; here it is an ordinary error.
type streamConn struct{ net.Conn }

var errHungUp = errors.New("the other end has hung up")

func (c streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = &net.OpError{Op: "read", Net: "unix", Err: errHungUp}
	}
	return n, err
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ErrNoID means that a call about a session got the empty id, which no session has.
var ErrNoID = errors.New("the id of the session is empty")

// target is the path and query of a request, or the reason why it cannot be sent.
type target struct {
	path string
	err  error
}

// about returns the route of one item of a collection: base is the path of the collection, rest follows the id.
func about(base, id, rest string) target {
	if id == "" {
		return target{err: ErrNoID}
	}
	return target{path: base + "/" + segment(id) + rest}
}

// segment encodes an id as one path segment: a slash becomes %2F, and "." and "..", which would change the path, %2E.
func segment(id string) string {
	if strings.Trim(id, ".") == "" {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}

// with adds a query.
func (to target) with(query url.Values) target {
	if to.err == nil && len(query) > 0 {
		to.path += "?" + query.Encode()
	}
	return to
}

// owned adds a query, with the owner if the client acts for one.
func (c *Client) owned(to target, query url.Values) target {
	if c.Owner != "" {
		if query == nil {
			query = url.Values{}
		}
		query.Set("owner", c.Owner)
	}
	return to.with(query)
}

// session is the route of a session.
func (c *Client) session(id, rest string, query url.Values) target {
	return c.owned(about("/v1/sessions", id, rest), query)
}

// queryOf makes a query of pairs of name and value, and omits empty values.
func queryOf(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// yes returns a value for queryOf: "true", or nothing.
func yes(on bool) string {
	if on {
		return "true"
	}
	return ""
}

// positive returns a value for queryOf: a number above 0, or nothing.
func positive[N int | int64](n N) string {
	if n > 0 {
		return strconv.FormatInt(int64(n), 10)
	}
	return ""
}

// request sends a request and decodes its response.
func request[Out any](ctx context.Context, c *Client, method string, to target, in any) (out Out, err error) {
	_, err = c.do(ctx, method, to, in, &out)
	return out, err
}

// requestNew is request for one that creates something: isNew is false if it existed already.
func requestNew[Out any](ctx context.Context, c *Client, method string, to target, in any) (out Out, isNew bool, err error) {
	code, err := c.do(ctx, method, to, in, &out)
	return out, code == http.StatusCreated, err
}

// do sends one request: in is sent as JSON, or unchanged if it is an io.Reader. The response is decoded into out if that
// is not nil; an error response becomes an *Error.
func (c *Client) do(ctx context.Context, method string, to target, in, out any) (int, error) {
	body, _ := in.(io.Reader)
	if in != nil && body == nil && to.err == nil {
		data, err := encode(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.send(ctx, method, to, body)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return resp.StatusCode, refusal(resp)
	}
	data := bytes.NewBuffer(make([]byte, 0, min(max(resp.ContentLength, 0), expectedAnswer)+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return resp.StatusCode, fmt.Errorf("read the answer: %w", err)
	}
	if out == nil {
		return resp.StatusCode, nil
	}
	if r, ok := out.(*api.ExecResult); ok {
		err = decodeResult(data.Bytes(), r)
	} else {
		err = json.Unmarshal(data.Bytes(), out)
	}
	if err != nil {
		return resp.StatusCode, fmt.Errorf("answer to %s %s: %w", method, to.path, err)
	}
	return resp.StatusCode, nil
}

// open sends a request whose response is a stream, which the caller must close. header has pairs of name and value.
func (c *Client) open(ctx context.Context, method string, to target, body io.Reader, header ...string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, method, to, body, header...)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// send sends a request and returns the response, whatever its status.
func (c *Client) send(ctx context.Context, method string, to target, body io.Reader, header ...string) (*http.Response, error) {
	if to.err != nil {
		return nil, to.err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://boxd"+to.path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, to.path, err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if c, ok := errors.AsType[*ConnectError](err); ok {
		return nil, c // its wrappers are net/http's
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return nil, u.Err // its URL is made up and says nothing
	}
	return resp, err
}

// refusal reads an error response.
func refusal(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	e := &Error{}
	if resp.StatusCode == http.StatusBadRequest && bytes.HasPrefix(data, []byte("Client sent an HTTP request to an HTTPS server")) {
		return errors.New("the server speaks TLS: the address must begin with https://")
	}
	if json.Unmarshal(data, &e.Problem) != nil || e.Type == "" {
		return fmt.Errorf("boxd answered %s", resp.Status)
	}
	return e
}
