// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"runtime"
	"time"

	"github.com/boxd-dev/boxd/internal/quantity"
)

// QueueLimits bound the line in which starts wait.
type QueueLimits struct {
	Length int               `toml:"length"`
	Wait   quantity.Duration `toml:"wait"`
	Starts int               `toml:"starts"` // boxes that start at a time; 0: as many as suit the processors
}

// AtOnce is how many boxes start at a time.
func (q *QueueLimits) AtOnce() int {
	if q.Starts > 0 {
		return q.Starts
	}
	return max(startsPerCPU*runtime.NumCPU(), leastStarts)
}

// A start is on a processor for about half of its time; the rest it waits for the kernel.
const (
	startsPerCPU = 4
	leastStarts  = 8
)

// What becomes of a session whose PID 1 does not answer.
const (
	UnhealthyEnd  = "end"
	UnhealthyKeep = "keep"
)

func defaultQueue() QueueLimits {
	return QueueLimits{Length: 1024, Wait: seconds(10)}
}

// mostWarm is how many boxes of one profile may be ahead of need.
const mostWarm = 64

// validateLife checks what is about the beginning and the end of sessions.
func (c *Config) validateLife(bad func(key string, value any, allowed string)) {
	if c.Queue.Length < 0 || c.Queue.Length > 100_000 {
		bad("queue.length", c.Queue.Length, "0 to 100000")
	}
	if n := c.Sessions.MaxWorkspaces; n < 0 || n > mostSpaces {
		bad("sessions.max_workspaces", n, fmt.Sprintf("0 to %d", mostSpaces))
	}
	if c.Queue.Wait < 0 || c.Queue.Wait > quantity.Duration(time.Hour) {
		bad("queue.wait", c.Queue.Wait, "0s to 1h")
	}
	if c.Queue.Starts < 0 || c.Queue.Starts > 1000 {
		bad("queue.starts", c.Queue.Starts, "0 to 1000")
	}
	for _, p := range []struct {
		key   string
		value float64
	}{{"host.pressure_cpu", c.Host.PressureCPU}, {"host.pressure_memory", c.Host.PressureMemory}, {"host.pressure_io", c.Host.PressureIO}} {
		if !(p.value >= 0 && p.value <= 100) {
			bad(p.key, p.value, "0 to 100")
		}
	}
	if c.Sessions.Unhealthy != UnhealthyEnd && c.Sessions.Unhealthy != UnhealthyKeep {
		bad("sessions.unhealthy", fmt.Sprintf("%q", c.Sessions.Unhealthy), UnhealthyEnd+", "+UnhealthyKeep)
	}
	if c.Sessions.Ping != 0 && c.Sessions.Ping < quantity.Duration(100*time.Millisecond) || c.Sessions.Ping > quantity.Duration(time.Hour) {
		bad("sessions.ping", c.Sessions.Ping, "0s, or 100ms to 1h")
	}
}
