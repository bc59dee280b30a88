// SPDX-License-Identifier: Apache-2.0

// Package machine tells what the host has, and what it has left.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/quantity"
)

// Size is what a machine has.
type Size struct {
	CPUs   int
	Memory quantity.Size
	Pids   int // kernel.pid_max
}

// Look reads the size of this machine.
func Look() (Size, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Size{}, fmt.Errorf("sysinfo: %w", err)
	}
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return Size{}, err
	}
	pids, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Size{}, fmt.Errorf("kernel.pid_max: %w", err)
	}
	return Size{CPUs: runtime.NumCPU(), Memory: quantity.Size(info.Totalram) * quantity.Size(info.Unit), Pids: pids}, nil
}

// FreeDisk is what users may still write to the filesystem of a directory.
func FreeDisk(dir string) (quantity.Size, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return quantity.Size(fs.Bavail) * quantity.Size(fs.Bsize), nil
}

// FreeMemory is what the kernel thinks it could give without swapping (proc(5), /proc/meminfo).
func FreeMemory() (quantity.Size, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nMemAvailable:")
	var kib quantity.Size
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("MemAvailable of /proc/meminfo: %w", err)
	}
	return kib * quantity.KiB, nil
}
