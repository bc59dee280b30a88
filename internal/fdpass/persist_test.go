// SPDX-License-Identifier: Apache-2.0

package fdpass

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A send that fails for lack of memory is repeated until there is memory, and fails after a limited number of tries.
func TestASendIsRetriedWhileMemoryIsShort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails []error
		want  error
		calls int
	}{
		"at once":      {nil, nil, 1},
		"later":        {[]error{unix.ENOBUFS, unix.ENOMEM}, nil, 3},
		"never":        {slices.Repeat([]error{unix.ENOBUFS}, 100), unix.ENOBUFS, tries + 1},
		"another":      {[]error{unix.EPIPE}, unix.EPIPE, 1},
		"a full queue": {[]error{unix.EAGAIN}, unix.EAGAIN, 1},
	} {
		calls := 0
		err := persist(func() error {
			calls++
			if calls <= len(c.fails) {
				return c.fails[calls-1]
			}
			return nil
		})
		if !errors.Is(err, c.want) || calls != c.calls {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
	}
}
