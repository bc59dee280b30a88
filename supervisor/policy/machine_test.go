// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/boxd-dev/boxd/quantity"
)

func TestFreeResourcesAreWithinThoseOfTheMachine(t *testing.T) {
	t.Parallel()
	size, err := ReadMachine()
	if err != nil || size.CPUs < 1 || size.Memory < 1<<20 || size.Pids < 301 {
		t.Errorf("size = %+v, err = %v, want no error and size.CPUs >= 1 and size.Memory >= 1 << 20 and size.Pids >= 301",
			size, err)
	}
	if free, err := FreeMemory(); err != nil || free == 0 || free > size.Memory {
		t.Errorf("%d of %d, %v", free, size.Memory, err)
	}
	if _, err := FreeDisk("/"); err != nil {
		t.Error(err)
	}
	if _, err := FreeDisk("/proc/nope"); err == nil {
		t.Error("no error for a directory that does not exist")
	}
}

func TestMemAvailableIsParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantity.Size{
		"MemTotal:       24684096 kB\nMemFree:        17195604 kB\nMemAvailable:   22031604 kB\nBuffers:           48124 kB\n": 22031604 << 10,
		"MemTotal: 1 kB\nMemAvailable: 0 kB\n":   0,
		"MemTotal: 1 kB\nMemAvailable: 12":       1, // cut off: an error
		"MemTotal: 1 kB\nMemAvailable: x kB\n":   1,
		"MemTotal: 1 kB\nMemFree: 1 kB\nSwap: 2": 1,
		"":                                       1,
	} {
		got, err := availableIn(text)
		if (err != nil) != (want == 1) || err == nil && got != want {
			t.Errorf("%q: got %d, err = %v, want (err != nil) == (want == 1) and (an error or got == %v)",
				text, got, err, want)
		}
	}
}
