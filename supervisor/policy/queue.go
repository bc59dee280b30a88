// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"runtime"
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// QueueLimits bound the queue of starts.
type QueueLimits struct {
	Length int               `toml:"length"`
	Wait   quantity.Duration `toml:"wait"`
	Starts int               `toml:"starts"` // concurrent starts; 0: depends on the CPUs
}

// AtOnce is the number of concurrent starts.
func (q *QueueLimits) AtOnce() int {
	if q.Starts > 0 {
		return q.Starts
	}
	return max(startsPerCPU*runtime.NumCPU(), minStarts)
}

// A start uses a CPU for about half of its time; the rest it waits for the kernel.
const (
	startsPerCPU = 4
	minStarts    = 8
)

// defaultQueue returns the built-in configuration.
func defaultQueue() QueueLimits {
	return QueueLimits{Length: 1024, Wait: quantity.Duration(10 * time.Second)}
}

// Validate calls bad for every invalid value.
func (q *QueueLimits) Validate(bad func(key string, value any, allowed string)) {
	if q.Length < 0 || q.Length > 100_000 {
		bad("queue.length", q.Length, "0 to 100000")
	}
	if q.Wait < 0 || q.Wait > quantity.Duration(time.Hour) {
		bad("queue.wait", q.Wait, "0s to 1h")
	}
	if q.Starts < 0 || q.Starts > 1000 {
		bad("queue.starts", q.Starts, "0 to 1000")
	}
}
