// SPDX-License-Identifier: Apache-2.0

package isolation_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
)

// scopedVariable makes the test binary a child that scopes its signals and abstract sockets, and tries both; its value is such a
// socket.
const scopedVariable = "BOXD_TEST_SCOPED"

// A scoped process can neither signal processes outside its scope nor connect to their abstract sockets.
func TestWhoIsScopedReachesNoOtherProcess(t *testing.T) {
	t.Parallel()
	if name := os.Getenv(scopedVariable); name != "" {
		scoped(name)
	}
	if !isolation.CanScopeSockets() {
		boxtest.Missing(t, "Landlock of Linux 6.12")
	}
	name := fmt.Sprintf("@boxd-test-%d", os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestWhoIsScopedReachesNoOtherProcess$")
	cmd.Env = append(os.Environ(), scopedVariable+"="+name)
	said, err := cmd.Output()
	if want := "before <nil> <nil>\nafter operation not permitted operation not permitted\nown <nil>\n"; err != nil || string(said) != want {
		t.Errorf("%v: it says %q, want %q", err, said, want)
	}
}

// scoped tries a signal to the parent, and the socket, before and after scoping; then a signal to itself.
func scoped(name string) {
	runtime.LockOSThread()
	try := func() (signal, socket error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
			unix.Close(fd)
		}
		return syscall.Kill(os.Getppid(), 0), err
	}
	signal, socket := try()
	fmt.Println("before", signal, socket)
	err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), isolation.ScopeAll())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	signal, socket = try()
	fmt.Println("after", signal, socket)
	fmt.Println("own", syscall.Kill(os.Getpid(), 0))
	os.Exit(0)
}
