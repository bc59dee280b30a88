// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A node waits for the gateway that moves a session away as long as there is news of it, and then takes its claim back. The node to
// which the session would go ends its own when the claim is no more on its way there, and never claims it itself, also not in a new
// bucket.
func TestAMoveWithoutNewsBreaksOff(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd := &fakeBoxd{status: api.Status{State: "ok", MaxSessions: 10}}
	boxd.list.Sessions = []api.Session{{Owner: "ci", ID: "goes"}, {Owner: "ci", ID: "comes"}, {Owner: "ci", ID: "of-before"}}
	a := anAgent(t, js, boxd)
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	c := &clock{t: a.began}
	a.clock = c.now
	for _, f := range []fence{
		{Owner: "ci", ID: "goes", Generation: 3, Bucket: bucket}, {Owner: "ci", ID: "comes", Generation: 8, Bucket: bucket, Coming: true}, {Owner: "ci", ID: "of-before", Generation: 2, Bucket: "before", Coming: true},
	} {
		if ok, _, err := a.fences.raise(&f); err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
	}
	put := func(claim sessionClaim) {
		t.Helper()
		claim.Owner, claim.key = "ci", claimKey("ci", claim.ID)
		if old, err := getClaim(t.Context(), claims, claim.key); err != nil {
			t.Fatal(err)
		} else if old != nil {
			claim.revision = old.revision
		}
		if _, err := putClaim(t.Context(), claims, &claim); err != nil {
			t.Fatal(err)
		}
	}
	beat := func(goes, comes string, ended ...string) {
		t.Helper()
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]string{"goes": goes, "comes": comes, "of-before": ""} {
			claim, err := getClaim(t.Context(), claims, claimKey("ci", id))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if claim != nil {
				got = claim.State + " " + claim.Node + " " + claim.To
			}
			if got != want {
				t.Errorf("the claim of %s is %q, want %q", id, got, want)
			}
		}
		if slices.Sort(boxd.ended); !slices.Equal(boxd.ended, ended) {
			t.Errorf("ended: %q, want %q", boxd.ended, ended)
		}
	}
	away := sessionClaim{FleetClaim: api.FleetClaim{ID: "goes", Node: "a", Generation: 3, State: api.FleetClaimMoving, To: "b"}, ToGeneration: 4, Ran: true}
	here := sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "b", Generation: 7, State: api.FleetClaimMoving, To: "a"}, ToGeneration: 8}
	put(away)
	put(here)
	beat("moving a b", "moving b a", "of-before")
	c.pass(movingFor - 1)
	a.renewed.Store(int64(c.now().Sub(a.began)))
	beat("moving a b", "moving b a", "of-before")
	put(away) // news
	beat("moving a b", "moving b a", "of-before")
	c.pass(movingFor - 1)
	a.renewed.Store(int64(c.now().Sub(a.began)))
	beat("moving a b", "moving b a", "of-before")
	if len(boxd.started) != 0 {
		t.Errorf("started: %q", boxd.started)
	}
	c.pass(1)
	beat("live a ", "moving b a", "of-before")
	if !slices.Equal(boxd.started, []string{"goes"}) { // as it ran before
		t.Errorf("started: %q", boxd.started)
	}

	// The session has arrived: it is this node's like any other, and its claim comes back in a new bucket.
	put(sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "a", Generation: 8, State: api.FleetClaimLive}})
	beat("live a ", "live a ", "of-before")
	if all, err := a.fences.list(); err != nil || all[claimKey("ci", "comes")].Coming {
		t.Errorf("%+v, %v", all, err)
	}
	// A gateway says so without waiting for an announcement.
	for i, want := range []bool{true, true, false} {
		if ok, highest, err := a.fences.raise(&fence{Owner: "ci", ID: "told", Generation: 1, Bucket: bucket, Coming: i == 0}); err != nil || ok != want || highest != 1 {
			t.Errorf("%d: %v, %d, %v", i, ok, highest, err)
		}
	}
	if all, err := a.fences.list(); err != nil || all[claimKey("ci", "told")].Coming {
		t.Errorf("%+v, %v", all, err)
	}
	// And one that does not arrive, since the other node has taken its claim back.
	if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "comes", Generation: 10, Bucket: bucket, Coming: true}); err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	put(sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "b", Generation: 9, State: api.FleetClaimLive}})
	beat("live a ", "live b ", "comes", "of-before")
}
