// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"sync"
)

// atOnce is how many sessions of an earlier boxd are handled at a time.
const atOnce = 16

// AtOnce calls do for each element of list, up to atOnce at a time.
func AtOnce[T any](list []T, do func(T) error) error {
	errs := make([]error, len(list))
	sem := make(chan struct{}, atOnce)
	var work sync.WaitGroup
	for i, one := range list {
		sem <- struct{}{}
		work.Go(func() {
			defer func() { <-sem }()
			errs[i] = do(one)
		})
	}
	work.Wait()
	return errors.Join(errs...)
}
