// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// machineSize is what no limit can usefully exceed.
func machineSize() (policy.Size, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return policy.Size{}, fmt.Errorf("sysinfo: %w", err)
	}
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return policy.Size{}, err
	}
	pids, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return policy.Size{}, fmt.Errorf("kernel.pid_max: %w", err)
	}
	return policy.Size{CPUs: runtime.NumCPU(), Memory: info.Totalram * uint64(info.Unit), Pids: pids}, nil
}

// lookAtHost asks the keeper what can be enforced here, now.
func (v *Supervisor) lookAtHost(ctx context.Context) (policy.Host, error) {
	host := policy.Host{Layout: v.layout}
	found, err := v.keeper.Look(ctx)
	if err != nil {
		return host, fmt.Errorf("look at the host: %w", err)
	}
	host.Host = *found
	v.mu.Lock()
	v.host = host
	v.mu.Unlock()
	return host, nil
}

// enforcement says what keeps the limits of a session. Before it says that something is missing it looks
// again: the anchor of the control groups may have been started, or may be gone.
func (v *Supervisor) enforcement(ctx context.Context, settings *policy.Settings) (map[string]policy.Mechanism, error) {
	v.mu.Lock()
	host := v.host
	v.mu.Unlock()
	by, err := v.cfg.Enforcement(settings, host)
	if err == nil && (policy.Grouped(by) || v.layout != usage.Unified) {
		return by, nil
	}
	if host, err = v.lookAtHost(ctx); err != nil {
		return nil, err
	}
	return v.cfg.Enforcement(settings, host)
}

// reserve refuses a new session when the host has less left than the operator wants kept.
func (v *Supervisor) reserve(who Principal, id string) error {
	v.mu.Lock()
	exists, dir := v.sessions[policy.Key(who.Name, id)] != nil, v.host.Workspaces
	v.mu.Unlock()
	if exists {
		return nil
	}
	keep := v.cfg.Host
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	if free := quantity.Size(fs.Bavail) * quantity.Size(fs.Bsize); free < keep.KeepFreeDisk {
		return shortOf("disk", free, keep.KeepFreeDisk)
	}
	free, err := availableMemory()
	if err == nil && free < keep.KeepFreeMemory {
		err = shortOf("memory", free, keep.KeepFreeMemory)
	}
	return err
}

func shortOf(what string, free, keep quantity.Size) error {
	return fault.Errorf(fault.Unavailable, "the host has %d MiB of %s left, and %v are to be kept free (host.keep_free_%s)", free/quantity.MiB, what, keep, what).
		WithHint("remove sessions, or make room on the host")
}

// availableMemory is what the kernel thinks it could give without swapping (proc(5), /proc/meminfo).
func availableMemory() (quantity.Size, error) {
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
