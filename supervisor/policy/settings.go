// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// Request asks for a session. A nil field was not given: it takes the profile's value.
type Request struct {
	ID            string // "": from Template, or random
	Template      string // of the id; "": the configured one
	Variables     map[string]string
	MadeUp        bool   // the id is random: only the recipient of the answer knows it
	OneShot       bool   // it ends with the call that creates it: no other client and no later boxd needs it
	Profile       string // "": the configured default
	Image         *string
	Network       *string
	NetworkRules  []string // nil: the profile's; empty: none
	NetworkStrict *bool
	Secrets       []string // their names
	Push          string   // where results go: BUCKET/PREFIX; "": nowhere
	ReadOnlyRoot  *bool
	HomeOnDisk    *bool
	User          *string // name of the user of its programs
	Home          *string // of that user, in the box
	limits.Patch
	Rlimits   map[string]string // name of a resource, and SOFT:HARD
	Tmp       *quantity.Size
	Workspace string // named workspace; "": its own
	Inputs    []Input
	Mounts    []Mount
	Skills    []string // their names
	Drives    []string // NAME, or NAME@VERSION
	Env       map[string]string
	Labels    map[string]string
	Metadata  map[string]string
	Wait      *quantity.Duration // longest wait for room; nil: the configured one
}

// Settings are what a session was created with, after the profile was applied.
type Settings struct {
	Profile       string   `json:"profile"`
	Image         string   `json:"image"`
	Network       string   `json:"network"`
	NetworkRules  []string `json:"network_rules,omitempty"` // where programs may connect to, see isolation/network/rule
	NamesOnly     bool     `json:"names_only,omitempty"`    // only boxd resolves names for it, whatever its rules
	NetworkStrict bool     `json:"network_strict,omitempty"`
	Secrets       []string `json:"secrets,omitempty"`   // their names, see supervisor/policy
	Push          string   `json:"push,omitempty"`      // where results of executions go, see ReadPush
	Unsettled     bool     `json:"unsettled,omitempty"` // the box may have other rules: they are being changed
	ReadOnlyRoot  bool     `json:"read_only_root"`
	HomeOnDisk    bool     `json:"home_on_disk,omitempty"`
	User          string   `json:"user_name,omitempty"` // see UserName
	Home          string   `json:"home,omitempty"`      // see HomeDir
	limits.Limits
	Bounded []string `json:"bounded,omitempty"` // targets of host directories that the quota covers too
	limits.Lifetime
	Workspace string            `json:"workspace,omitempty"` // named workspace, with its own quota
	Inputs    []Input           `json:"inputs,omitempty"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Skills    []string          `json:"skills,omitempty"` // as requested; they may have changed since
	Drives    []string          `json:"drives,omitempty"` // as above
	Labels    map[string]string `json:"labels,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	EnvNames  []string          `json:"env,omitempty"`     // names only; the values are in no record
	Clamped   []Clamp           `json:"clamped,omitempty"` // what is less than requested
	Root      *ImageRoot        `json:"root,omitempty"`    // the image when the session was made; nil: the host's programs

	NetworkConnections int           `json:"network_connections,omitempty"` // concurrent; 0: the keeper's default
	NetworkBandwidth   quantity.Size `json:"network_bandwidth,omitempty"`   // per second, in each direction; 0: the keeper's default
}

// Bounds of a session's fields.
const (
	minMemory = 32 * quantity.MiB
	minQuota  = quantity.MiB // xfs makes a file only if dozens of blocks are free
	minInodes = 16
	maxInodes = 1 << 31
	minCPUs   = 0.01 // cgroup.MinCPU
	maxCPUs   = 1024
	minIO     = 64 * quantity.KiB // per second; with less, programs cannot even load
	maxPids   = 1 << 22           // PID_MAX_LIMIT
)

