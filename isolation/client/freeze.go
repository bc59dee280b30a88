// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// freezePatience is what PID 1 gets to answer. It may be at work on other things first.
const freezePatience = 30 * time.Second

// ErrSilent means that PID 1 of the box has not answered in time. It may yet.
var ErrSilent = errors.New("PID 1 of the box does not answer")

// Freeze stops all programs of the box where they are, or lets them go on, and returns when that is so.
// In a frozen box no program can be started; those that are there can be killed. The error is a
// *isolation.StepError if it cannot be done, or ErrBoxLost.
//
// PID 1 waits for the kernel a few seconds at most; one that does not answer is given up.
func (b *Box) Freeze(on bool) error {
	b.freezing.Lock()
	defer b.freezing.Unlock()
	late := time.NewTimer(freezePatience)
	defer late.Stop()
	if b.owed.Load() { // to a Ping
		if err := b.answered(late.C, nil); errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
			b.conn.Close()
			return ErrBoxLost
		}
	}
	err := b.ask(on, late.C, nil)
	if errors.Is(err, ErrSilent) {
		b.conn.Close() // it does not do its work
		return ErrBoxLost
	}
	if err == nil {
		b.stopped = on
	}
	return err
}

// Ping asks PID 1 for a sign of life, and waits for it until ctx ends: ErrSilent. It asks what has an answer
// in every version of a box: that its programs may run, as they do. A frozen box is not asked.
func (b *Box) Ping(ctx context.Context) error {
	if !b.freezing.TryLock() {
		return nil // a Freeze waits for the same, and gives PID 1 up
	}
	defer b.freezing.Unlock()
	if b.stopped {
		return nil
	}
	var err error
	if b.owed.Load() { // to the last Ping
		err = b.answered(nil, ctx.Done())
	} else {
		err = b.ask(false, nil, ctx.Done())
	}
	if errors.Is(err, ErrSilent) || errors.Is(err, ErrBoxLost) {
		return err
	}
	return nil // a refusal is a sign of life
}

// ask sends a Freeze and waits for the answer.
func (b *Box) ask(on bool, late <-chan time.Time, done <-chan struct{}) error {
	b.owed.Store(true)
	if err := b.send(&isolation.BoxRequest{Freeze: &isolation.Freeze{On: on}}); err != nil {
		return ErrBoxLost
	}
	return b.answered(late, done)
}

// answered waits for an answer that PID 1 owes, until either of the two has a word.
func (b *Box) answered(late <-chan time.Time, done <-chan struct{}) error {
	select {
	case err := <-b.frozen:
		b.owed.Store(false)
		return err
	case <-b.done:
		return ErrBoxLost
	case <-late:
		return ErrSilent
	case <-done:
		return ErrSilent
	}
}

// deliverFrozen takes the answer to a Freeze.
func (b *Box) deliverFrozen(reply *isolation.BoxReply, files []int) error {
	if len(files) > 0 || !b.owed.Load() { // nobody has asked
		return isolation.ErrMalformed
	}
	err := error(nil)
	if reply.Failed != nil {
		err = reply.Failed
	}
	select {
	case b.frozen <- err:
		return nil
	default:
		return isolation.ErrMalformed // said twice
	}
}
