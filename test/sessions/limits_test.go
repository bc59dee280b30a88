// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A body of three bytes per element once grew to over a hundred bytes for each: more than 2 GiB here. The bound leaves room for
// the race detector, which needs a multiple of the memory.
func TestABodyTakesHardlyMoreMemoryThanItsBytes(t *testing.T) {
	t.Parallel()
	const size, room = 16<<20 - 64, 1 << 30
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	repeat := func(begin, s, end string) string {
		return begin + strings.Repeat(s, (size-len(begin)-len(end))/len(s)) + end
	}
	before := boxtest.Memory(t, d.PID(), "VmHWM")
	for field, tc := range map[string][2]string{
		"session.mounts": {"/v1/exec", repeat(`{"session":{"mounts":[{}`, `,{}`, `]}}`)},
		"exec.argv":      {"/v1/exec", repeat(`{"exec":{"argv":[""`, `,""`, `]}}`)},
		"argv":           {"/v1/sessions/s1/exec", repeat(`{"argv":[""`, `,""`, `]}`)},
	} {
		var parallel sync.WaitGroup
		for range 4 {
			parallel.Go(func() {
				a, err := boxtest.Ask(t.Context(), d.Socket, boxtest.Request("POST", tc[0], tc[1]))
				if err != nil {
					t.Errorf("%s: %v", field, err)
					return
				}
				var p api.Problem
				if err := json.Unmarshal(a.Body, &p); err != nil || p.Status != http.StatusBadRequest || p.Field != field || !strings.HasPrefix(p.Allowed, "at most ") || !strings.HasSuffix(p.Value, " elements") {
					t.Errorf(`%s: p = %+v, want no error and p.Status == 400 and p.Field == field and p.Allowed starting with "at most " and p.Value ending with " elements"`,
						field, p)
				}
			})
		}
		parallel.Wait()
	}
	if grown := boxtest.Memory(t, d.PID(), "VmHWM") - before; grown > room {
		t.Errorf("boxd grew by %d MiB", grown>>20)
	} else {
		t.Logf("boxd grew by %d MiB", grown>>20)
	}
}

// The answer is sent while the body is still being uploaded.
func TestABodyThatWillNotBeUsedIsNotRead(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for path, status := range map[string]int{"/v1/sessions/none/exec": 404, "/v1/sessions": 400, "/v1/exec": 400} {
		length := 100 << 20
		if status == 404 {
			length = 1 << 20
		}
		a, err := boxtest.Ask(t.Context(), d.Socket, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: boxd\r\nContent-Length: %d\r\n\r\n{", path, length))
		if err != nil {
			t.Fatal(err)
		}
		if p := a.Problem(t); p.Status != status || status == 400 && p.Field != "body" {
			t.Errorf(`%s: p = %+v, want p.Status == %v and (status != 400 or p.Field == "body")`, path, p, status)
		}
	}
	long := `{"id":"` + strings.Repeat("x", 1<<20) + `"}`
	a := d.Raw(t, "POST", "/v1/sessions", long)
	if p := a.Problem(t); p.Status != 400 || p.Field != "body" || p.Allowed != "at most 1MiB" {
		t.Errorf(`p = %+v, want p.Status == 400 and p.Field == "body" and p.Allowed == "at most 1MiB"`, p)
	}
}

func TestOneUserLeavesSessionsForOthers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 5\nmax_per_owner = 2\n")
	make := func(id string) string { return boxtest.Request("POST", "/v1/sessions", `{"id":"`+id+`"}`) }
	once := boxtest.Request("POST", "/v1/exec", `{"session":{},"exec":{"argv":["true"]}}`)
	theirs := d.AsUser(t, boxtest.OtherUID, make("s1"), make("s2"), make("s3"), once, make("s1"))
	for i, want := range []int{201, 201, 429, 429, 200} {
		if theirs[i].Code != want {
			t.Errorf("request %d: %d %s, want %d", i, theirs[i].Code, theirs[i].Body, want)
		}
	}
	p := theirs[2].Problem(t)
	if p.Detail != "you have 2 of 2 sessions (sessions.max_per_owner); held by s1, s2" || p.Hint == "" || theirs[2].Header.Get("Retry-After") == "" {
		t.Errorf(`p = %+v, want p.Detail == "you have 2 of 2 sessions (sessions.max_per_owner); held by s1, s2" and p.Hint != "" and theirs[2].Header.Get("Retry-After") != ""`,
			p)
	}
	if third := d.AsUser(t, boxtest.ThirdUID, once, make("s1")); third[0].Code != http.StatusOK || third[1].Code != http.StatusCreated {
		t.Errorf("a third user: third[0].Body = %s, third[1].Body = %s, want third[0].Code == 200 and third[1].Code == 201",
			third[0].Body, third[1].Body)
	}
	for i := range 2 { // up to sessions.max
		d.NewSession(t, api.SessionRequest{ID: fmt.Sprint(i)})
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{})
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); !strings.Contains(e.Detail, "(sessions.max)") {
		t.Errorf(`e = %+v, want e.Detail containing "(sessions.max)"`, e)
	}
	if again := d.AsUser(t, boxtest.OtherUID, boxtest.Request("DELETE", "/v1/sessions/s1", ""), make("s3")); again[1].Code != http.StatusCreated {
		t.Errorf("after one has ended: again[1].Body = %s, want again[1].Code == 201", again[1].Body)
	}
}

