// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A node waits for the gateway that moves a session away as long as that renews the claim, and then restores the session. The
// target node ends its own copy when the claim no longer names it as target, and never claims the session itself. If the claims are
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
	c := &clock{t: a.start}
	a.clock = c.now
	for _, f := range []fence{
		{Owner: "ci", ID: "goes", Generation: 3, Bucket: bucket}, {Owner: "ci", ID: "comes", Generation: 8, Bucket: bucket, Coming: true}, {Owner: "ci", ID: "of-before", Generation: 2, Bucket: "before", Coming: true},
	} {
		if ok, _, err := a.fences.raise(&f); err != nil || !ok {
			t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
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
		a.background.Wait()
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
	a.renewed.Store(int64(c.now().Sub(a.start)))
	beat("moving a b", "moving b a")
	put(away) // renewed
	beat("moving a b", "moving b a")
	c.pass(movingFor - 1)
	a.renewed.Store(int64(c.now().Sub(a.start)))
	beat("moving a b", "moving b a")
	if got := boxd.hasStarted(); len(got) != 0 {
		t.Errorf("started: got %q, want len(got) == 0", got)
	}
	c.pass(1)
	beat("live a ", "moving b a")
	a.background.Wait()
	if got := boxd.hasStarted(); !slices.Equal(got, []string{"goes"}) { // as it ran before
		t.Errorf(`started: got %q, want []string{"goes"}`, got)
	}
	beat("live a ", "moving b a")
	if claim, err := getClaim(t.Context(), claims, claimKey("ci", "goes")); err != nil || claim.Ran {
		t.Errorf("claim = %+v, err = %v, want no error and claim.Ran == false", claim, err)
	}

	// The session has arrived: it is this node's like any other, and is claimed again in a new bucket.
	put(sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "a", Generation: 8, State: api.FleetClaimLive}})
	beat("live a ", "live a ")
	if all, err := a.fences.list(); err != nil || all[claimKey("ci", "comes")].Coming {
		t.Errorf(`all = %+v, err = %v, want no error and all[claimKey("ci", "comes")].Coming == false`, all, err)
	}
	// A gateway can report that without waiting for an announcement.
	for i, want := range []bool{true, true, false} {
		if ok, highest, err := a.fences.raise(&fence{Owner: "ci", ID: "told", Generation: 1, Bucket: bucket, Coming: i == 0}); err != nil || ok != want || highest != 1 {
			t.Errorf("%d: ok = %v, highest = %d, err = %v, want no error and ok == %v and highest == 1",
				i, ok, highest, err, want)
		}
	}
	if all, err := a.fences.list(); err != nil || !all[claimKey("ci", "told")].Whole {
		t.Errorf(`all = %+v, err = %v, want no error and all[claimKey("ci", "told")].Whole == true`, all, err)
	}
	// A session that does not arrive, since the other node has restored it.
	if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "comes", Generation: 10, Bucket: bucket, Coming: true}); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	put(sessionClaim{FleetClaim: api.FleetClaim{ID: "comes", Node: "b", Generation: 9, State: api.FleetClaimLive}})
	beat("live a ", "live b ", "comes")
}

