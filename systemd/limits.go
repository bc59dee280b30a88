// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"math"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Unlimited is the size or count of what has no limit; systemd calls it infinity.
const Unlimited = math.MaxUint64

// ScopeLimits are the limits of one scope, as properties of systemd.resource-control(5). A limit that
// is zero does not exist, but for swap: no swap has to be the default.
type ScopeLimits struct {
	MemoryMax     uint64        // bytes; what does not fit is killed
	MemoryHigh    uint64        // bytes; above it the scope is slowed down and reclaimed from
	MemorySwapMax uint64        // bytes of swap besides; zero is none at all, Unlimited all there is
	TasksMax      uint64        // processes and threads
	CPUQuota      time.Duration // of processor time in every second, so two processors are 2 s
	CPUPeriod     time.Duration // over which the quota is held, 1 ms to 1 s; zero is systemd's 100 ms
	CPUWeight     uint64        // 1 to 10000 where processors are short; zero is the kernel's 100
	IOWeight      uint64        // likewise where disks are
}

// properties returns every limit, so that what l does not name loses the limit it had.
func (l ScopeLimits) properties() ([]sd.Property, error) {
	if l.CPUQuota < 0 || l.CPUPeriod < 0 {
		return nil, fmt.Errorf("CPU quota %v in every second, held over %v: neither can be negative", l.CPUQuota, l.CPUPeriod)
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

// microseconds rounds up: the smallest quota must not become none, which is no limit.
func microseconds(d time.Duration) uint64 {
	return uint64((d + time.Microsecond - 1) / time.Microsecond)
}

// orUnlimited turns zero into what systemd takes for "not set", in weights and periods too.
func orUnlimited(n uint64) uint64 {
	if n == 0 {
		return Unlimited
	}
	return n
}

// scopeStopPatience is how long systemd waits for killed processes to be gone, then once more, before
// it calls the scope failed. A box full of processes takes the kernel seconds.
const scopeStopPatience = 10 * time.Second

// sigkill is the number of SIGKILL, of the type systemd has for signals.
const sigkill int32 = 9

// scopeProperties describes a new scope around a process. The types are those of systemd's D-Bus
// interface (org.freedesktop.systemd1(5)); it refuses any other, even of the same value.
func scopeProperties(pid uint32, limits ScopeLimits) ([]sd.Property, error) {
	properties, err := limits.properties()
	if err != nil {
		return nil, err
	}
	return append([]sd.Property{
		property("Description", "A box of boxd"),
		property("Slice", Slice),
		property("PIDs", []uint32{pid}),
		// The keeper makes groups of its own below, and systemd leaves them alone.
		property("Delegate", true),
		// PID 1 of a box takes no SIGTERM, and its programs should not get one behind its back.
		property("KillSignal", sigkill),
		property("TimeoutStopUSec", microseconds(scopeStopPatience)),
		// One process too many for the memory is the box's business, and no end of the box.
		property("OOMPolicy", "continue"),
		// A failed scope would stay and keep its name from being used again.
		property("CollectMode", "inactive-or-failed"),
	}, properties...), nil
}

func property(name string, value any) sd.Property {
	return sd.Property{Name: name, Value: dbus.MakeVariant(value)}
}