func TestRootMayHaveMoreThanOneOwner(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 3\nmax_per_owner = 1\n")
	for i := range 3 {
		d.NewSession(t, api.SessionRequest{ID: fmt.Sprint(i)})
	}
}

// held counts the connections of a client.
type held struct{ Kept, TurnedAway int }

// holdMany is the client's part: it opens 300 connections, prints how many were accepted, and keeps them open until its standard
// input ends.
func holdMany(socket string, _ []string) error {
	var got held
	for range 300 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: boxd\r\n\r\n") // a rejected one may be closed already
		a, err := boxtest.ReadAnswer(conn)
		if err != nil {
			return err
		}
		switch a.Code {
		case http.StatusOK:
			got.Kept++
		case http.StatusTooManyRequests:
			got.TurnedAway++
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func TestOneUserLeavesConnectionsForOthers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	var got held
	release := d.Stay(t, boxtest.OtherUID, &got, "hold")
	defer release()
	if got != (held{Kept: 256, TurnedAway: 44}) {
		t.Errorf("of 300 connections: got %+v, want held{Kept: 256, TurnedAway: 44}", got)
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Errorf("root: %v", err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if a := d.AsUser(t, boxtest.ThirdUID, boxtest.Request("GET", "/v1/status", "")); a[0].Code != http.StatusOK {
		t.Errorf("a third user: a[0].Body = %s, want a[0].Code == 200", a[0].Body)
	}
}

// A session without an id chosen by its client is ended if that client has disconnected before the answer.
func TestASessionNobodyLearnsOfIsEnded(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	signal := func(sig syscall.Signal) {
		if err := syscall.Kill(d.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	send := func(body string) { // the client has disconnected before boxd reads the request
		signal(syscall.SIGSTOP)
		defer signal(syscall.SIGCONT)
		conn, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, boxtest.Request("POST", "/v1/sessions", body)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	send(`{"ttl":"0s"}`)
	boxtest.Eventually(t, "the session has ended", func() bool { return strings.Contains(d.Log(), "reason=unclaimed") })
	d.NothingLeft(before)
	send(`{"id":"s1"}`) // the client can ask for it again by its id
	boxtest.Eventually(t, "the session is there", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.State == "ready"
	})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
}

func TestAMountSourceThatIsMissingSaysWhyInFailure(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[mounts]\nallow = [\"%DIR%\"]\n")
	source := filepath.Join(d.Dir, "none")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Mounts: []api.Mount{{Source: source, Target: "/data", Mode: "ro"}}})
	e := boxtest.Refused(t, err, http.StatusBadRequest, "mounts[0].source")
	if e.Failure == nil || e.Failure.Errno != "ENOENT" || e.Failure.Step != "mount source" || e.Allowed != "an existing directory that you can open" {
		t.Errorf("%+v, failure %+v", e.Problem, e.Failure)
	}
}
