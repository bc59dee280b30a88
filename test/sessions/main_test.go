// SPDX-License-Identifier: Apache-2.0

// Package sessions_test tells stories of sessions to a real boxd with real boxes.
package sessions_test

import (
	"bufio"
	"bytes"
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

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// callerVariable makes the test binary a caller of boxd: it makes the requests on its standard input.
const callerVariable = "BOXD_TEST_CALLER"

func TestMain(m *testing.M) {
	socket := os.Getenv(callerVariable)
	if socket == "" {
		os.Exit(m.Run())
	}
	do := call
	if len(os.Args) > 1 {
		do = holdMany
	}
	if err := do(socket); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func call(socket string) error {
	var requests []string
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		return err
	}
	answers := make([]answer, len(requests))
	for i, r := range requests {
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
	sent := make(chan error, 1)
	go func() { // a request may be answered before all of it is taken
		_, err := io.WriteString(conn, request)
		sent <- err
	}()
	a, err := readAnswer(conn)
	if err != nil {
		conn.Close()
		return a, errors.Join(err, <-sent)
	}
	return a, nil
}

func readAnswer(conn net.Conn) (answer, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

// request is the bytes of a request; the path is sent as it is.
func request(method, path, body string, header ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: boxd\r\nConnection: close\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n" +
		strings.Join(append(header, ""), "\r\n") + "\r\n" + body
}

// raw sends a request without any help of the client.
func raw(t *testing.T, d *boxtest.Daemon, method, path, body string) answer {
	t.Helper()
	a, err := ask(d.Socket, request(method, path, body))
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// Other users than root, whom the socket's group lets in.
const (
	otherUID = 4242
	thirdUID = 4243
	otherGID = 65534
)

// asOther makes requests as one of them.
func asOther(t *testing.T, d *boxtest.Daemon, requests ...string) []answer {
	t.Helper()
	return asUser(t, d, otherUID, requests...)
}

func asUser(t *testing.T, d *boxtest.Daemon, uid uint32, requests ...string) []answer {
	t.Helper()
	in, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	cmd := callerOf(t, d, uid)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("requests as another user: %v", err)
	}
	var answers []answer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

// callerOf is this program as a caller of boxd who is another user.
func callerOf(t *testing.T, d *boxtest.Daemon, uid uint32, args ...string) *exec.Cmd {
	t.Helper()
	// Not by its path, which may be closed to that user.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = []string{callerVariable + "=" + d.Socket}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: otherGID}}
	return cmd
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

// sh is a line for the shell.
func sh(line string) api.ExecRequest { return api.ExecRequest{Command: &line} }

// in runs something in a session.
func in(t *testing.T, d *boxtest.Daemon, id string, req api.ExecRequest) api.ExecResult {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &req)
	if err != nil {
		t.Fatalf("exec in %q: %v", id, err)
	}
	return r
}

// succeeds runs something in a session that must end with 0, and returns its output.
func succeeds(t *testing.T, d *boxtest.Daemon, id string, req api.ExecRequest) string {
	t.Helper()
	r := in(t, d, id, req)
	if r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf("in %q: %s", id, show(r))
	}
	return r.Stdout
}

func show(r api.ExecResult) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
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

// sessions are the ids of all sessions there are.
func sessions(t *testing.T, d *boxtest.Daemon) []string {
	t.Helper()
	list, err := d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

// duration is one for a request; a text that is none is a mistake in the test.
func duration(text string) *quantity.Duration {
	d, err := quantity.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return &d
}
