// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// pointOf returns a mount point made below /srv/p, which is mounted at /workspace.
func pointOf(made, target string) mountPoint {
	return mountPoint{Source: "/link", Real: "/srv/p", At: "/workspace", Made: "/workspace" + made, Target: "/workspace" + target}
}

func enterPoint(t *testing.T, b *mountPoints, key, place string) {
	t.Helper()
	if err := b.Enter(t.Context(), key, "/link", "/srv/p", "/srv/p"+place); err != nil {
		t.Fatal(err)
	}
}

// Created directories are removed up to where another session has a mount on or below them; that session becomes responsible for the rest.
func TestMountPointsThatOthersNeedAreHandedOver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		places []string
		made   string // directory that is removed, below /workspace
		last   string // directory that is handed on
	}{
		{"nobody else", nil, "/in", ""},
		{"elsewhere", []string{"/inn", "/x/in"}, "/in", ""},
		{"above", []string{""}, "/in", ""},
		{"the same", []string{"/in/a/b"}, "-", "/in/a/b"},
		{"below", []string{"/in/a/b/c"}, "-", "/in/a/b"},
		{"beside", []string{"/in/a/c"}, "/in/a/b", "/in/a"},
		{"the first", []string{"/in/x"}, "/in/a", "/in"},
		{"on the first", []string{"/in"}, "/in/a", "/in"},
		{"several", []string{"/in/x", "/in/a/c"}, "/in/a/b", "/in/a"},
	} {
		b := newMountPoints()
		enterPoint(t, b, "one", "/in/a/b")
		g := pointOf("/in", "/in/a/b")
		b.Own("one", &g)
		enterPoint(t, b, "three", "/else")
		enterPoint(t, b, "three", "/in/q")
		b.Only("three", []string{"/srv/p/else"})
		for _, p := range tc.places {
			enterPoint(t, b, "two", p)
		}
		var got *removal
		if _, err := b.Sweep(t.Context(), "one", func(r *removal) error { got = r; return nil }); err != nil || got != nil {
			t.Fatalf("%s: a directory that is in use is removed: got %+v, err = %v, want no error and got == nil", tc.name, got, err)
		}
		b.Ending("one", nil)
		if found, err := b.Sweep(t.Context(), "one", func(r *removal) error { got = r; return nil }); err != nil || !found {
			t.Fatalf("tc.name = %v, err = %v, want no error and found == true", tc.name, err)
		}
		want := g
		if want.Made = "/workspace" + tc.made; tc.made == "-" {
			want.Made = ""
		}
		if got.MountPoint.Made != want.Made || got.MountPoint.Target != want.Target {
			t.Errorf("%s: removed: got.MountPoint = %+v, want got.MountPoint.Made == %v and got.MountPoint.Target == %v",
				tc.name, got.MountPoint, want.Made, want.Target)
		}
		switch has := b.Of("two"); {
		case tc.last == "":
			if got.Successor != "" || has != nil && has.Created != nil {
				t.Errorf(`%s: handed on: got.Successor = %q, has = %+v, want got.Successor == "" and (has == nil or has.Created == nil)`,
					tc.name, got.Successor, has)
			}
		case got.Successor != "two" || len(has.Created) != 1 || has.Created[0].Made != g.Made || has.Created[0].Target != "/workspace"+tc.last:
			t.Errorf(`%s: handed on: got.Successor = %q, has = %+v, want got.Successor == "two" and len(has.Created) == 1 and has.Created[0].Made == %v and has.Created[0].Target == "/workspace" + tc.last`,
				tc.name, got.Successor, has, g.Made)
		}
		if has := b.Of("one"); has != nil {
			t.Errorf("%s: the first still has %+v, want has == nil", tc.name, has)
		}
	}
}

