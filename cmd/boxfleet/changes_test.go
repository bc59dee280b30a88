// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
)

// asking is node a, which has a gateway change claims.
type asking struct {
	t      *testing.T
	a      *agent
	g      *gateway
	claims jetstream.KeyValue
}

func newAsking(t *testing.T) *asking {
	t.Helper()
	js := startServer(t)
	h := &asking{t: t, a: anAgent(t, js, &fakeBoxd{}), g: writeClaims(t, js)}
	h.claims = h.g.claims
	return h
}

// has writes the claim of session s as a gateway does, in the place of the one that is there; nil: there is none.
func (h *asking) has(claim *sessionClaim) *sessionClaim {
	h.t.Helper()
	key := claimKey("ci", "s")
	if err := h.claims.Purge(h.t.Context(), key); err != nil {
		h.t.Fatal(err)
	}
	if claim == nil {
		return nil
	}
	c := *claim
	c.Owner, c.ID, c.key = "ci", "s", key
	var err error
	if c.revision, err = putClaim(h.t.Context(), h.claims, &c); err != nil {
		h.t.Fatal(err)
	}
	return h.now()
}

func (h *asking) now() *sessionClaim {
	h.t.Helper()
	c, err := getClaim(h.t.Context(), h.claims, claimKey("ci", "s"))
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

func claimOn(node, state string, generation uint64) *sessionClaim {
	return &sessionClaim{FleetClaim: api.FleetClaim{Node: node, State: state, Generation: generation, Since: time.Unix(1e9, 0).UTC()}}
}

// A node says of its own claims whether it has the session. It can change nothing else of them, and nothing of those of other nodes.
func TestANodeChangesNoClaimButItsOwn(t *testing.T) {
	t.Parallel()
	h := newAsking(t)
	live, lost, moving := claimOn("a", api.FleetClaimLive, 3), claimOn("a", api.FleetClaimLost, 3), claimOn("a", api.FleetClaimMoving, 3)
	lost.Reason, lost.Snapshot = "it was silent", "daily"
	moving.To, moving.ToGeneration, moving.Ran = "b", 4, true
	placed := claimOn("a", api.FleetClaimStarting, 3)
	placed.Workspace, placed.Served, placed.Keeps = 7, 6, true
	makeLive := func(c *sessionClaim) {
		c.State, c.Reason, c.Snapshot, c.To, c.ToGeneration, c.Since = api.FleetClaimLive, "", "", "", 0, time.Unix(2e9, 0).UTC()
	}
	for name, c := range map[string]struct {
		now     *sessionClaim // nil: none
		change  func(*sessionClaim)
		removes bool
		refused string // a part of the error; "": it is done
	}{
		"one that was lost is found":             {now: lost, change: makeLive},
		"one whose move broke off is here":       {now: moving, change: makeLive},
		"and runs again":                         {now: moving, change: func(c *sessionClaim) { makeLive(c); c.Ran = false }},
		"a Workspace is here":                    {now: placed, change: func(c *sessionClaim) { makeLive(c); c.Served = 7 }},
		"an idle Workspace is placed anew":       {now: placed, change: func(c *sessionClaim) { c.Since = time.Unix(2e9, 0).UTC() }},
		"it is a sandbox":                        {now: live, change: func(c *sessionClaim) { c.Sandbox = true }},
		"it has ended":                           {now: live, removes: true},
		"the bucket is new":                      {change: func(c *sessionClaim) { *c = *claimOn("a", api.FleetClaimLive, 5) }},
		"the bucket is new, and it is starting":  {change: func(c *sessionClaim) { *c = *claimOn("a", api.FleetClaimStarting, 5) }, refused: "starting"},
		"the bucket is new, without generation":  {change: func(c *sessionClaim) { *c = *claimOn("a", api.FleetClaimLive, 0) }, refused: "no generation"},
		"for another node":                       {change: func(c *sessionClaim) { *c = *claimOn("b", api.FleetClaimLive, 5) }, refused: "may not change"},
		"for another node that stops serving":    {change: func(c *sessionClaim) { *c = *claimOn("a", api.FleetClaimLive, 5); c.Served = 2 }, refused: "placement generation 2"},
		"of a Workspace below zero":              {change: func(c *sessionClaim) { *c = *claimOn("a", api.FleetClaimLive, 5); c.Workspace, c.Served = -1, -1 }, refused: "placement generation -1"},
		"taken over":                             {now: claimOn("b", api.FleetClaimLive, 3), change: func(c *sessionClaim) { c.Node, c.Generation = "a", 4 }, refused: "that of node b"},
		"of another node, that is lost":          {now: claimOn("b", api.FleetClaimLost, 3), change: func(c *sessionClaim) { c.Node, c.Generation = "a", 4 }, refused: "that of node b"},
		"of another node, removed":               {now: claimOn("b", api.FleetClaimLive, 3), removes: true, refused: "that of node b"},
		"on its way here, taken before it comes": {now: &sessionClaim{FleetClaim: api.FleetClaim{Node: "b", State: api.FleetClaimMoving, To: "a", Generation: 3}, ToGeneration: 4}, change: func(c *sessionClaim) { c.Node, c.Generation, c.State = "a", 4, api.FleetClaimLive }, refused: "that of node b"},
		"given to another node":                  {now: live, change: func(c *sessionClaim) { c.Node = "b" }, refused: "may not change"},
		"in a later generation":                  {now: live, change: func(c *sessionClaim) { c.Generation = 9 }, refused: "may not change"},
		"of another session":                     {now: live, change: func(c *sessionClaim) { c.ID = "t" }, refused: "may not change"},
		"of another owner":                       {now: live, change: func(c *sessionClaim) { c.Owner = "dev" }, refused: "may not change"},
		"lost":                                   {now: live, change: func(c *sessionClaim) { c.State = api.FleetClaimLost }, refused: "lost"},
		"with a reason":                          {now: lost, change: func(c *sessionClaim) { c.State = api.FleetClaimLive }, refused: "may not change"},
		"moving":                                 {now: live, change: func(c *sessionClaim) { c.State, c.To, c.ToGeneration = api.FleetClaimMoving, "b", 4 }, refused: "may not change"},
		"stopped for a move that there was not":  {now: live, change: func(c *sessionClaim) { c.Ran = true }, refused: "may not change"},
		"a Workspace of a session":               {now: live, change: func(c *sessionClaim) { c.Workspace = 1 }, refused: "may not change"},
		"in a later placement generation":        {now: placed, change: func(c *sessionClaim) { c.Workspace = 9 }, refused: "may not change"},
		"served before it was placed":            {now: placed, change: func(c *sessionClaim) { c.Served = 9 }, refused: "placement generation 9"},
		"that keeps nothing":                     {now: placed, change: func(c *sessionClaim) { c.Keeps = false }, refused: "may not change"},
	} {
		before := h.has(c.now)
		want := &claimChange{Bucket: h.g.bucket, Owner: "ci", ID: "s"}
		if before != nil {
			want.Revision = before.revision
		}
		if !c.removes {
			next := sessionClaim{}
			if before != nil {
				next = *before
			}
			if c.change(&next); before == nil {
				next.Owner, next.ID = "ci", "s"
			}
			want.Claim = &next
		}
		h.a.noWriter = nil
		revision, err := h.a.changeClaim(t.Context(), want)
		now := h.now()
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) || errors.Is(err, errNoClaimWriter) {
				t.Errorf("%s: err = %v, want an error containing %q", name, err, c.refused)
			}
			if (now == nil) != (before == nil) || now != nil && *now != *before {
				t.Errorf("%s: it was refused, and the claim is %+v, want %+v", name, now, before)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.removes:
			if now != nil {
				t.Errorf("%s: the claim is %+v, want none", name, now)
			}
		default:
			want.Claim.key, want.Claim.revision = claimKey("ci", "s"), revision
			if now == nil || *now != *want.Claim {
				t.Errorf("%s: the claim is %+v, want %+v", name, now, want.Claim)
			}
		}
	}
}

