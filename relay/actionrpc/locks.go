// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"sync"
)

// locks are one for each name that somebody holds or waits for.
type locks struct {
	mu    sync.Mutex
	names map[string]*lock
}

type lock struct {
	held  chan struct{} // has room for who holds it
	users int           // who holds it, or waits
	cut   int           // how often those who wait were to give up
}

// take waits for the lock of a name. It reports whether those who wait were told to give up meanwhile.
func (l *locks) take(ctx context.Context, name string) (release func(), cut bool, err error) {
	l.mu.Lock()
	if l.names == nil {
		l.names = map[string]*lock{}
	}
	k := l.names[name]
	if k == nil {
		k = &lock{held: make(chan struct{}, 1)}
		l.names[name] = k
	}
	k.users++
	before := k.cut
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.names, name)
		}
	}
	select {
	case k.held <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, false, context.Cause(ctx)
	}
	l.mu.Lock()
	cut = k.cut != before
	l.mu.Unlock()
	return func() {
		<-k.held
		leave()
	}, cut, nil
}

// cutOff tells everybody who waits for a name to give up.
func (l *locks) cutOff(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.names[name]; k != nil {
		k.cut++
	}
}
