// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// callLists is the directory of the lists of calls, beside the test that tries every number in a box and compares.
const callLists = "../../test/boxes/testdata"

// The committed text says what the filter answers to each number, so that a change of it shows in review. With UPDATE set in the
// environment it is written anew.
func TestCommittedCallsAreCurrent(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		want := callList(t, arch)
		path := filepath.Join(callLists, "calls-"+arch+".txt")
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from what policy.txt compiles to: run UPDATE=1 go test ./isolation/seccomp -run TestCommittedCallsAreCurrent, and look at the difference", path)
		}
	}
}

// callList evaluates the filters themselves: of an ordinary box, and of one that can write to a directory of the host.
func callList(t *testing.T, arch string) string {
	t.Helper()
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	names, audit := numbers(t, arch), uint32(unix.AUDIT_ARCH_X86_64)
	if arch == "arm64" {
		audit = unix.AUDIT_ARCH_AARCH64
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# System calls of programs in boxes on %s, by what the compiled filter does; the reasons are in isolation/seccomp/policy.txt.\n", arch)
	b.WriteString("# NUMBER NAME: allow, an errno, or \"arguments\" where those decide; then the answer to arguments that are all -1, in an\n")
	b.WriteString("# ordinary box and in one that can write to a directory of the host. Every other number is answered ENOSYS, and so is\n")
	b.WriteString("# every number of another ABI of the processor: on amd64 x32, and 32 bits by int 0x80.\n")
	ordinary := Options{Arch: arch}
	plain, writable := mustCompile(t, Default(), ordinary), mustCompile(t, Default(), Options{Arch: arch, HostWritable: true})
	for nr := range uint32(1024) {
		name, known := names[nr]
		if !known {
			if got := answers(t, plain, audit, nr); got != "ENOSYS" {
				t.Errorf("%s: number %d has no name and is answered %s", arch, nr, got)
			}
			continue
		}
		class := "arguments"
		if all := inForce(rules[name], &ordinary); len(all) == 1 {
			class = verdictName(t, all[0].verdict)
		}
		fmt.Fprintf(&b, "%d %s: %s; %s %s\n", nr, name, class, answers(t, plain, audit, nr), answers(t, writable, audit, nr))
	}
	return b.String()
}

// answers returns the filter's verdict on a call whose arguments are all -1.
func answers(t *testing.T, f Filter, audit, nr uint32) string {
	t.Helper()
	all := [6]uint64{}
	for i := range all {
		all[i] = ^uint64(0)
	}
	return verdictName(t, f.run(call{audit, nr, all}))
}

func verdictName(t *testing.T, verdict uint32) string {
	t.Helper()
	if verdict == allowed {
		return "allow"
	}
	name := unix.ErrnoName(unix.Errno(verdict & 0xffff))
	if verdict&^0xffff != unix.SECCOMP_RET_ERRNO || name == "" {
		t.Fatalf("verdict %#x is neither allow nor an errno", verdict)
	}
	return name
}
