// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

func TestEachLimitIsEnforcedReportedOrRefused(t *testing.T) {
	t.Parallel()
	kept := map[string]Mechanism{"tmp": "tmpfs", "memory": "rlimit", "pids": "rlimit", "cpu": "none"}
	with := maps.Clone(kept)
	with["workspace"] = "none"
	grouped := map[string]Mechanism{"tmp": "tmpfs", "memory": "cgroup2", "pids": "cgroup2", "cpu": "cgroup2", "io": "cgroup2"}
	host := func(layout CgroupLayout, why string, controllers ...string) Host {
		return Host{Layout: layout, Host: isolation.Host{Controllers: controllers, NoGroups: why}}
	}
	all := []string{"cpu", "memory", "pids", "io"}
	bare, quotas := host(CgroupsUnified, "", all...), host(CgroupsUnified, "", all...)
	bare.NoQuota, quotas.Quota = "no quota here", isolation.QuotaProject
	project := maps.Clone(grouped)
	project["workspace"] = "project-quota"
	for _, tc := range []struct {
		name    string
		best    []string
		quota   quantity.Size
		host    Host
		want    map[string]Mechanism
		refused string // part of the reason
	}{
		{"all best effort", []string{"memory", "cpu", "pids"}, 0, host(CgroupsHybrid, "no"), kept, ""},
		{"all and the workspace", []string{"memory", "cpu", "pids", "workspace"}, quantity.MiB, host(CgroupsHybrid, "no"), with, ""},
		{"a workspace without a quota needs no effort", LimitNames(), 0, host(CgroupsAbsent, "no"), kept, ""},
		{"none", nil, 0, host(CgroupsHybrid, "no"), nil, "memory limit cannot be enforced: the host has hybrid cgroups"},
		{"without a group on a good host", nil, 0, host(CgroupsUnified, "the anchor is not running"), nil, "memory limit cannot be enforced: the anchor is not running"},
		{"all by groups", nil, 0, host(CgroupsUnified, "", all...), grouped, ""},
		{"by groups, whatever may be missing", LimitNames(), 0, host(CgroupsUnified, "", all...), grouped, ""},
		{"a controller is missing", nil, 0, host(CgroupsUnified, "", "memory", "pids"), nil, "cpu limit cannot be enforced: the cgroups of boxes have no controller cpu"},
		{"without memory", []string{"cpu", "pids"}, 0, host(CgroupsLegacy, "no"), nil, "memory limit"},
		{"without cpu", []string{"memory", "pids"}, 0, host(CgroupsLegacy, "no"), nil, "cpu limit"},
		{"without pids", []string{"memory", "cpu"}, 0, host(CgroupsLegacy, "no"), nil, "pids limit"},
		{"without the workspace", []string{"memory", "cpu", "pids"}, 1, bare, nil, "workspace limit cannot be enforced: no quota here"},
		{"a workspace by project quota", nil, 1, quotas, project, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := DefaultConfig()
			c.Limits.BestEffort = tc.best
			got, err := c.Enforcement(&Settings{Limits: limits.Limits{WorkspaceQuota: tc.quota}}, tc.host)
			if tc.refused == "" {
				if err != nil || !maps.Equal(got, tc.want) {
					t.Fatalf("got %v, err = %v, want no error and got == %v", got, err, tc.want)
				}
				return
			}
			if r := refusalOf(t, err); r.kind != fault.Unsupported || r.field != "limits.best_effort" || !strings.Contains(err.Error(), tc.refused) || got != nil {
				t.Fatalf(`%+v: err = %v, want r.kind == fault.Unsupported and r.field == "limits.best_effort" and err containing %q and got == nil`,
					r, err, tc.refused)
			}
		})
	}
}

