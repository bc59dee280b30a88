// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
)

// rlimit is a resource limit that every process of a box has (getrlimit(2)).
type rlimit struct {
	resource   int
	isSize     bool
	minimum    uint64 // or PID 1 of the box, which has the limit too, could not work
	soft, hard uint64 // built-in
	ofPrograms bool   // PID 1 could not work with it: only programs get it
	maximum    uint64 // meaningful maximum; 0: none
}

// maxNice lets nice(1) reach -20: the limit is 20 minus the lowest nice value of programs.
const maxNice = 40

// Address space is never limited by default: it says nothing about memory, and Go and Node reserve far more of it than they use.
// The stack is memory, which has its own limit.
//
// The kernel counts sigpending and msgqueue for each user of a box, and so for the box: pending signals, including timers, and
// bytes of POSIX message queues (timer_create(2), mq_overview(7)).
func rlimits() map[string]rlimit {
	return map[string]rlimit{
		"as":         {unix.RLIMIT_AS, true, 1 << 20, unix.RLIM_INFINITY, unix.RLIM_INFINITY, true, 0},
		"core":       {unix.RLIMIT_CORE, true, 0, 0, 0, false, 0},
		"cpu":        {unix.RLIMIT_CPU, false, 1, unix.RLIM_INFINITY, unix.RLIM_INFINITY, true, 0},
		"data":       {unix.RLIMIT_DATA, true, uint64(minMemory), unix.RLIM_INFINITY, unix.RLIM_INFINITY, false, 0},
		"fsize":      {unix.RLIMIT_FSIZE, true, 0, unix.RLIM_INFINITY, unix.RLIM_INFINITY, true, 0},
		"memlock":    {unix.RLIMIT_MEMLOCK, true, 0, 64 << 10, 64 << 10, false, 0},
		"msgqueue":   {unix.RLIMIT_MSGQUEUE, true, 0, 819200, 819200, false, 0},
		"nice":       {unix.RLIMIT_NICE, false, 0, 0, 0, false, maxNice},
		"nofile":     {unix.RLIMIT_NOFILE, false, 1024, 4096, 65536, false, 0},
		"nproc":      {unix.RLIMIT_NPROC, false, isolation.MinPids, unix.RLIM_INFINITY, unix.RLIM_INFINITY, false, 0},
		"sigpending": {unix.RLIMIT_SIGPENDING, false, 64, 8192, 8192, false, 0},
		"stack":      {unix.RLIMIT_STACK, true, 128 << 10, 8 << 20, unix.RLIM_INFINITY, false, 0},
	}
}

// The limits of getrlimit(2) that are missing there, and why.
func noRlimits() map[string]string {
	const realtime = "real-time programs are not bound by the CPU limit of a box, so boxes cannot have any"
	const nothing = "the kernel no longer has this limit"
	return map[string]string{
		"locks": nothing, "rss": nothing, "rtprio": realtime, "rttime": realtime,
	}
}

const unlimited = "unlimited"

// readRlimit parses "SOFT:HARD", or one value for both. soft is at most hard.
func readRlimit(field, text string, limit rlimit) (soft, hard uint64, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	soft, err = limit.read(first)
	hard, err2 := limit.read(second)
	if err = errors.Join(err, err2); err != nil || soft > hard {
		kind := "a number"
		if limit.isSize {
			kind = "a size"
		}
		bounds := limit.show(limit.minimum) + " or more"
		if limit.maximum > 0 {
			bounds = limit.show(limit.minimum) + " to " + limit.show(limit.maximum)
		}
		return 0, 0, fault.Field(field, text, fmt.Sprintf("%s, or two as SOFT:HARD, each %s or %s", kind, bounds, unlimited))
	}
	return soft, hard, nil
}

func (r rlimit) read(text string) (n uint64, err error) {
	var size quantity.Size
	switch {
	case text == unlimited:
		if n = unix.RLIM_INFINITY; r.maximum > 0 {
			n = r.maximum
		}
		return n, nil
	case r.isSize:
		size, err = quantity.ParseSize(text)
		n = uint64(size)
	default:
		n, err = strconv.ParseUint(text, 10, 63)
	}
	if err == nil && (n < r.minimum || r.maximum > 0 && n > r.maximum) {
		err = errors.New("out of bounds")
	}
	return n, err
}

func (r rlimit) show(n uint64) string {
	switch {
	case n == unix.RLIM_INFINITY:
		return unlimited
	case r.isSize:
		return quantity.Size(n).String()
	}
	return strconv.FormatUint(n, 10)
}