// The arrival of a session is recorded only while its claim says that it is being moved here: the message of a gateway that has
// canceled the move may arrive late.
func TestALateArrivalAfterAnAbortedMoveIsIgnored(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	a := anAgent(t, js, &fakeBoxd{})
	coming := fence{Owner: "ci", ID: "s", Generation: 8, Bucket: bucket, Coming: true}
	if ok, _, err := a.fences.raise(&coming); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	key, revision := claimKey("ci", "s"), uint64(0)
	for _, c := range []struct {
		claim *api.FleetClaim
		to    uint64
		ok    bool
	}{
		{nil, 0, false},
		{&api.FleetClaim{Node: "b", Generation: 7, State: api.FleetClaimMoving, To: "a"}, 8, true},
		{&api.FleetClaim{Node: "b", Generation: 7, State: api.FleetClaimMoving, To: "a"}, 9, false},
		{&api.FleetClaim{Node: "b", Generation: 7, State: api.FleetClaimMoving, To: "c"}, 8, false},
		{&api.FleetClaim{Node: "b", Generation: 7, State: api.FleetClaimLive}, 0, false},
		{&api.FleetClaim{Node: "b", Generation: 8, State: api.FleetClaimLive}, 0, false},
		{&api.FleetClaim{Node: "a", Generation: 8, State: api.FleetClaimStarting}, 0, false},
		{&api.FleetClaim{Node: "a", Generation: 8, State: api.FleetClaimLive}, 0, true},
	} {
		if c.claim != nil {
			if revision, err = putClaim(t.Context(), claims, &sessionClaim{FleetClaim: *c.claim, ToGeneration: c.to, key: key, revision: revision}); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []fence{coming, {Owner: "ci", ID: "other", Generation: 1, Bucket: bucket}} { // which are nothing that arrives
			if err := a.checkComing(t.Context(), &f); err != nil {
				t.Errorf("%+v: %+v: %v", c.claim, f, err)
			}
		}
		if err := a.checkComing(t.Context(), &fence{Owner: "ci", ID: "s", Generation: 8, Bucket: bucket}); (err == nil) != c.ok {
			t.Errorf("%+v: err = %v, want (err == nil) == %v", c.claim, err, c.ok)
		}
	}
}

// The answer to a move lists what the session loses on the other node: limits that a policy has lowered, skills that exist only
// there, skills of the fleet in another version, and drives with other content.
func TestAMoveReportsWhatTheSessionLoses(t *testing.T) {
	t.Parallel()
	before := &api.Session{Skills: []api.SessionSkill{{Name: "a"}, {Name: "b", Missing: true}, {Name: "c", Digest: "1"}}}
	after := &api.Session{
		Skills:  []api.SessionSkill{{Name: "a", Missing: true}, {Name: "b", Missing: true}, {Name: "c"}},
		Clamped: []api.Clamp{{Field: "memory", Asked: "1GiB", Got: "512MiB", By: "policy.ci.memory"}},
	}
	if got := less(before, after, nil); !slices.Equal(got, []string{"memory 512MiB of 1GiB (policy.ci.memory)", "the skill a"}) {
		t.Errorf(`got %q, want []string{"memory 512MiB of 1GiB (policy.ci.memory)", "the skill a"}`, got)
	}
	if got := less(before, before, nil); got != nil {
		t.Errorf("got %q, want nil", got)
	}
	drives := func(digest string) *api.Session {
		return &api.Session{Drives: []api.SessionDrive{{Name: "me/a", Version: 1, Digest: digest}}}
	}
	if got := less(drives("1"), drives("2"), nil); !slices.Equal(got, []string{"the drive me/a in its version 1, which is 2 there"}) {
		t.Errorf(`got %q, want []string{"the drive me/a in its version 1, which is 2 there"}`, got)
	}
	if got := less(drives("1"), drives("1"), nil); got != nil {
		t.Errorf("got %q, want nil", got)
	}
	later := &api.Session{Skills: []api.SessionSkill{{Name: "a", Digest: "2"}, {Name: "c", Digest: "2"}}}
	if got := less(before, later, map[string]string{"c": "2"}); !slices.Equal(got, []string{"the skill c in its version 1, which is 2 there"}) { // a is the nodes' own
		t.Errorf(`got %q, want []string{"the skill c in its version 1, which is 2 there"}`, got)
	}
}

// A session that was changed while it is moved is recognized by its definition, in which only the remaining lifetime may differ.
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
			t.Errorf("%s: same = %v, err = %v, want same == false and no error", text, same, err)
		}
	}
	later := was
	later.Session = []byte(`{"labels":{"a":"b"},"id":"s","max_lifetime":"59m"}`)
	if same, err := sameSettings(&later, &was); !same || err != nil {
		t.Errorf("same = %v, err = %v, want same == true and no error", same, err)
	}
}

// leftOver is a node with a part of a session of some generation, from a move that is over.
func leftOver(t *testing.T, bucket string) (a *agent, claims jetstream.KeyValue, boxd *fakeBoxd) {
	t.Helper()
	js := startServer(t)
	claims, now, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd = &fakeBoxd{status: api.Status{State: "ok", MaxSessions: 10}}
	boxd.list.Sessions = []api.Session{{Owner: "ci", ID: "s"}}
	a = anAgent(t, js, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/v1/sessions/s" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		boxd.ServeHTTP(w, r)
	}))
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "s", Generation: 2, Bucket: cmp.Or(bucket, now), Coming: true}); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	return a, claims, boxd
}

