// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// waiting waits until n requests are queued for a session.
func waiting(t *testing.T, d *boxtest.Daemon, n int) (s api.Status) {
	t.Helper()
	boxtest.Eventually(t, fmt.Sprintf("%d requests wait", n), func() bool {
		var err error
		if s, err = d.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.Queue.Waiting == n
	})
	return s
}

func TestAStartWaitsForRoom(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 1\n[queue]\nwait = \"1h\"\nlength = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	var wg sync.WaitGroup
	wait := func(ctx context.Context, id string) *error {
		var err error
		wg.Go(func() { _, _, err = d.CreateSession(ctx, &api.SessionRequest{ID: id}) })
		return &err
	}
	ctx, leave := context.WithCancel(t.Context())
	first := wait(ctx, "goes")
	waiting(t, d, 1)
	second := wait(t.Context(), "s2")
	s := waiting(t, d, 2)
	if len(s.Queue.Places) != 2 || s.Queue.Places[0].ID != "goes" || s.Queue.Places[0].Position != 1 || s.Queue.Places[1].ID != "s2" || s.Queue.Places[1].Position != 2 || s.Queue.Places[1].Reason != "sessions" {
		t.Errorf("s.Queue = %+v", s.Queue)
	}
	// A request that does not want to wait, and one that finds the queue full.
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s3", Wait: boxtest.Duration("0s")})
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); !strings.Contains(e.Detail, "the queue of 2 is full") {
		t.Errorf(`e = %+v, want e.Detail containing "the queue of 2 is full"`, e)
	}
	if _, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"}); err != nil || isNew {
		t.Errorf("a request for an existing session waits: isNew = %v, err = %v, want no error and isNew == false", isNew, err)
	}
	leave()
	waiting(t, d, 1)
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s3", Wait: boxtest.Duration("1ms")})
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); !strings.Contains(e.Detail, "gave up after ") || !strings.Contains(e.Detail, "sessions.max") {
		t.Errorf(`e = %+v, want e.Detail containing "gave up after " and e.Detail containing "sessions.max"`, e)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !errors.Is(*first, context.Canceled) || *second != nil {
		t.Errorf("the canceled request: %v; the waiting request: second = %v, want *first is context.Canceled and *second == nil",
			*first, *second)
	}
	if got := strings.Join(sessions(t, d), " "); got != "s2" {
		t.Errorf(`there are %s, want "s2"`, got)
	}
}

// T57: an owner that asks for more than its limit does not hold up others.
func TestOneAtItsLimitKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 5\nmax_per_owner = 1\n[queue]\nwait = \"1h\"\n")
	make := func(id string) string { return boxtest.Request("POST", "/v1/sessions", `{"id":"`+id+`"}`) }
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	d.AsUser(t, boxtest.OtherUID, make("s1"))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer leave()
	for i := range 3 {
		c := d.Requests(t, boxtest.OtherUID, make(fmt.Sprint("more", i)))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			<-ctx.Done()
			_ = c.Process.Kill()
			_ = c.Wait()
		})
	}
	if s := waiting(t, d, 3); s.Queue.Places[0].Reason != "owner" {
		t.Errorf(`s.Queue = %+v, want s.Queue.Places[0].Reason == "owner"`, s.Queue)
	}
	d.NewSession(t, api.SessionRequest{ID: "mine"})
	if third := d.AsUser(t, boxtest.ThirdUID, boxtest.Request("GET", "/v1/status", ""), make("s1")); strings.Contains(string(third[0].Body), "more1") || third[1].Code != http.StatusCreated {
		t.Errorf(`a third user: third[0].Body = %s, third[1].Body = %s, want third[0].Body without "more1" and third[1].Code == 201`,
			third[0].Body, third[1].Body)
	}
}

func TestAnExecutionWaitsForOneToEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[exec]\nmax_per_session = 1\n[queue]\nwait = \"1h\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	held := d.Hold(t, "s1", waits())
	got := make(chan error, 1)
	go func() {
		_, err := d.Exec(context.WithoutCancel(t.Context()), "s1", &api.ExecRequest{Argv: []string{"true"}})
		got <- err
	}()
	boxtest.Eventually(t, "the execution waits in the queue", func() bool {
		s, err := d.Status(t.Context())
		return err == nil && s.Queue.Executions == 1
	})
	_, err := d.Exec(t.Context(), "s1", &api.ExecRequest{Argv: []string{"true"}, Wait: boxtest.Duration("0s")})
	boxtest.Refused(t, err, http.StatusTooManyRequests, "")
	held.Release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A queued execution with an id survives the disconnect of its client and the end of boxd, and runs once.
