// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// KillPatience is how long PID 1 may take to report an end that is due; after that, and a second check, the box is given up.
const KillPatience = 40 * time.Second

// thawInterval is the interval between attempts to start a program in a frozen box.
const thawInterval = time.Second

// Drive restarts the program as its policy says, stops it when requested, and returns when the process has ended.
func (p *Process) Drive() {
	for {
		end := p.follow()
		delay, reason, again := p.nextStep(end, time.Now())
		for again {
			p.setWaiting(delay)
			if !p.sleep(delay) {
				reason, again = p.stopReason(), false
				break
			}
			p.setState(StateStarting)
			err := p.launch()
			if err == nil {
				p.hooks.Tell(p.spec.ID, false)
				break
			}
			p.mu.Lock()
			p.exit, p.err = nil, err
			p.mu.Unlock()
			delay, reason, again = p.nextStep(&ending{err: err}, time.Now())
		}
		if !again {
			p.finish(reason)
			return
		}
	}
}

// follow follows one program until that has ended.
func (p *Process) follow() *ending {
	end := &ending{}
	deadline := After(KillPatience, p.hooks.Lose)
	defer deadline.Stop()
	now := p.now                          // only this goroutine sets it
	_ = now.Started(context.Background()) // returns: otherwise Lose ends the box
	p.adoptFiles(now)
	ctx, cancel := context.WithCancel(context.Background())
	ready, waits := p.awaitReady(ctx)
	defer func() {
		cancel()
		if waits {
			deadline.Reset(KillPatience)
			<-ready
		}
	}()
	deadline.Stop()
	if p.spec.Command.Timeout > 0 {
		deadline.Reset(p.timeout())
	}
	kill := func() {
		deadline.Reset(KillPatience)
		_ = now.Kill() // fails without a box: then it has ended
	}
	timer, grace := time.NewTimer(0), time.NewTimer(time.Hour)
	defer timer.Stop()
	defer grace.Stop()
	grace.Stop()
	stop, isReady := p.stop, ready
	for {
		select {
		case <-now.Exited():
			p.ended(now, end)
			return end
		case <-stop:
			stop = nil
			p.setState(StateStopping)
			if p.spec.Unlisted {
				kill()
				continue
			}
			_ = now.Signal(unix.SignalNum(p.spec.Stop.Signal))
			grace.Reset(*p.spec.Stop.Grace)
		case <-grace.C:
			kill()
		case is := <-isReady:
			waits, isReady = false, nil
			switch {
			case is:
				p.setReady()
			case stop != nil: // otherwise it has its grace to end in
				end.unready = true
				kill()
			}
		case <-p.wakeup:
			timer.Reset(p.checkReady(time.Now()))
		case <-timer.C:
			timer.Reset(p.checkReady(time.Now()))
		}
	}
}

// timeout is how long a program with a timeout gets from now on, at most. When it began may be known only from an earlier
// boxd, and clocks can be set, and stop while a host is suspended: PID 1 counts the time and enforces the timeout.
func (p *Process) timeout() time.Duration { return p.spec.Command.Timeout + KillPatience }

// adoptFiles takes over the files of a program that has started. One that could not start leaves the output where it was.
func (p *Process) adoptFiles(now *client.Program) {
	log := now.Output()
	if log == nil {
		return
	}
	p.mu.Lock()
	before, file := p.holder, p.file
	p.holder, p.file, p.fresh, p.at.Ready = now, p.fresh, nil, p.at.Ready || p.spec.Ready == nil
	if p.adopted {
		p.given += now.Taken()
		p.adopted = false
	}
	p.mu.Unlock()
	if before != nil {
		before.Close() // but not its output, which the next program continues
		closeFile(file)
	}
	if p.spec.Command.Direct {
		p.stdio.setFiles(now.Far())
	}
	first := p.log == nil
	if first {
		p.log = log
	}
	p.setState(StateRunning)
	if first {
		close(p.up) // wakes callers that wait for the start
	}
	p.pace(false)
}

