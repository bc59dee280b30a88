// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// freezeTimeout is how long PID 1 may take to answer. It may be busy with other things first.
const freezeTimeout = 30 * time.Second

// ErrSilent means that PID 1 of the box has not answered in time. It still may.
var ErrSilent = errors.New("PID 1 of the box does not answer")

// Freeze stops all programs of the box where they are, or lets them continue, and returns once
// that has happened. In a frozen box no program can be started; running ones can be killed. The
// error is a *isolation.StepError if it cannot be done, or ErrBoxLost.
//
// PID 1 waits a few seconds at most for the kernel; if it does not answer, it is given up.
func (b *Box) Freeze(on bool) error {
	b.freezeMu.Lock()
	defer b.freezeMu.Unlock()
	timer := time.NewTimer(freezeTimeout)
	defer timer.Stop()
	if b.unanswered.Load() { // the answer to a Ping
		if err := b.awaitReply(timer.C, nil); errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
			b.conn.Close()
			return ErrBoxLost
		}
	}
	err := b.sendFreeze(on, timer.C, nil)
	if errors.Is(err, ErrSilent) {
		b.conn.Close() // PID 1 hangs
		return ErrBoxLost
	}
	if err == nil {
		b.frozen = on
	}
	return err
}

// Ping asks PID 1 for a sign of life, and waits for it until ctx ends: then the error is
// ErrSilent. It asks PID 1 to let programs run, as they do already, since every version of a box
// answers that. A frozen box is not asked.
func (b *Box) Ping(ctx context.Context) error {
	if !b.freezeMu.TryLock() {
		return nil // a Freeze waits for the same answer, and gives PID 1 up
	}
	defer b.freezeMu.Unlock()
	if b.frozen {
		return nil
	}
	var err error
	if b.unanswered.Load() { // the answer to the last Ping
		err = b.awaitReply(nil, ctx.Done())
	} else {
		err = b.sendFreeze(false, nil, ctx.Done())
	}
	if errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
		return err
	}
	return nil // a refusal is a sign of life
}

// Sync waits until PID 1 has handled all messages that were sent to it before, at most until ctx
// ends: then the error is ErrSilent. It asks for the same sign of life as Ping. Nothing runs in a
// frozen box, so there it does not wait.
func (b *Box) Sync(ctx context.Context) error {
	b.freezeMu.Lock()
	defer b.freezeMu.Unlock()
	if b.frozen {
		return nil
	}
	if b.unanswered.Load() { // the answer to the last Ping
		if err := b.awaitReply(nil, ctx.Done()); errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
			return err
		}
	}
	if err := b.sendFreeze(false, nil, ctx.Done()); errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
		return err
	}
	return nil
}

// sendFreeze sends a Freeze and waits for the answer.
func (b *Box) sendFreeze(on bool, timeout <-chan time.Time, done <-chan struct{}) error {
	b.unanswered.Store(true)
	if err := b.send(&isolation.BoxRequest{Freeze: &isolation.Freeze{On: on}}); err != nil {
		return ErrBoxLost
	}
	return b.awaitReply(timeout, done)
}

// awaitReply waits for an answer of PID 1, until timeout or done.
func (b *Box) awaitReply(timeout <-chan time.Time, done <-chan struct{}) error {
	select {
	case err := <-b.freezeReply:
		b.unanswered.Store(false)
		return err
	case <-b.done:
		return ErrBoxLost
	case <-timeout:
		return ErrSilent
	case <-done:
		return ErrSilent
	}
}

// deliverFrozen handles the answer to a Freeze.
func (b *Box) deliverFrozen(reply *isolation.BoxReply, files []int) error {
	if len(files) > 0 || !b.unanswered.Load() { // there was no request
		return isolation.ErrMalformed
	}
	err := error(nil)
	if reply.Failed != nil {
		err = reply.Failed
	}
	select {
	case b.freezeReply <- err:
		return nil
	default:
		return isolation.ErrMalformed // sent twice
	}
}
