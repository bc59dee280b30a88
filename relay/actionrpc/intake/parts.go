// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"sync"

	"golang.org/x/sync/semaphore"
)

// Parts are rooms within one, each of somebody who cannot have more of it than that. It is safe for concurrent use.
type Parts struct {
	all *Room

	mu sync.Mutex // guards the fields below
	of map[string]*part
}

type part struct {
	room  *Room
	users int
}

// NewParts returns room for so many of the longest messages at once, of which nobody has more than one.
func NewParts(longest int64) *Parts {
	return &Parts{all: NewRoom(longest), of: map[string]*part{}}
}

// Enter returns the room of somebody, until leave is called, once.
func (p *Parts) Enter(who string) (room *Room, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	his := p.of[who]
	if his == nil {
		his = &part{room: &Room{pools: append([]*semaphore.Weighted{semaphore.NewWeighted(most)}, p.all.pools...), Patience: p.all.Patience}}
		p.of[who] = his
	}
	his.users++
	return his.room, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if his.users--; his.users == 0 {
			delete(p.of, who)
		}
	}
}
