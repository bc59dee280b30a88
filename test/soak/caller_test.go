// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// caller is one client. It works sequentially, and knows what it must own.
type caller struct {
	t    *testing.T
	s    *soak
	name string // of its principal
	id   string // prefix of all its session ids
	rng  *rand.Rand
	http *http.Client
	n    int

	own map[string]*box // its sessions that were not deleted, by id
}

// box is what a caller knows of a session.
type box struct {
	processes []string
	file      string // its content; "": unknown
	ran       int    // executions that have left a line
}

func newCaller(s *soak, uid uint32, id string, rng *rand.Rand) *caller {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: boxtest.Dialer(s.d.Socket, uid)}
	return &caller{t: s.t, s: s, name: fmt.Sprint("uid:", uid), id: id, rng: rng, http: &http.Client{Transport: tr}, own: map[string]*box{}}
}

// next returns a name that this caller has not used before.
func (c *caller) next() string {
	c.n++
	return c.id + "-" + strconv.Itoa(c.n)
}

// answer is an answer of boxd.
type answer struct {
	status int
	body   []byte
	shaken bool // the boxd that gave it may have been shutting down
}

// refused reports whether a quota or a full queue has refused the request: nothing has started.
func (a answer) refused() bool { return a.status == http.StatusTooManyRequests }

func (a answer) ok() bool { return a.status < http.StatusMultipleChoices }

// once makes a request and records it if it was answered.
func (c *caller) once(ctx context.Context, method, path string, body any) (answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://boxd"+path, bytes.NewReader(text))
	if err != nil {
		return answer{}, err
	}
	id := c.next()
	req.Header.Set("X-Request-Id", id)
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if got := resp.Header.Get("X-Request-Id"); got != id {
		c.t.Errorf("%s %s: the answer is for %q, not %q", method, path, got, id)
	}
	if method != http.MethodGet {
		c.s.note(id)
	}
	return answer{status: resp.StatusCode, body: data}, nil
}

// patience is how long a caller retries until it is answered. No test result depends on it.
const patience = 2 * time.Minute

// callEffect is what a call may have added to the ledger.
type callEffect struct {
	who              string
	execs, sessions  int
	begin, end       time.Duration // CLOCK_BOOTTIME
	first, last      int           // numbers of the boxds that may have handled it
	surely, answered bool
}

// sure reports whether the ledger of one boxd must contain it.
func (d *callEffect) sure() bool { return d.answered && d.surely && d.first == d.last }

// ask makes a request whose success starts that many executions and sessions; with again it retries until boxd has answered. ok
// is false if the request was refused, or its result is unknown.
func (c *caller) ask(method, path string, body any, again bool, execs, sessions int) (a answer, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := callEffect{who: c.name, execs: execs, sessions: sessions, begin: now(), first: c.s.servedFrom()}
	for try := 0; ; try++ {
		var err error
		a, err = c.once(ctx, method, path, body)
		d.answered = err == nil
		d.end, d.last = now(), c.s.servedTo()
		if err != nil && d.first == d.last {
			c.t.Errorf("%s %s: %v, and boxd was there", method, path, err)
			return a, false
		}
		if err != nil && !again || err == nil && a.status != http.StatusServiceUnavailable {
			break
		}
		if ctx.Err() != nil {
			c.t.Errorf("%s %s is not answered: a.status = %d, a.body = %s, err = %v, want ctx.Err() == nil",
				method, path, a.status, a.body, err)
			return a, false
		}
		<-time.After(5 * time.Millisecond)
	}
	d.surely, a.shaken = a.ok(), d.first != d.last
	if d.surely || d.first != d.last {
		c.s.noteEffect(d)
	}
	return a, d.answered && a.ok()
}

// must fails the test if an answer is neither success nor a refusal.
func (c *caller) must(what string, a answer, allowed ...int) {
	if a.status == 0 || a.ok() || a.refused() || slices.Contains(allowed, a.status) {
		return
	}
	c.t.Errorf("%s of %s: %d %s", what, c.name, a.status, a.body)
}

// now reads the clock of the ledger.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail for an existing clock
	return time.Duration(ts.Nano())
}
