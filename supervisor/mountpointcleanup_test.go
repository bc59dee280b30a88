// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// fakeMounter is a keeper for which /link leads to /srv/p, where only the directory missing does not exist.
type fakeMounter struct {
	missing string
	err     error // of removals
	tidied  []isolation.ChangeMount
}

func (k *fakeMounter) ChangeMount(_ context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	switch {
	case req.Op == isolation.MountFollow:
		return &isolation.Mounted{Made: "/srv/p"}, nil
	case req.Op == isolation.MountMissing:
		return &isolation.Mounted{Source: "/srv/p", Made: k.missing}, nil
	case req.Op == isolation.MountTidy && k.err != nil:
		return nil, k.err
	case req.Op == isolation.MountTidy:
		k.tidied = append(k.tidied, *req)
	}
	return &isolation.Mounted{}, nil
}

func (k *fakeMounter) cleanup() *mountPointCleanup {
	return &mountPointCleanup{Boxes: k, Points: newMountPoints(), Keep: func(string) error { return nil }, Log: slog.New(slog.DiscardHandler)}
}

// begunSession returns a session that is created with these mounts.
func begunSession(t *testing.T, d *mountPointCleanup, id string, uid uint32, mounts ...policy.Mount) *session.Session {
	t.Helper()
	s := session.New(nil, &session.Params{
		ID: id, Owner: access.Principal{Name: id, UID: uid, GID: uid}, Settings: policy.Settings{Mounts: mounts}, Profile: &policy.Profile{},
	})
	if _, err := d.Begin(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func endedSession(t *testing.T, d *mountPointCleanup, s *session.Session) error {
	t.Helper()
	settings := s.Current()
	d.Ending(s.Key, s.Caller(), &settings, s.Live())
	return d.End(t.Context(), s.Key)
}

// A session with read-only access to a directory keeps its mounts in it. What was created for them is removed with the last one,
// at the path where it was created and as the user who created it.
func TestASessionWithReadOnlyAccessKeepsItsMountPoints(t *testing.T) {
	t.Parallel()
	k := &fakeMounter{missing: "/workspace/x"}
	d := k.cleanup()
	in := policy.Mount{Source: "/one", Target: "/workspace/x", Mode: policy.MountReadOnly}
	a := begunSession(t, d, "a", 1001, policy.Mount{Source: "/link", Target: "/workspace", Mode: policy.MountReadWrite}, in)
	b := begunSession(t, d, "b", 1002, policy.Mount{Source: "/link", Target: "/workspace", Mode: policy.MountReadOnly}, in)
	if has := d.Points.Of(b.Key); has == nil || !slices.Equal(has.Places, []string{"/srv/p/x"}) || len(has.Created) > 0 {
		t.Errorf(`the read-only session has %+v, want has != nil and has.Places == []string{"/srv/p/x"} and len(has.Created) == 0`,
			has)
	}
	if err := endedSession(t, d, a); err != nil || len(k.tidied) > 0 {
		t.Errorf("removed although another session uses it: k.tidied = %+v, err = %v, want no error and len(k.tidied) == 0",
			k.tidied, err)
	}
	(&MountChanger{Boxes: k, Session: b, MountPoints: d}).only()
	if has := d.Points.Of(b.Key); has == nil || len(has.Places) != 1 || len(has.Created) != 1 {
		t.Errorf("after the first: has = %+v, want has != nil and len(has.Places) == 1 and len(has.Created) == 1", has)
	}
	if err := endedSession(t, d, b); err != nil || len(k.tidied) != 1 {
		t.Fatalf("after the last: k.tidied = %+v, err = %v, want no error and len(k.tidied) == 1", k.tidied, err)
	}
	if req := k.tidied[0]; req.Made != "/workspace/x" || req.Caller.UID != 1001 || req.Mount.Source != "/srv/p" {
		t.Errorf("request %+v", req)
	}
}

// Directories that mounts of one session share are removed with the last of them, even if it reaches them by another path.
func TestMountsOfOneSessionShareMountPoints(t *testing.T) {
	t.Parallel()
	k := &fakeMounter{}
	d := k.cleanup()
	s := begunSession(t, d, "s", 1001, policy.Mount{Source: "/link", Target: "/workspace", Mode: policy.MountReadWrite}, policy.Mount{Source: "/link", Target: "/data", Mode: policy.MountReadWrite})
	c := &MountChanger{Boxes: k, Session: s, MountPoints: d, Keep: func() error { return nil }}
	list := []policy.LiveMount{
		{Mount: policy.Mount{Source: "/one", Target: "/data/in/b"}, Made: "/data/in/b"},
		{Mount: policy.Mount{Source: "/one", Target: "/workspace/in/a"}, Made: "/workspace/in"},
	}
	for i := range list {
		if err := d.enter(t.Context(), s, list[i].Target); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() (made []string) {
		for i := range k.tidied {
			made = append(made, k.tidied[i].Made)
		}
		return made
	}
	for left := len(list) - 1; left >= 0; left-- {
		s.SetMounting(list[:left+1], nil)
		if _, err := c.take(t.Context(), c.removal(&list[left], false)); err != nil {
			t.Fatal(err)
		}
		s.SetMounting(list[:left], nil)
		c.only()
		if err := c.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done := slices.Contains(gone(), "/workspace/in"); done != (left == 0) {
			t.Errorf("with %d mounts left, removed: gone() = %q, want done == (left == 0)", left, gone())
		}
	}
	if has := d.Points.Of(s.Key); has != nil {
		t.Errorf("left: has = %+v, want nil", has)
	}
}

// A removal that got no answer is still due, for the next session with that key; one that was refused is not.
func TestAnUnansweredMountPointRemovalStaysDue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		kept bool
	}{{client.ErrKeeperGone, true}, {client.ErrNoKeeper, true}, {&isolation.StepError{Step: isolation.StepMountSource, Errno: unix.EACCES}, false}} {
		k := &fakeMounter{missing: "/workspace/x", err: tc.err}
		d := k.cleanup()
		mounts := []policy.Mount{{Source: "/link", Target: "/workspace", Mode: policy.MountReadWrite}, {Source: "/one", Target: "/workspace/x", Mode: policy.MountReadOnly}}
		s := begunSession(t, d, "s", 1001, mounts...)
		if err := endedSession(t, d, s); (err != nil) != tc.kept || tc.kept && !errors.Is(err, tc.err) || tc.kept != (d.Points.Of(s.Key) != nil) {
			t.Errorf("%v: err = %v, d.Points.Of(s.Key) = %+v, want (err != nil) == %v and (tc.kept == false or err is tc.err) and tc.kept == (d.Points.Of(s.Key) != nil)",
				tc.err, err, d.Points.Of(s.Key), tc.kept)
		}
		if !tc.kept {
			continue
		}
		k.missing, k.err = "", nil
		s = begunSession(t, d, "s", 1001, mounts...)
		k.missing = "/workspace/x"
		other := begunSession(t, d, "other", 1001, mounts...)
		if err := endedSession(t, d, other); err != nil || len(k.tidied) > 0 {
			t.Errorf("%v: %v: the next request was not sent: k.tidied = %+v, want no error and len(k.tidied) == 0",
				tc.err, err, k.tidied)
		}
		if err := endedSession(t, d, s); err != nil || len(k.tidied) != 1 || d.Points.Of(s.Key) != nil {
			t.Errorf("%v: at last: err = %v, k.tidied = %+v, want no error and len(k.tidied) == 1 and d.Points.Of(s.Key) == nil",
				tc.err, err, k.tidied)
		}
	}
}
