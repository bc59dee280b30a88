// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
)

// processors returns the CPUs that boxes run on: the keeper's own affinity.
func processors() (list []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// share returns how many of n processors a box with these limits may see; at least one.
func share(l *cgroup.Limits, n int) int {
	if l.CPU == 0 {
		return n
	}
	return max(1, min(n, int((l.CPU+cgroup.CPUPeriod-1)/cgroup.CPUPeriod)))
}

// view returns what programs of a box see of its limits.
func (k *keeper) view(l *cgroup.Limits) isolation.View {
	v := isolation.View{Memory: l.Memory, Swap: l.Swap, CPU: l.CPU, Pids: l.Pids, Possible: k.possible}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total := uint64(info.Totalram) * uint64(info.Unit)
		if v.Memory == 0 || v.Memory > total {
			v.Memory = total
		}
	}
	if all, err := processors(); err == nil {
		v.Processors = uint32(share(l, len(all)))
	}
	return v
}

// pin restricts processes to as many processors as their box may use the time of: programs go by
// that to choose their number of threads (sched_setaffinity(2), nproc(1)). No limit depends on
// it, as a program may change it. Which processors a box gets rotates with its id range, so that
// all are used alike.
func pin(base uint32, l *cgroup.Limits, pids ...int) error {
	all, err := processors()
	if err != nil {
		return err
	}
	n := share(l, len(all))
	var set unix.CPUSet
	for i := range n {
		set.Set(all[(int(base/isolation.IDRange)*n+i)%len(all)])
	}
	var errs error
	for _, pid := range pids {
		errs = errors.Join(errs, pinAll(pid, &set))
	}
	return errs
}

// pinAll pins all threads of a process. A new thread inherits the affinity of its maker, so it
// repeats until it finds no new one.
func pinAll(pid int, set *unix.CPUSet) error {
	done := map[int]bool{}
	for {
		entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task") // empty if the process has ended
		more := false
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil || done[tid] {
				continue
			}
			more, done[tid] = true, true
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// show changes the limits that a live box sees.
func (k *keeper) show(b *box, l *cgroup.Limits) error {
	pids := []int{b.pid}
	if b.groups != nil {
		work := b.groups.Work()
		if dir, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(work.FD)); err == nil {
			for _, e := range dir {
				if !e.IsDir() {
					continue
				}
				if g, err := work.Open(e.Name()); err == nil {
					list, _ := g.Processes() // a box that has ended meanwhile has no processes
					pids = append(pids, list...)
					g.Close()
				}
			}
		}
	}
	v := k.view(l)
	return errors.Join(setView(b.pid, b.lives, &v), pin(b.ids.Base, l, pids...))
}
