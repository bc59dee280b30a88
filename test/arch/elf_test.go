// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"debug/elf"
	"slices"
	"testing"
)

// interpreter reports whether a program asks for a dynamic linker.
func interpreter(t *testing.T, path string) bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
