// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A node waits for the gateway that moves a session away as long as that renews the claim, and then takes it back. The node to
// which the session would go ends its own when the claim is no more on its way there, and never claims it itself. If the claims are
// gone, it does neither.
func TestAMoveThatIsNotRenewedBreaksOff(t *testing.T) {
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
	beat("moving a b", "moving b a")
	c.pass(movingFor - 1)
	a.renewed.Store(int64(c.now().Sub(a.began)))
	beat("moving a b", "moving b a")
	put(away) // renewed
	beat("moving a b", "moving b a")
	c.pass(movingFor - 1)
	a.renewed.Store(int64(c.now().Sub(a.began)))
	beat("moving a b", "moving b a")
	if got := boxd.hasStarted(); len(got) != 0 {
		t.Errorf("started: %q", got)
	}
	c.pass(1)
	beat("live a ", "moving b a")
	a.starts.Wait()
	if got := boxd.hasStarted(); !slices.Equal(got, []string{"goes"}) { // as it ran before
		t.Errorf("started: %q", got)
	}
	beat("live a ", "moving b a")
	if claim, err := getClaim(t.Context(), claims, claimKey("ci", "goes")); err != nil || claim.Ran {
		t.Errorf("%+v, %v", claim, err)
	}

	// The session has arrived: it is this node's like any other, and its claim comes back in a new bucket.
	put(sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "a", Generation: 8, State: api.FleetClaimLive}})
	beat("live a ", "live a ")
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
	beat("live a ", "live b ", "comes")
}

// What a session has less of on another node is told: limits that a policy has lowered, and skills that are missing there alone.
func TestWhatASessionHasLessOf(t *testing.T) {
	t.Parallel()
	before := &api.Session{Skills: []api.SessionSkill{{Name: "a"}, {Name: "b", Missing: true}, {Name: "c"}}}
	after := &api.Session{
		Skills:  []api.SessionSkill{{Name: "a", Missing: true}, {Name: "b", Missing: true}, {Name: "c"}},
		Clamped: []api.Clamp{{Field: "memory", Asked: "1GiB", Got: "512MiB", By: "policy.ci.memory"}},
	}
	if got := less(before, after); !slices.Equal(got, []string{"memory 512MiB of 1GiB (policy.ci.memory)", "the skill a"}) {
		t.Errorf("%q", got)
	}
	if got := less(before, before); got != nil {
		t.Errorf("%q", got)
	}
}

// A session that was changed while it is moved is seen by its definition, in which only what is left of its lifetime may differ.
func TestSettingsThatChangedAreSeen(t *testing.T) {
	t.Parallel()
	was := api.SessionDefinition{Session: []byte(`{"id":"s","max_lifetime":"1h","labels":{"a":"b"}}`), Paths: []string{"/workspace"}}
	for text, change := range map[string]func(*api.SessionDefinition){
		"settings": func(d *api.SessionDefinition) {
			d.Session = []byte(`{"id":"s","max_lifetime":"1h","labels":{"a":"c"}}`)
		},
		"a new setting": func(d *api.SessionDefinition) {
			d.Session = []byte(`{"id":"s","max_lifetime":"1h","labels":{"a":"b"},"memory":1}`)
		},
		"what is left out": func(d *api.SessionDefinition) { d.LeftOut = []string{"snapshots: 1"} },
		"paths":            func(d *api.SessionDefinition) { d.Paths = nil },
		"the image":        func(d *api.SessionDefinition) { d.ImageDigest = "sha256:1" },
	} {
		is := was
		change(&is)
		if same, err := sameSettings(&is, &was); same || err != nil {
			t.Errorf("%s: %v, %v", text, same, err)
		}
	}
	later := was
	later.Session = []byte(`{"labels":{"a":"b"},"id":"s","max_lifetime":"59m"}`)
	if same, err := sameSettings(&later, &was); !same || err != nil {
		t.Errorf("%v, %v", same, err)
	}
}
