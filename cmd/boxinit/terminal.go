// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// openTerminal opens a terminal in the box's own devpts and returns the program's end of it. The
// thread acts as the box user, who then owns the terminal.
func (s *server) openTerminal(p *program, size *isolation.Terminal) (int, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return s.null, stepError(isolation.StepStdio, "terminal", err)
	}
	defer master.Close()
	defer slave.Close()
	err = pty.Setsize(master, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
	// Descriptors of our own: those of the library are closed by the runtime, and block
	// (creack/pty, issue 162).
	fd := s.null
	if err == nil {
		p.streams[0].pipe, err = duplicate(int(master.Fd()))
	}
	if err == nil {
		p.input.pipe, err = duplicate(int(master.Fd()))
	}
	if err == nil {
		err = unix.SetNonblock(p.streams[0].pipe, true) // one call for both: the flag belongs to the open file description they share
	}
	if err == nil {
		p.slave, err = duplicate(int(slave.Fd()))
	}
	if err == nil {
		fd, err = duplicate(int(slave.Fd()))
	}
	if err != nil {
		return s.null, stepError(isolation.StepStdio, "terminal", err)
	}
	p.terminal = true
	return fd, nil
}

func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }
