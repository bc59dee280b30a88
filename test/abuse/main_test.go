// SPDX-License-Identifier: Apache-2.0

// Package abuse_test attacks processes that live: their descriptors, their terminals, their output, who comes to
// them and how, and what they leave for the next boxd. A test that begins with TestT is that case of the list of
// abuse.
package abuse_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// callerVariable makes the test binary a caller of boxd: its arguments say what it does.
const callerVariable = "BOXD_TEST_CALLER"

func TestMain(m *testing.M) {
	socket := os.Getenv(callerVariable)
	if socket == "" {
		goleak.VerifyTestMain(m)
		return
	}
	do := map[string]func(string) error{"requests": requests, "hold": hold, "attach": stay}[os.Args[1]]
	if err := do(socket); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Other users than root, whom the socket's group lets in.
const (
	otherUID = 4242
	thirdUID = 4243
	otherGID = 65534
)

// callerOf is this program as a caller of boxd who is another user.
func callerOf(t *testing.T, d *boxtest.Daemon, uid uint32, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...) // its path may be closed to that user
	cmd.Env = []string{callerVariable + "=" + d.Socket}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: otherGID}}
	return cmd
}

// asUser makes requests as another user.
func asUser(t *testing.T, d *boxtest.Daemon, uid uint32, list ...string) (answers []answer) {
	t.Helper()
	in, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	cmd := callerOf(t, d, uid, "requests")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("requests as another user: %v", err)
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

// requests is the caller of asUser.
func requests(socket string) error {
	var list []string
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		return err
	}
	answers := make([]answer, len(list))
	for i, r := range list {
		var err error
		if answers[i], err = ask(socket, r); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// answer is an answer of boxd to a request as it went over the wire.
type answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

func (a *answer) problem(t *testing.T) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(a.Body, &p); err != nil || a.Header.Get("Content-Type") != "application/problem+json" || p.Status != a.Code {
		t.Fatalf("no problem: %d %v %s", a.Code, a.Header, a.Body)
	}
	return p
}

// ask sends the bytes of a request and reads the answer.
func ask(socket, request string) (answer, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, request) }() // it may be answered before all of it is taken
	return readAnswer(conn)
}

// request is the bytes of a request; the path is sent as it is.
func request(method, path, body string, header ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: boxd\r\nConnection: close\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n" +
		strings.Join(append(header, ""), "\r\n") + "\r\n" + body
}

// raw sends a request without any help of the client.
func raw(t *testing.T, d *boxtest.Daemon, method, path, body string, header ...string) answer {
	t.Helper()
	a, err := ask(d.Socket, request(method, path, body, header...))
	if err != nil {
		t.Fatalf("%s %.200s: %v", method, path, err)
	}
	return a
}

// create makes a session that does not exist.
func create(t *testing.T, d *boxtest.Daemon, req api.SessionRequest) api.Session {
	t.Helper()
	s, isNew, err := d.Create(t.Context(), &req)
	if err != nil || !isNew {
		t.Fatalf("create %q: new %v, %v", req.ID, isNew, err)
	}
	return s
}

// succeeds runs a line in a session that must end with 0, and returns its output.
func succeeds(t *testing.T, d *boxtest.Daemon, id, line string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Command: &line})
	if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf("in %q: %+v, %v", id, r, err)
	}
	return r.Stdout
}

// shell is a process of a line for the shell.
func shell(line string) *api.ProcessRequest { return &api.ProcessRequest{Command: &line} }

// begin starts a process that does not exist in s1.
func begin(t *testing.T, d *boxtest.Daemon, p string, req *api.ProcessRequest) api.Process {
	t.Helper()
	state, isNew, err := d.StartProcess(t.Context(), "s1", p, req)
	if err != nil || !isNew {
		t.Fatalf("start %q: new %v, %v", p, isNew, err)
	}
	return state
}

// over waits for the end of a process of s1.
func over(t *testing.T, d *boxtest.Daemon, p string) api.Process {
	t.Helper()
	state, err := d.Process(t.Context(), "s1", p, 5*time.Minute)
	if err != nil || state.State != "ended" || state.Result == nil {
		t.Fatalf("%q does not end: %+v, %v", p, state, err)
	}
	return state
}

// says waits until a process of s1 has written something.
func says(t *testing.T, d *boxtest.Daemon, p, want string) {
	t.Helper()
	boxtest.Eventually(t, fmt.Sprintf("%s says %q", p, want), func() bool {
		a := raw(t, d, "GET", "/v1/sessions/s1/processes/"+p+"/logs", "")
		return strings.Contains(string(a.Body), want)
	})
}

// refused is boxd's word on a request that it must not have accepted.
func refused(t *testing.T, err error, status int, field string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Field != field {
		t.Fatalf("got %v (%+v), want %d about %q", err, e, status, field)
	}
	return e
}

// duration is one for a request.
func duration(d time.Duration) *quantity.Duration { return new(quantity.Duration(d)) }

// resident is how much memory a process has, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	n := 0
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// lives reports whether a process of the host does, and is not only waiting to be waited for.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// peer is a client of a stream by hand.
type peer struct {
	t  *testing.T
	ws *websocket.Conn
}

// dial opens a stream of a process of s1.
func dial(t *testing.T, d *boxtest.Daemon, p string) *peer {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	ws, _, err := websocket.Dial(t.Context(), "ws://boxd/v1/sessions/s1/processes/"+p+"/stream", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}}) //nolint:bodyclose // the library has closed it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(-1)
	return &peer{t, ws}
}

// attach begins a stream of a process of s1.
func attach(t *testing.T, d *boxtest.Daemon, p string, asked api.StreamAttach) (*peer, api.StreamAttached) {
	t.Helper()
	c := dial(t, d, p)
	c.control(api.ClientControl{Attach: &asked})
	msg := c.next()
	if msg.Attached == nil {
		t.Fatalf("%+v", msg)
	}
	return c, *msg.Attached
}

func (c *peer) control(msg api.ClientControl) {
	c.t.Helper()
	data, err := json.Marshal(msg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(api.ChannelControl, data)
}

func (c *peer) send(channel byte, data []byte) {
	c.t.Helper()
	if err := c.ws.Write(c.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		c.t.Fatal(err)
	}
}

// hear is the next message: output of both streams, or a control message.
func (c *peer) hear() (data []byte, control *api.ServerControl, err error) {
	c.t.Helper()
	if _, data, err = c.ws.Read(c.t.Context()); err != nil {
		return nil, nil, err
	}
	if data[0] == api.ChannelControl {
		control = &api.ServerControl{}
		if err := json.Unmarshal(data[1:], control); err != nil {
			c.t.Fatalf("%s: %v", data, err)
		}
	}
	return data[1:], control, nil
}

// next is the next control message that is no confirmation; output before it is passed over.
func (c *peer) next() *api.ServerControl {
	c.t.Helper()
	for {
		_, control, err := c.hear()
		if err != nil {
			c.t.Fatal(err)
		}
		if control != nil && control.StdinTaken == 0 {
			return control
		}
	}
}

// hears reads output until that is what was wanted.
func (c *peer) hears(want string) {
	c.t.Helper()
	got := ""
	for len(got) < len(want) {
		data, control, err := c.hear()
		if err != nil || control != nil && control.StdinTaken == 0 {
			c.t.Fatalf("after %q: %s, %v", got, data, err)
		}
		if control == nil {
			got += string(data)
		}
	}
	if got != want {
		c.t.Fatalf("got %q, want %q", got, want)
	}
}

// told reads a stream to its end: the bytes that came, and those that it was told are missing.
func (c *peer) told() (came, missing int64, exit *api.ExecResult) {
	c.t.Helper()
	for {
		data, control, err := c.hear()
		switch {
		case err != nil:
			c.t.Fatal(err)
		case control == nil:
			came += int64(len(data))
		case control.Gap != nil:
			missing += control.Gap.Bytes
		case control.Exit != nil:
			return came, missing, control.Exit
		}
	}
}
