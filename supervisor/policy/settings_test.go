// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// refusal is what an error says about a field.
type refusal struct {
	kind                  fault.Kind
	field, value, allowed string
}

func refusalOf(t *testing.T, err error) refusal {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("%v is no refusal", err)
	}
	return refusal{f.Kind, f.Field, f.Value, f.Allowed}
}

// policies returns a configuration with the built-in profiles and one that locks every field.
func policies() *Config {
	c := DefaultConfig()
	closed := DefaultProfile()
	closed.Locked, closed.Mounts = lockable(), MountReadOnly
	c.Profiles["closed"] = closed
	return &c
}

// everyField returns a request with a value of its own for every field.
func everyField() *Request {
	return &Request{
		Patch: limits.Patch{
			CPUs: new(2.5), Memory: new(quantity.GiB), MemoryHigh: new(512 * quantity.MiB), Swap: new(quantity.MiB), OOM: new(OOMSession), Pids: new(17),
			CPUWeight: new(5), IOWeight: new(6), IORead: new(quantity.MiB), IOWrite: new(2 * quantity.MiB), WorkspaceQuota: new(5 * quantity.MiB),
			WorkspaceInodes: new(99), TTL: new(seconds(7)), MaxLifetime: new(seconds(70)),
		}, Rlimits: map[string]string{"stack": "64MiB"}, Tmp: new(2 * quantity.MiB), Image: new(ImageHost), Network: new(NetworkOff), ReadOnlyRoot: new(true),
		Mounts: []Mount{{Source: "/a", Target: "/data"}, {Source: "/b", Target: "/mnt", Mode: MountNone}, {Source: "/c", Target: "/opt", Mode: MountReadOnly}},
		Env:    map[string]string{"B": "2", "A": "1"}, Labels: map[string]string{"team": "x"},
	}
}

