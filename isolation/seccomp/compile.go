// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"cmp"
	"math"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, see seccomp(2). Both architectures are
// little-endian, so the lower half of an argument comes first.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
	sizeArg      = 8
	sizeWord     = 4
)

// A span is a range of system call numbers, from first up to the next span, that is decided by
// the same rules. The last of the rules has no tests.
type span struct {
	first uint32
	rules []rule
}

// absentCall is the answer to every call that no line is about.
const absentCall = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)

// spans maps the rules to all 2³² numbers. The numbers of x32 need no rule of their own: bit 30
// puts them above every listed one.
func spans(rules map[string][]rule, target arch, o *Options) []span {
	var listed []span
	for name, all := range rules {
		row, _ := findSyscall(name)
		nr := target.number(row)
		if valid := inForce(all, o); nr != absent && len(valid) > 0 {
			listed = append(listed, span{uint32(nr), valid})
		}
	}
	slices.SortFunc(listed, func(a, b span) int { return cmp.Compare(a.first, b.first) })

	unlisted := []rule{{verdict: absentCall}}
	all := []span{{0, unlisted}}
	for _, s := range listed {
		if last := len(all) - 1; all[last].first == s.first {
			all = all[:last]
		}
		all = append(all, s, span{s.first + 1, unlisted})
	}
	return slices.CompactFunc(all, func(a, b span) bool { return slices.EqualFunc(a.rules, b.rules, sameEffect) })
}

// inForce drops the rules that do not apply, so that the last one has no tests.
func inForce(rules []rule, o *Options) []rule {
	var valid []rule
	for _, r := range rules {
		if !o.counts(&r) {
			continue
		}
		valid = append(valid, r)
		if len(r.tests) == 0 {
			break
		}
	}
	return valid
}

func sameEffect(a, b rule) bool {
	return a.verdict == b.verdict && slices.EqualFunc(a.tests, b.tests, func(a, b test) bool {
		return a.arg == b.arg && a.mask == b.mask && a.not == b.not && slices.Equal(a.values, b.values)
	})
}

// program checks the architecture first, because a number means nothing without it (int 0x80
// reaches the i386 table from a 64-bit program), and then looks the number up. It uses only
// instructions that the kernel can evaluate in advance, so that since Linux 5.11 calls that are
// always allowed cost one bit test and the filter runs only for the others.
func program(target arch, all []span) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: sizeWord},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: target.audit, SkipTrue: 1},
		bpf.RetConstant{Val: absentCall},
		bpf.LoadAbsolute{Off: offsetNumber, Size: sizeWord},
	}, search(all)...)
}

// search is a balanced binary search for the span of the number in A.
func search(all []span) []bpf.Instruction {
	if len(all) == 1 {
		return decide(all[0].rules)
	}
	mid := len(all) / 2
	below, above := search(all[:mid]), search(all[mid:])
	code := skipIf(bpf.JumpGreaterOrEqual, all[mid].first, len(below))
	return slices.Concat(code, below, above)
}

// skipIf jumps over the next n instructions if the comparison with A holds. Conditional jumps
// reach 255 instructions; an unconditional one, of 32 bits, goes further.
func skipIf(cond bpf.JumpTest, value uint32, n int) []bpf.Instruction {
	if n <= math.MaxUint8 {
		return []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: value, SkipTrue: uint8(n)}}
	}
	return []bpf.Instruction{
		bpf.JumpIf{Cond: cond, Val: value, SkipFalse: 1},
		bpf.Jump{Skip: uint32(n)},
	}
}

// decide tries the rules of one call in turn.
func decide(rules []rule) []bpf.Instruction {
	var code []bpf.Instruction
	for _, r := range rules {
		code = append(code, attempt(r)...)
	}
	return code
}

// attempt returns the rule's verdict if its tests hold and otherwise continues after its own
// code. It is assembled from the end, where the jumps lead.
func attempt(r rule) []bpf.Instruction {
	code := []bpf.Instruction{bpf.RetConstant{Val: r.verdict}}
	for _, t := range slices.Backward(r.tests) {
		code = append(compare(t, len(code)), code...)
	}
	return code
}

// compare continues after its own code if the test holds and otherwise jumps over miss further
// instructions.
func compare(t test, miss int) []bpf.Instruction {
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArgs + sizeArg*t.arg, Size: sizeWord}}
	if t.mask != math.MaxUint32 {
		code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
	}
	if t.not {
		return append(code, skipIf(bpf.JumpEqual, t.values[0], miss)...)
	}
	for i, v := range t.values {
		// Over the remaining comparisons and the jump after them.
		code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(t.values) - i)})
	}
	return append(code, bpf.Jump{Skip: uint32(miss)})
}
