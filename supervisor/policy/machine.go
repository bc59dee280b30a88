// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/quantity"
)

// Machine is the size of a machine.
type Machine struct {
	CPUs   int
	Memory quantity.Size
	Pids   int // kernel.pid_max
}

// ReadMachine reads the size of this machine.
func ReadMachine() (Machine, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Machine{}, fmt.Errorf("sysinfo: %w", err)
	}
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return Machine{}, err
	}
	pids, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Machine{}, fmt.Errorf("kernel.pid_max: %w", err)
	}
	return Machine{CPUs: runtime.NumCPU(), Memory: quantity.Size(info.Totalram) * quantity.Size(info.Unit), Pids: pids}, nil
}

// FreeDisk returns how much unprivileged users may still write to the filesystem of a directory.
func FreeDisk(dir string) (quantity.Size, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return quantity.Size(fs.Bavail) * quantity.Size(fs.Bsize), nil
}

// FreeMemory returns the kernel's estimate of memory available without swapping (proc(5), /proc/meminfo). Every start of a
// session calls it, so it makes three plain system calls: the runtime's poller is of no use for that file.
func FreeMemory() (quantity.Size, error) {
	fd, err := unix.Open("/proc/meminfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /proc/meminfo: %w", err)
	}
	defer unix.Close(fd)
	var buf [512]byte // MemAvailable is the third line
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0, fmt.Errorf("read /proc/meminfo: %w", err)
	}
	return availableIn(string(buf[:n]))
}

// availableIn parses MemAvailable in the first lines of /proc/meminfo.
func availableIn(text string) (quantity.Size, error) {
	_, rest, _ := strings.Cut(text, "\nMemAvailable:")
	number, _, whole := strings.Cut(strings.TrimLeft(rest, " "), " kB\n")
	kib, err := strconv.ParseUint(number, 10, 64)
	if err != nil || !whole {
		return 0, fmt.Errorf("no MemAvailable in /proc/meminfo, which begins with %q", text)
	}
	return quantity.Size(kib) * quantity.KiB, nil
}
