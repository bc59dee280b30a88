// SPDX-License-Identifier: Apache-2.0

// Package policy determines what a session may be: profiles, how a request changes one, what enforces its limits on this host. It
// depends only on its arguments.
package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// Config is the part of box.toml about sessions. Every key is explained there.
type Config struct {
	Enabled     bool                `toml:"enabled"` // new sessions may start
	Limits      Limits              `toml:"limits"`
	Host        HostReserve         `toml:"host"`
	Sessions    SessionLimits       `toml:"sessions"`
	Queue       QueueLimits         `toml:"queue"`
	Exec        ExecLimits          `toml:"exec"`
	Processes   ProcessLimits       `toml:"processes"`
	Files       FileLimits          `toml:"files"`
	Usage       UsageKeep           `toml:"usage"`
	Env         map[string]string   `toml:"env"`
	Languages   map[string]Language `toml:"languages"`
	Secrets     map[string]Secret   `toml:"secrets"`
	Buckets     map[string]Bucket   `toml:"buckets"`
	Profiles    map[string]Profile  `toml:"-"` // [profiles.x], each on top of the built-in default
	Policies    map[string]Policy   `toml:"-"` // [policy.x], each on top of NoPolicy
	DefaultCaps NetworkCaps         `toml:"-"` // of profiles without their own
	Roots       QuotaRoots          `toml:"-"` // mounts.quota_roots
}

// Limits says which limits may be missing on a host that cannot enforce them.
type Limits struct {
	BestEffort []string `toml:"best_effort"`
	AIO        bool     `toml:"aio"`        // programs may use kernel AIO, whose total is a single limit of the host
	FileLocks  int      `toml:"file_locks"` // that a session's programs may hold; one with more is ended; 0: any number
}

// Bounds of limits.file_locks: a few programs need some hundred, and each lock takes memory of the host.
const (
	minFileLocks = 100
	maxFileLocks = 10_000_000
	maxSessions  = 16384 // of sessions.max
)

// HostReserve is what new sessions must leave free on the host.
type HostReserve struct {
	KeepFreeDisk   quantity.Size `toml:"keep_free_disk"`
	KeepFreeMemory quantity.Size `toml:"keep_free_memory"`
	PressureCPU    float64       `toml:"pressure_cpu"` // percent over the last ten seconds; 0: any
	PressureMemory float64       `toml:"pressure_memory"`
	PressureIO     float64       `toml:"pressure_io"`
}

// SessionLimits bounds sessions.
type SessionLimits struct {
	Max            int               `toml:"max"`
	MaxPerOwner    int               `toml:"max_per_owner"`  // except root
	MaxWorkspaces  int               `toml:"max_workspaces"` // named ones, of each owner
	MaxSnapshots   int               `toml:"max_snapshots"`  // of one session
	DefaultProfile string            `toml:"default_profile"`
	StoppedAge     quantity.Duration `toml:"stopped_age"` // after which a stopped session is removed; 0: never
	Evict          bool              `toml:"evict"`       // the owner's least recently used idle session is ended to make room
	Ping           quantity.Duration `toml:"ping"`        // how often PID 1 is pinged; 0: never
	Unhealthy      string            `toml:"unhealthy"`   // what to do if it does not answer
	Template       string            `toml:"template"`    // for ids of sessions whose request gives none; "": random ids
	ForceTemplate  bool              `toml:"force_template"`
	PreviewMax     quantity.Duration `toml:"preview_max"` // longest validity of a preview token; 0: no previews
}

// maxPreview bounds sessions.preview_max.
const maxPreview = 24 * time.Hour

func (l *SessionLimits) checkPreviews(bad func(key string, value any, allowed string)) {
	if m := time.Duration(l.PreviewMax); m != 0 && (m < time.Second || m > maxPreview) {
		bad("sessions.preview_max", l.PreviewMax, "0s, or 1s to 24h")
	}
}

