// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync"

	"golang.org/x/sync/semaphore"
)

// PartBudget divides a message budget: each Workspace has a part and cannot exceed it. It is safe for concurrent use.
type PartBudget struct {
	all *MessageBudget

	mu sync.Mutex // guards the fields below
	of map[string]*part
}

type part struct {
	room  *MessageBudget
	users int
}

// NewPartBudget returns a budget for so many messages of maximum length at once, at most one of them per Workspace.
func NewPartBudget(longest int64) *PartBudget {
	return &PartBudget{all: NewMessageBudget(longest), of: map[string]*part{}}
}

// Enter returns the part of who, until leave is called, once.
func (p *PartBudget) Enter(who string) (room *MessageBudget, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	his := p.of[who]
	if his == nil {
		his = &part{room: &MessageBudget{pools: append([]*semaphore.Weighted{semaphore.NewWeighted(fullMessage)}, p.all.pools...), Patience: p.all.Patience}}
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
