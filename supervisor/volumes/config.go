// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Config is the table [drives] of box.toml.
type Config struct {
	MaxArchive   quantity.Size     `toml:"max_archive"`
	MaxBytes     quantity.Size     `toml:"max_bytes"`
	MaxFile      quantity.Size     `toml:"max_file"`
	MaxEntries   int               `toml:"max_entries"`
	Max          int               `toml:"max"`
	MaxTotal     quantity.Size     `toml:"max_total"`
	KeepVersions int               `toml:"keep_versions"`
	KeepAge      quantity.Duration `toml:"keep_age"`
}

// Bounds of the limits.
const (
	maxBytes    = 64 * quantity.GiB
	maxEntries  = 100_000
	maxDrives   = 10_000
	maxVersions = 1000
)

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config {
	return Config{
		MaxArchive: quantity.GiB, MaxBytes: quantity.GiB, MaxFile: 512 * quantity.MiB, MaxEntries: 20_000, Max: 100, MaxTotal: 8 * quantity.GiB,
		KeepVersions: 10,
	}
}

// Validate names the invalid key and what is allowed.
func (c *Config) Validate() error {
	for _, b := range []struct {
		key  string
		size quantity.Size
	}{{"max_archive", c.MaxArchive}, {"max_bytes", c.MaxBytes}, {"max_file", c.MaxFile}} {
		if b.size < quantity.KiB || b.size > maxBytes {
			return fmt.Errorf("drives.%s = %v: must be %v to %v", b.key, b.size, quantity.KiB, maxBytes)
		}
	}
	switch {
	case c.MaxTotal < quantity.KiB:
		return fmt.Errorf("drives.max_total = %v: must be %v or more", c.MaxTotal, quantity.KiB)
	case c.MaxEntries < 1 || c.MaxEntries > maxEntries:
		return fmt.Errorf("drives.max_entries = %d: must be 1 to %d", c.MaxEntries, maxEntries)
	case c.Max < 0 || c.Max > maxDrives:
		return fmt.Errorf("drives.max = %d: must be 0 to %d", c.Max, maxDrives)
	}
	if !validKeep(c.KeepVersions) {
		return fmt.Errorf("drives.keep_versions = %d: must be 0 to %d", c.KeepVersions, maxVersions)
	}
	if !validAge(c.KeepAge) {
		return fmt.Errorf("drives.keep_age = %v: must be 0s, or 1s and more", c.KeepAge)
	}
	return nil
}

func validKeep(n int) bool { return n >= 0 && n <= maxVersions }

func validAge(d quantity.Duration) bool { return d == 0 || d >= quantity.Duration(time.Second) }
