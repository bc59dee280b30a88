// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// warmCases measure a session with a preforked box: a box is in the pool whenever a measurement begins, and the clean-up of the
// previous one is over.
func (b *bench) warmCases(ctx context.Context) error {
	c, err := b.startDaemon(ctx, "w", 1, "[profiles.default]\nwarm = 2\n")
	if err != nil {
		return err
	}
	bare, err := newBareClient(filepath.Join(b.dir, "w", "s"))
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
	n := 0
	once := func(do func(id string) error) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if err := ready(); err != nil {
				return 0, err
			}
			time.Sleep(settle) // the work that filled the pool is over
			n++
			id := fmt.Sprint("w", n)
			took, err := timed(func() error { return do(id) })()
			return took, errors.Join(err, c.DeleteSession(ctx, id))
		}
	}
	create := func(id string) error { return bare.expect("/v1/sessions", `{"id":"`+id+`"}`, `"state":"ready"`) }
	b.add("boxd: create, a box is ahead of need", once(create))
	b.add("boxd: create, a box is ahead of need, + first exec", once(func(id string) error {
		return errors.Join(create(id), bare.exec(id))
	}))
	return nil
}