func TestRlimitsBoundEveryProcess(t *testing.T) {
	t.Parallel()
	got := map[uint32]isolation.Rlimit{}
	for _, r := range Rlimits(&Settings{Limits: limits.Limits{Memory: 64 * quantity.MiB, Pids: 17}}, map[string]Mechanism{"memory": "rlimit", "pids": "rlimit"}) {
		got[r.Resource] = r
	}
	for resource, want := range map[uint32][2]uint64{
		unix.RLIMIT_CORE: {0, 0}, unix.RLIMIT_NOFILE: {4096, 65536}, unix.RLIMIT_MEMLOCK: {64 << 10, 64 << 10},
		unix.RLIMIT_STACK: {8 << 20, 64 << 20}, unix.RLIMIT_DATA: {96 << 20, 96 << 20}, unix.RLIMIT_NPROC: {17, 17},
		unix.RLIMIT_SIGPENDING: {8192, 8192}, unix.RLIMIT_MSGQUEUE: {819200, 819200},
	} {
		if r := got[resource]; r.Soft != want[0] || r.Hard != want[1] {
			t.Errorf("resource %d: %+v, want %v", resource, r, want)
		}
	}
	if list := Rlimits(&Settings{Limits: limits.Limits{Memory: quantity.GiB}}, map[string]Mechanism{"memory": "rlimit"}); !slices.Contains(list, isolation.Rlimit{Resource: unix.RLIMIT_DATA, Soft: 1 << 30, Hard: 1 << 30}) {
		t.Errorf("list = %+v, want list containing isolation.Rlimit{Resource: unix.RLIMIT_DATA, Soft: 1 << 30, Hard: 1 << 30}",
			list)
	}
	for _, r := range Rlimits(&Settings{Limits: limits.Limits{Memory: 64 * quantity.MiB, Pids: 17}}, map[string]Mechanism{"memory": "cgroup2", "pids": "cgroup2"}) {
		if r.Resource == unix.RLIMIT_DATA || r.Resource == unix.RLIMIT_NPROC {
			t.Errorf("resource %d has an rlimit though a cgroup limits it: r = %+v, want r.Resource != unix.RLIMIT_DATA and r.Resource != unix.RLIMIT_NPROC",
				r.Resource, r)
		}
		if r.Resource == unix.RLIMIT_STACK && r.Hard != unix.RLIM_INFINITY {
			t.Errorf("the stack has an rlimit though a cgroup limits memory: r = %+v, want r.Resource != unix.RLIMIT_STACK or r.Hard == unix.RLIM_INFINITY",
				r)
		}
	}
	if _, ok := got[unix.RLIMIT_AS]; ok {
		t.Error("address space is limited: Go and Node reserve far more of it than they use")
	}
}

func TestConfigNamesEveryKeyThatIsWrong(t *testing.T) {
	t.Parallel()
	for key, spoil := range map[string]func(*Config){
		"limits.best_effort":        func(c *Config) { c.Limits.BestEffort = []string{"disk"} },
		"sessions.max":              func(c *Config) { c.Sessions.Max = 16385 },
		"sessions.max_per_owner":    func(c *Config) { c.Sessions.MaxPerOwner = 0 },
		"sessions.max_workspaces":   func(c *Config) { c.Sessions.MaxWorkspaces = -1 },
		"sessions.max_snapshots":    func(c *Config) { c.Sessions.MaxSnapshots = 65 },
		"(sessions.max)":            func(c *Config) { c.Sessions.Max, c.Sessions.MaxPerOwner = 5, 6 },
		"sessions.default_profile":  func(c *Config) { c.Sessions.DefaultProfile = "x" },
		"exec.max_per_session":      func(c *Config) { c.Exec.MaxPerSession = 0 },
		"exec.output_limit":         func(c *Config) { c.Exec.OutputLimit = 1 },
		"exec.max_command":          func(c *Config) { c.Exec.MaxCommand = 5 * quantity.MiB },
		"exec.max_interactive":      func(c *Config) { c.Exec.MaxInteractive = longestTimeout + 1 },
		"exec.max_stdin":            func(c *Config) { c.Exec.MaxStdin = quantity.GiB },
		"env.A":                     func(c *Config) { c.Env["A"] = "\x00" },
		"languages.sh":              func(c *Config) { c.Languages["sh"] = Language{} },
		"profiles.default.timeout":  func(c *Config) { profile(c, func(p *Profile) { p.MaxTimeout = 1 }) },
		"profiles.default.max_time": func(c *Config) { profile(c, func(p *Profile) { p.MaxTimeout = longestTimeout + 1 }) },
		"profiles.default.skills":   func(c *Config) { profile(c, func(p *Profile) { p.Skills = []string{"a\n"} }) },
		"profiles.default.mounts":   func(c *Config) { profile(c, func(p *Profile) { p.Mounts = "x" }) },
		"profiles.default.locked":   func(c *Config) { profile(c, func(p *Profile) { p.Locked = []string{"x"} }) },
		"profiles.default.cpus":     func(c *Config) { profile(c, func(p *Profile) { p.CPUs = -1 }) },
		"profiles.default.image":    func(c *Config) { profile(c, func(p *Profile) { p.Image = "x y" }) },
		"profiles.default.tmp":      func(c *Config) { profile(c, func(p *Profile) { p.Tmp = 1 }) },
		"profiles.default.leftover": func(c *Config) { profile(c, func(p *Profile) { p.Leftovers = "x" }) },
	} {
		c := DefaultConfig()
		if err := c.Validate(); err != nil {
			t.Fatalf("the built-in configuration: %v", err)
		}
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%v does not name %s", err, key)
		}
	}
}

func profile(c *Config, change func(*Profile)) {
	p := c.Profiles["default"]
	change(&p)
	c.Profiles["default"] = p
}
