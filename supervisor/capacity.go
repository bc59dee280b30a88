// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// checkCapacity refuses, with a *quota.Full, if the host has less left than the operator wants kept free, or is busier than new
// sessions may find it. workspaces is their directory, which may be a store on the filesystem of the state directory.
func checkCapacity(keep *policy.HostReserve, state, workspaces string) error {
	free, err := policy.FreeDisk(workspaces)
	if err == nil && workspaces != state { // the store has room only as long as the disk below it has
		var below quantity.Size
		if below, err = policy.FreeDisk(state); below < free {
			free = below
		}
	}
	if err == nil && free < keep.KeepFreeDisk {
		err = shortOf(quota.Disk, free, keep.KeepFreeDisk)
	}
	if err != nil {
		return err
	}
	free, err = policy.FreeMemory()
	if err == nil && free < keep.KeepFreeMemory {
		err = shortOf(quota.Memory, free, keep.KeepFreeMemory)
	}
	if err != nil || keep.PressureCPU+keep.PressureMemory+keep.PressureIO == 0 {
		return err
	}
	p, err := policy.ReadPressure()
	if err != nil {
		return err
	}
	for _, of := range []struct {
		name          string
		value, bounds float64
	}{{"cpu", p.CPU, keep.PressureCPU}, {"memory", p.Memory, keep.PressureMemory}, {"io", p.IO, keep.PressureIO}} {
		if of.bounds > 0 && of.value > of.bounds {
			return &quota.Full{Reason: quota.Pressure, Err: fault.Errorf(fault.Unavailable, "the host is too busy: %s pressure (PSI some avg10) is %g %%, the limit is %g %% (host.pressure_%s)", of.name, of.value, of.bounds, of.name).
				WithHint("try again when the host is less busy")}
		}
	}
	return nil
}

func shortOf(what quota.Reason, free, keep quantity.Size) error {
	return &quota.Full{Reason: what, Err: fault.Errorf(fault.Unavailable, "the host is short of %s: %v free, and %v must stay free (host.keep_free_%s)", what, free.Short(), keep.Short(), what).
		WithHint("remove sessions, or free some on the host")}
}
