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
	if err == nil && (policy.Grouped(by) || host.NoGroups == "") {
		return by, nil
	}
	if host, err = v.lookAtHost(ctx); err != nil {
		return nil, err
	}
	return v.cfg.Enforcement(settings, host)
}
