// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// What a node has not taken is not sent again for a while, with the same reason: callers who wait for room try often. What may pass
// soon is tried sooner, and what one caller may not, another may.
func TestWhatIsNotTakenIsNotSentAgain(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1e9, 0)}
	g := aGateway(startServer(t), c)
	for _, tc := range []struct {
		why  error
		late time.Duration
	}{
		{fault.Errorf(fault.Conflict, "another digest"), laterAgain},
		{errors.New("no image"), laterAgain},
		{fault.Errorf(fault.Exhausted, "others are sending"), soonAgain},
		{fmt.Errorf("not taken: %w", &fault.Error{Kind: fault.Exhausted, Field: "drive", Err: errors.New("no room")}), laterAgain},
		{fault.Errorf(fault.Unavailable, "it cannot be reached"), soonAgain},
		{fault.Errorf(fault.Denied, "not for you"), 0},
	} {
		g.refused("a sha256:1", tc.why)
		if tc.late > 0 {
			c.pass(tc.late - time.Millisecond)
			if err := g.refusalOf("a sha256:1"); !errors.Is(err, tc.why) {
				t.Errorf("%v: %v", tc.why, err)
			}
			if err := errors.Join(g.refusalOf("b sha256:1"), g.refusalOf("a sha256:2")); err != nil {
				t.Errorf("another node, or another image: %v", err)
			}
			c.pass(time.Millisecond)
		}
		if err := g.refusalOf("a sha256:1"); err != nil {
			t.Errorf("%v, later: %v", tc.why, err)
		}
	}
}

// What each node has refused may be taken later if one of them says so, and is refused for good otherwise, for the reason of the last.
func TestWhatAllNodesRefuse(t *testing.T) {
	t.Parallel()
	nodes := []seen{{}, {}}
	nodes[0].Name, nodes[1].Name = "a", "b"
	conflict, denied, busy := fault.Errorf(fault.Conflict, "another one"), fault.Errorf(fault.Denied, "not here"), fault.Errorf(fault.Unavailable, "away")
	for _, tc := range []struct {
		first, last error
		kind        fault.Kind
		text        string
	}{
		{conflict, denied, fault.Denied, "node a: another one; node b: not here"},
		{denied, conflict, fault.Conflict, "node a: not here; node b: another one"},
		{busy, denied, fault.Exhausted, "no node can take it: node a: away; node b: not here"},
		{conflict, errors.New("odd"), fault.Exhausted, "no node can take it: node a: another one; node b: odd"},
	} {
		if err := noNode(nodes, []error{tc.first, tc.last}); fault.KindOf(err) != tc.kind || err.Error() != tc.text {
			t.Errorf("%v, %v: %v", tc.first, tc.last, err)
		}
	}
	if err := noNode(nodes, []error{denied}); fault.KindOf(err) != fault.Denied || err.Error() != "node a: not here" {
		t.Errorf("of one: %v", err)
	}
}

// Of two requests that need something on a node one has it sent, and both wait. It is sent to its end when the first has gone, and
// what one of them is denied the other tries.
func TestOneRequestSendsWhatTwoNeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, oneRequestSends)
}

func oneRequestSends(t *testing.T) {
	g := &gateway{life: t.Context()}
	as := func(name string) *call {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/sessions", nil)
		return &call{r: r, pass: access.Pass{Principal: access.Principal{Name: name, Role: access.User}}}
	}
	begun, end, times := make(chan string, 2), make(chan error), 0
	send := func(c *call) error {
		times++ // one at a time
		begun <- c.pass.Name
		select {
		case err := <-end:
			return err
		case <-c.r.Context().Done():
			return c.r.Context().Err()
		}
	}
	ctx, goes := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- g.deliver(ctx, as("one"), "a x", send) }()
	if who := <-begun; who != "one" {
		t.Errorf("%s", who)
	}
	go func() { second <- g.deliver(t.Context(), as("two"), "a x", send) }()
	synctest.Wait()
	goes()
	if err := <-first; fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the one that goes: %v", err)
	}
	end <- nil
	if err := <-second; err != nil || times != 1 {
		t.Errorf("%v, sent %d times", err, times)
	}
	if err := g.deliver(ctx, as("one"), "a x", send); fault.KindOf(err) != fault.Unavailable || times != 1 {
		t.Errorf("for one that has gone: %v, %d times", err, times)
	}

	go func() { first <- g.deliver(t.Context(), as("one"), "a x", send) }()
	<-begun
	go func() { second <- g.deliver(t.Context(), as("two"), "a x", send) }()
	synctest.Wait()
	denied := fault.Errorf(fault.Denied, "not for one")
	end <- denied
	if err := <-first; !errors.Is(err, denied) {
		t.Errorf("%v", err)
	}
	if who := <-begun; who != "two" {
		t.Errorf("%s", who)
	}
	end <- nil
	if err := <-second; err != nil {
		t.Errorf("the other: %v", err)
	}
}
