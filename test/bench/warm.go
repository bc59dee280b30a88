// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// warmCases measure a session with a preforked box: a box is in the pool whenever a measurement begins, and the clean-up of the
// previous one is over.
func (b *bench) warmCases(ctx context.Context) error {
	c, err := b.startDaemon(ctx, "w", 1, "[profiles.default]\nwarm = 2\n")
	if err != nil {
		return err
	}
	create, err := b.blockingClient(ctx, "w", createRequest)
	if err != nil {
		return err
	}
	first, err := b.blockingClient(ctx, "w", createRequest, execRequest("cycle"))
	if err != nil {
		return err
	}
	ready := func() error {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			s, err := c.Status(ctx)
			switch {
			case err != nil:
				return err
			case s.Sessions == 0 && len(s.Warm) == 1 && s.Warm[0].Ready == s.Warm[0].Want:
				return nil
			case time.Now().After(deadline):
				return fmt.Errorf("the pool is not full: %+v", s.Warm)
			}
		}
	}
	once := func(do func() (time.Duration, error)) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if err := ready(); err != nil {
				return 0, err
			}
			time.Sleep(settle) // the work that filled the pool is over
			elapsed, err := do()
			return elapsed, errors.Join(err, c.DeleteSession(ctx, "cycle"))
		}
	}
	b.add("boxd: create, a box is ahead of need", once(create))
	b.add("boxd: create, a box is ahead of need, + first exec", once(first))
	return nil
}
