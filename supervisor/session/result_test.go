// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Where no cgroup reports it, lack of memory is recognized by its signs, and nothing else is taken for it.
func TestLackOfMemoryIsRecognizedWithoutACgroup(t *testing.T) {
	t.Parallel()
	const limit = 100 * quantity.MiB
	for _, tc := range []struct {
		exit      isolation.Exit
		stderr    string
		mechanism policy.Mechanism
		want      string
	}{
		{isolation.Exit{Code: 1}, "Traceback\nMemoryError\n", policy.MechanismRlimit, "MemoryError"},
		{isolation.Exit{Code: 134, Reason: isolation.ReasonSignaled, Signal: int(unix.SIGABRT)}, "terminate called after throwing an instance of 'std::bad_alloc'\n", policy.MechanismRlimit, "std::bad_alloc"},
		{isolation.Exit{Reason: isolation.ReasonSignaled, Signal: int(unix.SIGSEGV), MaxRSS: uint64(limit) * 9 / 10}, "", policy.MechanismRlimit, "SIGSEGV"},
		{isolation.Exit{Reason: isolation.ReasonSignaled, Signal: int(unix.SIGSEGV), MaxRSS: 1 << 20}, "", policy.MechanismRlimit, ""},
		{isolation.Exit{Reason: isolation.ReasonSignaled, Signal: int(unix.SIGTERM), MaxRSS: uint64(limit)}, "", policy.MechanismRlimit, ""},
		{isolation.Exit{Code: 0}, "MemoryError", policy.MechanismRlimit, ""},
		{isolation.Exit{Code: 1}, "no such file", policy.MechanismRlimit, ""},
		{isolation.Exit{Code: 1}, "MemoryError", policy.MechanismGroup, ""},
		{isolation.Exit{Reason: isolation.ReasonTimedOut, Signal: int(unix.SIGKILL), MaxRSS: uint64(limit)}, "MemoryError", policy.MechanismRlimit, ""},
	} {
		s := Session{Settings: policy.Settings{Limits: limits.Limits{Memory: limit}}, enforced: map[string]policy.Mechanism{policy.LimitMemory: tc.mechanism}}
		r, err := s.result(&process.Spec{}, &tc.exit, nil, "", func(stream int) (head, tail []byte, err error) {
			if stream == 1 {
				return []byte(tc.stderr), nil, nil
			}
			return nil, nil, nil
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if r.OOM != nil {
			got = r.OOM.Sign
			if r.OOM.Limit != limit || r.OOM.Kills != 0 {
				t.Errorf("%+v", r.OOM)
			}
		}
		if got != tc.want {
			t.Errorf("%+v, %q: %q, want %q", tc.exit, tc.stderr, got, tc.want)
		}
	}
}
