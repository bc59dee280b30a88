// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/systemd"
)

// role makes the test binary a service: it takes its listener and says what it got.
const role = "BOXD_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("LISTEN_PID") == "own" {
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	ln, err := systemd.Listener()
	if err == nil {
		_, left := os.LookupEnv("LISTEN_FDS")
		fmt.Printf("listener %v, variables left %v", ln != nil, left)
		again, _ := systemd.Listener()
		fmt.Printf(", again %v", again != nil)
		err = systemd.Ready()
	}
	if err == nil {
		err = systemd.Stopping()
	}
	if err != nil {
		fmt.Print("error: ", err)
	}
}

func TestListenerIsTheOneOfTheUnit(t *testing.T) {
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
		{"no socket at all", "own", systemd.SocketName, []*os.File{null}, `error: socket activation: "boxd-api" is no listening socket`},
		{"a socket without credentials", "own", systemd.SocketName, []*os.File{tcp}, "want a Unix socket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = []string{role + "=1"}
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

func TestTheServiceManagerHearsOfReadinessAndTheEnd(t *testing.T) {
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
		t.Fatalf("%v: %s", err, out)
	}
	buf := make([]byte, 100)
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%v: %q, want %s", err, buf[:n], want)
		}
	}
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{role + "=1", "NOTIFY_SOCKET=" + addr.Name + ".none"}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "error: notify the service manager") {
		t.Errorf("without one behind it: %v: %s", err, out)
	}
}
