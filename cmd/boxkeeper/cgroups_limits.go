// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// inUseError means that a limit is below what the box uses.
type inUseError struct {
	Limit       string // "memory" or "pids"
	Used, Asked uint64
}

func (e *inUseError) Error() string {
	return fmt.Sprintf("%s: %d are in use, more than %d", e.Limit, e.Used, e.Asked)
}

// SetLimits changes all limits of a live box, or none. First memory is reclaimed from its
// programs as far as that is possible without killing any; an *inUseError says that the limit is
// still below what they use.
func (b *boxCgroups) SetLimits(limits *cgroup.Limits) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return unix.ESRCH
	}
	if err := b.fits(limits); err != nil {
		return err
	}
	if err := b.write(&b.limits, limits); err != nil {
		return errors.Join(err, b.write(limits, &b.limits))
	}
	b.limits = *limits
	return nil
}

// write replaces limits.
func (b *boxCgroups) write(old, limits *cgroup.Limits) error {
	// It does no harm if for a moment the cap on the whole box is lower than the limit of its
	// programs.
	programs := limits.Programs(b.ioDevice())
	if device := b.ioDevice(); device != "" && old.IORead+old.IOWrite > 0 && limits.IORead+limits.IOWrite == 0 {
		programs = append(programs, cgroup.LiftIO(device))
	}
	was, err := b.work.Number("memory.max")
	if err != nil {
		return err
	}
	return errors.Join(b.group.Apply(b.box(limits)), b.work.Apply(programs), b.showMemory(was))
}

// showMemory changes memory.max of the programs that have no limit of their own, after that of all programs has changed. It goes by what
// the kernel reads back, in whole pages, as PID 1 does, who looks again when it has written one: none that starts meanwhile keeps the
// old one.
func (b *boxCgroups) showMemory(was uint64) error {
	memory, err := b.work.Number("memory.max")
	if err != nil || was == memory {
		return err
	}
	programs, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(b.work.FD))
	if err != nil {
		return err
	}
	var errs error
	for _, p := range programs {
		if !p.IsDir() {
			continue
		}
		g, err := b.work.Open(p.Name())
		if err != nil {
			continue // the program has ended
		}
		if text, err := g.Read("memory.max"); err == nil && string(text) == cgroup.ProgramMemory(was) {
			err = g.Write("memory.max", cgroup.ProgramMemory(memory))
			if err != nil && !errors.Is(err, unix.ENODEV) {
				errs = errors.Join(errs, err)
			}
		}
		g.Close()
	}
	return errs
}

// box returns what to write into the box's own cgroup.
func (b *boxCgroups) box(limits *cgroup.Limits) []cgroup.Setting {
	if b.scope {
		return limits.Scope()
	}
	return limits.Box()
}

func (b *boxCgroups) fits(limits *cgroup.Limits) error {
	if used, err := b.work.Number("pids.current"); err != nil || limits.Pids > 0 && used > limits.Pids {
		return limitInUse("pids", used, limits.Pids, err)
	}
	if limits.Memory == 0 {
		return nil
	}
	used, err := b.work.Number("memory.current")
	if err == nil && used > limits.Memory {
		// memory.high makes the kernel reclaim what it can at once, and kills nothing.
		err = b.work.Write("memory.high", strconv.FormatUint(limits.Memory, 10))
		if err == nil {
			used, err = b.work.Number("memory.current")
		}
		if err != nil || used > limits.Memory {
			return errors.Join(limitInUse("memory", used, limits.Memory, err), b.work.Apply(b.limits.Programs(b.ioDevice())))
		}
	}
	return err
}

func limitInUse(limit string, used, requested uint64, err error) error {
	if err != nil {
		return err
	}
	return &inUseError{limit, used, requested}
}

// diskOf returns the "major:minor" of the whole disk that holds a directory, as io.max accepts no
// partition. It is "" if the directory is not on a disk.
func diskOf(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	device, err := filepath.EvalSymlinks("/sys/dev/block/" + number)
	if err != nil {
		return "" // not a disk: tmpfs, overlay, btrfs
	}
	return wholeDisk(device, number)
}

// wholeDisk returns the number of the disk that a device in sysfs is, or is a partition of,
// whatever their names.
func wholeDisk(device, number string) string {
	if _, err := os.Stat(filepath.Join(device, "partition")); err != nil {
		return number
	}
	whole, err := os.ReadFile(filepath.Join(filepath.Dir(device), "dev")) // the directory of a partition is inside that of its disk
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(whole))
}

// Reclaim reclaims memory that the programs of the box do not need, as far as the kernel can: otherwise it would have to do so
// when another process needs memory. ErrUnsupported before Linux 5.19.
func (b *boxCgroups) Reclaim() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return unix.ESRCH
	}
	used, err := b.work.Number("memory.current")
	if err != nil || used == 0 {
		return err
	}
	err = b.work.Write("memory.reclaim", strconv.FormatUint(used, 10))
	switch {
	case errors.Is(err, unix.EAGAIN): // it reclaimed less than asked for, as it always does
		return nil
	case errors.Is(err, unix.ENOENT):
		return errors.ErrUnsupported
	}
	return err
}
