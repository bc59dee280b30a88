// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// BucketTarget is where to send an archive, and with which credentials. It is passed only to the program that sends.
type BucketTarget struct {
	Address, Endpoint, Region string
	Insecure                  bool
	Credentials               []byte // a file in the format of AWS tools
}

// maxReply bounds the answer of the sending program, in bytes.
const maxReply = 4 << 10

// SendTo has the program at the other end of a connection send an archive to a bucket, and returns its answer. The head is lines
// of NAME: value and an empty one, followed by the archive; the answer is one line that begins with "ok " or "error ".
func SendTo(ctx context.Context, dial func(context.Context) (*net.UnixConn, error), to *BucketTarget, archive func(io.Writer) error) (string, error) {
	conn, err := dial(ctx)
	if err != nil {
		return "", fmt.Errorf("the upload program does not answer: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	out := bufio.NewWriterSize(conn, 64<<10)
	for _, line := range [][2]string{
		{"Address", to.Address},
		{"Endpoint", to.Endpoint},
		{"Region", to.Region},
		{"Insecure", strconv.FormatBool(to.Insecure)},
		{"Credentials", base64.StdEncoding.EncodeToString(to.Credentials)},
	} {
		fmt.Fprintf(out, "%s: %s\r\n", line[0], line[1])
	}
	_, _ = out.WriteString("\r\n") // Flush reports errors
	sent := make(chan error, 1)
	go func() { // ends with the connection
		err := archive(out)
		err = errors.Join(err, out.Flush())
		if err == nil {
			err = conn.CloseWrite()
		} else {
			_ = conn.Close() // a partial archive must not pass for a whole one
		}
		sent <- err
	}()
	line, err := textproto.NewReader(bufio.NewReader(io.LimitReader(conn, maxReply))).ReadLine()
	_ = conn.Close()
	wrote := <-sent
	switch reply, ok := strings.CutPrefix(line, "ok "); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("it took too long: %w", ctx.Err())
	case ok && err == nil && wrote == nil:
		return reply, nil
	case err == nil && !ok:
		return "", errors.New(strings.TrimPrefix(line, "error "))
	}
	return "", fmt.Errorf("the upload program has ended: %w", errors.Join(err, wrote))
}

// DialStream connects to the socket of a unit that starts a process for each connection.
func DialStream(path string) func(context.Context) (*net.UnixConn, error) {
	return func(ctx context.Context) (*net.UnixConn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil //nolint:forcetypeassert // the network is its own
	}
}

// ChildStream starts a program with a connection as its stdin and stdout, which it ends with. It gets neither our environment
// nor, where we are root, our user.
func ChildStream(program string, stderr *os.File, args ...string) func(context.Context) (*net.UnixConn, error) {
	return func(context.Context) (*net.UnixConn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		ours, peer := os.NewFile(uintptr(fds[0]), "push"), os.NewFile(uintptr(fds[1]), "push")
		defer ours.Close()
		defer peer.Close()
		exe, err := os.OpenFile(program, unix.O_PATH, 0) // by descriptor: the user nobody need not have access to its directory
		if err != nil {
			return nil, err
		}
		defer exe.Close()
		cmd := exec.Command("/proc/self/fd/3") //nolint:noctx // it ends with its connection, not with a context
		cmd.Args = append([]string{program}, args...)
		cmd.ExtraFiles = []*os.File{exe}
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = peer, peer, stderr, []string{}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		}
		conn, err := net.FileConn(ours)
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			conn.Close()
			return nil, fmt.Errorf("start %s: %w", program, err)
		}
		go func() { _ = cmd.Wait() }()   // it ends soon after the connection
		return conn.(*net.UnixConn), nil //nolint:forcetypeassert // of a Unix socket
	}
}
