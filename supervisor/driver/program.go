// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// nobody is the uid and gid of the proxy where boxd starts it.
const nobody = 65534

// ChildResolver starts the proxy, which ends with the connection. As root it runs it as nobody.
func ChildResolver(program string, stderr *os.File) func(context.Context) (*fdpass.Conn, error) {
	return func(context.Context) (*fdpass.Conn, error) {
		// By descriptor: the user nobody need not have access to its directory.
		exe, err := os.OpenFile(program, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		defer exe.Close()
		conn, peer, err := fdpass.Pair(fdpass.MaxInline)
		if err != nil {
			return nil, err
		}
		far := os.NewFile(uintptr(peer), "boxd")
		defer far.Close()
		// It ends with its connection, not with a context.
		cmd := exec.Command("/proc/self/fd/4") //nolint:noctx // see above
		cmd.Args[0] = program
		cmd.ExtraFiles = []*os.File{far, exe}
		cmd.Stderr, cmd.Env, cmd.Dir = stderr, []string{}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		}
		if err := cmd.Start(); err != nil {
			conn.Close()
			return nil, fmt.Errorf("start %s: %w", program, err)
		}
		go func() { _ = cmd.Wait() }() // it ends soon after the connection
		return conn, nil
	}
}

// DialUnit connects to the socket of a systemd unit.
func DialUnit(path string) func(context.Context) (*fdpass.Conn, error) {
	return func(context.Context) (*fdpass.Conn, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socket", err)
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return nil, errors.Join(fmt.Errorf("connect to %s: %w", path, err), unix.Close(fd))
		}
		return fdpass.FromFD(fd, fdpass.MaxInline)
	}
}
