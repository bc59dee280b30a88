// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Events of sessions with the same name are in order, however fast these follow each other: each start comes before its end, and
// the next start after that. Usage of a session is counted until its end.
func TestSessionsOfOneNameAreToldInOrder(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	const cycles = 60
	ends := make(chan int)
	go func() {
		defer close(ends)
		n, runs := 0, false
		err := d.Events(ctx, client.EventOptions{Session: "one", Types: []string{"session.started", "session.ended"}, Follow: true}, func(e *api.Event) error {
			if starts := e.Type == "session.started"; starts == runs {
				t.Errorf("event %d is %s, and so was the one before", n, e.Type)
			}
			runs = e.Type == "session.started"
			n++
			if e.Type == "session.ended" {
				select {
				case ends <- n:
				case <-ctx.Done():
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	for i := range 2 {
		patience := time.Hour
		if i > 0 { // so that requests arrive at every moment of an end
			patience = 50 * time.Millisecond
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				soon, stop := context.WithTimeout(ctx, patience)
				_, _, _ = d.CreateSession(soon, &api.SessionRequest{ID: "one"}) // it may be ended meanwhile
				stop()
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = d.DeleteSession(ctx, "one") // there may be none
			}
		})
	}
	for range cycles {
		<-ends
	}
	cancel()
	for range ends {
	}
	wg.Wait()
	seconds := func() (n float64) {
		u, err := d.Usage(t.Context(), 2, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range u.Days {
			n += day.SessionSeconds
		}
		return n
	}
	var before, now float64
	defer func() {
		if t.Failed() {
			t.Logf("what they have had were %v, then %v seconds", before, now)
		}
	}()
	boxtest.Eventually(t, "no session runs, and the counted usage does not grow", func() bool { // a request that nobody waits for any more may make another
		err := d.DeleteSession(t.Context(), "one")
		if err != nil && !errors.Is(err, client.NotFound) {
			t.Error(err)
		}
		before = seconds()
		<-time.After(100 * time.Millisecond)
		now = seconds()
		_, lives := d.Session(t.Context(), "one")
		return errors.Is(err, client.NotFound) && errors.Is(lives, client.NotFound) && now == before && now > 0
	})
}
