// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAPartitionsDiskIsFoundByWhereItLies(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	for path, text := range map[string]string{
		"nvme0n1/dev": "259:0\n", "nvme0n1/nvme0n1p2/dev": "259:2\n", "nvme0n1/nvme0n1p2/partition": "2\n",
		"sda/dev": "8:0\n", "sda/sda1/dev": "8:1\n", "sda/sda1/partition": "1\n",
		"dm-0/dev": "253:0\n",
	} {
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for device, want := range map[string][2]string{
		"nvme0n1": {"259:0", "259:0"}, "nvme0n1/nvme0n1p2": {"259:2", "259:0"}, "sda/sda1": {"8:1", "8:0"}, "dm-0": {"253:0", "253:0"},
	} {
		if got := wholeDisk(filepath.Join(sys, device), want[0]); got != want[1] {
			t.Errorf("%s: %q, want %q", device, got, want[1])
		}
	}
}