// ExecLimits bounds executions.
type ExecLimits struct {
	MaxPerSession int           `toml:"max_per_session"`
	OutputLimit   quantity.Size `toml:"output_limit"`
	MaxCommand    quantity.Size `toml:"max_command"`
	MaxStdin      quantity.Size `toml:"max_stdin"`
	// MaxInteractive ends a program on a terminal after this time; 0: never.
	MaxInteractive quantity.Duration `toml:"max_interactive"`
}

// ProcessLimits bounds processes.
type ProcessLimits struct {
	Max  int               `toml:"max"`  // running, per session
	Keep quantity.Duration `toml:"keep"` // how long an ended one is remembered
	// MaxSpool is how much output of its processes and executions a session may keep on disk; 0: none
	MaxSpool quantity.Size `toml:"max_spool"`
}

// maxHistory bounds the memory for samples of one session: 6 hours are 370 KiB.
const maxHistory = 6 * time.Hour

// MinSpool is the least output of a stream to keep on disk.
const MinSpool = 64 * quantity.KiB

// UsageKeep says how long usage records are kept.
type UsageKeep struct {
	KeepDays int               `toml:"keep_days"`
	History  quantity.Duration `toml:"history"` // how long samples of sessions' usage are kept; 0: none are taken
}

// Profile is a set of defaults, and of fields that requests cannot change.
type Profile struct {
	Image         string   `toml:"image"`
	Network       string   `toml:"network"`
	NetworkRules  []string `toml:"network_rules"`  // of an egress network; empty: nothing is allowed
	NetworkStrict bool     `toml:"network_strict"` // connections by name are filtered, see cmd/boxnames
	ReadOnlyRoot  bool     `toml:"read_only_root"`
	HomeOnDisk    bool     `toml:"home_on_disk"` // within the workspace's quota, not in memory
	UserName      string   `toml:"user_name"`    // of programs
	Home          string   `toml:"home"`         // of that user, in the box
	Mounts        string   `toml:"mounts"`
	Skills        []string `toml:"skills"` // names, for sessions that request none; missing ones are reported
	limits.Limits
	Timeout    quantity.Duration `toml:"timeout"`
	MaxTimeout quantity.Duration `toml:"max_timeout"`
	limits.Lifetime
	Leftovers   string            `toml:"leftovers"`
	FreezeAfter quantity.Duration `toml:"freeze_after"` // unused; 0: never
	Warm        int               `toml:"warm"`         // number of pre-started boxes
	WarmMax     int               `toml:"warm_max"`     // at most this many, by recent use; 0: no more than warm
	Locked      []string          `toml:"locked"`

	NetworkConnections int           `toml:"network_connections"` // concurrent; 0: the default
	NetworkBandwidth   quantity.Size `toml:"network_bandwidth"`   // per second, in each direction; 0: the default
}

// Values of the word-valued profile fields.
const (
	ImageHost      = "host"
	NetworkOff     = "off"
	NetworkEgress  = "egress"
	NetworkHost    = "host"
	MountNone      = "none"
	MountReadOnly  = "ro"
	MountReadWrite = "rw"
	OOMProcess     = "process"
	OOMProgram     = "program"
	OOMSession     = "session"
	LeftoversKill  = "kill"
	LeftoversKeep  = "keep"
)

// Fields of a session about the user of its programs.
const (
	fieldUser = "user_name"
	fieldHome = "home"
)

// lockable returns the fields that a profile can lock, as spelled in both.
func lockable() []string {
	names := []string{"image", "network", "network_rules", "network_strict", FieldConnections, FieldBandwidth, "read_only_root", "home_on_disk", fieldUser, fieldHome, "mounts", "skills"}
	for _, l := range limitTable() {
		if l.how() == ofNetwork {
			continue
		}
		if l.name() == "ttl" {
			names = append(names, "timeout")
		}
		if names = append(names, l.name()); l.name() == "pids" {
			names = append(names, "rlimits")
		}
	}
	return names
}

