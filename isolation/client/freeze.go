// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// freezePatience is what PID 1 gets to answer. It may be at work on other things first.
const freezePatience = 30 * time.Second

// Freeze stops all programs of the box where they are, or lets them go on, and returns when that is so.
// In a frozen box no program can be started; those that are there can be killed. The error is a
// *isolation.StepError if it cannot be done, or ErrBoxLost.
//
// PID 1 waits for the kernel a few seconds at most; one that does not answer is given up.
func (b *Box) Freeze(on bool) error {
	b.freezing.Lock()
	defer b.freezing.Unlock()
	if err := b.send(&isolation.BoxRequest{Freeze: &isolation.Freeze{On: on}}); err != nil {
		return ErrBoxLost
	}
	select {
	case err := <-b.frozen:
		return err
	case <-b.done:
		return ErrBoxLost
	case <-time.After(freezePatience):
		b.conn.Close() // it does not do its work
		return ErrBoxLost
	}
}

// deliverFrozen takes the answer to a Freeze.
func (b *Box) deliverFrozen(reply *isolation.BoxReply, files []int) error {
	if len(files) > 0 {
		return isolation.ErrMalformed
	}
	err := error(nil)
	if reply.Failed != nil {
		err = reply.Failed
	}
	if b.freezing.TryLock() { // nobody has asked
		b.freezing.Unlock()
		return isolation.ErrMalformed
	}
	select {
	case b.frozen <- err:
		return nil
	default:
		return isolation.ErrMalformed // said twice
	}
}
