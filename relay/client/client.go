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
	streams *http.Client // for WebSockets
	pace    pace         // of connections that are made again
	// Owner, as in "uid:1000", makes session calls about sessions of that principal. Only some may.
	Owner string
	// Token is sent with every request, if it is set: boxd takes its bearer for who it says.
	Token string
}

// New returns a client of the boxd at a Unix socket, or at an address of the loopback, "http://127.0.0.1:5410". It
// does not connect yet.
func New(socket string) *Client {
	return Over(socket, func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, socket) })
}

// Over returns a client of the boxd that dial connects with; name is what errors call it.
func Over(name string, connect func(context.Context) (net.Conn, error)) *Client {
	c := &Client{socket: name, pace: usualPace()}
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

// overTCP is the address of a boxd that is not at a Unix socket.
func overTCP(socket string) (address string, ok bool) {
	address, ok = strings.CutPrefix(socket, "http://")
	return strings.TrimSuffix(address, "/"), ok
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
	if id := trace.Of(req.Context()).ID; id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	if address, ok := overTCP(c.socket); ok {
		req.Host = address
	}
}

// Where others have filled the queue of a listener, connect(2) does not wait for room in it (EAGAIN).
const crowdPatience, crowdPause = 10 * time.Second, 10 * time.Millisecond

func dialSocket(ctx context.Context, socket string) (net.Conn, error) {
	network, address := "unix", socket
	if tcp, ok := overTCP(socket); ok {
		network, address = "tcp", tcp
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	for end := time.Now().Add(crowdPatience); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		select {
		case <-time.After(crowdPause):
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

// Create makes a session, or returns the one of that id if it does not differ in what req asks for;
// isNew tells which.
func (c *Client) Create(ctx context.Context, req *api.SessionRequest) (s api.Session, isNew bool, err error) {
	code, err := c.do(ctx, http.MethodPost, "/v1/sessions", req, &s)
	return s, code == http.StatusCreated, err
}

// Session describes a session.
func (c *Client) Session(ctx context.Context, id string) (s api.Session, err error) {
	path, err := c.path(id, "")
	if err == nil {
		_, err = c.do(ctx, http.MethodGet, path, nil, &s)
	}
	return s, err
}

// Sessions lists the caller's sessions, or with all everybody's.
func (c *Client) Sessions(ctx context.Context, all bool) ([]api.Session, error) {
	path := "/v1/sessions"
	if all {
		path += "?all=true"
	}
	var list api.SessionList
	_, err := c.do(ctx, http.MethodGet, path, nil, &list)
	return list.Sessions, err
}

// Change gives a living session other limits or times, all that change asks for or nothing.
func (c *Client) Change(ctx context.Context, id string, change *api.SessionChange) (s api.Session, err error) {
	path, err := c.path(id, "")
	if err == nil {
		_, err = c.do(ctx, http.MethodPatch, path, change, &s)
	}
	return s, err
}

// Freeze stops all programs of a session where they are, and returns when that is true.
func (c *Client) Freeze(ctx context.Context, id string) (s api.Session, err error) {
	path, err := c.path(id, "/freeze")
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, path, nil, &s)
	}
	return s, err
}

// Thaw lets the programs of a frozen session go on.
func (c *Client) Thaw(ctx context.Context, id string) (s api.Session, err error) {
	path, err := c.path(id, "/thaw")
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, path, nil, &s)
	}
	return s, err
}

// RenewSession begins the idle time of a session anew.
func (c *Client) RenewSession(ctx context.Context, id string) (s api.Session, err error) {
	path, err := c.path(id, "/renew")
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, path, nil, &s)
	}
	return s, err
}

// Drain has boxd take no new sessions, until Undrain; only root may.
func (c *Client) Drain(ctx context.Context, req *api.DrainRequest) (d api.Drain, err error) {
	_, err = c.do(ctx, http.MethodPost, "/v1/drain", req, &d)
	return d, err
}

// Undrain has boxd take new sessions again; only root may.
func (c *Client) Undrain(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/v1/drain", nil, nil)
	return err
}

