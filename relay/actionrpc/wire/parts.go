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
	budget *MessageBudget
	users  int
}

// NewPartBudget returns a budget for so many messages of maximum length at once, at most one of them per Workspace.
func NewPartBudget(longest int64) *PartBudget {
	return &PartBudget{all: NewMessageBudget(longest), of: map[string]*part{}}
}

// Enter returns the part of caller, until release is called, once.
func (p *PartBudget) Enter(caller string) (budget *MessageBudget, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	his := p.of[caller]
	if his == nil {
		his = &part{budget: &MessageBudget{pools: append([]*semaphore.Weighted{semaphore.NewWeighted(fullMessage)}, p.all.pools...), Patience: p.all.Patience}}
		p.of[caller] = his
	}
	his.users++
	return his.budget, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if his.users--; his.users == 0 {
			delete(p.of, caller)
		}
	}
}
