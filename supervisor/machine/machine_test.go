// SPDX-License-Identifier: Apache-2.0

package machine

import "testing"

func TestAMachineHasSomethingAndNotMoreLeft(t *testing.T) {
	t.Parallel()
	size, err := Look()
	if err != nil || size.CPUs < 1 || size.Memory < 1<<20 || size.Pids < 301 {
		t.Errorf("%+v, %v", size, err)
	}
	if free, err := FreeMemory(); err != nil || free == 0 || free > size.Memory {
		t.Errorf("%d of %d, %v", free, size.Memory, err)
	}
	if _, err := FreeDisk("/"); err != nil {
		t.Error(err)
	}
	if _, err := FreeDisk("/proc/nope"); err == nil {
		t.Error("a directory that does not exist has room")
	}
}
