// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// config is box.toml. Every key is explained there, and a test proves that the file at the root of
// the repository says what defaultConfig does.
type config struct {
	Daemon daemonConfig    `toml:"daemon"`
	IDs    idConfig        `toml:"ids"`
	Groups groupConfig     `toml:"cgroups"`
	Work   workspaceConfig `toml:"workspaces"`
	Mounts mountConfig     `toml:"mounts"`
	Image  imageConfig     `toml:"image"`
	policy.Config
}

type daemonConfig struct {
	Socket      string            `toml:"socket"`
	SocketGroup string            `toml:"socket_group"`
	StateDir    string            `toml:"state_dir"`
	RuntimeDir  string            `toml:"runtime_dir"`
	Keeper      string            `toml:"keeper"`
	AdoptGrace  quantity.Duration `toml:"adopt_grace"`
	OnStop      string            `toml:"on_stop"`
	Ahead       int               `toml:"ahead"`
	IdleExit    quantity.Duration `toml:"idle_exit"`
}

// mostIdle is the longest that boxd may wait, idle, for somebody who needs it.
const mostIdle = 24 * time.Hour

// Who starts the keeper.
const (
	keeperAuto     = "auto"     // as the command line says
	keeperOwn      = "own"      // boxd, where none lives
	keeperExternal = "external" // somebody else, as its own unit
)

// What becomes of boxes when boxd is stopped.
const (
	onStopKeep = "keep"
	onStopEnd  = "end"
)

type idConfig struct {
	Base  uint32 `toml:"base"`
	Count uint32 `toml:"count"`
	Lock  string `toml:"lock"`
}

type groupConfig struct {
	Driver string `toml:"driver"`
	Parent string `toml:"parent"`
}

// Who makes the control groups of boxes.
const (
	driverAuto    = "auto"    // what is best here: the keeper
	driverDirect  = "direct"  // the keeper, below the parent
	driverSystemd = "systemd" // systemd, as scopes
)

func (c *groupConfig) validate() error {
	if p := c.Parent; p != "" && !isolation.CleanAbsolute("/"+p) {
		return fmt.Errorf("cgroups.parent = %q: allowed is a clean path below %s, without a slash in front, or nothing", p, cgroup.Mount)
	}
	if !slices.Contains([]string{driverAuto, driverDirect, driverSystemd}, c.Driver) {
		return fmt.Errorf("cgroups.driver = %q: allowed are %q, %q and %q", c.Driver, driverAuto, driverDirect, driverSystemd)
	}
	if c.Driver == driverSystemd && c.Parent == "" {
		return fmt.Errorf("cgroups.driver = %q: allowed only with cgroups.parent, where boxd tries what can be limited", c.Driver)
	}
	return nil
}

// path is where the parent is, "" if there is none.
func (c *groupConfig) path() string {
	if c.Parent == "" {
		return ""
	}
	return filepath.Join(cgroup.Mount, c.Parent)
}

type workspaceConfig struct {
	StoreSize quantity.Size `toml:"store_size"`
}

// Bounds of the store: a filesystem has to fit, and to be one that ext4 can be.
const (
	leastStore = 64 * quantity.MiB
	mostStore  = 16 * quantity.TiB
)

type mountConfig struct {
	Allow []allowRule `toml:"allow"`
}

type imageConfig struct {
	Etc []string `toml:"etc"`
}

// allowRule is a path, or a table of path and owner.
type allowRule struct {
	Path  string
	Owner string // "uid:gid"; "": the caller
}

