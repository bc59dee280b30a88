// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
func TestALandlockScopeBlocksSignalsAndAbstractSockets(t *testing.T) {
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
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestALandlockScopeBlocksSignalsAndAbstractSockets$")
	cmd.Env = append(os.Environ(), scopedVariable+"="+name)
	said, err := cmd.Output()
	if want := "before <nil> <nil>\nafter operation not permitted operation not permitted\nown <nil>\n"; err != nil || string(said) != want {
		t.Errorf("%v: the program prints %q, want %q", err, said, want)
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
	err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), restrict(nil))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	signal, socket = try()
	fmt.Println("after", signal, socket)
	fmt.Println("own", syscall.Kill(os.Getpid(), 0))
	os.Exit(0)
}

// restrictedVariable makes the test binary a child that restricts its files, and tries them; its value is a directory.
const restrictedVariable = "BOXD_TEST_RESTRICTED"

// A process that has restricted itself opens the files of its rules, as they say, and no others.
func TestALandlockRestrictionOpensOnlyItsFiles(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(restrictedVariable); dir != "" {
		restricted(dir)
	}
	if !canRestrictFiles() {
		boxtest.Missing(t, "Landlock of Linux 5.19")
	}
	dir := t.TempDir()
	for _, name := range []string{"own", "own/below", "seen", "names", "names/deep", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"own/f", "seen/f", "names/f", "names/deep/f", "other/f", "lock", "top"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestALandlockRestrictionOpensOnlyItsFiles$")
	cmd.Env = append(os.Environ(), restrictedVariable+"="+dir)
	said, err := cmd.Output()
	if err != nil || string(said) != "done\n" {
		t.Errorf(`%v: the program prints %q, want no error and said == "done\n"`, err, said)
	}
}

// restricted tries what each rule allows, and what none does.
func restricted(dir string) {
	runtime.LockOSThread()
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), restrict([]fileRule{
		{at("own"), writeFiles},
		{at("seen"), readFiles},
		{at("names"), listFiles},
		{at("lock"), useFile},
		{at("missing"), writeFiles},
	}))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	read := func(name string) error { _, err := os.ReadFile(at(name)); return err }
	write := func(name string) error { return os.WriteFile(at(name), nil, 0o600) }
	list := func(name string) error { _, err := os.ReadDir(at(name)); return err }
	rename := func(from, to string) error { return os.Rename(at(from), at(to)) }
	use := func(name string) error {
		f, err := os.OpenFile(at(name), os.O_RDWR|os.O_CREATE, 0o600)
		f.Close()
		return err
	}
	_, passwd := os.ReadFile("/etc/passwd")
	for what, err := range map[string]error{
		"own":  errors.Join(read("own/f"), write("own/f"), write("own/g"), rename("own/g", "own/below/g"), os.Mkdir(at("own/d"), 0o700), os.Remove(at("own/d")), os.Symlink("f", at("own/l")), list("own")),
		"seen": errors.Join(read("seen/f"), list("seen")), "names": errors.Join(list("names"), list("names/deep")), "lock": errors.Join(use("lock"), read("lock")),
	} {
		if err != nil {
			fmt.Printf("%s: %v\n", what, err)
		}
	}
	for what, err := range map[string]error{
		"write to seen": write("seen/f"), "new in seen": write("seen/g"), "read from names": read("names/f"), "read from deep": read("names/deep/f"), "write to names": write("names/f"),
		"truncate": os.Truncate(at("seen/f"), 0), "list all": list("."), "read other": read("other/f"), "list other": list("other"), "read top": read("top"), "new on top": write("new"),
		"remove": os.Remove(at("top")), "remove lock": os.Remove(at("lock")), "move out": rename("own/f", "other/g"), "move in": rename("other/f", "own/h"), "replace lock": rename("own/f", "lock"),
		"mkdir": os.Mkdir(at("d"), 0o700), "link": os.Link(at("other/f"), at("own/k")), "host": passwd, "run": exec.Command("/bin/true").Run(),
	} {
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EXDEV) {
			fmt.Printf("%s: %v\n", what, err)
		}
	}
	fmt.Println("done")
	os.Exit(0)
}