// Of several sessions that need the remaining directories, one that needs all of them gets them: when it ends, the rest goes to the next.
func TestTheSessionThatNeedsAllMountPointsTakesThemOver(t *testing.T) {
	t.Parallel()
	b := newMountPoints()
	g := pointOf("/in", "/in/a/b")
	enterPoint(t, b, "a", "/in/x")
	enterPoint(t, b, "b", "/in/a/b")
	for _, step := range []struct{ key, made, heir string }{{"one", "", "b"}, {"b", "/workspace/in/a", "a"}, {"a", "/workspace/in", ""}} {
		b.Ending(step.key, nil)
		if step.key == "one" {
			b.Own("one", &g)
		}
		if _, err := b.Sweep(t.Context(), step.key, func(r *removal) error {
			if r.MountPoint.Made != step.made || r.Successor != step.heir {
				t.Errorf("%s: r = %+v, want r.MountPoint.Made == %v and r.Successor == %v",
					step.key, r, step.made, step.heir)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if has := b.Of(step.heir); step.heir != "" && (has == nil || len(has.Created) != 1) {
			t.Errorf(`%s: %s has %+v, want step.heir == "" or has != nil and len(has.Created) == 1`,
				step.key, step.heir, has)
		}
	}
}

// Of any number of sessions the last one removes everything, and what is handed on twice is recorded once.
func TestTheLastSessionRemovesAllMountPoints(t *testing.T) {
	t.Parallel()
	b := newMountPoints()
	removed := func(key string) (list []string) {
		b.Ending(key, nil)
		if _, err := b.Sweep(t.Context(), key, func(r *removal) error { list = append(list, r.MountPoint.Made); return nil }); err != nil {
			t.Fatal(err)
		}
		b.Forget(key)
		return list
	}
	for _, key := range []string{"a", "b", "c"} {
		enterPoint(t, b, key, "/in")
		g := pointOf("/in", "/in") // all have looked before one created it
		b.Own(key, &g)
	}
	b2 := newMountPoints()
	b2.restore("b", b.Of("b"))
	if got, want := b2.Of("b"), b.Of("b"); got == nil || !slices.Equal(got.Places, want.Places) || len(got.Created) != 1 || got.Real["/link"] != "/srv/p" {
		t.Errorf("of a record: %+v, not %+v", got, want)
	}
	for _, key := range []string{"c", "a"} {
		if got := removed(key); !slices.Equal(got, []string{""}) {
			t.Errorf("%s removes %q", key, got)
		}
	}
	if got := removed("b"); !slices.Equal(got, []string{"/workspace/in"}) {
		t.Errorf("the last removes %q", got)
	}
}

// The deepest directories are removed first, and an ending session keeps none for another ending session.
func TestTheDeepestMountPointsAreRemovedFirst(t *testing.T) {
	t.Parallel()
	b := newMountPoints()
	enterPoint(t, b, "other", "/in/a")
	b.Ending("other", nil)
	enterPoint(t, b, "one", "/in/a")
	g := pointOf("/in", "/in/a")
	b.Own("one", &g)
	if !b.Ending("one", []mountPoint{pointOf("/in/x", "/in/x/y")}) {
		t.Error("Ending reports that there is nothing to remove")
	}
	var got []string
	if _, err := b.Sweep(t.Context(), "one", func(r *removal) error { got = append(got, r.MountPoint.Made); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []string{"/workspace/in/x", "/workspace/in"}) {
		t.Errorf(`removed: got %q, want []string{"/workspace/in/x", "/workspace/in"}`, got)
	}
}

// No session enters a place where directories are being removed, or removes them again, before the removal is done.
func TestSessionsWaitForAMountPointRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMountPoints()
		g := pointOf("/in", "/in/a")
		r, err := b.Leave(t.Context(), "one", &g)
		if err != nil {
			t.Fatal(err)
		}
		enterPoint(t, b, "two", "/inn") // an unrelated place
		done := make(chan error, 2)
		go func() { done <- b.Enter(t.Context(), "two", "/link", "/srv/p", "/srv/p/in/b") }()
		go func() {
			deep := pointOf("/in/a/b", "/in/a/b")
			r, err := b.Leave(t.Context(), "three", &deep)
			done <- err
			if err == nil {
				b.Done(r)
			}
		}()
		synctest.Wait()
		if len(done) != 0 {
			t.Error("a caller did not wait for the removal")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Enter(ctx, "four", "/link", "/srv/p", "/srv/p/in"); !errors.Is(err, context.Canceled) {
			t.Errorf("after its end: err = %v, want err is context.Canceled", err)
		}
		b.Done(r)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A restored record cannot name anything outside the mounted directory.
func TestADamagedRecordNamesNoMountPoints(t *testing.T) {
	t.Parallel()
	b := newMountPoints()
	bad := []mountPoint{{}, pointOf("/in/a", "/in"), {Real: "/srv", At: "/workspace", Made: "/tmp/a", Target: "/tmp/a"}, {Real: "/srv", At: "/w", Made: "/w", Target: "/w/a"}, {Real: "srv", At: "/w", Made: "/w/a", Target: "/w/a"}}
	b.restore("one", &hostMounts{Places: []string{"/srv/x"}, Created: bad})
	if has := b.Of("one"); has == nil || len(has.Created) != 0 {
		t.Errorf("it has %+v, want has != nil and len(has.Created) == 0", has)
	}
}