// LimitNames are the limits that best_effort may list.
func LimitNames() []string {
	return []string{LimitMemory, LimitCPU, LimitPids, LimitIO, LimitWorkspace}
}

// DefaultProfile is the built-in profile "default" and the base of every configured one.
func DefaultProfile() Profile {
	return Profile{
		Image: ImageHost, Network: NetworkOff, NetworkRules: publicRules(), ReadOnlyRoot: true, UserName: isolation.BoxUser, Home: isolation.Home, Mounts: MountReadWrite, Skills: []string{},
		Limits:  limits.Limits{CPUs: 1, Memory: 512 * quantity.MiB, OOM: OOMProgram, Pids: 128, Rlimits: map[string]string{}, CPUWeight: 100, IOWeight: 100, Tmp: 256 * quantity.MiB, WorkspaceQuota: quantity.GiB, WorkspaceInodes: 200_000},
		Timeout: seconds(30), MaxTimeout: seconds(120), Lifetime: limits.Lifetime{TTL: seconds(300), MaxLifetime: seconds(24 * 3600)},
		Leftovers: LeftoversKill, Locked: []string{},
	}
}

func seconds(n int) quantity.Duration { return quantity.Duration(time.Duration(n) * time.Second) }

// DefaultConfig returns the built-in configuration; box.toml documents it.
func DefaultConfig() Config {
	return Config{
		Enabled:  true,
		Limits:   Limits{BestEffort: []string{}, FileLocks: 20_000},
		Host:     HostReserve{KeepFreeDisk: 512 * quantity.MiB, KeepFreeMemory: 128 * quantity.MiB},
		Sessions: SessionLimits{Max: 256, MaxPerOwner: 128, MaxWorkspaces: 64, MaxSnapshots: 8, DefaultProfile: "default", PreviewMax: seconds(3600), StoppedAge: seconds(7 * 24 * 3600), Ping: seconds(30), Unhealthy: UnhealthyEnd},
		Queue:    defaultQueue(),
		Exec: ExecLimits{
			MaxPerSession: 32, OutputLimit: quantity.MiB, MaxCommand: quantity.MiB, MaxStdin: quantity.MiB,
		},
		Processes: ProcessLimits{Max: 64, Keep: seconds(600), MaxSpool: quantity.GiB},
		Files:     defaultFileLimits(),
		Usage:     UsageKeep{KeepDays: 400, History: seconds(3600)},
		Env:       defaultVariables(),
		Languages: defaultLanguages(),
		Profiles:  defaultProfiles(),
		Policies:  map[string]Policy{defaultPolicyName: NoPolicy()},
	}
}

// defaultProfiles have the values of LangBot's profiles of the same names. The one for MCP servers mounts directories read-only,
// does not expire, and allows time for starting.
func defaultProfiles() map[string]Profile {
	readonly := DefaultProfile()
	readonly.Mounts, readonly.CPUs, readonly.Memory, readonly.Pids = MountReadOnly, 0.5, 256*quantity.MiB, 64
	readonly.MaxTimeout = seconds(60)
	readonly.Locked = []string{"network", "mounts", "read_only_root"}
	basic := DefaultProfile()
	basic.Network = NetworkEgress
	extended := DefaultProfile()
	extended.Network, extended.CPUs, extended.Memory, extended.Pids = NetworkEgress, 2, quantity.GiB, 256
	extended.ReadOnlyRoot, extended.MaxTimeout = false, seconds(300)
	mcp := DefaultProfile()
	mcp.Network, mcp.Mounts, mcp.Memory, mcp.Tmp, mcp.Pids = NetworkEgress, MountReadOnly, 1536*quantity.MiB, 512*quantity.MiB, 256
	mcp.ReadOnlyRoot = false
	mcp.Timeout, mcp.MaxTimeout, mcp.TTL, mcp.MaxLifetime = seconds(120), seconds(600), 0, 0
	e2b := DefaultProfile() // as programs written for E2B expect
	e2b.Network, e2b.CPUs, e2b.Memory, e2b.Tmp, e2b.Pids = NetworkEgress, 2, quantity.GiB, 512*quantity.MiB, 512
	e2b.ReadOnlyRoot, e2b.HomeOnDisk, e2b.UserName, e2b.Home, e2b.Leftovers = false, true, "user", "/home/user", LeftoversKeep
	e2b.WorkspaceQuota, e2b.WorkspaceInodes = 4*quantity.GiB, 400_000
	e2b.MaxTimeout, e2b.TTL = seconds(3600), 0
	return map[string]Profile{
		"default": DefaultProfile(), "offline_readonly": readonly, "network_basic": basic, "network_extended": extended, "mcp": mcp, "e2b": e2b,
	}
}

