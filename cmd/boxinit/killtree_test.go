// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestOnlyAListThatIsCompleteTellsThatNothingIsLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "1/task/1"), 0o700); err != nil {
		t.Fatal(err)
	}
	proc, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if listsOnly(int(proc.Fd()), nil) {
		t.Error("a kernel without the list: nothing is left")
	}
	programs, all := map[int]*program{}, strings.Builder{}
	for pid := 1000; pid < 2000; pid++ {
		programs[pid] = &program{}
		all.WriteString(strconv.Itoa(pid) + " ")
	}
	for list, want := range map[string]bool{
		"":                         true,
		"1000 1999 ":               true,
		"1000 2000 ":               false,
		"1000 0 ":                  false, // a process of a namespace that PID 1 does not see
		"1000 x ":                  false,
		all.String()[:2000]:        true,
		all.String()[:2045] + "11": false, // it may go on
		all.String():               false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "1/task/1/children"), []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := listsOnly(int(proc.Fd()), programs); got != want {
			t.Errorf("children %.20q… of %d bytes: only programs: %t, want %t", list, len(list), got, want)
		}
	}
}