// Merge applies a request to its profile: defaults, then the requested values, then locks.
func (c *Config) Merge(req *Request) (Settings, *Profile, error) {
	name := req.Profile
	if name == "" {
		name = c.Sessions.DefaultProfile
	}
	p, ok := c.Profiles[name]
	if !ok {
		return Settings{}, nil, fault.Field("profile", name, fault.OneOf(slices.Sorted(maps.Keys(c.Profiles))...))
	}
	m := merger{profile: name, locked: p.Locked}
	s := Settings{
		Profile:       name,
		Image:         pick(&m, "image", p.Image, req.Image),
		Network:       pick(&m, "network", p.Network, req.Network),
		NetworkStrict: pick(&m, fieldStrict, p.NetworkStrict, req.NetworkStrict),
		ReadOnlyRoot:  pick(&m, "read_only_root", p.ReadOnlyRoot, req.ReadOnlyRoot),
		HomeOnDisk:    pick(&m, "home_on_disk", p.HomeOnDisk, req.HomeOnDisk),
		User:          pick(&m, fieldUser, p.UserName, req.User),
		Home:          pick(&m, fieldHome, p.Home, req.Home),
		Limits:        p.Limits,
		Lifetime:      p.Lifetime,
		Workspace:     req.Workspace,
		Labels:        req.Labels,
		Metadata:      req.Metadata,
		EnvNames:      slices.Sorted(maps.Keys(req.Env)),
	}
	s.Rlimits = nil // merged one by one
	for _, l := range limitTable() {
		if l.how() != ofNetwork {
			l.pick(&m, &s, req)
		}
	}
	if m.err != nil {
		return s, nil, m.err
	}
	p.NetworkConnections, p.NetworkBandwidth = cmp.Or(p.NetworkConnections, c.DefaultCaps.Connections), cmp.Or(p.NetworkBandwidth, c.DefaultCaps.Bandwidth)
	if s.Network == NetworkEgress {
		s.NetworkConnections, s.NetworkBandwidth = p.NetworkConnections, p.NetworkBandwidth
	}
	var err error
	if s.Mounts, err = mergeMounts(name, &p, req.Mounts); err != nil {
		return s, nil, err
	}
	if s.Skills, err = mergeSkills(name, &p, req.Skills); err != nil {
		return s, nil, err
	}
	if s.Drives, err = readDrives(req.Drives); err != nil {
		return s, nil, err
	}
	if s.Inputs, err = s.inputs(req.Inputs); err != nil {
		return s, nil, err
	}
	s.bound(c.Roots)
	if err := s.quotaFor(req); err != nil {
		return s, nil, err
	}
	if err := cmp.Or(s.mergeNetwork(&p, req.NetworkRules), s.mergeCaps(&p, req), s.mergeRlimits(name, &p, req.Rlimits), s.mergeSecrets(c, &p, req), s.mergePush(c, req), CheckLabels(req.Labels), checkMetadata(req.Metadata), CheckVariables(req.Env), s.validUser(), s.validate()); err != nil {
		return s, nil, err
	}
	return s, &p, nil
}

// validUser checks the user name and home. Settings of an earlier boxd may lack them.
func (s *Settings) validUser() error {
	switch {
	case !isolation.ValidUserName(s.User):
		return fault.Field(fieldUser, s.User, isolation.UserNames)
	case !isolation.ValidHome(s.Home):
		return fault.Field(fieldHome, s.Home, isolation.Homes)
	}
	return nil
}

// UserName returns the user name of the session's programs. Settings of an earlier boxd may lack it: its sessions had the
// built-in one.
func (s *Settings) UserName() string { return cmp.Or(s.User, isolation.BoxUser) }

// HomeDir is the home directory of that user.
func (s *Settings) HomeDir() string { return cmp.Or(s.Home, isolation.Home) }

// ManagedWork reports whether /workspace is boxd's own directory and not a host directory.
func (s *Settings) ManagedWork() bool {
	return !slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Target == isolation.Workspace })
}

// merger collects the first refusal of a merge.
type merger struct {
	profile string
	locked  []string
	err     error
}

// pick returns the profile's value or the request's, and refuses another value for a locked field.
func pick[T comparable](m *merger, field string, profile T, requested *T) T {
	if requested == nil || *requested == profile {
		return profile
	}
	if slices.Contains(m.locked, field) {
		if m.err == nil {
			m.err = locked(field, *requested, fmt.Sprint(profile), m.profile)
		}
		return profile
	}
	return *requested
}

// Clamp says that less was given than requested.
type Clamp struct {
	Field string `json:"field"`
	Asked string `json:"asked"` // or what the profile has
	Got   string `json:"got"`
	By    string `json:"by"` // the key of box.toml that reduced it
}

// execTimeout returns the timeout of an execution: the profile's, or the request's, at most the profile's maximum.
func (p *Profile) execTimeout(name string, requested *quantity.Duration) (time.Duration, []Clamp, error) {
	if requested == nil {
		return time.Duration(p.Timeout), nil, nil
	}
	switch {
	case *requested <= 0:
		return 0, nil, fault.Field("timeout", *requested, fmt.Sprintf("more than 0, at most %v", p.MaxTimeout))
	case *requested != p.Timeout && slices.Contains(p.Locked, "timeout"):
		return 0, nil, locked("timeout", *requested, p.Timeout.String(), name)
	case *requested > p.MaxTimeout:
		return time.Duration(p.MaxTimeout), []Clamp{{"timeout", requested.String(), p.MaxTimeout.String(), "profiles." + name + ".max_timeout"}}, nil
	}
	return time.Duration(*requested), nil, nil
}

func locked(field string, value any, allowed, profile string) error {
	f := fault.Field(field, value, allowed)
	return f.WithText("%w, as profile %q locks it", f.Err, profile).Of(fault.Denied).
		WithHint("leave it out, or use another profile").
		By(fault.Denial{Layer: fault.LayerPolicy, Rule: "profiles." + profile + ".locked", Allowed: allowed, Setting: "profiles." + profile + ".locked without " + strconv.Quote(field)})
}

