// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Manager does for a boxd what systemd would: it holds the socket and receives notifications.
type Manager struct {
	Heard *net.UnixConn // each message is a notification, see sd_notify(3)

	t        testing.TB
	socket   *os.File
	notify   string
	watchdog time.Duration
}

// Managed starts boxd again under a manager, with a watchdog if that is not 0. The last
// notifications of boxd can still be received afterwards.
func (d *Daemon) Managed(watchdog time.Duration) *Manager {
	d.t.Helper()
	d.Stop()
	m := &Manager{t: d.t, notify: filepath.Join(d.Dir, "notify"), watchdog: watchdog}
	var err error
	if m.Heard, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.notify, Net: "unixgram"}); err != nil {
		d.t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.Socket, Net: "unix"})
	if err != nil {
		d.t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if m.socket, err = ln.File(); err != nil {
		d.t.Fatal(err)
	}
	_ = ln.Close() // m.socket is the one that is used
	d.manager = m
	d.Restart()
	return m
}

func (m *Manager) close() {
	if m != nil {
		_ = m.Heard.Close()
		_ = m.socket.Close()
	}
}

// manage changes a command so that the manager runs it.
func (m *Manager) manage(cmd *exec.Cmd) *exec.Cmd {
	const itself = `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" "$@"` // exec keeps the PID
	managed := exec.Command("/bin/sh", append([]string{"-c", itself}, cmd.Args...)...)
	managed.Stderr = cmd.Stderr
	managed.ExtraFiles = []*os.File{m.socket}
	managed.Env = append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=boxd-api", "NOTIFY_SOCKET="+m.notify)
	if m.watchdog > 0 {
		managed.Env = append(managed.Env, fmt.Sprintf("WATCHDOG_USEC=%d", m.watchdog.Microseconds()))
	}
	return managed
}

// Hear returns the next notification.
func (m *Manager) Hear() string {
	m.t.Helper()
	if err := m.Heard.SetReadDeadline(time.Now().Add(timeout())); err != nil {
		m.t.Fatal(err)
	}
	text := make([]byte, 4096)
	n, err := m.Heard.Read(text)
	if err != nil {
		m.t.Fatalf("boxd sends no notification: %v", err)
	}
	return string(text[:n])
}

// Drain discards the notifications received so far.
func (m *Manager) Drain() {
	m.t.Helper()
	conn, err := m.Heard.SyscallConn()
	if err == nil {
		// Not by a deadline: a read after it gets nothing, even if something is there, and a busy host may let any deadline pass.
		err = conn.Control(func(fd uintptr) {
			for more := true; more; {
				_, _, err := unix.Recvfrom(int(fd), make([]byte, 4096), unix.MSG_DONTWAIT)
				more = err == nil || errors.Is(err, unix.EINTR)
			}
		})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}