func TestAWaitingExecutionOutlivesBoxd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*boxtest.Daemon){"killed": (*boxtest.Daemon).Kill, "stopped": (*boxtest.Daemon).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const secret = "s3cr3t-of-one-who-waits"
			d := boxtest.Start(t, boxtest.Kept, "[exec]\nmax_per_session = 1\n[queue]\nwait = \"1h\"\n")
			d.NewSession(t, api.SessionRequest{ID: "s1"})
			first := d.Raw(t, "POST", "/v1/sessions/s1/exec", `{"id":"first","command":"while [ ! -e go ]; do sleep 0.05; done; echo first >> ran","detach":true,"timeout":"2m"}`)
			if first.Code != http.StatusAccepted {
				t.Fatalf("first.Code = %d, first.Body = %s, want first.Code == 202", first.Code, first.Body)
			}
			second := api.ExecRequest{ID: "second", Command: new("echo $S >> ran; cat"), Env: map[string]string{"S": secret}, Stdin: "in"}
			gone, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := d.Exec(gone, "s1", &second)
				left <- err
			}()
			boxtest.Eventually(t, "the execution waits in the queue", func() bool {
				s, err := d.Status(t.Context())
				return err == nil && s.Queue.Executions == 1
			})
			leave()
			<-left
			holds(t, d.State, secret)
			end(d)
			d.Restart()
			boxtest.Eventually(t, "the execution waits in the queue again", func() bool {
				s, err := d.Status(t.Context())
				return err == nil && s.Queue.Executions == 1
			})
			succeedsIn := func(command string) {
				if _, _, err := d.StartProcess(t.Context(), "s1", "p", &api.ProcessRequest{Command: &command}); err != nil { // no execution
					t.Fatal(err)
				}
			}
			succeedsIn("touch go")
			r, err := d.Exec(t.Context(), "s1", &second) // joins it
			if err != nil || r.Status != "exited" || r.Stdout != "in" {
				t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited" and r.Stdout == "in"`, r, err)
			}
			end(d)
			d.Restart()
			if r, err := d.Exec(t.Context(), "s1", &second); err != nil || r.Stdout != "in" {
				t.Errorf(`r = %+v, err = %v, want no error and r.Stdout == "in"`, r, err)
			}
			if got := d.Sh(t, "s1", "cat ran"); got != "first\n"+secret+"\n" {
				t.Errorf(`they ran: got %q, want "first\n" + secret + "\n"`, got)
			}
		})
	}
}

func TestTheLeastRecentlyUsedMakesRoom(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 2\nevict = true\n")
	d.NewSession(t, api.SessionRequest{ID: "old"})
	d.NewSession(t, api.SessionRequest{ID: "young"})
	d.Sh(t, "old", "true") // so young is the least recently used
	d.NewSession(t, api.SessionRequest{ID: "more"})
	if got := strings.Join(sessions(t, d), " "); got != "old more" && got != "more old" {
		t.Errorf(`there are %s, want got == "old more" or got == "more old"`, got)
	}
	_, err := d.Session(t.Context(), "young")
	if e := boxtest.Refused(t, err, http.StatusNotFound, ""); !strings.Contains(e.Detail, "(evicted)") {
		t.Errorf(`e = %+v, want e.Detail containing "(evicted)"`, e)
	}
	defer d.Hold(t, "old", waits()).Release()
	defer d.Hold(t, "more", waits()).Release()
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "yet more"}) // a session with a running program is not evicted
	boxtest.Refused(t, err, http.StatusTooManyRequests, "")
	// Nor is a session of another owner.
	if theirs := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", "{}")); theirs[0].Code != http.StatusTooManyRequests {
		t.Errorf("theirs[0].Body = %s, want theirs[0].Code == 429", theirs[0].Body)
	}
}

func TestRenewBeginsTheIdleTimeAnew(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{TTL: boxtest.Duration("1h")}})
	boxtest.Eventually(t, "the renewed session expires later", func() bool {
		now, err := d.RenewSession(t.Context(), "s1")
		if err != nil {
			t.Fatal(err)
		}
		return now.ExpiresAt.After(*s.ExpiresAt)
	})
	_, err := d.RenewSession(t.Context(), "none")
	boxtest.Refused(t, err, http.StatusNotFound, "")
}

