// SPDX-License-Identifier: Apache-2.0

// Reading box.toml: the file, its drop-ins, and the environment.

package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/actionrpc"
	"github.com/boxd-dev/boxd/relay/e2b"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/volumes"
	"github.com/boxd-dev/boxd/systemd"
)

// Config is box.toml. Every key is explained there, and a test proves that the file at the root of the repository equals
// defaultConfig.
type Config struct {
	Daemon Daemon     `toml:"daemon"`
	IDs    IDs        `toml:"ids"`
	Groups Groups     `toml:"cgroups"`
	Work   Workspaces `toml:"workspaces"`
	Mounts Mounts     `toml:"mounts"`
	Image  Image      `toml:"image"`

	Network Network        `toml:"network"`
	Log     systemd.Config `toml:"log"`
	Audit   audit.Config   `toml:"audit"`
	Skills  skills.Config  `toml:"skills"`
	Drives  volumes.Config `toml:"drives"`
	Images  images.Config  `toml:"images"`
	Access  access.Config  `toml:"access"`
	policy.Config
	LangBot    actionrpc.Settings     `toml:"langbot"`
	E2B        e2b.Settings           `toml:"e2b"`
	Fleet      access.Fleet           `toml:"fleet"`
	Traces     trace.Config           `toml:"traces"`
	Principals map[string]access.Rule `toml:"principals"`
	// Confined says that boxd runs in its unit, where it confines itself; see confine.
	Confined bool `toml:"-"`
	// Origins says where each set key comes from: a file and its line, or a variable.
	Origins map[string]string `toml:"-"`
}

// Daemon is the table of boxd's own settings: where it listens and stores data, and how its keeper is started.
type Daemon struct {
	Socket      string            `toml:"socket"`
	SocketGroup string            `toml:"socket_group"`
	StateDir    string            `toml:"state_dir"`
	RuntimeDir  string            `toml:"runtime_dir"`
	Keeper      string            `toml:"keeper"`
	AdoptGrace  quantity.Duration `toml:"adopt_grace"`
	OnStop      string            `toml:"on_stop"`
	Ahead       int               `toml:"ahead"`
	IdleExit    quantity.Duration `toml:"idle_exit"`

	HTTP         string `toml:"http"`
	HTTPInsecure bool   `toml:"http_insecure"`
	// For callers on other hosts. The last four are files (PEM).
	HTTPS       string `toml:"https"`
	Certificate string `toml:"certificate"`
	PrivateKey  string `toml:"private_key"`
	ClientCA    string `toml:"client_ca"`
	ClientCRL   string `toml:"client_crl"`
}

// maxIdle is the maximum idle time before boxd exits.
const maxIdle = 24 * time.Hour

// How the keeper is started.
const (
	keeperAuto     = "auto"     // as the command line says
	keeperOwn      = "own"      // by boxd, if none runs
	keeperExternal = "external" // as a unit of its own
)

// What happens to boxes when boxd is stopped.
const (
	onStopKeep = "keep"
	onStopEnd  = "end"
)

// IDs is the range of host ids for boxes.
type IDs struct {
	Base  uint32 `toml:"base"`
	Count uint32 `toml:"count"`
	Lock  string `toml:"lock"`
}

// Groups says which program makes the cgroups of boxes, and where.
type Groups struct {
	Driver string `toml:"driver"`
	Parent string `toml:"parent"`
}

// Which program makes the cgroups of boxes.
const (
	driverAuto    = "auto"    // the best one here: the keeper
	driverDirect  = "direct"  // the keeper, below the parent
	driverSystemd = "systemd" // systemd, as scopes
)

func (c *Groups) validate() error {
	if p := c.Parent; p != "" && !isolation.CleanAbsolute("/"+p) {
		return fmt.Errorf("cgroups.parent = %q: must be a path below %s without a leading slash, or empty", p, cgroup.Mount)
	}
	if !slices.Contains([]string{driverAuto, driverDirect, driverSystemd}, c.Driver) {
		return fmt.Errorf("cgroups.driver = %q: must be %q, %q or %q", c.Driver, driverAuto, driverDirect, driverSystemd)
	}
	if c.Driver == driverSystemd && c.Parent == "" {
		return fmt.Errorf("cgroups.driver = %q: must be \"auto\" or \"direct\" without cgroups.parent", c.Driver)
	}
	return nil
}

// Path returns the directory of the parent cgroup, "" if there is none.
func (c *Groups) Path() string {
	if c.Parent == "" {
		return ""
	}
	return filepath.Join(cgroup.Mount, c.Parent)
}

// Workspaces configures the store of workspaces.
type Workspaces struct {
	Max             int           `toml:"max"` // all of this host, those of stopped sessions and images included
	StoreSize       quantity.Size `toml:"store_size"`
	StoreFilesystem string        `toml:"store_filesystem"` // for a store that has yet to be made
}

// workspaces.max: by default the number of quotas that workspaces can have, which bounds them where they have one; and the most.
const (
	defaultWorkspaces = 1 << 16
	maxWorkspaces     = 1_000_000
)

