// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"debug/elf"
	"slices"
	"testing"
)

// interpreter reports whether a program needs a dynamic linker.
func interpreter(t *testing.T, path string) bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// writable returns the writable memory of a program before it allocates any: its data and bss, in bytes.
func writable(t *testing.T, path string) (bytes uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 {
			bytes += p.Memsz
		}
	}
	return bytes
}
