// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
)

// record is what a keeper needs to watch, limit and release a box that another keeper has
// started.
type record struct {
	Key    string
	PID    int
	Start  uint64 // start time of the process, in clock ticks since the boot: PIDs are reused
	Boot   string // id of that boot
	IDBase uint32
	Owner  uint32 // uid of the caller, whose boxes share a cgroup
	Group  string // path of its cgroup, "" if it has none
	Scope  bool   // Group belongs to a systemd scope
	Limits cgroup.Limits
	Image  string // tree of its image in the store; "": the image host
}

// head is the first line of a record.
const head = "boxd box 1"

// maxRecord is in bytes, and far more than any record needs.
const maxRecord = 16 << 10

// encode returns the record as lines of a name and a value, which a person can read too.
func (r *record) encode() []byte {
	b := []byte(head + "\n")
	list := r.fields()
	if r.Image != "" { // earlier keepers do not know this line
		list = append(list, r.image())
	}
	for _, f := range list {
		b = append(b, f.name+" "+f.get()+"\n"...)
	}
	return b
}

// decode parses a record. Anything that encode would not have written is an error.
func decode(data []byte) (*record, error) {
	if len(data) > maxRecord {
		return nil, errors.New("too long")
	}
	rest, ok := strings.CutPrefix(string(data), head+"\n")
	if !ok {
		return nil, errors.New("not a record of this version")
	}
	r := &record{}
	for _, f := range r.fields() {
		line, after, ok := strings.Cut(rest, "\n")
		value, named := strings.CutPrefix(line, f.name+" ")
		if !ok || !named || !f.set(value) {
			return nil, errors.New("no valid " + f.name)
		}
		rest = after
	}
	if after, last := strings.CutSuffix(rest, "\n"); last {
		value, named := strings.CutPrefix(after, "image ")
		if !named || !r.image().set(value) {
			return nil, errors.New("more than a record")
		}
		rest = ""
	}
	switch {
	case rest != "":
		return nil, errors.New("more than a record")
	case r.PID < 2:
		return nil, errors.New("no process of a box")
	case r.IDBase == 0 || r.IDBase%isolation.IDRange != 0:
		return nil, errors.New("no range of ids")
	case r.Scope && r.Group == "":
		return nil, errors.New("a scope without a group")
	}
	return r, nil
}

// field is a line of a record. set refuses a value that get would not return.
type field struct {
	name string
	get  func() string
	set  func(string) bool
}

func (r *record) fields() []field {
	l := &r.Limits
	list := []field{
		text("key", &r.Key, isolation.ValidKey),
		number("pid", &r.PID, 1<<31-1),
		number("start", &r.Start, 1<<64-1),
		text("boot", &r.Boot, func(s string) bool { return s != "" && !strings.ContainsAny(s, "\n\x00") }),
		number("ids", &r.IDBase, 1<<32-isolation.IDRange),
		number("owner", &r.Owner, 1<<32-1),
		text("group", &r.Group, func(s string) bool {
			return s == "" || isolation.CleanAbsolute(s) && !strings.Contains(s, "\n")
		}),
		{"scope", func() string { return strconv.FormatBool(r.Scope) }, func(s string) bool {
			r.Scope = s == "true"
			return r.Scope || s == "false"
		}},
		number("oom", &l.OOM, uint64(cgroup.OOMSession)),
	}
	for name, n := range limits(l) {
		list = append(list, number(name, n, 1<<64-1))
	}
	return list
}

func (r *record) image() field { return text("image", &r.Image, isolation.ValidTree) }

// limits yields the numbers of limits, in the order of a record.
func limits(l *cgroup.Limits) func(yield func(string, *uint64) bool) {
	return func(yield func(string, *uint64) bool) {
		for _, f := range []struct {
			name string
			n    *uint64
		}{
			{"memory", &l.Memory},
			{"memory_high", &l.MemoryHigh},
			{"swap", &l.Swap},
			{"cpu", &l.CPU},
			{"cpu_weight", &l.CPUWeight},
			{"pids", &l.Pids},
			{"io_weight", &l.IOWeight},
			{"io_read", &l.IORead},
			{"io_write", &l.IOWrite},
		} {
			if !yield(f.name, f.n) {
				return
			}
		}
	}
}

func text(name string, p *string, valid func(string) bool) field {
	return field{name, func() string { return *p }, func(s string) bool {
		*p = s
		return valid(s)
	}}
}

func number[T ~int | ~uint8 | ~uint32 | ~uint64](name string, p *T, limit uint64) field {
	return field{name, func() string { return strconv.FormatUint(uint64(*p), 10) }, func(s string) bool {
		n, err := strconv.ParseUint(s, 10, 64)
		*p = T(n)
		return err == nil && n <= limit && strconv.FormatUint(n, 10) == s
	}}
}
