// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// WordNames is in front of the rules, and says that the box has rules by name too: it asks at its own loopback, where
// somebody answers by sockets that were opened with WordSockets, and nobody else. What follows the word, up to eight
// hexadecimal digits that are not all zero, tells these rules from others: connections that were let through by a pin
// go on when that is over, but not when the rules by name are others.
const WordNames = rule.Names

// WordSockets opens the sockets that a box with rules by name asks at.
const WordSockets = "sockets"

// resolvAt is the resolv.conf(5) of a box with rules by name: a server on its own loopback, where it may not listen.
const resolvAt = "# Names are resolved by boxd, as the rules of this box allow.\nnameserver 127.0.0.1\n"

// asking is how a box resolves names: 0 is by asking the resolvers of the network.
type asking uint32

// readAsking takes WordNames from the beginning of the rules, if it is there.
func readAsking(words []string) (asking, []string, error) {
	if len(words) == 0 {
		return 0, words, nil
	}
	digits, ok := strings.CutPrefix(words[0], WordNames)
	if !ok {
		return 0, words, nil
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n == 0 || strconv.FormatUint(n, 16) != digits {
		return 0, nil, &rule.Refusal{Part: "names", Value: words[0], Allowed: "a number"}
	}
	return asking(n), words[1:], nil
}

// goOn lets connections go on that a pin has let through. It comes before all rules but those for loopback, and what
// asks other name servers is refused before it.
func (w *writer) goOn(as asking) {
	if as == 0 {
		return
	}
	for _, p := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, port := range []uint16{53, 853} {
			w.refuse(transport(p), ports(rule.Ports{First: port, Last: port}))
		}
	}
	w.rule(answers(), []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, equal(as.mark())}, accept())
}

// remember marks the connection of a packet that a pin lets through.
func (as asking) remember() []expr.Any {
	if as == 0 {
		return nil
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: as.mark()}, &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}
}

func (as asking) mark() []byte { return binary.NativeEndian.AppendUint32(nil, uint32(as)) }

// sockets opens what a box with rules by name asks at: for packets, and for connections. Only root can: no program of
// a box can listen at these ports. EADDRINUSE: whoever has those of before has them still.
func sockets(space *os.File) ([]int, error) {
	var fds []int
	err := apart(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
			fd, err := listen(kind)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		return nil
	})
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	return fds, nil
}

// backlog is how many connections may wait.
const backlog = 16

func listen(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if kind == unix.SOCK_STREAM { // connections of before may linger
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return fd, nil
}

// apart calls f on a thread that ends with it: it goes to another network. The main thread cannot end, and waits.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- apart(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}
