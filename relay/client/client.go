// SPDX-License-Identifier: Apache-2.0

// Package client talks to boxd.
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

// maxAnswer bounds an answer that is read into memory, in bytes.
const maxAnswer = 512 << 20

// maxProblem bounds the problem that is the answer where something else was to come, in bytes.
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

// ConnectError means that boxd could not be reached at all.
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
	pace    reconnectTimes // of connections that are made again
	// Owner, as in "uid:1000", makes session calls about sessions of that principal. Only some may.
	Owner string
	// Token is sent with every request, if it is set: boxd takes its bearer for who it says.
	Token string
	// TLS is for an https address.
	TLS TLS
}

// New returns a client of the boxd, or gateway of a fleet, at a Unix socket, at an address of the loopback,
// "http://127.0.0.1:5410", or by TLS, "https://boxd.example.org:5411". It does not connect yet.
func New(socket string) *Client {
	var c *Client
	c = Over(socket, func(ctx context.Context) (net.Conn, error) { return c.dial(ctx) })
	return c
}

// Over returns a client of the boxd that dial connects with; name is what errors call it.
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

// overTCP is the address of a boxd that is not at a Unix socket, and whether TLS is spoken there.
func overTCP(socket string) (address string, byTLS, ok bool) {
	if address, ok = strings.CutPrefix(socket, "http://"); !ok {
		address, ok = strings.CutPrefix(socket, "https://")
		byTLS = ok
	}
	return strings.TrimSuffix(address, "/"), byTLS, ok
}

// bearer shows a token with every request, and names the host that is asked where that matters.
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

// CloseIdleConnections is that of what makes the requests.
func (b bearer) CloseIdleConnections() {
	if t, ok := b.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

func (c *Client) sign(req *http.Request) {
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	asked := trace.Of(req.Context())
	if asked.ID != "" {
		req.Header.Set("X-Request-Id", asked.ID)
	}
	if asked.Parent != "" {
		req.Header.Set("Traceparent", asked.Parent)
	}
	if address, _, ok := overTCP(c.socket); ok {
		req.Host = address
	}
}

// Where others have filled the queue of a listener, connect(2) does not wait for room in it (EAGAIN).
const queuePatience, queuePause = 10 * time.Second, 10 * time.Millisecond

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
	for end := time.Now().Add(queuePatience); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		select {
		case <-time.After(queuePause):
		case <-ctx.Done():
		}
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno // what is around it names the socket again
	}
	if err != nil {
		return nil, &ConnectError{Socket: socket, Err: err}
	}
	if byTLS {
		return c.TLS.over(ctx, conn, socket, address)
	}
	return conn, nil
}

func (c *Client) httpClient(t *http.Transport) *http.Client {
	t.DisableCompression = true
	return &http.Client{
		Transport:     bearer{c, t},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // boxd has none
	}
}

// streamConn is the connection of a stream. The WebSocket library takes io.EOF in the middle of a message
// for the end of the message; here it is an error like others.
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

// ErrNoID means that a call about a session was given the empty id, which no session has.
var ErrNoID = errors.New("the id of the session is empty")

// target is where a request goes: a path with its query, or the reason why there is none.
type target struct {
	path string
	err  error
}

// about is the route of one thing of a collection: base is the path of the collection, rest what follows the id.
func about(base, id, rest string) target {
	if id == "" {
		return target{err: ErrNoID}
	}
	return target{path: base + "/" + segment(id) + rest}
}

// segment is an id as one segment of a path whatever is in it: a slash travels as %2F, and "." and "..",
// which would be taken for steps in the path, as %2E.
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

// owned adds a query, in which the owner is named if the client acts for one.
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

// queryOf makes a query of names and values, and leaves empty values out.
func queryOf(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// yes is a value of given: "true", or nothing.
func yes(on bool) string {
	if on {
		return "true"
	}
	return ""
}

// positive is a value of given: a number above 0, or nothing.
func positive[N int | int64](n N) string {
	if n > 0 {
		return strconv.FormatInt(int64(n), 10)
	}
	return ""
}

// ask makes a request and reads its answer.
func ask[Out any](ctx context.Context, c *Client, method string, to target, in any) (out Out, err error) {
	_, err = c.do(ctx, method, to, in, &out)
	return out, err
}

// askNew does the same for what makes something: isNew is false where that was there already.
func askNew[Out any](ctx context.Context, c *Client, method string, to target, in any) (out Out, isNew bool, err error) {
	code, err := c.do(ctx, method, to, in, &out)
	return out, code == http.StatusCreated, err
}

// do makes one request: in is sent as JSON, or as it is if it is an io.Reader. The answer goes to out if that is not nil;
// an error answer becomes an *Error.
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
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.StatusCode, fmt.Errorf("read the answer: %w", err)
	}
	if out == nil {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return resp.StatusCode, fmt.Errorf("answer to %s %s: %w", method, to.path, err)
	}
	return resp.StatusCode, nil
}

// open makes a request whose answer is a stream, which the caller must close. Names and values of headers go with it.
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

// send makes a request and returns the answer, whatever it is.
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
		return nil, c // what is around it is of net/http, and so
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return nil, u.Err // its URL is made up and says nothing
	}
	return resp, err
}

// refusal reads the error that is the answer where something else was to come.
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