// A new session is not mixed up with the rest of one whose move was canceled, whatever its generation and however much had arrived;
// that rest is removed.
func TestANewSessionIsNotTakenForALeftoverOfAMove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		bucket     string // in which it was being moved; "": the current one
		whole      bool
		generation uint64 // of the new session
		want       error  // nil: any
	}{
		{name: "a later generation", generation: 3},
		{name: "a later generation, and all had come", generation: 3, whole: true},
		{name: "a later generation in a new bucket", generation: 3, bucket: "before"},
		{name: "the same generation", generation: 2, want: errLeftOver},
		{name: "the same generation, and all had come", generation: 2, whole: true, want: errLeftOver},
	} {
		a, claims, boxd := leftOver(t, c.bucket)
		if c.whole {
			if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "s", Generation: 2}); err != nil || !ok {
				t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
			}
		}
		key := claimKey("ci", "s")
		revision, err := putClaim(t.Context(), claims, &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: c.generation, State: api.FleetClaimStarting}, key: key})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.checkComing(t.Context(), &fence{Owner: "ci", ID: "s", Generation: c.generation, Bucket: "now"}); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: err = %v, want an error and (c.want == nil or err is %v)", c.name, err, c.want)
		}
		if c.bucket != "" { // the caller that requests the new one gives up, and retries later
			if err := claims.Delete(t.Context(), key, jetstream.LastRevision(revision)); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.background.Wait()
		if len(boxd.ended) != 1 {
			t.Errorf("%s: it has ended %q", c.name, boxd.ended)
		}
	}
}

// A session that has arrived completely is claimed in a new bucket; an incomplete one is neither claimed nor ended.
func TestAnArrivedSessionIsClaimedInANewBucket(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		a, claims, boxd := leftOver(t, "before")
		if whole {
			if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "s", Generation: 2}); err != nil || !ok {
				t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
			}
		}
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.background.Wait()
		claim, err := getClaim(t.Context(), claims, claimKey("ci", "s"))
		if err != nil || (claim != nil) != whole || len(boxd.ended) != 0 {
			t.Errorf("whole %v: %+v, %v; ended %q", whole, claim, err, boxd.ended)
		}
	}
}

// A session that the node is just ending, as another node has it, is not claimed in a new bucket: otherwise the other node would
// end its own.
func TestASessionBeingEndedIsNotClaimed(t *testing.T) {
	t.Parallel()
	a, claims, _ := leftOver(t, "before")
	if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "s", Generation: 2}); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	done := a.releasing(claimKey("ci", "s"), true)
	for _, ended := range []bool{false, true} {
		if ended {
			done()
		}
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.background.Wait()
		if claim, err := getClaim(t.Context(), claims, claimKey("ci", "s")); err != nil || (claim != nil) != ended {
			t.Errorf("ended %v: claim = %+v, err = %v, want no error and (claim != nil) == ended", ended, claim, err)
		}
	}
}

// A bucket that is removed and created again while a node reads it does not count as a release of the claims.
func TestABucketIsMadeAnewWhileItIsRead(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd := &fakeBoxd{status: api.Status{State: "ok", MaxSessions: 100}}
	var wipe atomic.Bool
	a := anAgent(t, js, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/sessions" && wipe.CompareAndSwap(true, false) {
			err := js.DeleteKeyValue(r.Context(), claimBucket)
			if err == nil {
				_, _, err = openBucket(r.Context(), js, claimsConfig(0), "new")
			}
			if err != nil {
				t.Error(err)
			}
		}
		boxd.ServeHTTP(w, r)
	}))
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	const sessions = 2 * readAnyway
	for i := range sessions {
		id := fmt.Sprint("s", i)
		boxd.list.Sessions = append(boxd.list.Sessions, api.Session{Owner: "ci", ID: id})
		_, _, err := a.fences.raise(&fence{Owner: "ci", ID: id, Generation: 2, Bucket: bucket})
		if err == nil {
			_, err = putClaim(t.Context(), claims, &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: id, Node: "a", Generation: 2, State: api.FleetClaimLive}, key: claimKey("ci", id)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		eventually(t, "the node announces itself", func() bool { return a.beat(t.Context()) == nil })
	}
	wipe.Store(true)
	if err := a.beat(t.Context()); err == nil {
		t.Error("no error, though the bucket was replaced while it was read")
	}
	eventually(t, "the node announces itself again", func() bool { return a.beat(t.Context()) == nil })
	a.background.Wait()
	if all, err := listClaims(t.Context(), claims); err != nil || len(all) != sessions || len(boxd.ended) != 0 {
		t.Errorf("%d claims, %v; ended %q", len(all), err, boxd.ended)
	}
}
