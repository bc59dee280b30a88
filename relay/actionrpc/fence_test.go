// SPDX-License-Identifier: Apache-2.0

package actionrpc_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc"
)

// world is the state of the Workspaces.
type world struct {
	mu      sync.Mutex
	highest int64
	err     error
	retired []int64
	slow    chan struct{} // nil: retiring takes no time
}

func (w *world) fence() *actionrpc.Fence {
	return actionrpc.NewFence(actionrpc.Workspaces{
		Highest: func(actionrpc.FenceKey) int64 { return w.highest },
		Retire: func(_ context.Context, _ actionrpc.FenceKey, generation int64) error {
			if w.slow != nil {
				<-w.slow
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.retired = append(w.retired, generation)
			err := w.err
			w.err = nil
			return err
		},
	})
}

var key = actionrpc.FenceKey{Instance: "i", Workspace: "w"}

func TestAnEarlierGenerationIsRefused(t *testing.T) {
	t.Parallel()
	w := &world{highest: 2}
	f := w.fence()
	for _, step := range []struct {
		generation int64
		ok         bool
	}{{1, false}, {2, true}, {2, true}, {7, true}, {6, false}, {7, true}} {
		_, c, err := f.Enter(t.Context(), key, step.generation, 10)
		if (err == nil) != step.ok || err != nil && err.Error() != "PermissionError: Stale Box placement generation" {
			t.Fatalf(`%d: err = %v, want (err == nil) == %v and (no error or err == "PermissionError: Stale Box placement generation")`,
				step.generation, err, step.ok)
		}
		if err == nil && c.Leave() != nil {
			t.Fatalf("%d was superseded by nothing", step.generation)
		}
	}
	if !slices.Equal(w.retired, []int64{2, 7}) {
		t.Errorf("retired for %v", w.retired)
	}
}

func TestWhatIsUnderWayForAnEarlierGenerationIsCanceledAndWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		f := w.fence()
		old, call, err := f.Enter(t.Context(), key, 1, 10)
		if err != nil {
			t.Fatal(err)
		}
		relay, joined, ok := f.Join(t.Context(), key, 1)
		if !ok {
			t.Fatal("a relay of the current generation was refused")
		}
		entered := make(chan error)
		go func() {
			_, c, err := f.Enter(t.Context(), key, 3, 10)
			if err == nil {
				err = c.Leave()
			}
			entered <- err
		}()
		synctest.Wait()
		if old.Err() == nil || relay.Err() == nil || context.Cause(old).Error() != actionrpc.Stale().Error() {
			t.Error("the calls of the earlier generation were not canceled as stale")
		}
		select {
		case <-entered:
			t.Fatal("the new call did not wait for the older one")
		default:
		}
		if err := call.Leave(); err == nil {
			t.Error("the result of the superseded call was accepted")
		}
		if err := <-entered; err != nil {
			t.Error(err)
		}
		_ = joined.Leave()
		if _, _, ok := f.Join(t.Context(), key, 1); ok {
			t.Error("a relay of an earlier generation was accepted")
		}
		if _, _, ok := f.Join(t.Context(), actionrpc.FenceKey{Instance: "i", Workspace: "other"}, 1); ok {
			t.Error("a relay of an unknown Workspace was accepted")
		}
	})
}

func TestOthersOfAGenerationWaitUntilTheOlderHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{slow: make(chan struct{})}
		f := w.fence()
		in := make(chan error, 3)
		for range 3 {
			go func() {
				_, c, err := f.Enter(t.Context(), key, 1, 10)
				if err == nil {
					err = c.Leave()
				}
				in <- err
			}()
		}
		synctest.Wait()
		if len(in) != 0 {
			t.Error("a call went on before the older one had ended")
		}
		close(w.slow)
		for range 3 {
			if err := <-in; err != nil {
				t.Error(err)
			}
		}
		if len(w.retired) != 1 {
			t.Errorf("retired %d times", len(w.retired))
		}
	})
}

func TestAFailedRetirementOfAGenerationIsRetried(t *testing.T) {
	t.Parallel()
	w := &world{err: errors.New("it resists")}
	f := w.fence()
	if _, _, err := f.Enter(t.Context(), key, 1, 10); err == nil {
		t.Fatal("the call was accepted although the older session still runs")
	}
	_, c, err := f.Enter(t.Context(), key, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Leave()
	if len(w.retired) != 2 {
		t.Errorf("tried %d times", len(w.retired))
	}
}

func TestFencedWorkspacesAreBounded(t *testing.T) {
	t.Parallel()
	f := (&world{}).fence()
	if _, _, err := f.Enter(t.Context(), key, 1, 1); err != nil {
		t.Fatal(err)
	}
	_, _, err := f.Enter(t.Context(), actionrpc.FenceKey{Instance: "i", Workspace: "x"}, 1, 1)
	if err == nil || err.Error() != "PermissionError: Box generation fence capacity reached; refusing an unbounded Workspace allocation" {
		t.Errorf(`err = %v, want an error and err == "PermissionError: Box generation fence capacity reached; refusing an unbounded Workspace allocation"`,
			err)
	}
}

// A box that does not die blocks callers for a limited time, and no call for its Workspace is admitted before it has.
func TestTheWaitForABoxOfAnOlderGenerationIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := true
		f := actionrpc.NewFence(actionrpc.Workspaces{
			Highest: func(actionrpc.FenceKey) int64 { return 1 },
			Retire: func(ctx context.Context, _ actionrpc.FenceKey, _ int64) error {
				if stuck {
					<-ctx.Done()
				}
				return ctx.Err()
			},
		})
		start := time.Now()
		_, _, err := f.Enter(t.Context(), actionrpc.FenceKey{Workspace: "w"}, 2, 9)
		if err == nil || err.Error() != "BoxError: sessions of an earlier placement generation have not ended within 20s" || time.Since(start) != actionrpc.Patience {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		stuck = false
		_, call, err := f.Enter(t.Context(), actionrpc.FenceKey{Workspace: "w"}, 2, 9)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Leave(); err != nil {
			t.Error(err)
		}
	})
}
