// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"math"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Unlimited is the value for no limit; systemd calls it infinity.
const Unlimited = math.MaxUint64

// ScopeLimits are the limits of one scope, as properties of systemd.resource-control(5). Zero
// means no limit, except for swap, where no swap has to be the default.
type ScopeLimits struct {
	MemoryMax     uint64        // bytes; beyond it processes are killed
	MemoryHigh    uint64        // bytes; above it the scope is slowed down and its memory is reclaimed
	MemorySwapMax uint64        // bytes of swap in addition; zero is no swap, Unlimited all there is
	TasksMax      uint64        // processes and threads
	CPUQuota      time.Duration // processor time per second, so 2 s is two processors
	CPUPeriod     time.Duration // period over which the quota is enforced, 1 ms to 1 s; zero is systemd's 100 ms
	CPUWeight     uint64        // 1 to 10000, when processors are scarce; zero is the kernel's 100
	IOWeight      uint64        // the same for disks
}

// properties returns every limit, so that those that are not set in l are removed.
func (l ScopeLimits) properties() ([]sd.Property, error) {
	if l.CPUQuota < 0 || l.CPUPeriod < 0 {
		return nil, fmt.Errorf("CPU quota %v per second, period %v: neither can be negative", l.CPUQuota, l.CPUPeriod)
	}
	return []sd.Property{
		property("MemoryMax", orUnlimited(l.MemoryMax)),
		property("MemoryHigh", orUnlimited(l.MemoryHigh)),
		property("MemorySwapMax", l.MemorySwapMax),
		property("TasksMax", orUnlimited(l.TasksMax)),
		property("CPUQuotaPerSecUSec", orUnlimited(microseconds(l.CPUQuota))),
		property("CPUQuotaPeriodUSec", orUnlimited(microseconds(l.CPUPeriod))),
		property("CPUWeight", orUnlimited(l.CPUWeight)),
		property("IOWeight", orUnlimited(l.IOWeight)),
	}, nil
}

// microseconds rounds up: the smallest quota must not become zero, which is no limit.
func microseconds(d time.Duration) uint64 {
	return uint64((d + time.Microsecond - 1) / time.Microsecond)
}

// orUnlimited turns zero into the value that means "not set" to systemd, in weights and periods
// too.
func orUnlimited(n uint64) uint64 {
	if n == 0 {
		return Unlimited
	}
	return n
}

// scopeStopTimeout is how long systemd waits for killed processes to be gone, and then once
// more, before it marks the scope as failed. For a box full of processes the kernel needs
// seconds.
const scopeStopTimeout = 10 * time.Second

// sigkill is SIGKILL, in the type that systemd uses for signals.
const sigkill int32 = 9

// scopeProperties describes a new scope around a process. The types are those of systemd's D-Bus
// interface (org.freedesktop.systemd1(5)), which refuses others even for the same value.
func scopeProperties(pid uint32, limits ScopeLimits) ([]sd.Property, error) {
	properties, err := limits.properties()
	if err != nil {
		return nil, err
	}
	return append([]sd.Property{
		property("Description", "A box of boxd"),
		property("Slice", Slice),
		property("PIDs", []uint32{pid}),
		// The keeper makes cgroups of its own below, and systemd must leave them alone.
		property("Delegate", true),
		// PID 1 of a box ignores SIGTERM, and its programs should not get one behind its back.
		property("KillSignal", sigkill),
		property("TimeoutStopUSec", microseconds(scopeStopTimeout)),
		// If one process is killed because memory is used up, that is the box's own affair and
		// must not end the box.
		property("OOMPolicy", "continue"),
		// A failed scope would stay and keep its name in use.
		property("CollectMode", "inactive-or-failed"),
	}, properties...), nil
}

func property(name string, value any) sd.Property {
	return sd.Property{Name: name, Value: dbus.MakeVariant(value)}
}