// What has changed since the node has read it is not changed, in this bucket or another; and what asks for it in a wrong way is refused.
func TestAClaimIsChangedAsTheNodeHasReadIt(t *testing.T) {
	t.Parallel()
	h := newAsking(t)
	read := h.has(claimOn("a", api.FleetClaimLost, 3))
	next := *read
	next.State = api.FleetClaimLive
	other := *read
	other.Reason = "another gateway has changed it"
	if _, err := putClaim(t.Context(), h.claims, &other); err != nil {
		t.Fatal(err)
	}
	ask := func(c *claimChange) error {
		h.a.noWriter = nil
		_, err := h.a.changeClaim(t.Context(), c)
		return err
	}
	for name, c := range map[string]*claimChange{
		"of before":           {Bucket: h.g.bucket, Owner: "ci", ID: "s", Revision: read.revision, Claim: &next},
		"of before, removed":  {Bucket: h.g.bucket, Owner: "ci", ID: "s", Revision: read.revision},
		"that is there":       {Bucket: h.g.bucket, Owner: "ci", ID: "s", Claim: &next},
		"that there is not":   {Bucket: h.g.bucket, Owner: "ci", ID: "t", Revision: 1, Claim: &next},
		"nothing, removed":    {Bucket: h.g.bucket, Owner: "ci", ID: "t"},
		"nothing, of before.": {Bucket: h.g.bucket, Owner: "ci", ID: "t", Revision: 7},
	} {
		if err := ask(c); !conflict(err) {
			t.Errorf("%s: err = %v, want err is a conflict", name, err)
		}
	}
	if err := ask(&claimChange{Bucket: "of before", Owner: "ci", ID: "s", Revision: h.now().revision, Claim: &next}); !errors.Is(err, errNoClaimWriter) {
		t.Errorf("another bucket: err = %v, want err is errNoClaimWriter", err)
	}
	for name, c := range map[string]*claimChange{
		"it names no session": {Bucket: h.g.bucket, Owner: "ci"},
		"must be at most":     {Bucket: h.g.bucket, Owner: "ci", ID: strings.Repeat("s", maxClaimChange)},
	} {
		if err := ask(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("err = %v, want an error containing %q", err, name)
		}
	}
	if now := h.now(); now.Reason != other.Reason || now.State != api.FleetClaimLost {
		t.Errorf("the claim is %+v, want that of the other gateway", now)
	}
}

