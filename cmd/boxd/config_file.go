// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// loadConfig reads a file, its drop-ins and the settings in an environment (os.Environ), each overriding what came
// before, and all of them the built-in configuration. A missing file is an error only if required.
//
// The drop-ins of path are path.d/*.toml and those of the vendor and of this boot, sorted by name; of several with one
// name the administrator's wins, then that of this boot, as in systemd (systemd.unit(5)).
func loadConfig(path string, required bool, environ []string) (Config, error) {
	cfg := defaultConfig()
	cfg.Origins = map[string]string{}
	perOwner := cfg.Sessions.MaxPerOwner
	cfg.Sessions.MaxPerOwner = unsaid
	err := cfg.decodeFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		err = nil
	}
	if err != nil {
		return cfg, err
	}
	dropIns, err := dropIns(dropInDirs(path))
	if err != nil {
		return cfg, err
	}
	for _, f := range dropIns {
		if err := cfg.decodeFile(f); err != nil {
			return cfg, err
		}
	}
	if err := cfg.decodeEnvironment(environ); err != nil {
		return cfg, err
	}
	if cfg.Sessions.MaxPerOwner == unsaid { // a file may set only sessions.max
		cfg.Sessions.MaxPerOwner = min(perOwner, cfg.Sessions.Max)
	}
	if len(cfg.Mounts.QuotaRoots) > 0 {
		cfg.Roots = cfg.Mounts.QuotaRoots
	}
	cfg.defaultCaps()
	return cfg, cfg.Check(path)
}

// Where the packaged boxd reads its configuration, and drop-ins of packages and of this boot.
const (
	defaultPath = "/etc/boxd/box.toml"
	vendorDir   = "/usr/lib/boxd/box.toml.d"
	bootDir     = "/run/boxd/box.toml.d"
)

// dropInDirs returns the directories of drop-ins, the one with the highest precedence last.
func dropInDirs(path string) []string {
	if path == defaultPath {
		return []string{vendorDir, bootDir, path + ".d"}
	}
	return []string{path + ".d"}
}

// dropIns lists the files of directories, sorted by name. A name in a later directory hides the same name in an earlier
// one.
func dropIns(dirs []string) ([]string, error) {
	byName := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // what cannot be seen would have no effect
			return nil, fmt.Errorf("configuration: %w: must be a directory that the user of boxd may list, such as one of mode 0755", err)
		}
		for _, e := range entries {
			if name := e.Name(); filepath.Ext(name) == ".toml" {
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return list, nil
}

// maxConfig is the largest size of a file of the configuration, in bytes.
const maxConfig = 16 << 20

// unsaid stands for an unset number; written in a file it means unset too.
const unsaid = math.MinInt

// decodeFile applies one file. Unlike the rest, a profile starts from the built-in one of its name or from "default", so
// that a file sets only what it changes.
func (c *Config) decodeFile(path string) error {
	if err := closed(path); err != nil {
		return err
	}
	data, err := durable.ReadFile(path, maxConfig)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return c.decode(path, string(data))
}

func (c *Config) decode(name, text string) error {
	file := struct {
		*Config
		Profiles map[string]toml.Primitive `toml:"profiles"`
		Policies map[string]toml.Primitive `toml:"policy"`
	}{Config: c}
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
	if err := c.decodePolicies(name, meta, file.Policies); err != nil {
		return err
	}
	if err := unknownKeys(name, text, meta); err != nil {
		return err
	}
	c.note(name, text, meta)
	return nil
}

// decodePolicies applies the policy tables of a file, each to the existing one or to a policy without limits.
func (c *Config) decodePolicies(name string, meta toml.MetaData, tables map[string]toml.Primitive) error {
	for policyName, primitive := range tables {
		base, ok := c.Policies[policyName]
		if !ok {
			base = policy.NoPolicy()
		}
		if err := meta.PrimitiveDecode(primitive, &base); err != nil {
			return fmt.Errorf("%s: policy.%s: %w", name, policyName, err)
		}
		base.GroupIDs = nil
		for _, group := range base.Groups {
			gid, err := groupID(group)
			if err != nil { // the policy would apply to no user
				return fmt.Errorf("%s: policy.%s.groups = %q: must be a group of this host, or its number: %w", name, policyName, group, err)
			}
			base.GroupIDs = append(base.GroupIDs, gid)
		}
		c.Policies[policyName] = base
	}
	return nil
}

// groupID returns the id of a host group, from a number or a name.
func groupID(group string) (uint32, error) {
	if n, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(n), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(g.Gid, 10, 32)
	return uint32(n), err
}

// unknownKeys refuses unknown keys: a misspelt limit would otherwise be no limit.
func unknownKeys(name, text string, meta toml.MetaData) error {
	var errs []error
	for _, key := range meta.Undecoded() {
		line := fault.LineOf(text, key...)
		errs = append(errs, fmt.Errorf("%s: line %d: unknown key %s; did you mean %s?", name, line, key, suggestion(key)))
	}
	for _, key := range meta.Keys() { // the library ignores the case of keys
		if isFree(key) {
			continue
		}
		if s := key.String(); s != strings.ToLower(s) {
			errs = append(errs, fmt.Errorf("%s: line %d: key %q is not in lower case", name, fault.LineOf(text, key...), s))
		}
	}
	return errors.Join(errs...)
}

// isFree reports whether the operator chooses the last part of a key.
func isFree(key toml.Key) bool {
	return len(key) > 0 && slices.Contains([]string{"env", "languages", "profiles", "policy", "principals", "fleet"}, key[0])
}

// knownKeys returns the keys of box.toml, with the built-in profiles and languages as examples.
func knownKeys() []string {
	var text strings.Builder
	cfg := defaultConfig()
	file := struct {
		*Config
		Profiles map[string]policy.Profile `toml:"profiles"`
		Policies map[string]policy.Policy  `toml:"policy"`
	}{&cfg, cfg.Profiles, cfg.Policies}
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
