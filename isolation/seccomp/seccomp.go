// SPDX-License-Identifier: Apache-2.0

// Package seccomp compiles the policy of a box, a text of allowed system calls with their
// reasons, into the filter that the kernel runs.
package seccomp

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

//go:generate env UPDATE=1 go test -count=1 -run TestCommittedTableIsCurrent .

//go:embed policy.txt
var shipped string

// Default returns the policy of programs in boxes; its grammar is described at its top.
func Default() string { return shipped }

// Options say for which kind of box a policy is compiled.
type Options struct {
	// Arch is "amd64" or "arm64", the native architecture of the box.
	Arch string
	// HostWritable applies the lines marked "hostrw": the box has a read-write host directory,
	// where the host would honour setuid and setgid bits.
	HostWritable bool
	// Root applies the lines marked "root": the box has a user namespace for programs that run as root, which PID 1 enters for
	// them.
	Root bool
	// AIO lets programs use asynchronous I/O of the kernel (io_setup(2)), of which the whole host
	// has a limited number: the lines marked "noaio" do not apply.
	AIO bool
}

// A Filter is an array of struct sock_filter as it lies in memory on a
// little-endian machine, ready for the struct sock_fprog of seccomp(2).
type Filter []byte

// filterStep is the size of struct sock_filter.
const filterStep = 8

// Len returns the number of instructions.
func (f Filter) Len() int { return len(f) / filterStep }

// Compile compiles a policy. An error in the text names its line, and is found whatever the
// options are.
//
// The filter gives one of two answers, allow or an errno. It never kills: a program that gets
// ENOSYS falls back or reports what it lacks, a killed one reports nothing.
func Compile(policy string, o Options) (Filter, error) {
	target, err := archNamed(o.Arch)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp policy: %w", err)
	}
	rules, err := parse(policy)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp policy: %w", err)
	}
	code := program(target, spans(rules, target, &o))
	if len(code) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("compile seccomp policy: %d instructions, the kernel takes %d", len(code), unix.BPF_MAXINSNS)
	}
	raw, err := bpf.Assemble(code)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp policy: %w", err)
	}
	f := make(Filter, 0, len(raw)*filterStep)
	for _, r := range raw {
		f = binary.LittleEndian.AppendUint16(f, r.Op)
		f = append(f, r.Jt, r.Jf)
		f = binary.LittleEndian.AppendUint32(f, r.K)
	}
	return f, nil
}
