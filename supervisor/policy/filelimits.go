// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// FileLimits bound file operations in boxes.
type FileLimits struct {
	Timeout        quantity.Duration `toml:"timeout"`         // of one request
	ArchiveTimeout quantity.Duration `toml:"archive_timeout"` // of an archive, in or out
	MaxContent     quantity.Size     `toml:"max_content"`     // of a file read, written or edited
	MaxEntries     int               `toml:"max_entries"`     // visited by one search
	MaxSearch      quantity.Size     `toml:"max_search"`      // read by one search
	ArchiveBytes   quantity.Size     `toml:"archive_bytes"`   // of all contents of an archive
	ArchiveFile    quantity.Size     `toml:"archive_file"`    // of one of them
	ArchiveEntries int               `toml:"archive_entries"`
	OutputVersions int               `toml:"output_versions"` // newest ones kept in a workspace; 0: all
	OutputAge      quantity.Duration `toml:"output_age"`      // after which a version is removed; 0: never
}

// defaultFileLimits returns the built-in limits.
func defaultFileLimits() FileLimits {
	return FileLimits{
		Timeout: fileSeconds(60), ArchiveTimeout: fileSeconds(600), MaxContent: 8 * quantity.MiB, MaxEntries: 500_000, MaxSearch: 4 * quantity.GiB,
		ArchiveBytes: quantity.GiB, ArchiveFile: 512 * quantity.MiB, ArchiveEntries: 100_000,
	}
}

// Validate calls bad for every invalid key.
func (f *FileLimits) Validate(bad func(key string, value any, allowed string)) {
	const hour = 3600
	for _, d := range []struct {
		key   string
		value quantity.Duration
	}{{"files.timeout", f.Timeout}, {"files.archive_timeout", f.ArchiveTimeout}} {
		if d.value < fileSeconds(1) || d.value > fileSeconds(hour) {
			bad(d.key, d.value, "1s to 1h")
		}
	}
	if f.OutputVersions < 0 || f.OutputVersions > 100_000 {
		bad("files.output_versions", f.OutputVersions, "0 (all) to 100000")
	}
	if f.OutputAge > 0 && f.OutputAge < fileSeconds(60) {
		bad("files.output_age", f.OutputAge, "0s (never), or 1m and more")
	}
	for _, s := range []struct {
		key      string
		value    quantity.Size
		min, max quantity.Size
	}{
		{"files.max_content", f.MaxContent, quantity.KiB, 16 * quantity.MiB},
		{"files.max_search", f.MaxSearch, quantity.MiB, maxFileSize},
		{"files.archive_bytes", f.ArchiveBytes, quantity.KiB, maxFileSize},
		{"files.archive_file", f.ArchiveFile, quantity.KiB, maxFileSize},
	} {
		if s.value < s.min || s.value > s.max {
			bad(s.key, s.value, fmt.Sprintf("%v to %v", s.min, s.max))
		}
	}
	for _, n := range []struct {
		key   string
		value int
	}{{"files.max_entries", f.MaxEntries}, {"files.archive_entries", f.ArchiveEntries}} {
		if n.value < 1 || n.value > 10_000_000 {
			bad(n.key, n.value, "1 to 10000000")
		}
	}
}

func fileSeconds(n int) quantity.Duration { return quantity.Duration(time.Duration(n) * time.Second) }

// maxFileSize is larger than any machine has.
const maxFileSize = 1024 * quantity.TiB
