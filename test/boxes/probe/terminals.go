// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"
)

// terminals returns tricks with terminals, each on one of the probe's own. A program can have one controlling terminal, so only
// one of them can be tried at a time.
func terminals() map[string]attempt {
	on := func(f func(master, slave *os.File) error) attempt {
		return func([]string) error {
			master, slave, err := openPTY()
			if err != nil {
				return err
			}
			defer master.Close()
			defer slave.Close()
			// Its controlling terminal, into which the kernel would allow TIOCSTI. The hangup afterwards must not kill the probe.
			signal.Ignore(unix.SIGHUP)
			if err := unix.IoctlSetInt(int(slave.Fd()), unix.TIOCSCTTY, 0); err != nil {
				return err
			}
			return f(master, slave)
		}
	}
	return map[string]attempt{
		"tiocsti": on(func(_, slave *os.File) error { return call(unix.SYS_IOCTL, slave.Fd(), unix.TIOCSTI, text("x")) }),
		"tiocsti_high": on(func(_, slave *os.File) error {
			return call(unix.SYS_IOCTL, slave.Fd(), 1<<32|unix.TIOCSTI, text("x"))
		}),
		"tioclinux": on(func(_, slave *os.File) error {
			scratch[0] = 6
			return call(unix.SYS_IOCTL, slave.Fd(), unix.TIOCLINUX, buffer())
		}),
		"tiocsetd": on(func(_, slave *os.File) error {
			clear(scratch[:])
			return call(unix.SYS_IOCTL, slave.Fd(), unix.TIOCSETD, buffer())
		}),
		"vhangup": plain(unix.SYS_VHANGUP),
	}
}

// openPTY opens a new terminal, which does not become a controlling terminal.
func openPTY() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// pty prints the name of a new terminal, and "echo OK" if both directions of it work.
func pty([]string) error {
	master, slave, err := openPTY()
	if err != nil {
		return err
	}
	defer master.Close()
	defer slave.Close()
	fmt.Println("name", slave.Name())
	if _, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil {
		return err
	}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 99}); err != nil {
		return err
	}
	size, err := unix.IoctlGetWinsize(int(slave.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return err
	}
	fmt.Println("size", size.Row, size.Col)
	if _, err := master.WriteString("typed\n"); err != nil {
		return err
	}
	line := make([]byte, 64)
	n, err := slave.Read(line)
	if err != nil || string(line[:n]) != "typed\n" {
		return errors.Join(err, errors.New("read "+strconv.Quote(string(line[:n]))))
	}
	if _, err := slave.WriteString("answer"); err != nil {
		return err
	}
	seen := make([]byte, len("typed\r\nanswer"))
	if _, err := io.ReadFull(master, seen); err != nil || string(seen) != "typed\r\nanswer" {
		return errors.Join(err, errors.New("shown "+strconv.Quote(string(seen))))
	}
	fmt.Println("echo", "OK")
	return nil
}
