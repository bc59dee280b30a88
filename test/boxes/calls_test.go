// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// The last number that is tried in each ABI: beyond all existing calls, and as many again.
const lastCall = 1023

// Every system call number gets the answer listed in testdata/calls-*.txt, through each ABI that a program can use.
func TestT43EveryCallOfEveryABI(t *testing.T) {
	whole := true // whether this kernel tells all ABIs apart
	attack(t, func(h *host) {
		for i, change := range []func(*api.SessionRequest){func(*api.SessionRequest) {}, h.mounts()} {
			b := h.box(change)
			listed, waits := listedCalls(t, i)
			want := func(nr int) string {
				if answer, exists := listed[nr]; exists {
					return answer
				}
				return "ENOSYS"
			}
			b.calls("native", 0, lastCall, waits, want)
			for _, far := range []int{0x3fffffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff} {
				b.calls("native", far, far, nil, want)
			}
			if runtime.GOARCH != "amd64" {
				continue
			}
			never := func(int) string { return "ENOSYS" }
			b.calls("x32", 0, lastCall, nil, never)
			cpu, err := os.ReadFile("/proc/cpuinfo")
			if whole = err != nil || !strings.Contains(string(cpu), "User Mode Linux"); whole {
				b.int80(never)
			}
		}
	})
	if !whole {
		boxtest.Missing(t, "a kernel that tells calls of 32 bits apart")
	}
}

// int80 tries 32-bit calls. A kernel or hypervisor without them kills the caller with another signal than the filter would; then
// one call is enough.
func (b *box) int80(want func(int) string) {
	b.t.Helper()
	last := lastCall
	if r := b.exec(&api.ExecRequest{Argv: []string{probe, "try", "int80"}}); r.Stdout == "" && strings.Contains(r.Stderr, "SIGSEGV") {
		b.t.Log("this host has no calls of 32 bits")
		last, want = 0, func(int) string { return "ENDED" }
	}
	b.calls("int80", 0, last, nil, want)
}

// listedCalls reads the committed answers to calls with all arguments -1, in a box of either kind, and the numbers that block
// forever.
func listedCalls(t *testing.T, kind int) (answers map[int]string, waits []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/calls-" + runtime.GOARCH + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	answers = map[int]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		number, name, _ := strings.Cut(name, " ")
		_, both, _ := strings.Cut(rest, "; ")
		nr, err := strconv.Atoi(number)
		if list := strings.Fields(both); err == nil && len(list) == 2 {
			answers[nr] = list[kind]
		}
		if name == "pause" || name == "exit" { // exit ends one thread of several
			waits = append(waits, number)
		}
	}
	if len(answers) < 300 {
		t.Fatalf("only %d calls are listed", len(answers))
	}
	return answers, waits
}

// calls has the probe make calls, and compares. Calls that the filter allows may return anything, or end their program.
func (b *box) calls(abi string, from, to int, waits []string, want func(nr int) string) {
	b.t.Helper()
	argv := append([]string{probe, "calls", abi, strconv.Itoa(from), strconv.Itoa(to)}, waits...)
	r := b.exec(&api.ExecRequest{Argv: argv, Timeout: new(quantity.Duration(5 * time.Minute))})
	got := lines(r.Stdout)
	if r.ExitCode == nil || *r.ExitCode != 0 || len(got) != to-from+1 {
		b.t.Fatalf("%s: %d answers to %d calls: r = %s, want r.ExitCode != nil and *r.ExitCode == 0 and len(got) == to - from + 1",
			abi, len(got), to-from+1, boxtest.Show(r))
	}
	passed := 0
	for i, line := range got {
		nr := from + i
		answer, ok := strings.CutPrefix(line, fmt.Sprint(nr, " "))
		switch listed := want(nr); {
		case !ok:
			b.t.Fatalf("%s: %q in the place of %d", abi, line, nr)
		case listed == "allow":
			passed++
		case answer != listed:
			b.t.Errorf("%s: call %d answers %s, listed is %s, want answer == listed", abi, nr, answer, listed)
		}
	}
	b.t.Logf("%s from %d: %d calls, of which the filter may let %d pass", abi, from, len(got), passed)
}
