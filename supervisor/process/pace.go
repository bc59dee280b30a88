// SPDX-License-Identifier: Apache-2.0

package process

import "time"

// paceStep is how far readers advance between two reports to PID 1, if that keeps enough output.
const paceStep = 256 << 10

// slowestLocked is the position that all lossless readers have reached, nil if there are none.
func (p *Process) slowestLocked(now time.Time) *[2]int64 {
	var slowest *[2]int64
	for a := range p.all {
		switch {
		case !a.lossless || !p.spec.Unlisted && !a.busy.IsZero() && now.Sub(a.busy) >= stall:
		case slowest == nil:
			slowest = new(a.acked)
		default:
			for i, n := range a.acked {
				slowest[i] = min(slowest[i], n)
			}
		}
	}
	return slowest
}

// pace tells PID 1 the position of the slowest lossless reader, if it has moved far enough, or if anyway is set.
func (p *Process) pace(anyway bool) {
	p.paceMu.Lock()
	defer p.paceMu.Unlock()
	p.mu.Lock()
	to, program := p.slowestLocked(time.Now()), p.holder
	running := p.running()
	if to != nil {
		p.found = false
	} else if p.found { // the readers that the program waits for may come back
		running = false
	}
	p.mu.Unlock()
	if p.leaving() {
		return
	}
	if !running || program == nil || !anyway && !p.moved(to) {
		return
	}
	p.paced = to
	_ = program.Pace(to) // fails without a box, where no program waits
}

// farther reports whether PID 1 must be told that readers have moved from one position to another.
func farther(from, to [2]int64, tail uint64) bool {
	step := max(min(int64(paceStep), int64(tail)/4), 1)
	return to[0]-from[0] >= step || to[1]-from[1] >= step
}

// moved reports whether PID 1 must be told the position of the readers.
func (p *Process) moved(to *[2]int64) bool {
	if to == nil || p.paced == nil {
		return to != p.paced
	}
	return farther(*p.paced, *to, p.spec.Command.Output.Tail)
}
