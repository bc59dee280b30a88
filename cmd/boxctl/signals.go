// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// catchSignals takes the signals by which a person or a service manager ends a program, from here to
// release. Commands that start none leave them alone, and end by them.
func catchSignals() (signals <-chan os.Signal, release func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return ch, func() { signal.Stop(ch) }
}

// signalPasser hands the signals boxctl gets to the program: the first as it is, and if the program
// has not ended some time after that, or at the second, SIGKILL.
type signalPasser struct {
	from   <-chan os.Signal
	to     chan<- string
	signal syscall.Signal // the first one; valid after run
}

// Times of a signalPasser.
const (
	passPatience = time.Second      // for a stream to take a signal: it is up, or there is no program yet
	signalGrace  = 5 * time.Second  // for a program to end after the first signal
	killGrace    = 10 * time.Second // for boxd to report the end after SIGKILL
)

// run returns with ctx. It calls hangUp, which ends the program and its box too, where the
// stream does not take the signals.
func (p *signalPasser) run(ctx context.Context, hangUp func()) {
	select {
	case sig := <-p.from:
		p.signal, _ = sig.(syscall.Signal)
	case <-ctx.Done():
		return
	}
	if !p.send(ctx, p.signal) {
		hangUp()
		return
	}
	select {
	case <-p.from:
	case <-time.After(signalGrace):
	case <-ctx.Done():
		return
	}
	if !p.send(ctx, syscall.SIGKILL) {
		hangUp()
		return
	}
	select {
	case <-time.After(killGrace):
		hangUp()
	case <-ctx.Done():
	}
}

// hangUp takes the first signal as the wish to leave.
func (p *signalPasser) hangUp(ctx context.Context, leave func()) {
	select {
	case sig := <-p.from:
		p.signal, _ = sig.(syscall.Signal)
		leave()
	case <-ctx.Done():
	}
}

// send hands a signal to the stream; false means that it was not taken.
func (p *signalPasser) send(ctx context.Context, sig syscall.Signal) bool {
	select {
	case p.to <- unix.SignalName(sig):
		return true
	case <-ctx.Done():
	case <-time.After(passPatience):
	}
	return false
}
