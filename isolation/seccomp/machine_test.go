// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// call is what the kernel shows a filter: struct seccomp_data without the
// instruction pointer.
type call struct {
	arch   uint32
	number uint32
	args   [6]uint64
}

func (c call) bytes() []byte {
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[0:], c.number)
	binary.LittleEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	return data
}

type instruction struct {
	op     uint16
	jt, jf uint8
	k      uint32
}

func (f Filter) at(i int) instruction {
	b := f[i*8:]
	return instruction{binary.LittleEndian.Uint16(b), b[2], b[3], binary.LittleEndian.Uint32(b[4:])}
}

// The operations the compiler may use. They are those that the kernel can evaluate in advance for
// its cache of calls that are always allowed.
const (
	opLoad  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump  = unix.BPF_JMP | unix.BPF_JA
	opEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opAbove = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet   = unix.BPF_RET | unix.BPF_K
)

// run does what the kernel does with a filter, as far as the compiler makes use of it.
func (f Filter) run(c call) uint32 {
	var a uint32
	data := c.bytes()
	for pc := 0; ; pc++ {
		in := f.at(pc)
		switch in.op {
		case opLoad:
			a = binary.LittleEndian.Uint32(data[in.k:])
		case opAnd:
			a &= in.k
		case opJump:
			pc += int(in.k)
		case opEqual:
			pc += in.branch(a == in.k)
		case opAbove:
			pc += in.branch(a >= in.k)
		case opRet:
			return in.k
		default:
			panic(fmt.Sprintf("operation %#x at %d", in.op, pc))
		}
	}
}

func (in instruction) branch(taken bool) int {
	if taken {
		return int(in.jt)
	}
	return int(in.jf)
}

// checkValid applies the rules by which the kernel accepts a filter
// (bpf_check_classic and seccomp_check_filter), and one of our own: every
// instruction can be reached.
func checkValid(t *testing.T, f Filter) {
	t.Helper()
	if len(f)%8 != 0 || f.Len() == 0 || f.Len() > unix.BPF_MAXINSNS {
		t.Fatalf("%d bytes are no acceptable filter", len(f))
	}
	reached := make([]bool, f.Len()+1)
	reached[0] = true
	mark := func(from, skip int) {
		if to := from + 1 + skip; to < f.Len() {
			reached[to] = true
			return
		}
		t.Fatalf("instruction %d jumps %d out of %d", from, skip, f.Len())
	}
	for i := range f.Len() {
		in := f.at(i)
		if !reached[i] {
			t.Fatalf("instruction %d is dead", i)
		}
		switch in.op {
		case opLoad:
			if in.k%4 != 0 || in.k > 60 {
				t.Fatalf("instruction %d loads from %d", i, in.k)
			}
			mark(i, 0)
		case opAnd:
			mark(i, 0)
		case opJump:
			mark(i, int(in.k))
		case opEqual, opAbove:
			mark(i, int(in.jt))
			mark(i, int(in.jf))
		case opRet:
			if action := in.k &^ 0xffff; action != unix.SECCOMP_RET_ALLOW && action != unix.SECCOMP_RET_ERRNO {
				t.Fatalf("instruction %d returns %#x", i, in.k)
			}
		default:
			t.Fatalf("instruction %d has operation %#x", i, in.op)
		}
	}
}

// expect evaluates a policy without a filter: the first rule that matches decides.
func expect(rules []rule, args [6]uint64) (index int, verdict uint32) {
	for i, r := range rules {
		if r.fits(args) {
			return i, r.verdict
		}
	}
	return -1, absentCall
}

func (r rule) fits(args [6]uint64) bool {
	for _, t := range r.tests {
		hit := false
		for _, v := range t.values {
			hit = hit || uint32(args[t.arg])&t.mask == v
		}
		if hit == t.not {
			return false
		}
	}
	return true
}

const everything = 1 << 20

// variants returns arguments that exercise every case of the rules: each value of a test, values
// close to it, and all of them with noise in the bits that the kernel drops. There are at most
// limit of them.
func variants(rules []rule, limit int) [][6]uint64 {
	interesting := map[uint32][]uint64{}
	for _, r := range rules {
		for _, t := range r.tests {
			seen := interesting[t.arg]
			if seen == nil {
				seen = []uint64{0, 0xffffffff}
			}
			if t.mask != 0xffffffff {
				seen = append(seen, uint64(t.mask), uint64(t.mask&-t.mask))
			}
			for _, v := range t.values {
				seen = append(seen, uint64(v), uint64(v)+1, uint64(v|^t.mask))
			}
			interesting[t.arg] = seen
		}
	}
	all := [][6]uint64{{}}
	for arg, values := range interesting {
		slices.Sort(values)
		values = slices.Compact(values)
		var next [][6]uint64
		for _, args := range all {
			for _, v := range values {
				args[arg] = v
				next = append(next, args)
				args[arg] = v | 0xdead<<32
				next = append(next, args)
			}
		}
		all = next[:min(len(next), limit)]
	}
	return all
}

var targets = []struct {
	options Options
	audit   uint32
}{
	{Options{Arch: "amd64"}, unix.AUDIT_ARCH_X86_64},
	{Options{Arch: "amd64", HostWritable: true}, unix.AUDIT_ARCH_X86_64},
	{Options{Arch: "amd64", AIO: true}, unix.AUDIT_ARCH_X86_64},
	{Options{Arch: "arm64"}, unix.AUDIT_ARCH_AARCH64},
	{Options{Arch: "arm64", HostWritable: true}, unix.AUDIT_ARCH_AARCH64},
}

func (o Options) String() string {
	if o.HostWritable {
		return o.Arch + " hostrw"
	}
	if o.AIO {
		return o.Arch + " aio"
	}
	return o.Arch
}

func mustCompile(t *testing.T, policy string, o Options) Filter {
	t.Helper()
	f, err := Compile(policy, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// numbers maps the numbers of an architecture to names.
func numbers(t *testing.T, archName string) map[uint32]string {
	t.Helper()
	a, err := archNamed(archName)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[uint32]string)
	for _, row := range syscalls {
		if nr := a.number(row); nr != absent {
			names[uint32(nr)] = row.name
		}
	}
	return names
}