// Delete ends a session and waits until nothing is left of it.
func (c *Client) Delete(ctx context.Context, id string) error {
	path, err := c.path(id, "")
	if err == nil {
		_, err = c.do(ctx, http.MethodDelete, path, nil, nil)
	}
	return err
}

// Exec runs a program in a session and waits for it.
func (c *Client) Exec(ctx context.Context, id string, req *api.ExecRequest) (r api.ExecResult, err error) {
	path, err := c.path(id, "/exec")
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, path, req, &r)
	}
	return r, err
}

// Run makes a session, runs a program in it, and removes it.
func (c *Client) Run(ctx context.Context, req *api.OneShotRequest) (r api.ExecResult, err error) {
	_, err = c.do(ctx, http.MethodPost, "/v1/exec", req, &r)
	return r, err
}

// Status describes the daemon.
func (c *Client) Status(ctx context.Context) (s api.Status, err error) {
	_, err = c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Configuration returns what is in force of box.toml. It is for operators.
func (c *Client) Configuration(ctx context.Context) (f api.Configuration, err error) {
	_, err = c.do(ctx, http.MethodGet, "/v1/config", nil, &f)
	return f, err
}

// Doctor examines the host.
func (c *Client) Doctor(ctx context.Context) (d api.Doctor, err error) {
	_, err = c.do(ctx, http.MethodGet, "/v1/doctor", nil, &d)
	return d, err
}

// Profiles lists the configured profiles.
func (c *Client) Profiles(ctx context.Context) (p api.ProfileList, err error) {
	_, err = c.do(ctx, http.MethodGet, "/v1/profiles", nil, &p)
	return p, err
}

// Ready reports whether boxd can start sessions.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, "/readyz", nil, &api.Health{})
	return err
}

// ErrNoID means that a call about a session was given the empty id, which no session has.
var ErrNoID = errors.New("the id of the session is empty")

// segment is an id as one segment of a path whatever is in it: a slash travels as %2F, and "." and "..",
// which would be taken for steps in the path, as %2E.
func segment(id string) string {
	if strings.Trim(id, ".") == "" {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}

// ErrNotText means that a request has text that is not UTF-8, which JSON cannot carry.
var ErrNotText = errors.New("the request has text that is not UTF-8")

// encode makes the JSON of a request. For a byte that is no UTF-8 encoding/json writes the escape
// \ufffd, and boxd would see something that nobody has sent; the character itself it writes as it is. What may be bytes goes
// in base64 then.
func encode(v any) ([]byte, error) {
	data, err := encodeText(v)
	if errors.Is(err, ErrNotText) {
		if other := inBytes(v); other != nil {
			return encodeText(other)
		}
	}
	return data, err
}

func encodeText(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	for rest := data; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return data, nil
		}
		if bytes.HasPrefix(rest[i:], []byte(`\ufffd`)) {
			return nil, ErrNotText
		}
		rest = rest[i+2:] // past what is escaped: it may be a backslash
	}
}

// Ask makes a request of a path: in is sent as JSON, or as it is if it is an io.Reader; out is read, if not nil.
func (c *Client) Ask(ctx context.Context, method, path string, in, out any) (int, error) {
	return c.do(ctx, method, path, in, out)
}

// do makes one request. The answer goes to out; an error answer becomes an *Error.
func (c *Client) do(ctx context.Context, method, path string, in, out any) (int, error) {
	body, _ := in.(io.Reader)
	if in != nil && body == nil {
		data, err := encode(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://boxd"+path, body)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, simplify(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.StatusCode, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return resp.StatusCode, problemOf(resp, data)
	}
	if out == nil {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return resp.StatusCode, fmt.Errorf("answer to %s %s: %w", method, path, err)
	}
	return resp.StatusCode, nil
}

// simplify takes the wrapping of net/http off: its URL is made up and says nothing.
func simplify(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

func problemOf(resp *http.Response, data []byte) error {
	e := &Error{}
	if json.Unmarshal(data, &e.Problem) != nil || e.Type == "" {
		return fmt.Errorf("boxd answered %s", resp.Status)
	}
	return e
}
