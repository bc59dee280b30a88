// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/boxd-dev/boxd/isolation/egress"
)

// secrets replaces the secrets of a box, and closes the connections that were made with the old
// ones.
func (c *control) secrets(m *egress.Secrets) error {
	var set *secretSet
	var err error
	if len(m.List) > 0 {
		set, err = newSecretSet(m) // better no secrets than old ones
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets[m.Key] = set
	if set == nil {
		delete(c.sets, m.Key)
	}
	if served := c.boxes[m.Key]; served != nil && served.proxy != nil {
		served.proxy.closeConns()
	}
	return err
}

func (c *control) set(key string) *secretSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[key]
}

func (c *control) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sets, key)
}
