// SPDX-License-Identifier: Apache-2.0

package fdpass

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What cannot be sent for want of memory is sent once there is some, and given up if there is none for long.
func TestAMessageIsTriedAgain(t *testing.T) {
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
