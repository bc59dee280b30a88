// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"sync"
)

// locks has one lock for each name that a caller holds or waits for.
type locks struct {
	mu    sync.Mutex
	names map[string]*lock
}

type lock struct {
	sem    chan struct{} // full while the lock is held
	users  int           // its holder and waiters
	aborts int           // how often waiters were told to give up
}

// take waits for the lock of a name. It reports whether waiters were told to give up meanwhile.
func (l *locks) take(ctx context.Context, name string) (release func(), aborted bool, err error) {
	l.mu.Lock()
	if l.names == nil {
		l.names = map[string]*lock{}
	}
	k := l.names[name]
	if k == nil {
		k = &lock{sem: make(chan struct{}, 1)}
		l.names[name] = k
	}
	k.users++
	before := k.aborts
	l.mu.Unlock()
	unlock := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.names, name)
		}
	}
	select {
	case k.sem <- struct{}{}:
	case <-ctx.Done():
		unlock()
		return nil, false, context.Cause(ctx)
	}
	l.mu.Lock()
	aborted = k.aborts != before
	l.mu.Unlock()
	return func() {
		<-k.sem
		unlock()
	}, aborted, nil
}

// cutOff tells all waiters for a name to give up.
func (l *locks) cutOff(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.names[name]; k != nil {
		k.aborts++
	}
}