// A message that wants its answer elsewhere than at its node gets none, and changes nothing; nor does one that comes so late that its node waits no more.
func TestAGatewayChangesClaimsForTheNodeThatAsks(t *testing.T) {
	t.Parallel()
	h := newAsking(t)
	claim := h.has(claimOn("a", api.FleetClaimLive, 3))
	data, err := json.Marshal(&claimChange{Bucket: h.g.bucket, Owner: "ci", ID: "s", Revision: claim.revision})
	if err != nil {
		t.Fatal(err)
	}
	message := func(reply string, at time.Time) claimRequest {
		m := nats.NewMsg(claimSubject + "a")
		m.Reply, m.Data = reply, data
		return claimRequest{m, at}
	}
	for _, elsewhere := range []string{nodeSubject + "b.claim.x", nodeSubject + "a.fence", "$KV." + nodeBucket + ".b", ""} {
		h.g.answerClaim(message(elsewhere, time.Now()))
	}
	h.g.answerClaim(message(nodeSubject+"a.claim.x", time.Now().Add(-claimTimeout)))
	if now := h.now(); now == nil || now.revision != claim.revision {
		t.Fatalf("the claim is %+v, want %+v", now, claim)
	}
	if _, err := h.a.changeClaim(t.Context(), &claimChange{Bucket: h.g.bucket, Owner: "ci", ID: "s", Revision: claim.revision}); err != nil || h.now() != nil {
		t.Errorf("err = %v, the claim is %+v, want no error and none", err, h.now())
	}
}

// A node goes on announcing itself when no gateway is there to change its claims, and asks each time once; when one is there, it has them changed.
func TestANodeServesThoughNoGatewayChangesItsClaims(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd := &fakeBoxd{status: api.Status{State: "ok", MaxSessions: 10}}
	a := anAgent(t, js, boxd)
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	const found = 3 // sessions that gateways took for lost
	for i := range found {
		id := fmt.Sprint("s", i)
		boxd.list.Sessions = append(boxd.list.Sessions, api.Session{Owner: "ci", ID: id})
		claim := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: id, Node: "a", Generation: 1, State: api.FleetClaimLost}, key: claimKey("ci", id)}
		_, err := putClaim(t.Context(), claims, claim)
		if err == nil {
			_, _, err = a.fences.raise(claim.fence(bucket))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lost := func() (n int) {
		t.Helper()
		all, err := listClaims(t.Context(), claims)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.State == api.FleetClaimLost {
				n++
			}
		}
		return n
	}
	asked, err := js.Conn().SubscribeSync(claimSubject + "a") // takes the question, and does not answer
	if err != nil {
		t.Fatal(err)
	}
	if err := a.beat(t.Context()); err != nil || !a.waiting || lost() != found || !a.agrees(bucket) {
		t.Errorf("nobody answers: err = %v, a.waiting = %v, %d claims are lost", err, a.waiting, lost())
	}
	if n, _, err := asked.Pending(); err != nil || n != 1 {
		t.Errorf("it has asked %d times, %v, want 1", n, err)
	}
	if err := asked.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := a.beat(t.Context()); err != nil || !a.waiting || lost() != found {
		t.Errorf("nobody is there: err = %v, a.waiting = %v, %d claims are lost", err, a.waiting, lost())
	}
	writeClaims(t, js)
	if err := a.beat(t.Context()); err != nil || a.waiting || lost() != 0 {
		t.Errorf("a gateway is there: err = %v, a.waiting = %v, %d claims are lost", err, a.waiting, lost())
	}
}
