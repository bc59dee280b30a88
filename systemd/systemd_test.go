// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/systemd"
)

// role makes the test binary a service: it takes its listener and reports what it got.
const role = "BOXD_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(role) == "watched" {
		if err := watched(); err != nil {
			fmt.Print("error: ", err)
		}
		return
	}
	if os.Getenv("LISTEN_PID") == "own" {
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	held, err := systemd.Listeners()
	if err == nil {
		_, left := os.LookupEnv("LISTEN_FDS")
		fmt.Printf("listener %v, variables left %v", held.API != nil, left)
		again, _ := systemd.Listeners()
		fmt.Printf(", again %v", again.API != nil)
		for _, of := range []struct {
			name string
			list []net.Listener
		}{{"HTTP", held.HTTP}, {"LangBot", held.LangBot}, {"E2B", held.E2B}} {
			if len(of.list) > 0 {
				fmt.Printf(", of %s %d", of.name, len(of.list))
			}
		}
		err = systemd.Ready()
	}
	if err == nil {
		err = systemd.Reloading()
	}
	if err == nil {
		err = systemd.Stopping()
	}
	if err != nil {
		fmt.Print("error: ", err)
	}
}

// watched is a service with a watchdog whose check succeeds first, then fails, then is too slow,
// and then succeeds again. It reports each on the notification socket too, so that the order is
// known.
func watched() error {
	addr := &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"}
	conn, err := net.DialUnix("unixgram", nil, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 0
	var log strings.Builder
	err = systemd.Watchdog(ctx, func(ctx context.Context) error {
		n++
		switch n {
		case 2:
			fmt.Fprint(conn, "unwell")
			return errors.New("as told")
		case 3:
			fmt.Fprint(conn, "slow")
			<-ctx.Done()
			return ctx.Err()
		case 5:
			cancel()
			return ctx.Err()
		}
		fmt.Fprint(conn, "well")
		return nil
	}, slog.New(slog.NewTextHandler(&log, nil)))
	_, left := os.LookupEnv("WATCHDOG_USEC")
	fmt.Fprintf(conn, "%d looks, %d complaints, variables left %v", n, strings.Count(log.String(), "boxd is unhealthy"), left)
	return err
}

func TestTheListenerComesFromTheSocketUnit(t *testing.T) {
	t.Parallel()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	socket, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	tcpListener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcpListener.Close()
	tcp, err := tcpListener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const own, none = "listener true, variables left false, again false", "listener false, variables left false, again false"
	for _, tc := range []struct {
		name  string
		pid   string
		names string
		files []*os.File
		want  string
	}{
		{"no service manager", "", "", nil, none},
		{"its socket", "own", systemd.SocketName, []*os.File{socket}, own},
		{"of another process", "1", systemd.SocketName, []*os.File{socket}, "listener false"},
		{"a socket of another name", "own", "other", []*os.File{socket}, `error: socket activation: unexpected socket "other", want one "boxd-api"`},
		{"two of them", "own", "boxd-api:boxd-api", []*os.File{socket, socket}, `unexpected socket "boxd-api", want one`},
		{"another beside it", "own", "boxd-api:other", []*os.File{socket, socket}, "error: socket activation: unexpected socket"},
		{"HTTP beside it", "own", "boxd-http:boxd-api:boxd-http", []*os.File{tcp, socket, tcp}, own + ", of HTTP 2"},
		{"HTTP alone", "own", "boxd-http", []*os.File{tcp}, none + ", of HTTP 1"},
		{"LangBot beside it", "own", "boxd-langbot:boxd-api:boxd-http", []*os.File{tcp, socket, tcp}, own + ", of HTTP 1, of LangBot 1"},
		{"E2B beside it", "own", "boxd-e2b:boxd-api", []*os.File{tcp, socket}, own + ", of E2B 1"},
		{"LangBot that is none", "own", "boxd-api:boxd-langbot", []*os.File{socket, socket}, "want TCP"},
		{"HTTP that is none", "own", "boxd-api:boxd-http", []*os.File{socket, socket}, "want TCP"},
		{"no socket at all", "own", systemd.SocketName, []*os.File{null}, `error: socket activation: "boxd-api" is not a listening socket`},
		{"a socket without credentials", "own", systemd.SocketName, []*os.File{tcp}, "want a Unix socket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = []string{role + "=1", "GORACE=" + os.Getenv("GORACE")} // with the race detector it waits before it exits
			if tc.pid != "" {
				cmd.Env = append(cmd.Env, "LISTEN_PID="+tc.pid, "LISTEN_FDS="+strconv.Itoa(len(tc.files)), "LISTEN_FDNAMES="+tc.names)
			}
			cmd.ExtraFiles = tc.files
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("%v: %s, want %s", err, out, tc.want)
			}
		})
	}
}

// nextMessage returns the next message.
func nextMessage(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// monotonic returns the current time in microseconds, by the clock of systemd.
func monotonic(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() / 1000
}

func TestOnlyAHealthyServiceNotifiesTheWatchdog(t *testing.T) {
	t.Parallel()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	run := func(usec, pid string) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = []string{role + "=watched", "NOTIFY_SOCKET=" + addr.Name, "WATCHDOG_USEC=" + usec, "WATCHDOG_PID=" + pid}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if out := run("60000", ""); out != "" {
		t.Errorf(`out = %s, want ""`, out)
	}
	for _, want := range []string{"well", "WATCHDOG=1", "unwell", "slow", "well", "WATCHDOG=1", "5 looks, 2 complaints, variables left false"} {
		if heard := nextMessage(t, conn); heard != want {
			t.Errorf("the notification is %q, want %q", heard, want)
		}
	}
	if out := run("60000", "1"); out != "" || nextMessage(t, conn) != "0 looks, 0 complaints, variables left false" {
		t.Errorf(`of a watchdog of another process: out = %s, want out == "" and hear(t, conn) == "0 looks, 0 complaints, variables left false"`,
			out)
	}
	if out := run("soon", ""); !strings.HasPrefix(out, "error: watchdog: ") || nextMessage(t, conn) != "0 looks, 0 complaints, variables left false" {
		t.Errorf(`with an invalid WATCHDOG_USEC: out = %s, want out starting with "error: watchdog: " and hear(t, conn) == "0 looks, 0 complaints, variables left false"`,
			out)
	}
}

func TestSystemdIsNotifiedOfReadinessAndTheEnd(t *testing.T) {
	t.Parallel()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{role + "=1", "NOTIFY_SOCKET=" + addr.Name}
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "error") {
		t.Fatalf(`%v: out = %s, want no error and out without "error"`, err, out)
	}
	if heard := nextMessage(t, conn); heard != "READY=1" {
		t.Errorf(`the first notification is %q, want "READY=1"`, heard)
	}
	var usec int64
	if n, err := fmt.Sscanf(nextMessage(t, conn), "RELOADING=1\nMONOTONIC_USEC=%d", &usec); n != 1 || err != nil || usec <= 0 || usec > monotonic(t) {
		t.Errorf("it reloads at %d: err = %v, want n == 1 and no error and usec > 0 and usec <= monotonic(t)",
			usec, err)
	}
	if heard := nextMessage(t, conn); heard != "STOPPING=1" {
		t.Errorf(`the last notification is %q, want "STOPPING=1"`, heard)
	}
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{role + "=1", "NOTIFY_SOCKET=" + addr.Name + ".none"}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "error: notify the service manager") {
		t.Errorf(`without one behind it: err = %v, out = %s, want no error and out containing "error: notify the service manager"`,
			err, out)
	}
}
