// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/supervisor"
)

// peerKey is the context key of the caller.
type peerKey struct{}

// withPeer asks the kernel who has connected, once, before the first byte is read. A connection
// without credentials gets no principal, and every route refuses it.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	type wrapped interface{ NetConn() net.Conn }
	if w, ok := conn.(wrapped); ok {
		conn = w.NetConn()
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return ctx
	}
	who, err := peerOf(raw)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// caller returns who has connected.
func caller(ctx context.Context) (supervisor.Principal, bool) {
	who, ok := ctx.Value(peerKey{}).(supervisor.Principal)
	return who, ok
}

// peerOf reads the credentials the peer had when it connected (SO_PEERCRED, unix(7)).
func peerOf(conn syscall.Conn) (supervisor.Principal, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return supervisor.Principal{}, fmt.Errorf("peer: %w", err)
	}
	var cred *unix.Ucred
	var groups []uint32
	var cerr error
	err = raw.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr == nil {
			groups, cerr = peerGroups(fd)
		}
	})
	if err == nil {
		err = cerr
	}
	if err != nil {
		return supervisor.Principal{}, fmt.Errorf("peer: %w", err)
	}
	return supervisor.Principal{
		Name: PrincipalOf(cred.Uid), UID: cred.Uid, GID: cred.Gid, Groups: groups, Admin: cred.Uid == 0,
	}, nil
}

// PrincipalOf names the principal of a user of the host.
func PrincipalOf(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// maxGroups is the most supplementary groups that are looked at; the kernel allows 65536.
const maxGroups = 256

// peerGroups reads the supplementary groups (SO_PEERGROUPS). A user of more groups than we look at
// has none of them here, which can only deny.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, maxGroups)
	size := uint32(len(groups) * 4)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
	switch errno {
	case 0:
		return groups[:size/4], nil
	case unix.ERANGE:
		return nil, nil
	}
	return nil, errno
}
