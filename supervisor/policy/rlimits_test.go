// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
)

func TestRequestedRlimitsAreWithinTheProfile(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	p := DefaultProfile()
	p.Rlimits = map[string]string{"nofile": "2048:10000", "core": "1MiB"}
	c.Profiles["own"] = p
	p.Locked = []string{"rlimits"}
	c.Profiles["closed"] = p
	nice := DefaultProfile()
	nice.Rlimits = map[string]string{"nice": "0:25"}
	c.Profiles["nice"] = nice
	for _, tc := range []struct {
		profile string
		asked   map[string]string
		want    map[string]string
		refused string
	}{
		{"default", nil, nil, ""},
		{"default", map[string]string{"stack": "64MiB"}, map[string]string{"stack": "64MiB"}, ""},
		{"default", map[string]string{"stack": "16MiB:unlimited", "nofile": "65536"}, map[string]string{"stack": "16MiB:unlimited", "nofile": "65536"}, ""},
		{"default", map[string]string{"nofile": "65537"}, nil, "rlimits.nofile"},
		{"default", map[string]string{"core": "1B"}, nil, "rlimits.core"},
		{"default", map[string]string{"memlock": "unlimited"}, nil, "rlimits.memlock"},
		{"default", map[string]string{"stack": "2GiB:1GiB"}, nil, "rlimits.stack"},
		{"default", map[string]string{"stack": "8"}, nil, "rlimits.stack"},
		{"default", map[string]string{"stack": "64KiB"}, nil, "rlimits.stack"},
		{"default", map[string]string{"nofile": "-1"}, nil, "rlimits.nofile"},
		{"default", map[string]string{"nofile": "1MiB"}, nil, "rlimits.nofile"},
		{"default", map[string]string{"nofile": ""}, nil, "rlimits.nofile"},
		{"default", map[string]string{"nofile": "1024:"}, nil, "rlimits.nofile"},
		{"default", map[string]string{"cpu": "5", "fsize": "1MiB"}, map[string]string{"cpu": "5", "fsize": "1MiB"}, ""},
		{"default", map[string]string{"cpu": "0"}, nil, "rlimits.cpu"},
		{"default", map[string]string{"nice": "5"}, nil, "rlimits.nice"},
		{"default", map[string]string{"files": "5"}, nil, "rlimits"},
		{"nice", map[string]string{"nice": "20:25"}, map[string]string{"nice": "20:25"}, ""},
		{"nice", map[string]string{"nice": "26"}, nil, "rlimits.nice"},
		{"default", map[string]string{"nice": "41"}, nil, "rlimits.nice"},
		{"default", map[string]string{"rtprio": "1"}, nil, "rlimits.rtprio"},
		{"default", map[string]string{"rttime": "1"}, nil, "rlimits.rttime"},
		{"own", nil, map[string]string{"nofile": "2048:10000", "core": "1MiB"}, ""},
		{"own", map[string]string{"nofile": "10000"}, map[string]string{"nofile": "10000", "core": "1MiB"}, ""},
		{"own", map[string]string{"nofile": "10001"}, nil, "rlimits.nofile"},
		{"closed", map[string]string{"core": "1MiB"}, map[string]string{"nofile": "2048:10000", "core": "1MiB"}, ""},
		{"closed", map[string]string{"core": "0"}, nil, "rlimits.core"},
	} {
		s, _, err := c.Merge(&Request{Profile: tc.profile, Rlimits: tc.asked})
		if tc.refused != "" {
			if r := refusalOf(t, err); r.field != tc.refused || r.kind != fault.Invalid && r.kind != fault.Denied {
				t.Errorf("%s %v: r = %+v, err = %v, want r.field == %v and (r.kind == fault.Invalid or r.kind == fault.Denied)",
					tc.profile, tc.asked, r, err, tc.refused)
			}
			continue
		}
		if err != nil || !maps.Equal(s.Rlimits, tc.want) {
			t.Errorf("%s %v: s.Rlimits = %v, err = %v, want no error and s.Rlimits == %v",
				tc.profile, tc.asked, s.Rlimits, err, tc.want)
		}
	}
	if got := c.Profiles["own"].Rlimits["nofile"]; got != "2048:10000" {
		t.Errorf(`a request has changed the profile: got %s, want "2048:10000"`, got)
	}
	list := Rlimits(&Settings{Limits: limits.Limits{Rlimits: map[string]string{"nofile": "2048:10000", "data": "1GiB"}, Memory: minMemory}}, nil)
	s := &Settings{Limits: limits.Limits{Rlimits: map[string]string{"cpu": "5:9", "nofile": "2048"}, Memory: minMemory}}
	if got := Rlimits(s, nil); slices.ContainsFunc(got, func(r isolation.Rlimit) bool { return r.Resource == unix.RLIMIT_CPU }) {
		t.Errorf("PID 1 would be killed for its time: got %+v", got)
	}
	own, err := ProgramRlimits(s, map[string]string{"nofile": "1024:2000", "stack": "16MiB"})
	if want := []isolation.Rlimit{{Resource: unix.RLIMIT_CPU, Soft: 5, Hard: 9}, {Resource: unix.RLIMIT_NOFILE, Soft: 1024, Hard: 2000}, {Resource: unix.RLIMIT_STACK, Soft: 16 << 20, Hard: 16 << 20}}; err != nil || !slices.Equal(own, want) {
		t.Errorf("%+v, %v, want %+v", own, err, want)
	}
	for _, asked := range []map[string]string{{"nofile": "2049"}, {"cpu": "10"}, {"nice": "1"}, {"stack": "x"}} {
		if _, err := ProgramRlimits(s, asked); err == nil {
			t.Errorf("%v is had", asked)
		}
	}
	for _, want := range []isolation.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 2048, Hard: 10000}, {Resource: unix.RLIMIT_DATA, Soft: 1 << 30, Hard: 1 << 30}} {
		if !slices.Contains(list, want) {
			t.Errorf("%+v is not among %+v", want, list)
		}
	}
}

// Every limit of getrlimit(2) can be set, or has a stated reason why not; boxes get the promised nice and real-time limits,
// whatever limits the services of the host have.
func TestEveryResourceLimitIsKnown(t *testing.T) {
	t.Parallel()
	all, not := rlimits(), noRlimits()
	for _, name := range []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"} {
		if _, can := all[name]; can == (not[name] != "") {
			t.Errorf(`%s: can = %v, not[name] = %q, want can != (not[name] != "")`, name, can, not[name])
		}
	}
	if len(all)+len(not) != 16 { // RLIM_NLIMITS
		t.Errorf("%d limits, and %d that cannot be set", len(all), len(not))
	}
	list := Rlimits(&Settings{Limits: limits.Limits{Memory: minMemory}}, nil)
	for _, resource := range []uint32{unix.RLIMIT_NICE, unix.RLIMIT_RTPRIO} {
		if !slices.Contains(list, isolation.Rlimit{Resource: resource}) {
			t.Errorf("limit %d is the host's: list = %+v, want list containing isolation.Rlimit{Resource: resource}",
				resource, list)
		}
	}
}
