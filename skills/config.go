// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"fmt"

	"github.com/boxd-dev/boxd/quantity"
)

// Config is the table [skills] of box.toml.
type Config struct {
	Hosts      []string      `toml:"hosts"`
	MaxArchive quantity.Size `toml:"max_archive"`
	MaxBytes   quantity.Size `toml:"max_bytes"`
	MaxFile    quantity.Size `toml:"max_file"`
	MaxEntries int           `toml:"max_entries"`
	Max        int           `toml:"max"`
	MaxTotal   quantity.Size `toml:"max_total"`

	LangBotMax      int           `toml:"langbot_max"`       // of all Workspaces of a LangBot together
	LangBotMaxTotal quantity.Size `toml:"langbot_max_total"` // likewise
}

// Bounds of the limits.
const (
	mostBytes  = 4 * quantity.GiB
	maxEntries = 100_000
	maxSkills  = 10_000
	maxLangBot = 1_000_000
)

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config {
	return Config{
		Hosts:      []string{},
		MaxArchive: 20 * quantity.MiB, MaxBytes: 64 * quantity.MiB, MaxFile: 16 * quantity.MiB, MaxEntries: 512, Max: 1000, MaxTotal: quantity.GiB,
		LangBotMax: 10_000, LangBotMaxTotal: 8 * quantity.GiB,
	}
}

// hosts parses the hosts that archives may come from.
func (c *Config) hosts() (list Hosts, err error) {
	for _, text := range c.Hosts {
		h, err := ParseHost(text)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, nil
}

// Hosts returns the hosts that archives may come from.
func (s *Store) Hosts() (Hosts, error) { return s.cfg.hosts() }

// Validate names the invalid key and what is allowed.
func (c *Config) Validate() error {
	if _, err := c.hosts(); err != nil {
		return err
	}
	for _, b := range []struct {
		key  string
		size quantity.Size
	}{{"max_archive", c.MaxArchive}, {"max_bytes", c.MaxBytes}, {"max_file", c.MaxFile}} {
		if b.size < quantity.KiB || b.size > mostBytes {
			return fmt.Errorf("skills.%s = %v: must be %v to %v", b.key, b.size, quantity.KiB, mostBytes)
		}
	}
	switch {
	case c.MaxTotal < quantity.KiB:
		return fmt.Errorf("skills.max_total = %v: must be %v or more", c.MaxTotal, quantity.KiB)
	case c.MaxEntries < 1 || c.MaxEntries > maxEntries:
		return fmt.Errorf("skills.max_entries = %d: must be 1 to %d", c.MaxEntries, maxEntries)
	case c.Max < 0 || c.Max > maxSkills:
		return fmt.Errorf("skills.max = %d: must be 0 to %d", c.Max, maxSkills)
	case c.LangBotMax < 0 || c.LangBotMax > maxLangBot:
		return fmt.Errorf("skills.langbot_max = %d: must be 0 to %d", c.LangBotMax, maxLangBot)
	case c.LangBotMaxTotal < quantity.KiB:
		return fmt.Errorf("skills.langbot_max_total = %v: must be %v or more", c.LangBotMaxTotal, quantity.KiB)
	}
	return nil
}
