// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// peerCheck is the interval of checks whether a client that has closed its sending side still exists.
const peerCheck = 250 * time.Millisecond

// goneTCP waits until a client that has closed its sending side has gone, or for the read deadline. TCP does not tell
// these apart, so it checks whether a process still has the other end open, which is on this host but for LangBot's port, which
// may be open to others. An end that cannot be found, on another host or in another network namespace, counts as gone.
func goneTCP(socket *net.TCPConn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	local, remote := addrPort(socket.LocalAddr()), addrPort(socket.RemoteAddr())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with this call
		defer close(stopped)
		ticker := time.NewTicker(peerCheck)
		defer ticker.Stop()
		for isOpen(remote, local) {
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
		}
		_ = socket.Close() // which ends the wait below
	}()
	err = raw.Read(func(fd uintptr) bool {
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		return n > 0 && state[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 || err != nil
	})
	close(stop)
	<-stopped
	return err
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		p := tcp.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return netip.AddrPort{}
}

// isOpen reports whether a process of this network namespace has the socket of a connection: a socket that no process
// has any more shows no inode (Documentation/networking/proc_net_tcp.rst of the kernel).
func isOpen(local, remote netip.AddrPort) bool {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			f := bytes.Fields(line)
			if len(f) > 9 && string(f[9]) != "0" && procAddr(f[1]) == local && procAddr(f[2]) == remote {
				return true
			}
		}
	}
	return false
}

// procAddr parses an address of /proc/net/tcp: words in the host's byte order, and the port.
func procAddr(text []byte) netip.AddrPort {
	address, port, _ := bytes.Cut(text, []byte(":"))
	data := make([]byte, hex.DecodedLen(len(address)))
	n, err := strconv.ParseUint(string(port), 16, 16)
	if _, herr := hex.Decode(data, address); err != nil || herr != nil || len(data)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i+4 <= len(data); i += 4 { // both architectures of boxd are little-endian
		data[i], data[i+1], data[i+2], data[i+3] = data[i+3], data[i+2], data[i+1], data[i]
	}
	addr, _ := netip.AddrFromSlice(data)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n))
}
