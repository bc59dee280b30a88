// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
)

// What happens to a session whose PID 1 does not respond.
const (
	UnhealthyEnd  = "end"
	UnhealthyKeep = "keep"
)

// maxWarm is how many boxes of one profile may be preforked.
const maxWarm = 64

// validateLife checks the settings about the start and end of sessions.
func (c *Config) validateLife(bad func(key string, value any, allowed string)) {
	for _, d := range []struct {
		key   string
		value quantity.Duration
	}{{"exec.max_interactive", c.Exec.MaxInteractive}, {"processes.keep", c.Processes.Keep}} {
		if d.value < 0 || d.value > longestTimeout {
			bad(d.key, d.value, "0s to "+longestTimeout.String())
		}
	}
	if m := c.Processes.MaxSpool; m != 0 && m < MinSpool || m > isolation.MaxSpool {
		bad("processes.max_spool", m, fmt.Sprintf("0B, or %v to %v", MinSpool, quantity.Size(isolation.MaxSpool)))
	}
	c.Queue.Validate(bad)
	if n := c.Sessions.MaxWorkspaces; n < 0 || n > maxSpaces {
		bad("sessions.max_workspaces", n, fmt.Sprintf("0 to %d", maxSpaces))
	}
	if n := c.Sessions.MaxSnapshots; n < 0 || n > isolation.MaxSnapshots {
		bad("sessions.max_snapshots", n, fmt.Sprintf("0 to %d", isolation.MaxSnapshots))
	}
	for _, p := range []struct {
		key   string
		value float64
	}{{"host.pressure_cpu", c.Host.PressureCPU}, {"host.pressure_memory", c.Host.PressureMemory}, {"host.pressure_io", c.Host.PressureIO}} {
		if !(p.value >= 0 && p.value <= 100) {
			bad(p.key, p.value, "0 to 100")
		}
	}
	if d := c.Sessions.StoppedAge; d != 0 && (d < quantity.Duration(time.Second) || d > longestTimeout) {
		bad("sessions.stopped_age", d, "0s, or 1s to "+longestTimeout.String())
	}
	if c.Sessions.Unhealthy != UnhealthyEnd && c.Sessions.Unhealthy != UnhealthyKeep {
		bad("sessions.unhealthy", fmt.Sprintf("%q", c.Sessions.Unhealthy), UnhealthyEnd+" or "+UnhealthyKeep)
	}
	if c.Sessions.Ping != 0 && c.Sessions.Ping < quantity.Duration(100*time.Millisecond) || c.Sessions.Ping > quantity.Duration(time.Hour) {
		bad("sessions.ping", c.Sessions.Ping, "0s, or 100ms to 1h")
	}
}
