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

// catchSignals catches the signals with which a user or a service manager ends a program, until release. Commands that
// start no program do not call it, and end by these signals.
func catchSignals() (signals <-chan os.Signal, release func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return ch, func() { signal.Stop(ch) }
}

// signalPasser passes boxctl's signals to the program: the first one unchanged, then SIGKILL, if the program does not
// end for some time or at the second signal.
type signalPasser struct {
	from   <-chan os.Signal
	to     chan<- string
	signal syscall.Signal // the first one; valid after run
}

// Timeouts of a signalPasser.
const (
	passTimeout = time.Second      // for a stream to take a signal, if there is a program yet
	signalGrace = 5 * time.Second  // for a program to end after the first signal
	killGrace   = 10 * time.Second // for boxd to report the end after SIGKILL
)

// run returns with ctx. If the stream does not take the signals, it calls hangUp, which ends the program and its box
// too.
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

// send passes a signal to the stream; false means that it was not taken.
func (p *signalPasser) send(ctx context.Context, sig syscall.Signal) bool {
	select {
	case p.to <- unix.SignalName(sig):
		return true
	case <-ctx.Done():
	case <-time.After(passTimeout):
	}
	return false
}