func (p *Process) setReady() {
	p.mu.Lock()
	p.at.Ready = true
	p.noteLocked()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.hooks.Tell(p.spec.ID, true)
}

// ended records the outcome of a program.
func (p *Process) ended(now *client.Program, end *ending) {
	end.exit, end.err = now.Wait(context.Background()) // returns at once
	p.stdio.drop(goneEnded)
	if end.exit != nil {
		end.ran = end.exit.Duration
	}
	p.mu.Lock()
	p.exit, p.err = end.exit, end.err
	p.cutLocked()
	fresh := p.fresh
	p.fresh = nil
	if now != p.holder {
		p.at.Starts--
	}
	p.mu.Unlock()
	if now != p.holder { // it has never run
		now.Close()
		closeFile(fresh)
	}
}

// nextStep decides what follows the end of a program.
func (p *Process) nextStep(end *ending, now time.Time) (delay time.Duration, reason string, again bool) {
	step, _ := errors.AsType[*isolation.StepError](end.err)
	switch reason = p.stopReason(); {
	case !p.at.Ended.IsZero(): // before this boxd started
		return 0, p.at.Reason, false
	case reason != "":
		return 0, reason, false
	case errors.Is(end.err, client.ErrBoxLost):
		return 0, ReasonShutdown, false
	case p.log == nil: // a program that has never started is misconfigured: a restart would not help
		return 0, "", false
	case step != nil && step.Step == isolation.StepFreeze:
		return thawInterval, "", true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delay, again, looping := p.at.Restarts.next(&p.spec.Restart, end, now)
	switch {
	case looping:
		reason = ReasonCrashLoop
	case !again && end.unready:
		reason = ReasonNotReady
	}
	return delay, reason, again
}

func (p *Process) stopReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at.Stopping
}

func (p *Process) setWaiting(delay time.Duration) {
	p.mu.Lock()
	p.next = time.Now().Add(delay)
	p.mu.Unlock()
	p.setState(StateWaiting)
}

// sleep waits for the next start. It returns false if there is to be none.
func (p *Process) sleep(delay time.Duration) bool {
	timer, poll := time.NewTimer(delay), time.NewTimer(0)
	defer timer.Stop()
	defer poll.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-p.stop:
			return false
		case <-p.hooks.Box.Done():
			return true // launch will fail
		case <-p.wakeup:
			poll.Reset(p.checkReady(time.Now()))
		case <-poll.C:
			poll.Reset(p.checkReady(time.Now()))
		}
	}
}

// rarely is how long Drive sleeps when nothing is due.
const rarely = time.Hour

// checkReady does what is due, and returns how long until the next check.
func (p *Process) checkReady(now time.Time) time.Duration {
	wait := rarely
	p.mu.Lock()
	if p.found {
		wait = max(p.used.Add(firstLease).Sub(now), time.Millisecond)
	}
	lease, leased := p.leaseEndLocked()
	for a := range p.all {
		if !a.lossless {
			continue
		}
		left := stall // it may get busy, which does not wake Drive
		if !a.busy.IsZero() {
			left = a.busy.Add(stall).Sub(now)
		}
		if left > 0 {
			wait = min(wait, left)
		}
	}
	back := p.found && now.Sub(p.used) >= firstLease
	p.found = p.found && !back
	p.mu.Unlock()
	p.pace(back)
	if !leased {
		return wait
	}
	if left := lease.Sub(now); left > 0 {
		return min(wait, left)
	}
	p.requestStop(ReasonLease)
	return rarely
}

// finish marks the process as ended.
func (p *Process) finish(reason string) {
	p.mu.Lock()
	if p.at.Ended.IsZero() {
		p.at.Ended, p.at.Reason = time.Now(), reason
		if !errors.Is(p.err, client.ErrBoxLost) { // otherwise it may live on under the next boxd
			p.noteLocked()
		}
	}
	if p.log == nil {
		close(p.up) // adoptFiles has not done so
	}
	p.mu.Unlock()
	p.setState(StateEnded)
	close(p.done)
}
