// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// The limits of an owner's boxes are written as they are if the boxes use no more; otherwise
// nothing is killed, and the boxes get no more than before.
func TestLoweredOwnerLimitsKillNothing(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		owner cgroup.Owner
		used  string // in bytes
		max   string // memory.max before
		want  string // memory.max afterwards
		high  string // memory.high afterwards
		cpu   string
		inUse uint64
	}{
		"less is used":         {cgroup.Owner{Name: "7", Memory: 256 * mib, CPU: 50_000}, "1048576", "max", "402653184", "max", "50000 100000", 0},
		"more is used":         {cgroup.Owner{Name: "7", Memory: 256 * mib}, "536870912", "max", "553648128", "max", "max 100000", 536870912},
		"more, and again":      {cgroup.Owner{Name: "7", Memory: 256 * mib}, "536870912", "540000000", "540000000", "max", "max 100000", 536870912},
		"no limit, as before":  {cgroup.Owner{Name: "7"}, "536870912", "max", "max", "max", "max 100000", 0},
		"no limit any more":    {cgroup.Owner{Name: "7"}, "536870912", "402653184", "max", "max", "max 100000", 0},
		"another of that user": {cgroup.Owner{Name: "7-0123456789abcdef", Memory: 1}, "0", "max", "134217729", "max", "max 100000", 0},
	} {
		tree := treeOfDirectories(t, "owner-"+tc.owner.Name)
		in := filepath.Join(tree.path, "owner-"+tc.owner.Name)
		for file, text := range map[string]string{"memory.current": tc.used, "memory.max": tc.max, "memory.high": "max", "cpu.max": ""} {
			if err := os.WriteFile(filepath.Join(in, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := tree.SetOwner(&tc.owner)
		used, ok := errors.AsType[*inUseError](err)
		if ok != (tc.inUse > 0) || ok && used.Used != tc.inUse || !ok && err != nil {
			t.Errorf("%s: err = %v, want ok == (tc.inUse > 0) and (ok == false or used.Used == tc.inUse) and (ok == true or no error)",
				name, err)
		}
		for file, want := range map[string]string{"memory.max": tc.want, "memory.high": tc.high, "cpu.max": tc.cpu} {
			text, err := os.ReadFile(filepath.Join(in, file))
			if err != nil || len(text) < len(want) || string(text[:len(want)]) != want { // unlike the kernel's, plain files keep the end of a longer text
				t.Errorf("%s: %s is %q, want %q, %v", name, file, text, want, err)
			}
		}
	}
	if err := treeOfDirectories(t).SetOwner(&cgroup.Owner{Name: "7"}); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the cgroup of an unknown owner: err = %v, want err is unix.ESRCH", err)
	}
}
