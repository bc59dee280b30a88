// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// upper answers each connection with its data in upper case, once the peer has sent EOF. A connection that begins with "hold"
// gets no answer.
const upper = `
import socket, sys
family, host = (socket.AF_INET6, "::1") if len(sys.argv) > 1 else (socket.AF_INET, "127.0.0.1")
l = socket.socket(family); l.bind((host, 8000)); l.listen(128); print("ready", flush=True)
held = []
while True:
    c, _ = l.accept(); said = b""
    while said != b"hold":
        some = c.recv(65536)
        said += some
        if not some: break
    if said == b"hold": c.sendall(b"held"); held.append(c); continue
    try: c.sendall(said.upper())
    except OSError: pass
    c.close()
`

// serving creates a session in which upper runs.
func serving(t *testing.T, d *boxtest.Daemon, id string, args ...string) {
	t.Helper()
	boxtest.RequireProgram(t, "python3")
	d.NewSession(t, api.SessionRequest{ID: id})
	line := "ready"
	d.NewProcess(t, id, "web", &api.ProcessRequest{Argv: append([]string{"python3", "-c", upper}, args...), Ready: &api.Ready{Line: &line}})
	boxtest.Eventually(t, "the server listens", func() bool {
		p, err := d.Process(t.Context(), id, "web", 0)
		return err == nil && p.Ready
	})
}

// says sends a text to a port and returns the whole answer.
func says(t *testing.T, d *boxtest.Daemon, id, text string) string {
	t.Helper()
	conn, err := d.OpenPort(t.Context(), id, 8000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, text); err == nil {
		err = conn.CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// A port of a box without a network can be reached, by descriptor, but only by callers that may see the session; connections are
// limited in number, and end with the session.
func TestAPortOfABoxIsReached(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	serving(t, d, "s1")
	long := strings.Repeat("many words ", 100_000)
	for _, text := range []string{"hello", long} {
		if got := says(t, d, "s1", text); got != strings.ToUpper(text) {
			t.Errorf("%d bytes were returned of %d", len(got), len(text))
		}
	}
	serving(t, d, "six", "six") // on ::1 only
	if got := says(t, d, "six", "hello"); got != "HELLO" {
		t.Errorf(`got %q, want "HELLO"`, got)
	}
	for session, want := range map[string]string{"s1": "conflict", "none": "not_found"} {
		_, err := d.OpenPort(t.Context(), session, 8001)
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Type != api.ProblemType+want {
			t.Errorf("%s: err = %v, want ok == true and e.Type == api.ProblemType + want", session, err)
		}
	}
	var held []client.PortConn
	for {
		conn, err := d.OpenPort(t.Context(), "s1", 8000)
		if err != nil {
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Type != api.ProblemType+"exhausted" || len(held) != 64 {
				t.Errorf(`after %d: err = %v, want ok == true and e.Type == api.ProblemType + "exhausted" and len(held) == 64`,
					len(held), err)
			}
			break
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "hold"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	held[0].Close()
	boxtest.Eventually(t, "another connection is accepted", func() bool {
		conn, err := d.OpenPort(t.Context(), "s1", 8000)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	for _, conn := range held[1:] {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Error("the connection was not closed with its session")
		}
	}
}