// Limits of the store: it must hold a filesystem, and be within the maximum of ext4.
const (
	minStore = 64 * quantity.MiB
	minXFS   = 300 * quantity.MiB // mkfs.xfs(8)
	maxStore = 16 * quantity.TiB
)

// Limits of how long a filesystem may take to answer. A pending wait continues for so long while boxd or its keeper stops.
const (
	minTimeout = 100 * time.Millisecond
	maxTimeout = 15 * time.Second
)

// Mounts lists the host directories that sessions may mount.
type Mounts struct {
	Allow      []Rule            `toml:"allow"`
	Patience   quantity.Duration `toml:"patience"`
	QuotaRoots []string          `toml:"quota_roots"`
}

// Image says which of the host's files boxes see.
type Image struct {
	Etc []string `toml:"etc"`
}

// Rule is a path, or a table of path and owner.
type Rule struct {
	Path  string
	Owner string // "uid:gid"; "": the caller
}

// UnmarshalTOML reads either form.
func (r *Rule) UnmarshalTOML(v any) error {
	switch v := v.(type) {
	case string:
		r.Path = v
		return nil
	case map[string]any:
		path, ok1 := v["path"].(string)
		owner, ok2 := v["owner"].(string)
		if ok1 && ok2 && len(v) == 2 {
			r.Path, r.Owner = path, owner
			return nil
		}
	}
	return errors.New(`want "/path" or {path = "/path", owner = "uid:gid"}`)
}

// String returns the form of the keeper's flag.
func (r Rule) String() string {
	if r.Owner == "" {
		return r.Path
	}
	return r.Path + "=" + r.Owner
}

// defaultIDs is the default of ids.count.
const defaultIDs = 4096

// defaultConfig returns the built-in configuration.
func defaultConfig() Config {
	return Config{
		Daemon: Daemon{Socket: "/run/boxd/boxd.sock", SocketGroup: "boxd", StateDir: "/var/lib/boxd", RuntimeDir: "/run/boxd", Keeper: keeperAuto, AdoptGrace: quantity.Duration(10 * time.Minute), OnStop: onStopKeep, Ahead: 1, IdleExit: quantity.Duration(5 * time.Minute)},
		IDs:    IDs{Base: 0x70000000, Count: defaultIDs, Lock: "/run/boxd-ids"},
		Groups: Groups{Driver: driverAuto, Parent: "box.slice/boxd-boxes.service"},
		Work:   Workspaces{Max: defaultWorkspaces, StoreSize: 16 * quantity.GiB, StoreFilesystem: isolation.StoreExt4},
		Mounts: Mounts{Allow: []Rule{{Path: "{home}"}}, Patience: quantity.Duration(5 * time.Second), QuotaRoots: []string{}},
		Image: Image{Etc: []string{
			"@packages",
			"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "ssl/openssl.cnf",
			"pki/ca-trust/extracted", "pki/tls/certs", "crypto-policies", "fonts", "java-*", "mime.types", "services", "protocols",
		}},
		Log:    systemd.DefaultConfig(),
		Audit:  audit.DefaultConfig(),
		Skills: skills.DefaultConfig(), Drives: volumes.DefaultConfig(),
		Images: images.DefaultConfig(),
		Access: access.DefaultConfig(),
		Config: policy.DefaultConfig(),

		Network: defaultNetwork(),
		LangBot: actionrpc.DefaultSettings(),
		E2B:     e2b.DefaultSettings(),
		Fleet:   access.DefaultFleet(),
		Traces:  trace.DefaultConfig(),
	}
}

