// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/supervisor/policy"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// keeper is a fake keeper; if gone is set, it has ended when something is to be removed.
type keeper struct{ gone bool }

func (k *keeper) ChangeMount(_ context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	if req.Op == isolation.MountTidy && k.gone {
		return nil, client.ErrKeeperGone
	}
	return &isolation.Mounted{Source: "/srv/p", Made: "/workspace/x"}, nil
}

// A record with directories that could not be removed is left for the next boxd, and nothing is written to it afterwards.
func TestTheRecordStaysWhileSomethingIsToBeRemoved(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{true, false} {
		dir, err := OpenRecords(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		log := slog.New(slog.DiscardHandler)
		r := &recorder{Dir: dir, Log: log, MountPoints: mountPointCleanup{Boxes: &keeper{gone}, Points: newMountPoints(), Keep: func(string) error { return nil }, Log: log}}
		s := session.New(nil, &session.Params{ID: "s", Created: time.Now(), Owner: access.Principal{Name: "ci", UID: 1001}, Profile: &policy.Profile{}, Settings: policy.Settings{Mounts: []policy.Mount{
			{Source: "/srv/p", Target: "/workspace", Mode: policy.MountReadWrite}, {Source: "/one", Target: "/workspace/x", Mode: policy.MountReadOnly},
		}}})
		if err := r.Begin(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		r.Ending(s)
		r.End(t.Context(), s)
		s.SetAsleep()
		if err := r.Write(s); err != nil {
			t.Error(err)
		}
		keys, err := dir.Keys()
		if err != nil || (len(keys) == 1) != gone {
			t.Fatalf("the keeper has ended: %v, records: keys = %q, err = %v, want no error and (len(keys) == 1) == gone",
				gone, keys, err)
		}
		if !gone {
			continue
		}
		l, err := dir.All(func(error) bool { return false })
		if rec := l.Records[s.Key]; err != nil || rec == nil || !rec.Over() || rec.Asleep || rec.Shared == nil || len(rec.Shared.Created) != 1 {
			t.Errorf("the record: rec = %+v, err = %v, want no error and rec != nil and rec.Over() and rec.Asleep == false and rec.Shared != nil and len(rec.Shared.Created) == 1",
				rec, err)
		}
	}
}
