// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
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

// A session that has ended, and is asked for again while its node removes the claim, stays the node's: its claim is still there.
func TestAClaimThatChangesWhileItIsReleasedStays(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	a := anAgent(t, js, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemType + "not_found", Status: http.StatusNotFound})
	}))
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
	if err := a.reconcileOne(t.Context(), claims, bucket, key, &h, false); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) || !a.fences.all[key].Ended {
		t.Errorf("nothing has changed it: err = %v, a.fences.all[key] = %+v, want err is jetstream.ErrKeyNotFound and a.fences.all[key].Ended == true", err, a.fences.all[key])
	}
}