// Check reports all errors; path names the file in them.
func (c *Config) Check(path string) error {
	var errs []error
	for key, value := range map[string]string{"daemon.socket": c.Daemon.Socket, "daemon.state_dir": c.Daemon.StateDir, "daemon.runtime_dir": c.Daemon.RuntimeDir, "ids.lock": c.IDs.Lock} {
		if !isolation.CleanAbsolute(value) {
			errs = append(errs, fmt.Errorf("%s = %q: must be a clean absolute path", key, value))
		}
	}
	if !slices.Contains([]string{keeperAuto, keeperOwn, keeperExternal}, c.Daemon.Keeper) {
		errs = append(errs, fmt.Errorf("daemon.keeper = %q: must be %q, %q or %q", c.Daemon.Keeper, keeperAuto, keeperOwn, keeperExternal))
	}
	if !slices.Contains([]string{onStopKeep, onStopEnd}, c.Daemon.OnStop) {
		errs = append(errs, fmt.Errorf("daemon.on_stop = %q: must be %q or %q", c.Daemon.OnStop, onStopKeep, onStopEnd))
	}
	if c.Daemon.Ahead < 0 || c.Daemon.Ahead > 64 {
		errs = append(errs, fmt.Errorf("daemon.ahead = %d: must be 0 to 64", c.Daemon.Ahead))
	}
	if d := time.Duration(c.Daemon.IdleExit); d != 0 && (d < time.Second || d > maxIdle) {
		errs = append(errs, fmt.Errorf("daemon.idle_exit = %v: must be 0s, or 1s to %v", c.Daemon.IdleExit, quantity.Duration(maxIdle)))
	}
	if c.IDs.Base == 0 || c.IDs.Base%isolation.IDRange != 0 || c.IDs.Count == 0 ||
		uint64(c.IDs.Base)+uint64(c.IDs.Count)*isolation.IDRange > 1<<32-isolation.IDRange {
		errs = append(errs, fmt.Errorf("ids.base = %d, ids.count = %d: must be a multiple of %d, and all below 2³²", c.IDs.Base, c.IDs.Count, isolation.IDRange))
	}
	if n := c.Sessions.Max; n > defaultIDs && n > int(c.IDs.Count) { // up to the default it was always allowed, even if sessions find no ids
		errs = append(errs, fmt.Errorf("sessions.max = %d: must be 1 to %d, the number of id ranges (ids.count)", n, max(defaultIDs, c.IDs.Count)))
	}
	if n := c.Work.Max; n < c.Sessions.Max || n > maxWorkspaces {
		errs = append(errs, fmt.Errorf("workspaces.max = %d: must be %d (sessions.max) to %d", n, c.Sessions.Max, maxWorkspaces))
	}
	if n := c.Work.StoreSize; n != 0 && (n < minStore || n > maxStore) {
		errs = append(errs, fmt.Errorf("workspaces.store_size = %v: must be 0, or %v to %v", n, minStore, maxStore))
	} else if n != 0 && n < minXFS && c.Work.StoreFilesystem == isolation.StoreXFS {
		errs = append(errs, fmt.Errorf("workspaces.store_size = %v: must be at least %v with workspaces.store_filesystem = %q", n, minXFS, isolation.StoreXFS))
	}
	if kind := c.Work.StoreFilesystem; kind != isolation.StoreExt4 && kind != isolation.StoreXFS {
		errs = append(errs, fmt.Errorf("workspaces.store_filesystem = %q: must be %q or %q", kind, isolation.StoreExt4, isolation.StoreXFS))
	}
	for _, root := range c.Mounts.QuotaRoots {
		if !isolation.CleanAbsolute(root) || root == "/" {
			errs = append(errs, fmt.Errorf("mounts.quota_roots = %q: must be an absolute path of a directory, other than /", root))
		}
	}
	if d := time.Duration(c.Mounts.Patience); d < minTimeout || d > maxTimeout {
		errs = append(errs, fmt.Errorf("mounts.patience = %v: must be %v to %v", c.Mounts.Patience, quantity.Duration(minTimeout), quantity.Duration(maxTimeout)))
	}
	if a := c.Daemon.HTTP; a != "" && !isLoopback(a) {
		errs = append(errs, fmt.Errorf("daemon.http = %q: must be a loopback address with a port, such as 127.0.0.1:5410, or empty", a))
	}
	errs = append(errs, c.Daemon.validateHTTPS(), c.Groups.validate(), c.Network.validate(), c.Log.Validate(), c.Audit.Validate(), c.Skills.Validate(), c.Drives.Validate(), c.Images.Validate(), access.ValidateRules(c.Access, c.Principals), c.Fleet.Validate(), c.Traces.Validate(), c.langbot(), c.E2B.Validate(func(name string) bool { _, ok := c.Profiles[name]; return ok }))
	if err := c.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// validateHTTPS checks the settings of the listener for other hosts.
func (d *Daemon) validateHTTPS() error {
	files := []struct{ key, path string }{{"daemon.certificate", d.Certificate}, {"daemon.private_key", d.PrivateKey}, {"daemon.client_ca", d.ClientCA}, {"daemon.client_crl", d.ClientCRL}}
	if d.HTTPS == "" {
		for _, f := range files {
			if f.path != "" {
				return fmt.Errorf(`daemon.https = "": must be an address with a port, such as 0.0.0.0:5411, as there is %s`, f.key)
			}
		}
		return nil
	}
	if at, err := netip.ParseAddrPort(d.HTTPS); err != nil || at.Port() == 0 {
		return fmt.Errorf("daemon.https = %q: must be an address with a port, such as 0.0.0.0:5411, or empty", d.HTTPS)
	}
	var errs []error
	for _, f := range files {
		if !filepath.IsAbs(f.path) && (f.path != "" || !strings.HasPrefix(f.key, "daemon.client_")) {
			errs = append(errs, fmt.Errorf("%s = %q: must be the absolute path of a PEM file", f.key, f.path))
		}
	}
	if d.ClientCRL != "" && d.ClientCA == "" {
		errs = append(errs, fmt.Errorf("daemon.client_crl = %q: must be empty without daemon.client_ca, which it depends on", d.ClientCRL))
	}
	return errors.Join(errs...)
}

// isLoopback reports whether an address with a port is a loopback address.
func isLoopback(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// allow returns the mount rules in the form of the keeper's flags.
func (c *Config) allow() []string {
	var list []string
	for _, r := range c.Mounts.Allow {
		list = append(list, r.String())
	}
	return list
}

// Describe returns a summary for the log.
func (c *Config) Describe() string {
	return "profiles " + strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", ") + "; sessions.max " + strconv.Itoa(c.Sessions.Max)
}