// Validate checks the configuration. The error names every invalid key.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s = %v: must be %s", key, value, allowed))
	}
	for _, name := range c.Limits.BestEffort {
		if !slices.Contains(LimitNames(), name) {
			bad("limits.best_effort", fmt.Sprintf("%q", name), fault.OneOf(LimitNames()...))
		}
	}
	if n := c.Limits.FileLocks; n != 0 && (n < minFileLocks || n > maxFileLocks) {
		bad("limits.file_locks", n, fmt.Sprintf("0 (any number), or %d to %d", minFileLocks, maxFileLocks))
	}
	if c.Sessions.Max < 1 || c.Sessions.Max > maxSessions {
		bad("sessions.max", c.Sessions.Max, fmt.Sprintf("1 to %d", maxSessions))
	}
	if c.Sessions.MaxPerOwner < 1 || c.Sessions.MaxPerOwner > c.Sessions.Max {
		bad("sessions.max_per_owner", c.Sessions.MaxPerOwner, fmt.Sprintf("1 to %d (sessions.max)", c.Sessions.Max))
	}
	c.Sessions.checkPreviews(bad)
	if _, ok := c.Profiles[c.Sessions.DefaultProfile]; !ok {
		bad("sessions.default_profile", fmt.Sprintf("%q", c.Sessions.DefaultProfile), fault.OneOf(slices.Sorted(maps.Keys(c.Profiles))...))
	}
	if c.Exec.MaxPerSession < 1 || c.Exec.MaxPerSession > 1000 {
		bad("exec.max_per_session", c.Exec.MaxPerSession, "1 to 1000")
	}
	if c.Processes.Max < 1 || c.Processes.Max > 1000 {
		bad("processes.max", c.Processes.Max, "1 to 1000")
	}
	if c.Usage.KeepDays < 1 || c.Usage.KeepDays > 10_000 {
		bad("usage.keep_days", c.Usage.KeepDays, "1 to 10000")
	}
	if h := time.Duration(c.Usage.History); h != 0 && (h < time.Minute || h > maxHistory) {
		bad("usage.history", c.Usage.History, "0s, or 1m to 6h")
	}
	if c.Host.KeepFreeDisk > maxSize || c.Host.KeepFreeMemory > maxSize {
		bad("host", fmt.Sprintf("keep_free_disk %v, keep_free_memory %v", c.Host.KeepFreeDisk, c.Host.KeepFreeMemory), "at most "+quantity.Size(maxSize).String())
	}
	c.validateLife(bad)
	for _, s := range []struct {
		key      string
		value    quantity.Size
		min, max quantity.Size
	}{
		{"exec.output_limit", c.Exec.OutputLimit, quantity.KiB, 64 * quantity.MiB},
		{"exec.max_command", c.Exec.MaxCommand, quantity.KiB, 4 * quantity.MiB},
		{"exec.max_stdin", c.Exec.MaxStdin, quantity.KiB, 64 * quantity.MiB},
	} {
		if s.value < s.min || s.value > s.max {
			bad(s.key, s.value, fmt.Sprintf("%v to %v", s.min, s.max))
		}
	}
	c.Files.Validate(bad)
	for name, value := range c.Env {
		if err := checkVariable(name, value); err != nil {
			errs = append(errs, fmt.Errorf("env.%s: %w", name, err))
		}
	}
	errs = append(errs, ValidateSecrets(c.Secrets)...)
	errs = append(errs, ValidateBuckets(c.Buckets)...)
	for name, l := range c.Languages {
		if allowed := l.Lacks(); allowed != "" {
			bad("languages."+name, fmt.Sprintf("%q", l), allowed)
		}
	}
	for name, p := range c.Profiles {
		for _, err := range p.validate() {
			errs = append(errs, fmt.Errorf("profiles.%s.%w", name, err))
		}
	}
	for name, b := range c.Policies {
		if err := b.validate(c); err != nil {
			for line := range strings.Lines(err.Error()) {
				errs = append(errs, fmt.Errorf("policy.%s.%s", name, strings.TrimSuffix(line, "\n")))
			}
		}
	}
	errs = append(errs, c.named()...)
	c.Sessions.checkTemplate(bad)
	return errors.Join(errs...)
}