// UnmarshalTOML reads either form.
func (r *allowRule) UnmarshalTOML(v any) error {
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

// String is the form of the keeper's flag.
func (r allowRule) String() string {
	if r.Owner == "" {
		return r.Path
	}
	return r.Path + "=" + r.Owner
}

func defaultConfig() config {
	return config{
		Daemon: daemonConfig{Socket: "/run/boxd/boxd.sock", SocketGroup: "boxd", StateDir: "/var/lib/boxd", RuntimeDir: "/run/boxd", Keeper: keeperAuto, AdoptGrace: quantity.Duration(10 * time.Minute), OnStop: onStopKeep, Ahead: 1, IdleExit: quantity.Duration(5 * time.Minute)},
		IDs:    idConfig{Base: 0x70000000, Count: 4096, Lock: "/run/boxd-ids"},
		Groups: groupConfig{Driver: driverAuto, Parent: "box.slice/boxd-boxes.service"},
		Work:   workspaceConfig{StoreSize: 16 * quantity.GiB},
		Mounts: mountConfig{Allow: []allowRule{{Path: "{home}"}}},
		Image: imageConfig{Etc: []string{
			"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "ssl/openssl.cnf",
			"pki/ca-trust/extracted", "pki/tls/certs", "crypto-policies", "fonts", "java-*", "mime.types", "services", "protocols",
		}},
		Config: policy.DefaultConfig(),
	}
}

// loadConfig reads a file and the drop-ins beside it (box.toml.d/*.toml, in order of their names) on
// top of the built-in configuration. A missing file is an error only if required.
func loadConfig(path string, required bool) (config, error) {
	cfg := defaultConfig()
	perOwner := cfg.Sessions.MaxPerOwner
	cfg.Sessions.MaxPerOwner = unsaid
	err := cfg.decodeFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		err = nil
	}
	if err != nil {
		return cfg, err
	}
	dropIns, err := filepath.Glob(path + ".d/*.toml") // sorted
	if err != nil {
		return cfg, fmt.Errorf("configuration: %w", err)
	}
	for _, f := range dropIns {
		if err := cfg.decodeFile(f); err != nil {
			return cfg, err
		}
	}
	if cfg.Sessions.MaxPerOwner == unsaid { // a file needs only what it changes, here sessions.max
		cfg.Sessions.MaxPerOwner = min(perOwner, cfg.Sessions.Max)
	}
	return cfg, cfg.validate(path)
}

// unsaid is a number that stands for none; who writes it into a file gets what it stands for.
const unsaid = math.MinInt

// decodeFile puts one file on top of what is there. Unlike the rest, a profile starts from the
// built-in one of its name or from "default", so that a file names only what it changes.
func (c *config) decodeFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return c.decode(path, string(data))
}