func TestMergeTakesTheRequestOverTheProfile(t *testing.T) {
	t.Parallel()
	got, profile, err := policies().Merge(everyField())
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Profile: "default", Image: ImageHost, Network: NetworkOff, ReadOnlyRoot: true, User: "box", Home: "/home/box", Limits: limits.Limits{
			CPUs: 2.5, Memory: quantity.GiB, MemoryHigh: 512 * quantity.MiB, Swap: quantity.MiB, OOM: OOMSession, Pids: 17,
			Rlimits: map[string]string{"stack": "64MiB"}, CPUWeight: 5, IOWeight: 6, IORead: quantity.MiB, IOWrite: 2 * quantity.MiB,
			Tmp: 2 * quantity.MiB, WorkspaceQuota: 5 * quantity.MiB, WorkspaceInodes: 99,
		}, Lifetime: limits.Lifetime{TTL: seconds(7), MaxLifetime: seconds(70)},
		Mounts: []Mount{{Source: "/a", Target: "/data", Mode: MountReadWrite}, {Source: "/c", Target: "/opt", Mode: MountReadOnly}},
		Labels: map[string]string{"team": "x"}, EnvNames: []string{"A", "B"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(DefaultProfile(), *profile); diff != "" {
		t.Errorf("profile -want +got:\n%s", diff)
	}
}

func TestMergeOfNothingIsTheProfile(t *testing.T) {
	t.Parallel()
	c := policies()
	for _, name := range []string{"default", "offline_readonly", "closed"} {
		p := c.Profiles[name]
		got, _, err := c.Merge(&Request{Profile: name})
		want := Settings{
			Profile: name, Image: p.Image, Network: p.Network, ReadOnlyRoot: p.ReadOnlyRoot, User: p.UserName, Home: p.Home, Limits: p.Limits, Lifetime: p.Lifetime,
		}
		want.Rlimits = nil // none differs from the built-in ones
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}

func TestLockedFieldsCannotBeChanged(t *testing.T) {
	t.Parallel()
	c := policies()
	for _, tc := range []struct {
		req  Request
		want refusal
	}{
		{Request{Image: new("debian")}, refusal{fault.Denied, "image", "debian", "host"}},
		{Request{Network: new(NetworkHost)}, refusal{fault.Denied, "network", "host", "off"}},
		{Request{ReadOnlyRoot: new(false)}, refusal{fault.Denied, "read_only_root", "false", "true"}},
		{Request{Patch: limits.Patch{CPUs: new(2.0)}}, refusal{fault.Denied, "cpus", "2", "1"}},
		{Request{Patch: limits.Patch{Memory: new(quantity.GiB)}}, refusal{fault.Denied, "memory", "1GiB", "512MiB"}},
		{Request{Patch: limits.Patch{MemoryHigh: new(quantity.GiB)}}, refusal{fault.Denied, "memory_high", "1GiB", "0"}},
		{Request{Patch: limits.Patch{Swap: new(quantity.GiB)}}, refusal{fault.Denied, "swap", "1GiB", "0"}},
		{Request{Patch: limits.Patch{OOM: new(OOMSession)}}, refusal{fault.Denied, "oom", "session", "program"}},
		{Request{Patch: limits.Patch{CPUWeight: new(1)}}, refusal{fault.Denied, "cpu_weight", "1", "100"}},
		{Request{Patch: limits.Patch{IOWeight: new(1)}}, refusal{fault.Denied, "io_weight", "1", "100"}},
		{Request{Patch: limits.Patch{IORead: new(quantity.MiB)}}, refusal{fault.Denied, "io_read", "1MiB", "0"}},
		{Request{Patch: limits.Patch{IOWrite: new(quantity.MiB)}}, refusal{fault.Denied, "io_write", "1MiB", "0"}},
		{Request{Patch: limits.Patch{Pids: new(64)}}, refusal{fault.Denied, "pids", "64", "128"}},
		{Request{Tmp: new(quantity.MiB)}, refusal{fault.Denied, "tmp", "1MiB", "256MiB"}},
		{Request{Patch: limits.Patch{WorkspaceQuota: new(quantity.MiB)}}, refusal{fault.Denied, "workspace_quota", "1MiB", "1GiB"}},
		{Request{Patch: limits.Patch{WorkspaceInodes: new(20)}}, refusal{fault.Denied, "workspace_inodes", "20", "200000"}},
		{Request{Patch: limits.Patch{TTL: new(seconds(1))}}, refusal{fault.Denied, "ttl", "1s", "5m"}},
		{Request{Patch: limits.Patch{MaxLifetime: new(seconds(1))}}, refusal{fault.Denied, "max_lifetime", "1s", "24h"}},
		{Request{Mounts: []Mount{{Mode: MountReadOnly}, {Mode: MountReadWrite}}}, refusal{fault.Denied, "mounts[1].mode", "rw", "at most ro"}},
	} {
		tc.req.Profile = "closed"
		_, _, err := c.Merge(&tc.req)
		if got := refusalOf(t, err); got != tc.want {
			t.Errorf("%+v, want %+v", got, tc.want)
		}
		if f, _ := errors.AsType[*fault.Error](err); !strings.Contains(f.Error(), `as profile "closed" locks it`) || !strings.Contains(f.Hint, "another profile") {
			t.Errorf("%q, hint %q, do not name the profile", f, f.Hint)
		}
	}
}

func TestTheValueOfALockedFieldMayBeRequested(t *testing.T) {
	t.Parallel()
	p := policies().Profiles["closed"]
	req := Request{
		Profile: "closed", Image: &p.Image, Network: &p.Network, ReadOnlyRoot: &p.ReadOnlyRoot, Patch: limits.Patch{
			CPUs: &p.CPUs, Memory: &p.Memory, Pids: &p.Pids, WorkspaceQuota: &p.WorkspaceQuota, TTL: &p.TTL, MaxLifetime: &p.MaxLifetime,
		}, Tmp: &p.Tmp,
		Mounts: []Mount{{Mode: MountReadOnly, Target: "/a"}, {Target: "/b"}, {Mode: MountNone, Target: "/c"}},
	}
	s, _, err := policies().Merge(&req)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Mount{{Mode: MountReadOnly, Target: "/a"}, {Mode: MountReadOnly, Target: "/b"}}; !slices.Equal(s.Mounts, want) {
		t.Errorf("mounts %+v, want %+v", s.Mounts, want)
	}
}

func TestMergeRefusesWhatIsOutOfBounds(t *testing.T) {
	t.Parallel()
	tooMany := map[string]string{}
	for i := range MaxVariables + 1 {
		tooMany[strings.Repeat("x", i+1)] = ""
	}
	for _, tc := range []struct {
		name  string
		req   Request
		kind  fault.Kind
		field string
	}{
		{"profile", Request{Profile: "gone"}, fault.Invalid, "profile"},
		{"image", Request{Image: new("x y")}, fault.Invalid, "image"},
		{"network", Request{Network: new("wan")}, fault.Invalid, "network"},
		{"network of the host", Request{Network: new(NetworkHost)}, fault.Denied, "network"},
		{"a quota beside a workspace with a name", Request{Workspace: "w", Patch: limits.Patch{WorkspaceQuota: new(quantity.GiB)}}, fault.Invalid, "workspace_quota"},
		{"a quota of a directory of the host", Request{Mounts: []Mount{{Source: "/a", Target: "/workspace"}}, Patch: limits.Patch{WorkspaceQuota: new(quantity.GiB)}}, fault.Unsupported, "workspace_quota"},
		{"rules without a network", Request{NetworkRules: []string{}}, fault.Invalid, "network_rules"},
		{"a malformed rule", Request{Network: new(NetworkEgress), NetworkRules: []string{"1.2.3.0/24", "1.2.3.4/24"}}, fault.Invalid, "network_rules[1]"},
		{"an octal address", Request{Network: new(NetworkEgress), NetworkRules: []string{"010.0.0.0/8"}}, fault.Invalid, "network_rules[0]"},
		{"IPv4 as IPv6", Request{Network: new(NetworkEgress), NetworkRules: []string{"::ffff:1.2.3.4/128"}}, fault.Invalid, "network_rules[0]"},
		{"many rules", Request{Network: new(NetworkEgress), NetworkRules: slices.Repeat([]string{"1.2.3.0/24"}, 65)}, fault.Invalid, "network_rules"},
		{"the metadata service", Request{Profile: "network_basic", NetworkRules: []string{"169.254.169.254/32 tcp 80"}}, fault.Denied, "network_rules[0]"},
		{"a private network", Request{Profile: "network_basic", NetworkRules: []string{"8.8.8.8/32", "10.0.0.0/8 any"}}, fault.Denied, "network_rules[1]"},
		{"no cpus", Request{Patch: limits.Patch{CPUs: new(0.0)}}, fault.Invalid, "cpus"},
		{"no number of cpus", Request{Patch: limits.Patch{CPUs: new(math.NaN())}}, fault.Invalid, "cpus"},
		{"many cpus", Request{Patch: limits.Patch{CPUs: new(math.Inf(1))}}, fault.Invalid, "cpus"},
		{"little memory", Request{Patch: limits.Patch{Memory: new(minMemory - 1)}}, fault.Invalid, "memory"},
		{"few pids", Request{Patch: limits.Patch{Pids: new(15)}}, fault.Invalid, "pids"},
		{"negative pids", Request{Patch: limits.Patch{Pids: new(-1)}}, fault.Invalid, "pids"},
		{"many pids", Request{Patch: limits.Patch{Pids: new(maxPids + 1)}}, fault.Invalid, "pids"},
		{"small tmp", Request{Tmp: new(quantity.MiB - 1)}, fault.Invalid, "tmp"},
		{"mode", Request{Mounts: []Mount{{Mode: "rx"}}}, fault.Invalid, "mounts[0].mode"},
		{"label without a name", Request{Labels: map[string]string{"": "x"}}, fault.Invalid, "labels"},
		{"label with a newline", Request{Labels: map[string]string{"a": "x\ny"}}, fault.Invalid, "labels"},
		{"long label", Request{Labels: map[string]string{"a": strings.Repeat("x", 256)}}, fault.Invalid, "labels"},
		{"metadata without a name", Request{Metadata: map[string]string{"": "x"}}, fault.Invalid, "metadata"},
		{"metadata with a newline in a name", Request{Metadata: map[string]string{"a\n": "x"}}, fault.Invalid, "metadata"},
		{"metadata that is no text", Request{Metadata: map[string]string{"a": "\xff"}}, fault.Invalid, "metadata"},
		{"metadata with a long name", Request{Metadata: map[string]string{strings.Repeat("x", 257): ""}}, fault.Invalid, "metadata"},
		{"much metadata", Request{Metadata: map[string]string{"a": strings.Repeat("x", 64<<10)}}, fault.Invalid, "metadata"},
		{"many variables", Request{Env: tooMany}, fault.Invalid, "env"},
		{"long variables", Request{Env: map[string]string{"A": strings.Repeat("x", int(MaxSize))}}, fault.Invalid, "env"},
		{"variable without a name", Request{Env: map[string]string{"": "x"}}, fault.Invalid, "env"},
		{"variable with =", Request{Env: map[string]string{"A=B": "x"}}, fault.Invalid, "env"},
		{"variable with NUL", Request{Env: map[string]string{"A": "secret\x00"}}, fault.Invalid, "env"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := policies().Merge(&tc.req)
			got := refusalOf(t, err)
			if got.kind != tc.kind || got.field != tc.field || got.allowed == "" {
				t.Errorf("%+v, want %v of %s", got, tc.kind, tc.field)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q shows the value of a variable", err)
			}
		})
	}
}

func TestDifferencesNameTheRequestedFieldsThatDiffer(t *testing.T) {
	t.Parallel()
	c := policies()
	full := everyField()
	have, _, err := c.Merge(full)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		req  *Request
		want []string
	}{
		{"the same", full, nil},
		{"nothing", &Request{}, nil},
		{"the profile alone", &Request{Profile: "default"}, nil},
		{"another profile", &Request{Profile: "closed"}, []string{"profile"}},
		{"one field", &Request{Patch: limits.Patch{Pids: new(18)}}, []string{"pids"}},
		{"the profile's value, where the session has its own", &Request{Patch: limits.Patch{Memory: new(512 * quantity.MiB)}}, []string{"memory"}},
		{"labels", &Request{Labels: map[string]string{"team": "y"}}, []string{"labels"}},
		{"metadata", &Request{Metadata: map[string]string{"a": "b"}}, []string{"metadata"}},
		{"no metadata", &Request{Metadata: map[string]string{}}, nil},
		{"mounts in another order", &Request{Mounts: []Mount{full.Mounts[2], full.Mounts[0]}}, []string{"mounts"}},
		{"everything", &Request{
			Patch: limits.Patch{
				CPUs: new(3.5), Memory: new(2 * quantity.GiB), Pids: new(18), WorkspaceQuota: new(quantity.MiB), TTL: new(seconds(8)),
				MaxLifetime: new(seconds(80)),
			}, Tmp: new(3 * quantity.MiB), Mounts: []Mount{{Source: "/z", Target: "/data"}},
		}, []string{"cpus", "memory", "pids", "tmp", "workspace_quota", "ttl", "max_lifetime", "mounts"}},
	} {
		asked, _, err := c.Merge(tc.req)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := have.Differences(tc.req, &asked); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestExecTimeoutIsClampedRefusedOrTaken(t *testing.T) {
	t.Parallel()
	p := DefaultProfile() // 30 s, at most 2 min
	locked := p
	locked.Locked = []string{"timeout"}
	for _, tc := range []struct {
		name    string
		profile Profile
		asked   *quantity.Duration
		want    time.Duration
		clamped []Clamp
		refused fault.Kind
	}{
		{"not asked for", p, nil, 30 * time.Second, nil, 0},
		{"less", p, new(seconds(1)), time.Second, nil, 0},
		{"the most", p, new(seconds(120)), 2 * time.Minute, nil, 0},
		{"more", p, new(seconds(121)), 2 * time.Minute, []Clamp{{"timeout", "2m1s", "2m", "profiles.p.max_timeout"}}, 0},
		{"for ever", p, new(quantity.Duration(math.MaxInt64)), 2 * time.Minute, []Clamp{{"timeout", "2562047h47m16.854775807s", "2m", "profiles.p.max_timeout"}}, 0},
		{"none", p, new(seconds(0)), 0, nil, fault.Invalid},
		{"locked, the same", locked, new(seconds(30)), 30 * time.Second, nil, 0},
		{"locked, less", locked, new(seconds(29)), 0, nil, fault.Denied},
		{"locked, more than the most", locked, new(seconds(500)), 0, nil, fault.Denied},
	} {
		got, clamped, err := tc.profile.execTimeout("p", tc.asked)
		if tc.refused != 0 {
			if r := refusalOf(t, err); r.kind != tc.refused || r.field != "timeout" {
				t.Errorf(`%s: r = %+v, want r.kind == %v and r.field == "timeout"`, tc.name, r, tc.refused)
			}
			continue
		}
		if err != nil || got != tc.want || !slices.Equal(clamped, tc.clamped) {
			t.Errorf("%s: got %v, clamped = %v, err = %v, want no error and got == %v and clamped == %v",
				tc.name, got, clamped, err, tc.want, tc.clamped)
		}
	}
}

// Settings that an earlier boxd has recorded are checked against the present configuration.
func TestSettingsAreRechecked(t *testing.T) {
	t.Parallel()
	by := map[string]Mechanism{LimitMemory: MechanismGroup, LimitCPU: MechanismGroup, LimitPids: MechanismGroup, LimitWorkspace: MechanismProject, LimitTmp: MechanismTmpfs}
	for name, tc := range map[string]struct {
		change func(c *Config, s *Settings, by map[string]Mechanism)
		field  string
	}{
		"as it was": {func(*Config, *Settings, map[string]Mechanism) {}, ""},
		"another value": {func(_ *Config, s *Settings, _ map[string]Mechanism) {
			s.Memory *= 2
			s.Labels = map[string]string{"a": "b"}
		}, ""},
		"a host directory": {func(_ *Config, s *Settings, _ map[string]Mechanism) {
			s.Mounts = []Mount{{Source: "/a", Target: "/workspace", Mode: MountReadWrite}}
		}, ""},
		"no profile":      {func(_ *Config, s *Settings, _ map[string]Mechanism) { s.Profile = "" }, "profile"},
		"another profile": {func(_ *Config, s *Settings, _ map[string]Mechanism) { s.Profile = "x" }, "profile"},
		"too much":        {func(_ *Config, s *Settings, _ map[string]Mechanism) { s.Memory = 1 }, "memory"},
		"a network":       {func(_ *Config, s *Settings, _ map[string]Mechanism) { s.Network = NetworkHost }, "network"},
		"a mode too many": {func(_ *Config, s *Settings, _ map[string]Mechanism) {
			s.Mounts = []Mount{{Source: "/a", Target: "/data", Mode: "x"}}
		}, "mounts[0].mode"},
		"locked meanwhile": {func(c *Config, s *Settings, _ map[string]Mechanism) { lock(c, "pids"); s.Pids = 99 }, "pids"},
		"locked as it is":  {func(c *Config, _ *Settings, _ map[string]Mechanism) { lock(c, "pids") }, ""},
		"not kept":         {func(_ *Config, _ *Settings, by map[string]Mechanism) { by[LimitCPU] = MechanismNone }, "enforcement.cpu"},
		"not known":        {func(_ *Config, _ *Settings, by map[string]Mechanism) { delete(by, LimitMemory) }, "enforcement.memory"},
		"not kept, and so be it": {func(c *Config, _ *Settings, by map[string]Mechanism) {
			by[LimitCPU], c.Limits.BestEffort = MechanismNone, []string{LimitCPU}
		}, ""},
		"a quota that is none": {func(_ *Config, _ *Settings, by map[string]Mechanism) { delete(by, LimitWorkspace) }, "enforcement.workspace"},
	} {
		c := DefaultConfig()
		s, _, err := c.Merge(&Request{})
		if err != nil {
			t.Fatal(err)
		}
		kept := maps.Clone(by)
		tc.change(&c, &s, kept)
		p, err := c.Recheck(&s, kept)
		f, _ := errors.AsType[*fault.Error](err)
		if (err == nil) != (p != nil) || (f == nil) != (tc.field == "") || f != nil && f.Field != tc.field {
			t.Errorf(`%s: err = %v, want (err == nil) == (p != nil) and (f == nil) == (tc.field == "") and (f == nil or f.Field == tc.field)`,
				name, err)
		}
	}
}

func lock(c *Config, field string) {
	p := c.Profiles["default"]
	p.Locked = []string{field}
	c.Profiles["default"] = p
}