// rlimitsOf applies a table of limits to the built-in ones.
func rlimitsOf(table map[string]string) (map[string]rlimit, error) {
	all := rlimits()
	for _, name := range slices.Sorted(maps.Keys(table)) {
		limit, ok := all[name]
		if !ok {
			if why, known := noRlimits()[name]; known {
				return nil, fault.Field("rlimits."+name, table[name], "left out").WithText("rlimits.%s cannot be set: %s", name, why)
			}
			return nil, fault.Field("rlimits", name, fault.OneOf(slices.Sorted(maps.Keys(all))...))
		}
		var err error
		if limit.soft, limit.hard, err = readRlimit("rlimits."+name, table[name], limit); err != nil {
			return nil, err
		}
		all[name] = limit
	}
	return all, nil
}

// mergeRlimits overrides the profile's limits with the requested ones, which may not exceed the profile's hard limits.
func (s *Settings) mergeRlimits(name string, p *Profile, requested map[string]string) error {
	maximum, err := rlimitsOf(p.Rlimits)
	if err != nil {
		return err
	}
	if _, err := rlimitsOf(requested); err != nil {
		return err
	}
	merged := maps.Clone(p.Rlimits)
	for _, resource := range slices.Sorted(maps.Keys(requested)) {
		limit, text := maximum[resource], requested[resource]
		_, hard, err := readRlimit("rlimits."+resource, text, limit)
		switch {
		case err != nil:
			return err
		case text == p.Rlimits[resource]:
			continue
		case slices.Contains(p.Locked, "rlimits"):
			return locked("rlimits."+resource, text, "left out", name)
		case hard > limit.hard:
			return fault.Field("rlimits."+resource, text, "at most "+limit.show(limit.hard)).Of(fault.Denied).
				WithHint("profile %q allows no more", name).
				By(fault.Denial{Layer: fault.LayerPolicy, Rule: "profiles." + name + ".rlimits." + resource, Used: limit.show(hard), Allowed: limit.show(limit.hard), Setting: "profiles." + name + ".rlimits." + resource})
		}
		if merged == nil {
			merged = map[string]string{}
		}
		merged[resource] = text
	}
	if len(merged) > 0 {
		s.Rlimits = merged
	}
	return nil
}

// ProgramRlimits returns the resource limits that are set for one program: those that PID 1 of the box cannot have, and those
// requested for the program, within the session's.
func ProgramRlimits(s *Settings, requested map[string]string) (list []isolation.Rlimit, err error) {
	if len(s.Rlimits) == 0 && len(requested) == 0 { // no built-in limit is for programs: most executions need no table
		return nil, nil
	}
	all, err := rlimitsOf(s.Rlimits)
	if err != nil { // Merge has refused this
		all = rlimits()
	}
	if _, err := rlimitsOf(requested); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		if text, ok := requested[name]; ok {
			soft, hard, err := readRlimit("rlimits."+name, text, r)
			if err == nil && hard > r.hard {
				err = fault.Field("rlimits."+name, text, "at most "+r.show(r.hard)+", the limit of the session")
			}
			if err != nil {
				return nil, err
			}
			r.soft, r.hard, r.ofPrograms = soft, hard, true
		}
		if r.ofPrograms && (r.hard < math.MaxUint64 || r.soft < math.MaxUint64) {
			list = append(list, isolation.Rlimit{Resource: uint32(r.resource), Soft: r.soft, Hard: r.hard})
		}
	}
	if files := all["nofile"]; len(list) > 0 && requested["nofile"] == "" { // the helper that sets the limits is a Go program, which raises this one
		list = append(list, isolation.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: files.soft, Hard: files.hard})
	}
	return list, nil
}

// ownData is the least limit of data where it stands in for a memory limit: boxd's file helper in the box has it too, and maps 72
// MiB before it begins. Most of that is the Go runtime and standard library, and is never touched.
const ownData = 96 << 20

// Rlimits returns the resource limits of every process of a session: its own, and those that stand in for cgroups.
func Rlimits(s *Settings, by map[string]Mechanism) []isolation.Rlimit {
	all, err := rlimitsOf(s.Rlimits)
	if err != nil { // Merge has refused this
		all = rlimits()
	}
	bound := func(name string, limit uint64) {
		r := all[name]
		r.soft, r.hard = min(r.soft, limit), min(r.hard, limit)
		all[name] = r
	}
	if by[LimitMemory] == MechanismRlimit {
		bound("data", max(uint64(s.Memory), ownData))
		bound("stack", max(uint64(s.Memory), 8<<20)) // the stack does not count as data
	}
	if by[LimitPids] == MechanismRlimit {
		bound("nproc", uint64(s.Pids))
	}
	list := make([]isolation.Rlimit, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if r := all[name]; !r.ofPrograms && (r.hard < math.MaxUint64 || r.soft < math.MaxUint64) {
			list = append(list, isolation.Rlimit{Resource: uint32(r.resource), Soft: r.soft, Hard: r.hard})
		}
	}
	return append(list, isolation.Rlimit{Resource: unix.RLIMIT_RTPRIO}) // whatever limit the host gives its services
}
