// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// maxEvents is how many are kept.
const maxEvents = 1024

type events struct {
	mu   sync.Mutex
	list []api.FleetEvent
}

func (e *events) add(kind, node, session, detail string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.list = append(e.list, api.FleetEvent{Time: time.Now().UTC(), Type: kind, Node: node, Session: session, Detail: detail}); len(e.list) > maxEvents {
		e.list = e.list[len(e.list)-maxEvents:]
	}
}

func (e *events) all() []api.FleetEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]api.FleetEvent{}, e.list...)
}
