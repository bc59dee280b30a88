// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"sync"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// Follow hands the output of a durable program that has started to emit as it comes, until there is no more
// of it. The program waits while emit does.
func Follow(ctx context.Context, program *client.Program, window isolation.Output, emit func(stream int, data []byte) error) error {
	log := program.Output()
	if log == nil { // it never ran
		return nil
	}
	reader, buf := log.NewReader([2]int64{}, false), make([]byte, bufferSize)
	told := [2]int64{}
	_ = program.Pace(&told) // without a box there is nothing to wait for
	for {
		changed, over := log.Changed(), over(program)
		c, err := reader.Next(buf)
		if err != nil {
			return err
		}
		if len(c.Data) > 0 {
			if err := emit(c.Stream, c.Data); err != nil {
				return err
			}
		}
		if at := reader.Position(); !over && farther(told, at, window.Tail) {
			told = at
			_ = program.Pace(&told)
		}
		switch {
		case c.Len() > 0:
			continue
		case over:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// farther reports whether PID 1 should hear that readers have come from one position to another.
func farther(from, to [2]int64, tail uint64) bool {
	step := max(min(int64(paceStep), int64(tail)/4), 1)
	return to[0]-from[0] >= step || to[1]-from[1] >= step
}

// Pipe is the standard input of a durable program as one writes to any pipe.
type Pipe struct {
	in  *client.Input
	ctx context.Context //nolint:containedctx // ends with Abandon
	end context.CancelFunc
	mu  sync.Mutex // held by a Write
}

// NewPipe returns the standard input of a program that has one.
func NewPipe(in *client.Input) *Pipe {
	p := &Pipe{in: in}
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

// Write waits while the program does not read.
func (p *Pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.in.Write(p.ctx, b)
}

// Close is the end of the input.
func (p *Pipe) Close() error { return p.in.CloseWrite() }

// Abandon ends a Write that is under way; there will be no other.
func (p *Pipe) Abandon() {
	p.end()
	p.mu.Lock()
	defer p.mu.Unlock()
}
