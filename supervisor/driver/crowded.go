// SPDX-License-Identifier: Apache-2.0

package driver

import "fmt"

// Crowded describes a box that has reached its connection limit.
type Crowded struct {
	Packets uint64 // that would have opened another connection
	Most    int    // concurrent connections; 0: unknown here
	By      string // the key of box.toml that reduced the requested limit; "": none
	Profile string
}

// setting returns the setting that would allow the box more connections.
func (c *Crowded) setting() string {
	if c.By != "" {
		return fmt.Sprintf("%s of more than %d", c.By, c.Most)
	}
	if c.Most == 0 {
		return "more network.connections"
	}
	return fmt.Sprintf("network_connections of more than %d, of the session and of profiles.%s or network.connections", c.Most, c.Profile)
}

// Text says what was refused, by which rule, and what would allow it.
func (c *Crowded) Text() string {
	limit := "its number of connections"
	if c.Most > 0 {
		limit = fmt.Sprintf("network_connections = %d", c.Most)
	}
	return fmt.Sprintf("the box has reached %s: more connections were refused (%d packets); %s would allow it", limit, c.Packets, c.setting())
}
