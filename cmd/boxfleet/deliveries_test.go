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

// What a node has refused is not sent to it again for a while, and callers get the same reason: those that wait for capacity retry
// often. A refusal that may pass soon is retried sooner, and one that concerns a single caller does not count for others.
func TestARefusedDeliveryIsNotRetriedAtOnce(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1e9, 0)}
	g := aGateway(startServer(t), c)
	for _, tc := range []struct {
		why  error
		late time.Duration
	}{
		{fault.Errorf(fault.Conflict, "another digest"), retryLater},
		{errors.New("no image"), retryLater},
		{fault.Errorf(fault.Exhausted, "others are sending"), retrySoon},
		{fmt.Errorf("not taken: %w", &fault.Error{Kind: fault.Exhausted, Field: "drive", Err: errors.New("no room")}), retryLater},
		{fault.Errorf(fault.Unavailable, "it cannot be reached"), retrySoon},
		{fault.Errorf(fault.Denied, "not for you"), 0},
	} {
		g.refused("a sha256:1", tc.why)
		if tc.late > 0 {
			c.pass(tc.late - time.Millisecond)
			if err := g.refusalOf("a sha256:1"); !errors.Is(err, tc.why) {
				t.Errorf("%v: err = %v, want err is tc.why", tc.why, err)
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

// If all nodes have refused, the request can be retried if one of the reasons can pass; otherwise it fails for good, with the
// reason of the last node.
func TestADeliveryThatAllNodesRefuseFails(t *testing.T) {
	t.Parallel()
	nodes := []nodeState{{}, {}}
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
			t.Errorf("%v, %v: err = %v, want an error of kind %v and err == %v", tc.first, tc.last, err, tc.kind, tc.text)
		}
	}
	if err := noNode(nodes, []error{denied}); fault.KindOf(err) != fault.Denied || err.Error() != "node a: not here" {
		t.Errorf(`of one: err = %v, want a fault.Denied error and err == "node a: not here"`, err)
	}
}

// Of two requests that need the same upload to a node, one sends it and both wait. The upload goes on if the first caller leaves,
// and if it is denied to one caller the other tries itself.
func TestConcurrentRequestsShareOneDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, oneRequestSends)
}

func oneRequestSends(t *testing.T) {
	g := &gateway{baseCtx: t.Context()}
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
		t.Errorf(`who = %s, want "one"`, who)
	}
	go func() { second <- g.deliver(t.Context(), as("two"), "a x", send) }()
	synctest.Wait()
	goes()
	if err := <-first; fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the first sender, which gives up: err = %v, want a fault.Unavailable error", err)
	}
	end <- nil
	if err := <-second; err != nil || times != 1 {
		t.Errorf("%v, sent %d times", err, times)
	}
	if err := g.deliver(ctx, as("one"), "a x", send); fault.KindOf(err) != fault.Unavailable || times != 1 {
		t.Errorf("for a sender that has given up: %v, %d times", err, times)
	}

	go func() { first <- g.deliver(t.Context(), as("one"), "a x", send) }()
	<-begun
	go func() { second <- g.deliver(t.Context(), as("two"), "a x", send) }()
	synctest.Wait()
	denied := fault.Errorf(fault.Denied, "not for one")
	end <- denied
	if err := <-first; !errors.Is(err, denied) {
		t.Errorf("err = %v, want err is %v", err, denied)
	}
	if who := <-begun; who != "two" {
		t.Errorf(`who = %s, want "two"`, who)
	}
	end <- nil
	if err := <-second; err != nil {
		t.Errorf("the other: %v", err)
	}
}