func (c *config) decode(name, text string) error {
	file := struct {
		*config
		Profiles map[string]toml.Primitive `toml:"profiles"`
	}{config: c}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		if parse, ok := errors.AsType[toml.ParseError](err); ok {
			return fmt.Errorf("%s: line %d: %s", name, parse.Position.Line, parse.Message)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	for profile, primitive := range file.Profiles {
		base, ok := c.Profiles[profile]
		if !ok {
			base = policy.DefaultProfile()
		}
		if err := meta.PrimitiveDecode(primitive, &base); err != nil {
			return fmt.Errorf("%s: profiles.%s: %w", name, profile, err)
		}
		c.Profiles[profile] = base
	}
	return unknownKeys(name, text, meta)
}

// unknownKeys refuses what nothing reads: a misspelt limit would otherwise be no limit.
func unknownKeys(name, text string, meta toml.MetaData) error {
	known := knownKeys()
	var errs []error
	for _, key := range meta.Undecoded() {
		line := lineOf(text, key)
		errs = append(errs, fmt.Errorf("%s: line %d: unknown key %q, the nearest is %q", name, line, key.String(), nearest(key.String(), known)))
	}
	for _, key := range meta.Keys() { // the library matches keys in any case
		if isFree(key) {
			continue
		}
		if s := key.String(); s != strings.ToLower(s) {
			errs = append(errs, fmt.Errorf("%s: line %d: key %q is not in lower case", name, lineOf(text, key), s))
		}
	}
	return errors.Join(errs...)
}

// isFree reports whether the operator invents the last part of a key.
func isFree(key toml.Key) bool {
	return len(key) > 0 && slices.Contains([]string{"env", "languages", "profiles"}, key[0])
}

// lineOf finds the line of a key. The library does not say, so this looks for it as people write
// TOML: the table's header, then the key.
func lineOf(text string, key toml.Key) int {
	table, last := strings.Join(key[:len(key)-1], "."), key[len(key)-1]
	inTable := table == ""
	line := 0
	for l := range strings.Lines(text) {
		line++
		l = strings.TrimSpace(l)
		if header, ok := strings.CutPrefix(l, "["); ok {
			header, _, _ = strings.Cut(header, "]")
			if inTable = header == table; header == key.String() {
				return line
			}
			continue
		}
		if name, _, ok := strings.Cut(l, "="); ok && inTable && strings.Trim(strings.TrimSpace(name), `"'`) == last {
			return line
		}
	}
	return line
}

// knownKeys are the keys of box.toml, with the built-in profiles and languages as examples.
func knownKeys() []string {
	var text strings.Builder
	cfg := defaultConfig()
	file := struct {
		*config
		Profiles map[string]policy.Profile `toml:"profiles"`
	}{&cfg, cfg.Profiles}
	if toml.NewEncoder(&text).Encode(file) != nil {
		return nil
	}
	var any map[string]any
	meta, err := toml.Decode(text.String(), &any)
	if err != nil {
		return nil
	}
	var keys []string
	for _, k := range meta.Keys() {
		keys = append(keys, k.String())
	}
	return keys
}

// nearest returns the word with the smallest edit distance.
func nearest(word string, words []string) string {
	best, least := "", 1<<30
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is the number of insertions, deletions and changes from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := previous
			if a[i] != b[j] {
				cost++
			}
			previous = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func (c *config) validate(path string) error {
	var errs []error
	for key, value := range map[string]string{"daemon.socket": c.Daemon.Socket, "daemon.state_dir": c.Daemon.StateDir, "daemon.runtime_dir": c.Daemon.RuntimeDir, "ids.lock": c.IDs.Lock} {
		if !isolation.CleanAbsolute(value) {
			errs = append(errs, fmt.Errorf("%s = %q: allowed is a clean absolute path", key, value))
		}
	}
	if !slices.Contains([]string{keeperAuto, keeperOwn, keeperExternal}, c.Daemon.Keeper) {
		errs = append(errs, fmt.Errorf("daemon.keeper = %q: allowed are %q, %q and %q", c.Daemon.Keeper, keeperAuto, keeperOwn, keeperExternal))
	}
	if !slices.Contains([]string{onStopKeep, onStopEnd}, c.Daemon.OnStop) {
		errs = append(errs, fmt.Errorf("daemon.on_stop = %q: allowed are %q and %q", c.Daemon.OnStop, onStopKeep, onStopEnd))
	}
	if c.Daemon.Ahead < 0 || c.Daemon.Ahead > 64 {
		errs = append(errs, fmt.Errorf("daemon.ahead = %d: allowed is 0 to 64", c.Daemon.Ahead))
	}
	if d := time.Duration(c.Daemon.IdleExit); d != 0 && (d < time.Second || d > mostIdle) {
		errs = append(errs, fmt.Errorf("daemon.idle_exit = %v: allowed is 0s, or 1s to %v", c.Daemon.IdleExit, quantity.Duration(mostIdle)))
	}
	if c.IDs.Base == 0 || c.IDs.Base%isolation.IDRange != 0 || c.IDs.Count == 0 ||
		uint64(c.IDs.Base)+uint64(c.IDs.Count)*isolation.IDRange > 1<<32-isolation.IDRange {
		errs = append(errs, fmt.Errorf("ids.base = %d, ids.count = %d: allowed is a multiple of %d, and all below 2³²", c.IDs.Base, c.IDs.Count, isolation.IDRange))
	}
	if n := c.Work.StoreSize; n != 0 && (n < leastStore || n > mostStore) {
		errs = append(errs, fmt.Errorf("workspaces.store_size = %v: allowed is 0, or %v to %v", n, leastStore, mostStore))
	}
	if err := c.Groups.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// strings of the rules, for the keeper.
func (c *config) allow() []string {
	var list []string
	for _, r := range c.Mounts.Allow {
		list = append(list, r.String())
	}
	return list
}

// describe is a line for the log.
func (c *config) describe() string {
	return "profiles " + strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", ") + "; sessions.max " + strconv.Itoa(c.Sessions.Max)
}
