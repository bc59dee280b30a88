// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Config is the table [images] of box.toml.
type Config struct {
	MaxArchive quantity.Size     `toml:"max_archive"`
	MaxBytes   quantity.Size     `toml:"max_bytes"`
	MaxEntries int               `toml:"max_entries"`
	Max        int               `toml:"max"`
	Timeout    quantity.Duration `toml:"timeout"`
}

// Bounds of the limits.
const (
	maxBytes   = quantity.TiB
	maxEntries = 5_000_000
	maxImages  = 1000
)

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config {
	return Config{
		MaxArchive: 4 * quantity.GiB, MaxBytes: 8 * quantity.GiB, MaxEntries: 500_000, Max: 100, Timeout: quantity.Duration(10 * time.Minute),
	}
}

// Validate names the invalid key and what is allowed.
func (c *Config) Validate() error {
	for _, b := range []struct {
		key  string
		size quantity.Size
	}{{"max_archive", c.MaxArchive}, {"max_bytes", c.MaxBytes}} {
		if b.size < quantity.MiB || b.size > maxBytes {
			return fmt.Errorf("images.%s = %v: must be %v to %v", b.key, b.size, quantity.MiB, maxBytes)
		}
	}
	switch {
	case c.MaxEntries < 16 || c.MaxEntries > maxEntries:
		return fmt.Errorf("images.max_entries = %d: must be 16 to %d", c.MaxEntries, maxEntries)
	case c.Max < 0 || c.Max > maxImages:
		return fmt.Errorf("images.max = %d: must be 0 to %d", c.Max, maxImages)
	case c.Timeout < quantity.Duration(time.Second) || c.Timeout > quantity.Duration(24*time.Hour):
		return fmt.Errorf("images.timeout = %v: must be 1s to 24h", c.Timeout)
	}
	return nil
}
