// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// overtaken is a bucket of claims in which a gateway changes a claim just before the node removes it.
type overtaken struct {
	jetstream.KeyValue
	change func()
}

func (b *overtaken) Delete(ctx context.Context, key string, options ...jetstream.KVDeleteOpt) error {
	b.change()
	return b.KeyValue.Delete(ctx, key, options...)
}

// oneSession is a boxd that has a session, or not, or does not answer.
type oneSession struct {
	status atomic.Int32 // of its answer; 0: there is no session
}

func (b *oneSession) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	switch status := int(b.status.Load()); status {
	case http.StatusOK:
		_ = json.NewEncoder(w).Encode(api.Session{Owner: "ci", ID: "s"})
	case 0:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemType + "not_found", Status: http.StatusNotFound})
	default:
		w.WriteHeader(status)
	}
}

// A request that has seen the claim of a session that has just ended makes it again on its node, without asking for a later claim. If its node removes the claim in
// that moment, it claims the session as before, at once or when boxd answers again, and does not end it.
func TestASessionThatIsMadeAgainWhileItsClaimIsReleasedIsKept(t *testing.T) {
	t.Parallel()
	for _, answers := range []int{http.StatusOK, http.StatusServiceUnavailable, 0} { // 0: it is made a moment later
		js := startServer(t)
		claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
		if err != nil {
			t.Fatal(err)
		}
		boxd := &oneSession{}
		a := anAgent(t, js, boxd)
		a.baseCtx = t.Context()
		a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
		key := claimKey("ci", "s")
		claim := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: 3, State: api.FleetClaimLive}, Sandbox: true, key: key}
		if _, err := putClaim(t.Context(), claims, claim); err != nil {
			t.Fatal(err)
		}
		if ok, _, err := a.fences.raise(claim.fence(bucket)); err != nil || !ok {
			t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
		}
		h := a.fences.all[key]
		over := &overtaken{claims, func() { boxd.status.Store(int32(answers)) }} //nolint:gosec // a status
		if err := a.reconcileOne(t.Context(), over, bucket, key, &h, false); (err != nil) != (answers == http.StatusServiceUnavailable) {
			t.Errorf("%d: err = %v", answers, err)
		}
		boxd.status.Store(http.StatusOK)
		h = a.fences.all[key]
		if err := a.reconcileOne(t.Context(), claims, bucket, key, &h, true); err != nil {
			t.Fatal(err)
		}
		a.background.Wait()
		now, err := getClaim(t.Context(), claims, key)
		if err != nil || now == nil || now.Node != "a" || now.Generation != 3 || now.State != api.FleetClaimLive || !now.Sandbox || a.fences.all[key].Ended || a.gaveUp.Load() != 0 {
			t.Errorf("%d: now = %+v, err = %v, a.fences.all[key] = %+v, want the claim as before, and a session that has not ended", answers, now, err, a.fences.all[key])
		}
		// Somebody else removes the claim later: that is a session given up, and ends.
		if err := claims.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		h = a.fences.all[key]
		if err := a.reconcileOne(t.Context(), claims, bucket, key, &h, true); err != nil {
			t.Fatal(err)
		}
		a.background.Wait()
		if now, err := getClaim(t.Context(), claims, key); err != nil || now != nil || a.gaveUp.Load() != 1 {
			t.Errorf("%d, given up: now = %+v, err = %v, a.gaveUp = %d, want now == nil and a.gaveUp == 1", answers, now, err, a.gaveUp.Load())
		}
	}
}

// A session that has ended, and is asked for again while its node removes the claim, stays the node's: its claim is still there.
func TestAClaimThatChangesWhileItIsReleasedStays(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	a := anAgent(t, js, &oneSession{})
	key := claimKey("ci", "s")
	claim := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: 3, State: api.FleetClaimLive}, key: key}
	if claim.revision, err = putClaim(t.Context(), claims, claim); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := a.fences.raise(claim.fence(bucket)); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	h := a.fences.all[key]
	over := &overtaken{claims, func() {
		if claim.revision, err = putClaim(t.Context(), claims, claim); err != nil { // as a gateway does when the session is made again
			t.Fatal(err)
		}
	}}
	if err := a.reconcileOne(t.Context(), over, bucket, key, &h, false); err != nil {
		t.Fatal(err)
	}
	if now, err := getClaim(t.Context(), claims, key); err != nil || now == nil || a.fences.all[key].Ended {
		t.Errorf("now = %+v, err = %v, a.fences.all[key] = %+v, want no error, now != nil and a.fences.all[key].Ended == false", now, err, a.fences.all[key])
	}
	for range 2 { // it is released, and then nobody has made it again
		if err := a.reconcileOne(t.Context(), claims, bucket, key, &h, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := claims.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) || !a.fences.all[key].Ended {
		t.Errorf("nothing has changed it: err = %v, a.fences.all[key] = %+v, want err is jetstream.ErrKeyNotFound and a.fences.all[key].Ended == true", err, a.fences.all[key])
	}
}
