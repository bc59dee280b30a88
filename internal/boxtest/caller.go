// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// callerVariable makes a test binary a caller of the boxd whose socket it names. The arguments of
// the process are the name of an act and its arguments.
const callerVariable = "BOXD_TEST_CALLER"

// requestsAct is the act of AsUser.
const requestsAct = "requests"

// Users other than root, and the group by which they may open the sockets of daemons.
const (
	OtherUID = 4242
	ThirdUID = 4243
	OtherGID = 65534
)

// BeCaller runs the act of a process that Caller has started, and exits. In any other process it
// returns. TestMain calls it first, with the acts that its package has besides making requests.
func BeCaller(acts map[string]func(socket string, args []string) error) {
	socket := os.Getenv(callerVariable)
	if socket == "" {
		return
	}
	act := acts[os.Args[1]]
	if os.Args[1] == requestsAct {
		act = makeRequests
	}
	if act == nil {
		act = func(string, []string) error { return fmt.Errorf("a caller cannot %q", os.Args[1]) }
	}
	if err := act(socket, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Caller returns a command that runs the test binary as a user who calls the daemon. Its TestMain
// must call BeCaller.
func (d *Daemon) Caller(t testing.TB, uid uint32, act string, args ...string) *exec.Cmd {
	t.Helper()
	// Not by its path, which that user may not be able to reach.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{act}, args...)...)
	cmd.Env = []string{callerVariable + "=" + d.Socket}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: OtherGID}}
	return cmd
}

// Stay starts a Caller that prints one JSON value, which is read into v, and runs until release:
// that closes its standard input, at which it must exit.
func (d *Daemon) Stay(t testing.TB, uid uint32, v any, act string, args ...string) (release func()) {
	t.Helper()
	cmd := d.Caller(t, uid, act, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(out).Decode(v); err != nil {
		t.Error(err)
	}
	return func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// Requests returns a Caller that makes requests, one after the other; Request returns one.
func (d *Daemon) Requests(t testing.TB, uid uint32, requests ...string) *exec.Cmd {
	t.Helper()
	in, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.Caller(t, uid, requestsAct)
	cmd.Stdin = bytes.NewReader(in)
	return cmd
}

// AsUser makes requests as a user, one after the other, and returns the answers.
func (d *Daemon) AsUser(t testing.TB, uid uint32, requests ...string) (answers []Answer) {
	t.Helper()
	out, err := d.Requests(t, uid, requests...).Output()
	if err != nil {
		t.Fatalf("requests as user %d: %v", uid, err)
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

// makeRequests makes the requests read from standard input, and writes the answers to standard
// output.
func makeRequests(socket string, _ []string) error {
	var requests []string
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		return err
	}
	answers := make([]Answer, len(requests))
	for i, r := range requests {
		var err error
		if answers[i], err = Ask(context.Background(), socket, r); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// Dialer connects this process to a socket as another user, for the DialContext of a transport:
// the kernel tells boxd who the thread was when it connected, see SO_PEERCRED in unix(7).
func Dialer(socket string, uid uint32) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		if uid == 0 {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: a thread that has changed its user ends with its goroutine
			_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
			_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, OtherGID, OtherGID, OtherGID)
			_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
			if e1 != 0 || e2 != 0 || e3 != 0 {
				err = fmt.Errorf("become user %d: %w, %w, %w", uid, e1, e2, e3)
				return
			}
			conn, err = new(net.Dialer).DialContext(ctx, "unix", socket)
		}()
		<-done
		return conn, err
	}
}
