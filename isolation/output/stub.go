// SPDX-License-Identifier: Apache-2.0

// Package output stands in until the real one is there.
package output

import "time"

// Chunk is a piece of a stream.
type Chunk struct {
	Stream int
	Offset int64
	Data   []byte
	Gap    int64
	Time   time.Time
}

// Len of it.
func (c *Chunk) Len() int64 { return int64(len(c.Data)) + c.Gap }
