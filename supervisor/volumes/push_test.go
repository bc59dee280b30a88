// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// A version stays until it is pushed to all its targets, or the push is given up; the next boxd knows the targets, and how often
// each was tried.
func TestAVersionStaysUntilItIsPushed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	keepOne := func(c *volumes.Config) { c.KeepVersions = 1 }
	s := open(t, state, keepOne)
	s.fill(volumes.Filling{}, "a=1")
	target := func(session string) *volumes.Target {
		return &volumes.Target{Owner: owner, Session: session, Bucket: "results", Prefix: session + "/v1", Since: time.Now()}
	}
	set := func(tgt *volumes.Target) {
		t.Helper()
		if err := s.SetTarget(owner, name, 1, tgt); err != nil {
			t.Fatal(err)
		}
	}
	one, two := target("one"), target("two")
	set(one)
	set(two)
	one.Tries, one.Error = 3, "down"
	set(one)
	s.fill(volumes.Filling{}, "a=2")
	s.Close()
	s = open(t, state, keepOne)
	ctx, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	work.Go(func() { s.Run(ctx) })
	list := s.Pending()
	if len(list) != 2 || list[0].Session != "one" || list[0].Tries != 3 || list[0].Error != "down" || list[0].Version != 1 || list[0].Drive != name || list[1].Session != "two" {
		t.Fatalf("list = %+v", list)
	}
	if of := s.TargetsOf(owner, "two"); len(of) != 1 || of[0].Prefix != "two/v1" || len(s.TargetsOf("uid:2", "two")) != 0 {
		t.Errorf(`of a session: of = %+v, want len(of) == 1 and of[0].Prefix == "two/v1" and len(s.TargetsOf("uid:2", "two")) == 0`,
			of)
	}
	one.Done = time.Now()
	set(one)
	s.fill(volumes.Filling{}, "a=3") // version 2, which has no target, is removed
	for deadline := time.Now().Add(time.Minute); len(s.numbers()) != 2; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("s.numbers() = %v", s.numbers())
		}
	}
	if n := s.numbers(); n[0] != 1 || n[1] != 3 {
		t.Fatalf("a version that is only pushed to one of its targets was removed: n = %v, want n[0] == 1 and n[1] == 3", n)
	}
	two.GivenUp = time.Now()
	set(two)
	for deadline := time.Now().Add(time.Minute); len(s.numbers()) != 1; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("s.numbers() = %v", s.numbers())
		}
	}
	if len(s.Pending()) != 0 {
		t.Errorf("s.Pending() = %+v, want len(s.Pending()) == 0", s.Pending())
	}
}

// The number of targets that are remembered per version is limited.
func TestPushTargetsOfAVersionAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	s.fill(volumes.Filling{}, "a=1")
	for i := range 200 {
		err := s.SetTarget(owner, name, 1, &volumes.Target{Owner: owner, Session: strconv.Itoa(i), Bucket: "results", Since: time.Now(), Done: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
	}
	if d, err := s.Get(owner, name); err != nil || len(d.Versions[0].Targets) != 64 || d.Versions[0].Pushed.IsZero() {
		t.Errorf("%d places, %v", len(d.Versions[0].Targets), err)
	}
}