func (l *SessionLimits) checkTemplate(bad func(key string, value any, allowed string)) {
	if err := validTemplate(l.Template); err != nil {
		bad("sessions.template", fmt.Sprintf("%q", l.Template), err.Error())
	}
	if l.ForceTemplate && l.Template == "" {
		bad("sessions.force_template", true, "false without sessions.template")
	}
}

func (p *Profile) validate() (errs []error) {
	s := Settings{Image: p.Image, Network: p.Network, User: p.UserName, Home: p.Home, Limits: p.Limits, Lifetime: p.Lifetime}
	for _, err := range []error{s.validate(), s.validUser()} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s = %v: must be %s", key, value, allowed))
	}
	if !slices.Contains([]string{MountNone, MountReadOnly, MountReadWrite}, p.Mounts) {
		bad("mounts", p.Mounts, fault.OneOf(MountNone, MountReadOnly, MountReadWrite))
	}
	if p.Leftovers != LeftoversKill && p.Leftovers != LeftoversKeep {
		bad("leftovers", p.Leftovers, "kill or keep")
	}
	if p.Timeout <= 0 || p.MaxTimeout < p.Timeout {
		bad("timeout", p.Timeout, "more than 0 and at most max_timeout")
	}
	if _, err := mergeRules("", p.NetworkRules, nil, false, p.NetworkStrict); err != nil {
		errs = append(errs, err)
	}
	if err := (NetworkCaps{Connections: p.NetworkConnections, Bandwidth: p.NetworkBandwidth}).Check(); err != nil {
		errs = append(errs, err)
	}
	if _, err := rlimitsOf(p.Rlimits); err != nil {
		errs = append(errs, err)
	}
	if _, err := readSkillNames(p.Skills, MaxSkills); err != nil {
		bad("skills", fmt.Sprintf("%q", p.Skills), fmt.Sprintf("names of skills, at most %d", MaxSkills))
	}
	if p.FreezeAfter < 0 || p.FreezeAfter > longestTimeout {
		bad("freeze_after", p.FreezeAfter, "0s to "+longestTimeout.String())
	}
	if p.Warm < 0 || p.Warm > maxWarm {
		bad("warm", p.Warm, fmt.Sprintf("0 to %d", maxWarm))
	} else if p.WarmMax != 0 && (p.WarmMax < p.Warm || p.WarmMax > maxWarm) {
		bad("warm_max", p.WarmMax, fmt.Sprintf("0, or warm (%d) to %d", p.Warm, maxWarm))
	}
	if p.MaxTimeout > longestTimeout {
		bad("max_timeout", p.MaxTimeout, "at most "+longestTimeout.String())
	}
	for _, name := range p.Locked {
		if !slices.Contains(lockable(), name) {
			bad("locked", fmt.Sprintf("%q", name), fault.OneOf(lockable()...))
		}
	}
	return errs
}

// longestTimeout leaves room for times that are added to it.
const longestTimeout = quantity.Duration(365 * 24 * time.Hour)