// mergeMounts sets the mode of every mount. If the profile locks "mounts", its mode is the most that a mount may have.
func mergeMounts(name string, p *Profile, requested []Mount) ([]Mount, error) {
	if len(requested) > isolation.MaxMounts {
		return nil, fault.Field("mounts", len(requested), fmt.Sprintf("at most %d", isolation.MaxMounts))
	}
	rank := []string{MountNone, MountReadOnly, MountReadWrite}
	var mounts []Mount
	for i, m := range requested {
		field := fmt.Sprintf("mounts[%d].mode", i)
		if m.Mode == "" {
			m.Mode = p.Mounts
		}
		switch {
		case !slices.Contains(rank, m.Mode):
			return nil, fault.Field(field, m.Mode, fault.OneOf(rank...))
		case slices.Contains(p.Locked, "mounts") && slices.Index(rank, m.Mode) > slices.Index(rank, p.Mounts):
			return nil, locked(field, m.Mode, "at most "+p.Mounts, name)
		case m.Mode != MountNone:
			mounts = append(mounts, m)
		}
	}
	return mounts, nil
}

// validate checks the values that have bounds of their own.
func (s *Settings) validate() error {
	switch {
	case !ValidImageName(s.Image):
		return fault.Field("image", s.Image, ImageHost+", or the name or digest of an image in the store")
	case !slices.Contains([]string{NetworkOff, NetworkEgress, NetworkHost}, s.Network):
		return fault.Field("network", s.Network, fault.OneOf(NetworkOff, NetworkEgress, NetworkHost))
	}
	for _, l := range limitTable() {
		if err := l.check(s); err != nil {
			return err
		}
	}
	return nil
}

// maxSize is larger than any machine has, and leaves room for sums.
const maxSize = 1024 * quantity.TiB

// OwnDisk reports whether the session has files of its own on disk, which the workspace's quota is for: its workspace, changes to
// a writable root, or its home.
func (s *Settings) OwnDisk() bool { return s.ManagedWork() || s.OwnDir() }

// OwnDir reports whether the session has more on disk than a workspace: changes to its root, or its home. With a named workspace,
// the session's quota is for these.
func (s *Settings) OwnDir() bool { return !s.ReadOnlyRoot || s.HomeOnDisk }

// Differences names the requested fields that differ in a session. It cannot compare the values of env.
func (s *Settings) Differences(req *Request, requested *Settings) []string {
	var names []string
	check := func(name string, given, same bool) {
		if given && !same {
			names = append(names, name)
		}
	}
	check("profile", req.Profile != "", s.Profile == requested.Profile)
	check("image", req.Image != nil, s.Image == requested.Image)
	check("network", req.Network != nil, s.Network == requested.Network)
	check("network_rules", req.NetworkRules != nil, slices.Equal(s.NetworkRules, requested.NetworkRules))
	check("network_strict", req.NetworkStrict != nil, s.NetworkStrict == requested.NetworkStrict)
	for _, l := range limitTable() {
		if l.how() == ofNetwork {
			check(l.name(), l.given(req), l.same(s, requested))
		}
	}
	check("secrets", req.Secrets != nil, slices.Equal(s.Secrets, requested.Secrets))
	check(fieldPush, req.Push != "", s.Push == requested.Push)
	check("read_only_root", req.ReadOnlyRoot != nil, s.ReadOnlyRoot == requested.ReadOnlyRoot)
	check("home_on_disk", req.HomeOnDisk != nil, s.HomeOnDisk == requested.HomeOnDisk)
	check(fieldUser, req.User != nil, s.UserName() == requested.UserName())
	check(fieldHome, req.Home != nil, s.HomeDir() == requested.HomeDir())
	for _, l := range limitTable() {
		if l.how() != ofNetwork {
			check(l.name(), l.given(req), l.same(s, requested))
		}
	}
	check("rlimits", req.Rlimits != nil, maps.Equal(s.Rlimits, requested.Rlimits))
	check("workspace", req.Workspace != "", s.Workspace == requested.Workspace)
	check("inputs", req.Inputs != nil, slices.Equal(s.Inputs, requested.Inputs))
	check("mounts", req.Mounts != nil, len(s.Mounts)+len(requested.Mounts) == 0 || reflect.DeepEqual(s.Mounts, requested.Mounts))
	check("skills", req.Skills != nil, slices.Equal(s.Skills, requested.Skills))
	check("drives", req.Drives != nil, slices.Equal(s.Drives, requested.Drives))
	check("labels", req.Labels != nil, maps.Equal(s.Labels, requested.Labels))
	check("metadata", req.Metadata != nil, maps.Equal(s.Metadata, requested.Metadata))
	return names
}
