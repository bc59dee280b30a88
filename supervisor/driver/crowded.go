// SPDX-License-Identifier: Apache-2.0

package driver

import "fmt"

// Crowded is a box that has met its cap on connections.
type Crowded struct {
	Packets uint64 // that would have begun one more
	Most    int    // connections at a time; 0: nobody knows here
	By      string // the key of box.toml that has cut what was asked for; "": none has
	Profile string
}

// Setting is what would let the box have more.
func (c *Crowded) Setting() string {
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
	most := "its number of connections"
	if c.Most > 0 {
		most = fmt.Sprintf("network_connections = %d", c.Most)
	}
	return fmt.Sprintf("the box has met %s: attempts to begin one more were refused (%d packets); %s would allow it", most, c.Packets, c.Setting())
}
