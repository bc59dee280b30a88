// SPDX-License-Identifier: Apache-2.0

// Whether a running keeper has the version and configuration that boxd wants.

package client

import (
	"slices"
	"strconv"

	"github.com/boxd-dev/boxd/isolation"
)

// greetingMismatch says in what a keeper's greeting differs from the wanted one, "" if in nothing.
func greetingMismatch(g, want *isolation.Greeting) string {
	switch {
	case g.Version != want.Version:
		return "it speaks version " + strconv.FormatUint(uint64(g.Version), 10) + ", not " + strconv.FormatUint(uint64(want.Version), 10)
	case !slices.Equal(g.Flags, want.Flags):
		return "its flags are not those of the configuration: " + difference(g.Flags, want.Flags)
	case g.Programs != want.Programs && want.Programs != "":
		return "it runs another program"
	}
	return ""
}

// difference shows the first flag in which two lists differ.
func difference(got, want []string) string {
	flagAt := func(list []string, i int) string {
		if i < len(list) {
			return strconv.Quote(list[i])
		}
		return "nothing more"
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return flagAt(got, i) + " instead of " + flagAt(want, i)
}
