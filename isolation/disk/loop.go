// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// findLoop opens the loop device that image is attached to, or returns nil if there is none. As
// long as the device is open it stays attached.
func findLoop(image *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &want); err != nil {
		return nil, err
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop/backing_file") // only a hint: the path in there may be any
	if err != nil {
		return nil, err
	}
	for _, file := range attached {
		name := filepath.Base(filepath.Dir(filepath.Dir(file)))
		loop, err := openLoop(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENXIO) {
			continue // the device was just detached and removed
		}
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return loop, nil
		}
		loop.Close()
	}
	return nil, nil
}

func openLoop(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join("/dev", name), os.O_RDWR|unix.O_CLOEXEC, 0)
}

// loopAttempts bounds how often another program may take the free device first.
const loopAttempts = 64

// attachLoop attaches image to a free loop device, which is released with its last mount and open
// descriptor. losetup(8) shows path.
func attachLoop(image *os.File, path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{
		Fd:   uint32(image.Fd()),
		Size: storeBlock,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
	for range loopAttempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := openLoop(fmt.Sprintf("loop%d", n))
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %s: %w", loop.Name(), err)
		}
	}
	return nil, fmt.Errorf("find a free loop device: %w", unix.EBUSY)
}
