// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"github.com/boxd-dev/boxd/isolation/network/swap"
	"github.com/boxd-dev/boxd/isolation/network/talk"
)

// secrets gives a box other secrets than it has. What it is connected to by the old ones ends.
func (c *Counter) secrets(m *talk.Secrets) error {
	var set *swap.Set
	var err error
	if len(m.List) > 0 {
		set, err = swap.New(m) // or none, rather than what is not meant any more
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets[m.Key] = set
	if set == nil {
		delete(c.sets, m.Key)
	}
	if own := c.boxes[m.Key]; own != nil && own.proxy != nil {
		own.proxy.Cut()
	}
	return err
}

func (c *Counter) set(key string) *swap.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[key]
}

func (c *Counter) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sets, key)
}
