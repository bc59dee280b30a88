// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/disk"
)

// user is an unused uid of the host. Limits are tested as this user: root may exceed them on ext4.
const user = 4242

const block = 4096 // of all filesystems here

// actVariable makes the test binary do one act in the directory on descriptor 3.
const actVariable = "BOXD_HOST_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		if err := play(strings.Fields(act)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play does one act and prints the outcome: how often it succeeded, and the error that ended it.
func play(act []string) error {
	if act[0] == "hold-store" {
		return holdStore()
	}
	if err := unix.Fchdir(3); err != nil {
		return err
	}
	n, err := acts()[act[0]](act[1:])
	_, failed := fmt.Printf("%d %s\n", n, unix.ErrnoName(errnoOf(err)))
	return failed
}

func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	if err != nil {
		panic(err)
	}
	return 0
}

func acts() map[string]func(args []string) (int, error) {
	return map[string]func(args []string) (int, error){
		"write":     func(a []string) (int, error) { return writeBlocks(a[0], unix.O_TRUNC) },
		"append":    func(a []string) (int, error) { return writeBlocks(a[0], unix.O_APPEND) },
		"sparse":    sparse,
		"fallocate": fallocate,
		"touch":     touchMapped,
		"files": func([]string) (int, error) {
			return repeat(func(name string) error { return os.WriteFile(name, nil, 0o600) })
		},
		"dirs":      func([]string) (int, error) { return repeat(func(name string) error { return os.Mkdir(name, 0o700) }) },
		"symlinks":  func([]string) (int, error) { return repeat(func(name string) error { return os.Symlink("x", name) }) },
		"hardlinks": hardlinks,
		"project":   setProject,
		"rename":    func(a []string) (int, error) { return 0, unix.Renameat(unix.AT_FDCWD, a[0], 4, a[0]) },
		"link":      func(a []string) (int, error) { return 0, unix.Linkat(unix.AT_FDCWD, a[0], 4, a[0]+"-link", 0) },
	}
}

// most limits an act that no quota limits.
const most = 2000

func repeat(f func(name string) error) (int, error) {
	for n := range most {
		if err := f("f" + strconv.Itoa(n)); err != nil {
			return n, err
		}
	}
	return most, nil
}

func writeBlocks(name string, how int) (int, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|how, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data := make([]byte, block)
	n, err := repeat(func(string) error {
		_, err := f.Write(data)
		return err
	})
	// What was written is allocated: no delayed allocation can fail later.
	return n, errors.Join(err, f.Sync())
}

// sparse creates a large file of holes and writes to every second block.
func sparse(args []string) (int, error) {
	f, err := os.Create(args[0])
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Truncate(1 << 30); err != nil {
		return 0, err
	}
	data := make([]byte, block)
	for n := range most {
		if _, err := f.WriteAt(data, int64(n)*2*block); err != nil {
			return n, err
		}
	}
	return most, nil
}

func fallocate(args []string) (int, error) {
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return 0, err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return 0, unix.Fallocate(int(f.Fd()), 0, 0, size)
}

// touchMapped writes to every page of a mapped file of holes. A page that cannot be allocated raises SIGBUS.
func touchMapped(args []string) (int, error) {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return 0, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	for i := 0; i < size; i += block {
		m[i] = 1
	}
	return size / block, unix.Msync(m, unix.MS_SYNC)
}

func hardlinks(args []string) (int, error) {
	if err := os.WriteFile(args[0], nil, 0o600); err != nil {
		return 0, err
	}
	// Long names, so that the directory itself outgrows its limit.
	return repeat(func(name string) error { return os.Link(args[0], name+strings.Repeat("-", 240)) })
}

// fsxattr is struct fsxattr of linux/fs.h, defined a second time to check the first.
type fsxattr struct {
	flags, extentSize, extents, project, cowSize uint32
	_                                            [8]byte
}

// setProject changes the project of a file: its id, and the flags to clear.
func setProject(args []string) (int, error) {
	id, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return 0, err
	}
	clear, err := strconv.ParseUint(args[2], 0, 32)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(args[0])
	if err != nil {
		return 0, err
	}
	defer f.Close()
	const get, set = 2<<30 | 28<<16 | 'X'<<8 | 31, 1<<30 | 28<<16 | 'X'<<8 | 32
	var x fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), get, uintptr(unsafe.Pointer(&x))); errno != 0 {
		return 0, errno
	}
	if id != 0 || clear == 0 {
		x.project = uint32(id)
	}
	x.flags &^= uint32(clear)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), set, uintptr(unsafe.Pointer(&x))); errno != 0 {
		return 0, errno
	}
	return 1, nil
}

// outcome is what an act printed.
type outcome struct {
	n   int
	err string // name of the errno, or empty
}

// as does an act as the user, in a directory, possibly with a second one.
func as(t *testing.T, act string, dirs ...*os.File) outcome {
	t.Helper()
	out, stderr, err := run(t.Context(), act, dirs...)
	if err != nil {
		t.Fatalf("%s: %v: %s", act, err, stderr)
	}
	return parse(t, act, out)
}

func parse(t *testing.T, act, out string) outcome {
	t.Helper()
	var o outcome
	n, name, _ := strings.Cut(strings.TrimSuffix(out, "\n"), " ")
	var err error
	if o.n, err = strconv.Atoi(n); err != nil {
		t.Fatalf("%s printed %q", act, out)
	}
	o.err = name
	return o
}

func run(ctx context.Context, act string, dirs ...*os.File) (stdout, stderr string, err error) {
	cmd := actor(ctx, act, dirs...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	return output(cmd)
}

func actor(ctx context.Context, act string, dirs ...*os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = []string{actVariable + "=" + act}
	cmd.ExtraFiles = dirs
	return cmd
}

// boxUser is the user's uid inside a user namespace.
const boxUser = 1000

// inUserNamespace does an act as the user in a user namespace, with all capabilities there.
func inUserNamespace(t *testing.T, act string, dirs ...*os.File) outcome {
	t.Helper()
	cmd := actor(t.Context(), act, dirs...)
	one := []syscall.SysProcIDMap{{ContainerID: boxUser, HostID: user, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: one, GidMappings: one,
		Credential: &syscall.Credential{Uid: boxUser, Gid: boxUser, NoSetGroups: true},
	}
	out, stderr, err := output(cmd)
	if err != nil {
		t.Fatalf("%s: %v: %s", act, err, stderr)
	}
	return parse(t, act, out)
}

func output(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// account is struct if_nextdqblk of linux/quota.h, also a second time.
type account struct {
	spaceHard, spaceSoft, space, inodesHard, inodesSoft, inodes, spaceTime, inodesTime uint64
	valid, id                                                                          uint32
}

// accounts lists the projects of ours for which a filesystem has quota records.
func accounts(t *testing.T, dir string) map[uint32]account {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const getNext, projects = 0x800009, 2
	all := map[uint32]account{}
	for id := uint32(disk.FirstID); id < disk.FirstID+disk.IDCount; id++ {
		var a account
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getNext<<8|projects, uintptr(id), uintptr(unsafe.Pointer(&a)), 0, 0)
		if errno == unix.ENOENT {
			break
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		if a.spaceHard|a.space|a.inodesHard|a.inodes != 0 && a.id < disk.FirstID+disk.IDCount {
			all[a.id] = a
		}
		id = a.id
	}
	return all
}
