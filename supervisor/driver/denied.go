// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// watcher polls what boxes with a network were refused.
type watcher struct {
	report func(key string, r Refused, name egress.Name)
	full   func(key string, packets uint64)
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	boxes map[string]*trafficTally
}

// pollInterval is the time between polls, and maxPoll the longest that one may take: its callers go on without the result.
const (
	pollInterval = 5 * time.Second
	maxPoll      = 2 * time.Second
)

// Watch reports refused connections of boxes: their destination, with the name that resolved to it if known. crowded is called
// for boxes that have reached their connection limit. Call it once, before the first box; StopResolving ends it.
func (d *Driver) Watch(refused func(key string, r Refused, name egress.Name), crowded func(key string, packets uint64)) {
	ctx, stop := context.WithCancel(context.Background())
	d.watched = &watcher{report: refused, full: crowded, stop: stop, boxes: map[string]*trafficTally{}}
	d.watched.done.Go(func() {
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for _, key := range d.watched.keys() {
				d.Refusals(ctx, key)
			}
		}
	})
}

func (w *watcher) keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.boxes))
}

// watch begins to poll a box, if it has a network.
func (d *Driver) watch(spec *isolation.Spec) {
	if d.watched == nil || spec.Network.Kind != isolation.NetworkEgress {
		return
	}
	d.watched.mu.Lock()
	defer d.watched.mu.Unlock()
	d.watched.boxes[spec.Key] = &trafficTally{}
}

// unwatch polls a box for the last time.
func (d *Driver) unwatch(ctx context.Context, key string) {
	if d.watched == nil {
		return
	}
	d.Refusals(ctx, key)
	d.watched.mu.Lock()
	defer d.watched.mu.Unlock()
	delete(d.watched.boxes, key)
}

// Refusals reports what a box was refused since the last poll. A box that is gone has no refusals.
func (d *Driver) Refusals(ctx context.Context, key string) {
	if d.watched == nil {
		return
	}
	d.watched.mu.Lock()
	tally := d.watched.boxes[key]
	d.watched.mu.Unlock()
	if tally == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxPoll)
	defer cancel()
	all, err := d.refused(ctx, key)
	if err != nil {
		return
	}
	if more := tally.Crowded(all.Crowded, time.Now()); more > 0 {
		d.watched.full(key, more)
	}
	for _, r := range tally.fresh(all.Lately, time.Now()) {
		var name egress.Name
		if d.names != nil {
			name = d.names.nameOf(key, r.To.Addr())
		}
		d.watched.report(key, r, name)
	}
}

func (d *Driver) refused(ctx context.Context, key string) (*refusals, error) {
	r, err := d.ReadRefusals(ctx, key)
	if err != nil {
		return nil, err
	}
	return refusalsOf(r), nil
}

// Traffic returns the network usage of a running box.
func (d *Driver) Traffic(ctx context.Context, key string) (*TrafficUse, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPoll)
	defer cancel()
	t, err := d.ReadTraffic(ctx, key)
	if err != nil {
		return nil, err
	}
	r, err := d.ReadRefusals(ctx, key)
	if err != nil {
		return nil, err
	}
	return trafficUse(t, r), nil
}
