// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

func TestLimitsOfAProgramAreRead(t *testing.T) {
	t.Parallel()
	argv := isolation.LimitedArgv([]isolation.Rlimit{{Resource: unix.RLIMIT_CORE}, {Resource: unix.RLIMIT_NOFILE, Soft: 3, Hard: 1<<64 - 1}}, []string{"/bin/true", "x"})
	if program := isolation.LimitedProgram(argv); !slices.Equal(program, []string{"/bin/true", "x"}) {
		t.Errorf(`the program is %q, want []string{"/bin/true", "x"}`, program)
	}
	got, err := parseLimits(argv[2])
	want := []limit{{unix.RLIMIT_CORE, unix.Rlimit{}}, {unix.RLIMIT_NOFILE, unix.Rlimit{Cur: 3, Max: 1<<64 - 1}}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q is read as %v, %v", argv[2], got, err)
	}
	for _, text := range []string{"", "7", "7=1", "7=1:x", "7=1:2,", "-1=1:2"} {
		if got, err := parseLimits(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
