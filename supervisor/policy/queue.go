// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"runtime"
	"time"

	"github.com/boxd-dev/boxd/quantity"
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

// DefaultQueue is what box.toml says.
func DefaultQueue() QueueLimits {
	return QueueLimits{Length: 1024, Wait: quantity.Duration(10 * time.Second)}
}

// Validate tells bad of every value that is not in order.
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