func TestADrainedBoxdTakesNoNewSessions(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if _, err := d.Drain(t.Context(), &api.DrainRequest{Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"drained", "started again"} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{})
		if e := boxtest.Refused(t, err, http.StatusServiceUnavailable, ""); !strings.Contains(e.Detail, `drained by root at `) || !strings.Contains(e.Detail, "new disk") || !strings.Contains(e.Hint, "undrain") {
			t.Errorf("%s: e = %+v, want e.Detail containing `drained by root at ` and e.Detail containing \"new disk\" and e.Hint containing \"undrain\"",
				what, e)
		}
		boxtest.Refused(t, d.Ready(t.Context()), http.StatusServiceUnavailable, "")
		if s, err := d.Status(t.Context()); err != nil || s.State != "off" || !strings.Contains(s.Off, "new disk") || len(s.Degraded) > 0 {
			t.Errorf(`%s: s = %+v, err = %v, want no error and s.State == "off" and s.Off containing "new disk" and len(s.Degraded) == 0`,
				what, s, err)
		}
		if _, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"}); err != nil || isNew {
			t.Errorf("%s: a running session: err = %v, want no error and isNew == false", what, err)
		}
		d.Sh(t, "s1", "true")
		if theirs := d.AsUser(t, boxtest.OtherUID, boxtest.Request("DELETE", "/v1/drain", "")); theirs[0].Code != http.StatusForbidden {
			t.Errorf("%s: another user: theirs[0].Body = %s, want theirs[0].Code == 403", what, theirs[0].Body)
		}
		if what == "drained" {
			d.Kill()
			d.Restart()
		}
	}
	if err := d.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Status(t.Context()); err != nil || s.State != "ok" || s.Off != "" {
		t.Errorf(`s = %+v, err = %v, want no error and s.State == "ok" and s.Off == ""`, s, err)
	}
	d.NewSession(t, api.SessionRequest{})
}

// A PID 1 that does not answer is distinguished from one that has ended.
func TestASessionThatDoesNotAnswerIsUnhealthy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"keep", "end"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, "[sessions]\nping = \"5s\"\nunhealthy = \""+policy+"\"\n") // other boxes answer within three of these
			d.Warm()
			before := d.Look()
			s, other := d.NewSession(t, api.SessionRequest{ID: "s1"}), d.NewSession(t, api.SessionRequest{ID: "s2"})
			if err := syscall.Kill(int(s.PID), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			state := func() string {
				s, err := d.Session(t.Context(), "s1")
				if err != nil {
					return err.Error()
				}
				return s.State
			}
			if policy == "keep" {
				boxtest.Eventually(t, "the session is unhealthy", func() bool { return state() == "unhealthy" })
				if err := syscall.Kill(int(s.PID), syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				boxtest.Eventually(t, "the session is ready again", func() bool { return state() == "ready" })
				d.Sh(t, "s1", "true")
				return
			}
			boxtest.Eventually(t, "the session has ended", func() bool { return strings.Contains(state(), "(unhealthy)") })
			if now, err := d.Session(t.Context(), "s2"); err != nil || now.State != "ready" || now.PID != other.PID {
				t.Errorf(`another: now = %+v, err = %v, want no error and now.State == "ready" and now.PID == %v`,
					now, err, other.PID)
			}
			if err := d.DeleteSession(t.Context(), "s2"); err != nil {
				t.Error(err)
			}
			d.NothingLeft(before)
		})
	}
}

// An owner is told how its session has ended; other callers get the answer for a session that never existed.
func TestOwnersAreToldHowASessionHasEnded(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{TTL: new(quantity.Duration(time.Millisecond))}})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	for id, why := range map[string]string{"s1": "(deleted)", "s2": "(idle)"} {
		boxtest.Eventually(t, id+" "+why, func() bool {
			_, err := d.Session(t.Context(), id)
			e, ok := errors.AsType[*client.Error](err)
			return ok && strings.Contains(e.Detail, why)
		})
	}
	theirs := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/sessions/s1", ""), boxtest.Request("GET", "/v1/sessions/never", ""))
	if a, b := theirs[0].Problem(t), theirs[1].Problem(t); a.Detail != `no session "s1"` || a.Hint != b.Hint || b.Detail != `no session "never"` {
		t.Errorf("a = %+v, b = %+v, want a.Detail == `no session \"s1\"` and a.Hint == %v and b.Detail == `no session \"never\"`",
			a, b, b.Hint)
	}
}
