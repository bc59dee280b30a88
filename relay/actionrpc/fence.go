// SPDX-License-Identifier: Apache-2.0

// Generation fencing: of every Workspace only the highest placement generation seen so far is served; what runs for an
// earlier one is ended.

package actionrpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// FenceKey names a Workspace of an instance.
type FenceKey struct{ Instance, Workspace string }

// Workspaces is how the fence inspects and ends what a Workspace has.
type Workspaces struct {
	// Highest returns the highest generation of a living session, 0 if there is none.
	Highest func(FenceKey) int64
	// Retire ends everything of earlier generations, and waits until it has ended.
	Retire func(ctx context.Context, k FenceKey, generation int64) error
}

// Fence fences all Workspaces.
type Fence struct {
	has Workspaces

	mu     sync.Mutex
	spaces map[FenceKey]*space
}

// space is one Workspace. The fence's lock guards it.
type space struct {
	current int64
	retired chan struct{} // closed when everything older has ended, or could not be ended
	failed  bool          // something could not be ended: the next call tries again
	calls   map[*Call]struct{}
}

// NewFence returns a fence that has seen no Workspace.
func NewFence(has Workspaces) *Fence { return &Fence{has: has, spaces: map[FenceKey]*space{}} }

// Call is work in progress for one generation.
type Call struct {
	fence  *Fence
	space  *space
	gen    int64
	cancel context.CancelCauseFunc
	done   chan struct{} // closed by Leave; nil if nothing waits for its end
}

// Stale is the refusal of an earlier placement.
func Stale() error { return wire.Stale() }

// Enter admits a call of a generation, for at most so many Workspaces. A generation higher than all before becomes the
// current one: older calls are canceled and retired before Enter returns. The returned context ends when the generation
// is no longer the current one. Leave must follow.
func (f *Fence) Enter(ctx context.Context, k FenceKey, generation int64, limit int) (context.Context, *Call, error) {
	for {
		e, err := f.enter(ctx, k, generation, limit)
		switch {
		case err != nil:
			return nil, nil, err
		case e.call != nil:
			return e.watchedCtx, e.call, nil
		case e.retire != nil:
			if err := f.retire(ctx, k, generation, e); err != nil {
				return nil, nil, err
			}
			continue
		}
		select {
		case <-e.wait:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// entry is the result of an attempt to enter: a call, something to wait for, or something to do.
type entry struct {
	call       *Call
	watchedCtx context.Context //nolint:containedctx // for the caller of Enter, who gets it at once
	wait       <-chan struct{}
	retire     chan struct{} // to be closed when everything older has ended
	older      []*Call       // canceled calls
}

// enter is Enter without waiting.
func (f *Fence) enter(ctx context.Context, k FenceKey, generation int64, limit int) (entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.spaces[k]
	if s == nil {
		if len(f.spaces) >= limit {
			return entry{}, wire.Refusef("PermissionError", "Box generation fence capacity reached; refusing an unbounded Workspace allocation")
		}
		s = &space{current: f.has.Highest(k), failed: true, calls: map[*Call]struct{}{}}
		if generation >= s.current {
			f.spaces[k] = s
		}
	}
	if generation < s.current {
		return entry{}, Stale()
	}
	if generation > s.current || s.failed {
		s.current, s.failed, s.retired = generation, false, make(chan struct{})
		e := entry{retire: s.retired}
		for c := range s.calls {
			if c.gen < generation {
				c.cancel(Stale())
				if c.done != nil {
					e.older = append(e.older, c)
				}
			}
		}
		return e, nil
	}
	select {
	case <-s.retired:
	default:
		return entry{wait: s.retired}, nil
	}
	c := &Call{fence: f, space: s, gen: generation, done: make(chan struct{})}
	watchedCtx, cancel := context.WithCancelCause(ctx)
	c.cancel = cancel
	s.calls[c] = struct{}{}
	return entry{call: c, watchedCtx: watchedCtx}, nil
}

// Patience is how long older work may take to end: other calls wait for it.
const Patience = 20 * time.Second

// retire waits for the canceled calls, and ends what is older. It continues when its caller has gone, since others wait
// for it.
func (f *Fence) retire(ctx context.Context, k FenceKey, generation int64, e entry) error {
	defer close(e.retire)
	for _, c := range e.older {
		<-c.done // soon, as it was canceled
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer cancel()
	err := f.has.Retire(ctx, k, generation)
	if errors.Is(err, context.DeadlineExceeded) {
		err = wire.Refusef("BoxError", "sessions of an earlier placement generation have not ended within %v", Patience)
	}
	if err != nil { // the next call of this generation tries again
		f.mu.Lock()
		if s := f.spaces[k]; s.current == generation {
			s.failed = true
		}
		f.mu.Unlock()
	}
	return err
}

// Join admits something that runs on its own, such as a relay, if its generation is the current one of a known
// Workspace. Nothing waits for its end.
func (f *Fence) Join(ctx context.Context, k FenceKey, generation int64) (context.Context, *Call, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.spaces[k]
	if s == nil || s.current != generation {
		return nil, nil, false
	}
	c := &Call{fence: f, space: s, gen: generation}
	watchedCtx, cancel := context.WithCancelCause(ctx)
	c.cancel = cancel
	s.calls[c] = struct{}{}
	return watchedCtx, c, true
}

// Leave ends a call, and refuses its result if its generation is no longer the current one.
func (c *Call) Leave() error {
	c.fence.mu.Lock()
	defer c.fence.mu.Unlock()
	if _, exists := c.space.calls[c]; exists {
		delete(c.space.calls, c)
		c.cancel(nil)
		if c.done != nil {
			close(c.done)
		}
	}
	if c.gen < c.space.current {
		return Stale()
	}
	return nil
}
