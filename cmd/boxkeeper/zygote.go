// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/internal/linux"
)

// A zygote is a small process that lives in the finished mount tree of an image and clones boxes
// from there: a clone gets a copy of the tree at no cost, and a process with a small heap forks
// fast however large boxd is.
//
//	keeper                                zygote
//	(start) image in argv ─────────────►  make the tree and enter it
//	            ◄──────────────────────── "" or the reason it could not
//	id base, whether it shares the
//	network + control, lock, group ────►  clone, into that cgroup if there is one
//	            ◄──────────────────────── pid, errno + pidfd
//
// When the keeper closes its end, the zygote ends.

// Arguments that make the keeper's program a zygote.
const (
	zygoteCommand      = "zygote"       // for the image "host"; the list of what to show of /etc follows
	zygoteImageCommand = "zygote-image" // for an image of the store, whose tree is passed as a descriptor
)

// zygoteTimeout is how long the keeper waits for an answer of a zygote, which normally takes milliseconds.
const zygoteTimeout = 20 * time.Second

// Descriptors that a zygote is started with.
const (
	zygoteSocket  = 3
	zygoteBoxInit = 4
	zygoteFiles   = 5
	zygoteTree    = 6 // for an image of the store only
)

// zygote is the keeper's handle on one. It is started by the first request, and again after it
// has died. The descriptors stay the keeper's.
type zygote struct {
	BoxInit  int      // the program that becomes PID 1 of boxes
	BoxFiles int      // the program that serves files in boxes
	Etc      []string // what boxes of the image "host" see of the host's /etc
	// Tree opens the tree of an image of the store; the descriptor is then ours. nil: this is the
	// image "host".
	Tree func() (int, error)

	mu    sync.Mutex // guards the fields below, and is held from a request to its answer
	conn  *fdpass.Conn
	pid   int // of the process, and the next one is its pidfd; while there is a conn
	pidfd int
	stamp string
}

// cloning is a request in progress. Its caller must call Await.
type cloning struct {
	z       *zygote
	ids     idRange
	control int
	group   int  // cgroup to clone into, noGroup for none
	share   bool // the clone shares the keeper's network
}

// Request asks for a PID 1 with the id range own and the socket control, which it takes over. The
// zygote works while the caller does something else. The clone has a network of its own unless it
// is to share the keeper's.
func (z *zygote) Request(ids idRange, control, group int, share bool) (*cloning, error) {
	c := &cloning{z: z, ids: ids, control: control, group: group, share: share}
	z.mu.Lock()
	stamp := z.stampNow()
	if z.conn != nil && z.stamp != stamp {
		z.closeLocked() // the host has changed; boxes of the old zygote keep running
	}
	fresh := z.conn == nil // the zygote is started for this request
	err := c.sendLocked()
	if err != nil && !fresh { // it has died since it was last used
		z.closeLocked()
		err = c.sendLocked()
	}
	if errors.Is(err, errZygoteGone) { // it has died while it was made
		z.closeLocked()
		err = c.sendLocked()
	}
	if err != nil {
		z.closeLocked()
		z.mu.Unlock()
		unix.Close(control)
		return nil, err
	}
	return c, nil
}

// Root opens the root of the tree that boxes are cloned in, with O_PATH, and returns a text that is another for another tree.
func (z *zygote) Root() (fd int, stamp string, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if fd, err = z.rootLocked(); errors.Is(err, errZygoteGone) {
		if err = z.startLocked(); err == nil {
			fd, err = z.rootLocked()
		}
	}
	return fd, z.stamp, err
}

// rootLocked returns errZygoteGone if there is no zygote, or its tree is of an earlier host.
func (z *zygote) rootLocked() (int, error) {
	if z.conn == nil || z.stamp != z.stampNow() {
		return -1, errZygoteGone
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root", z.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if unix.PidfdSendSignal(z.pidfd, 0, nil, 0) != nil { // another process may have its number
		unix.Close(fd)
		return -1, errZygoteGone
	}
	return fd, err
}

func (c *cloning) sendLocked() error {
	if c.z.conn == nil {
		if err := c.z.startLocked(); err != nil {
			return err
		}
	}
	files := []int{c.control, c.ids.Lock}
	if c.group != noGroup {
		files = append(files, c.group)
	}
	body := append(binary.LittleEndian.AppendUint32(nil, c.ids.Base), networkByte(c.share))
	if err := c.z.conn.Send(body, files...); err != nil {
		return fmt.Errorf("zygote: %w", err)
	}
	return nil
}

// Values of the last byte of a request.
const ownNetwork, sharedNetwork = 0, 1

func networkByte(share bool) byte {
	if share {
		return sharedNetwork
	}
	return ownNetwork
}

// noGroup stands for no cgroup.
const noGroup = -1

// errZygoteGone means that a zygote has ended.
var errZygoteGone = errors.New("zygote: gone")

// Await returns the clone, or errZygoteGone. The pidfd is the caller's.
func (c *cloning) Await() (pid, pidfd int, err error) {
	defer c.z.mu.Unlock()
	defer unix.Close(c.control)
	body, files, err := receiveZygote(c.z.conn)
	if err != nil {
		c.z.closeLocked()
		return 0, -1, fmt.Errorf("%w: %w", errZygoteGone, err)
	}
	if len(body) != 8 || len(files) > 1 {
		fdpass.CloseAll(files)
		return 0, -1, errors.New("zygote: malformed answer")
	}
	if errno := binary.LittleEndian.Uint32(body[4:]); errno != 0 || len(files) == 0 {
		fdpass.CloseAll(files)
		return 0, -1, syscall.Errno(errno)
	}
	return int(binary.LittleEndian.Uint32(body)), files[0], nil
}

func (z *zygote) startLocked() error {
	z.closeLocked()
	conn, child, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		return err
	}
	// Closed as soon as the zygote has it: while it is open here, a zygote that dies is not noticed.
	closeChild := sync.OnceFunc(func() { unix.Close(child) })
	defer closeChild()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		conn.Close()
		return err
	}
	defer null.Close()
	argv, files := append([]string{"boxkeeper", zygoteCommand}, z.Etc...), []uintptr{null.Fd(), null.Fd(), 2, uintptr(child), uintptr(z.BoxInit), uintptr(z.BoxFiles)}
	if z.Tree != nil {
		tree, err := z.Tree()
		if err != nil {
			conn.Close()
			return err
		}
		defer unix.Close(tree)
		argv, files = []string{"boxkeeper", zygoteImageCommand}, append(files, uintptr(tree))
	}
	pidfd := -1
	pid, err := syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: files,
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		conn.Close()
		return fmt.Errorf("start zygote: %w", err)
	}
	closeChild()
	body, rights, err := receiveZygote(conn)
	fdpass.CloseAll(rights)
	gone := errors.Is(err, io.EOF)
	if err == nil && len(body) > 0 {
		err = errors.New(string(body))
	}
	if err != nil {
		conn.Close()
		unix.Close(pidfd)
		err = &isolation.StepError{Step: isolation.StepZygote, Item: err.Error(), Errno: unix.ENOTRECOVERABLE}
		if gone {
			err = fmt.Errorf("%w: %w", errZygoteGone, err)
		}
		return err
	}
	z.conn, z.pid, z.pidfd, z.stamp = conn, pid, pidfd, z.stampNow()
	return nil
}

func receiveZygote(conn *fdpass.Conn) ([]byte, []int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), zygoteTimeout)
	defer cancel()
	return conn.RecvContext(ctx, true)
}

// Close ends the zygote. Its boxes keep running.
func (z *zygote) Close() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.closeLocked()
}

func (z *zygote) closeLocked() {
	if z.conn != nil {
		z.conn.Close()
		unix.Close(z.pidfd)
		z.conn = nil
	}
}

// stampNow returns a text that changes when the files that the zygote copied into its tree change. Trees of the store never
// change.
func (z *zygote) stampNow() string {
	if z.Tree != nil {
		return ""
	}
	return hostStamp()
}

// hostStamp returns a text that changes when something a zygote copied from the host changes, as after an installation of
// libraries: then boxes need a new tree.
func hostStamp() string {
	var stamp []byte
	for _, path := range []string{"/etc/ld.so.cache", "/etc/localtime", "/etc", "/var/lib/dpkg/status", "/var/lib/pacman/local", "/usr/lib/sysimage/rpm", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages"} {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			stamp = fmt.Appendf(stamp, "%d.%d.%d ", st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
		}
	}
	return string(stamp)
}

// runHostZygote runs the zygote of the image "host" until the keeper is gone.
func runHostZygote(etc []string) error {
	return serveClones(func() error {
		err := enterRoot(hostRoot{Etc: etc, Files: zygoteFiles})
		unix.Close(zygoteFiles)
		return err
	})
}

// runImageZygote runs the zygote of an image of the store until the keeper is gone.
func runImageZygote() error {
	return serveClones(func() error {
		err := enterImageRoot(zygoteTree, zygoteFiles)
		unix.Close(zygoteFiles)
		unix.Close(zygoteTree)
		return err
	})
}

// keptCapabilities are what a zygote needs to clone boxes, once its mount tree is made: to clone
// as the owner of the box and to write its id maps (SETUID, SETGID), to make its namespaces
// (SYS_ADMIN), to clone it into a cgroup that belongs to root (DAC_OVERRIDE), and to see the clone
// in its procfs, which hides what one may not trace (SYS_PTRACE). A box has all capabilities in its
// own user namespace, whatever its zygote has (user_namespaces(7)).
const keptCapabilities = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SYS_PTRACE

func serveClones(enter func() error) error {
	runtime.LockOSThread() // this thread enters the mount namespace, and this thread forks
	// SIGCHLD ignored: children need not be waited for (wait(2)); the keeper holds pidfds.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGCHLD)
	unix.CloseOnExec(zygoteSocket)
	if err := linux.SetThreadTimerSlack(linux.InitTimerSlack); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	// This thread clones as the owner of each box, and keeps its capabilities all the same
	// (capabilities(7)).
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
		return fmt.Errorf("secure bits: %w", err)
	}
	// Out of the range of numbers at which a clone gets its own descriptors.
	boxInit, err := unix.FcntlInt(zygoteBoxInit, unix.F_DUPFD_CLOEXEC, 16)
	if err != nil {
		return err
	}
	unix.Close(zygoteBoxInit)
	buf := fdpass.NewBuffer(64)
	err = enter()
	if err == nil {
		err = linux.KeepCapabilities(keptCapabilities)
	}
	if err != nil {
		return errors.Join(err, fdpass.Send(zygoteSocket, []byte(err.Error())))
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(err, fdpass.Send(zygoteSocket, []byte(err.Error())))
	}
	if err := fdpass.Send(zygoteSocket, nil); err != nil {
		return err
	}
	for {
		body, files, err := fdpass.Recv(zygoteSocket, buf, true)
		if err != nil {
			return nil //nolint:nilerr // the keeper is gone, which is how a zygote ends
		}
		if len(body) != 5 || body[4] > sharedNetwork || len(files) < 2 || len(files) > 3 {
			return errors.New("malformed request")
		}
		group := noGroup
		if len(files) == 3 {
			group = files[2]
		}
		pid, pidfd, err := cloneBox(boxInit, null, binary.LittleEndian.Uint32(body), files[0], files[1], group, body[4] == sharedNetwork)
		fdpass.CloseAll(files)
		var answer [8]byte
		var rights []int
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			binary.LittleEndian.PutUint32(answer[4:], uint32(errno))
		} else {
			binary.LittleEndian.PutUint32(answer[:], uint32(pid))
			rights = []int{pidfd}
		}
		err = fdpass.Send(zygoteSocket, answer[:], rights...)
		fdpass.CloseAll(rights)
		if errors.Is(err, unix.EPIPE) {
			return nil // the clone exits too, as the other end of its socket is closed
		}
		if err != nil {
			return err
		}
	}
}

// noSetuidFixup is SECBIT_NO_SETUID_FIXUP: a change of the uid changes no capability.
const noSetuidFixup = 1 << 2

// setEUID changes the effective uid of this thread only.
func setEUID(uid uint32) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return errno
	}
	return nil
}

// initEnvironment is the whole environment of PID 1: constant, and only for its Go runtime. The
// heap is a few hundred KiB; a garbage collector driven by growth would cost threads and memory
// in every box, so only the limit triggers it. The runtime counts some 4 MiB before anything has
// run, most of which it never touches; with 1 MiB on top what programs leave behind is collected
// after some hundred of them, and costs nothing that could be measured (docs/design/exec-path.md).
func initEnvironment() []string { return []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=5MiB"} }

// cloneBox starts PID 1 of a box in all its namespaces, as in-box root. It is a child of this
// zygote, since clone3, the only call that clones into a cgroup, does not take CLONE_PARENT from
// the Go runtime; when the zygote ends it becomes the keeper's child.
//
// Its user namespace is owned by in-box root, as whom it is cloned: the kernel counts objects
// that programs use for the owner of the namespace too (namespaces(7)), who would otherwise be
// root of the host, for all boxes together.
//
// PID 1 makes its cgroup namespace itself, in the cgroup of the box: from here every later clone into
// a cgroup of the box would fail under nsdelegate (ENOENT).
func cloneBox(boxInit, null int, base uint32, control, lock, group int, share bool) (pid, pidfd int, err error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: isolation.IDRange}}
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if share { // in-box root has no capability in it: it belongs to another user namespace
		flags &^= unix.CLONE_NEWNET
	}
	if err := setEUID(base); err != nil {
		return 0, -1, err
	}
	pid, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", boxInit), []string{"boxinit"}, &syscall.ProcAttr{
		Env:   initEnvironment(),
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(control), uintptr(lock)},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  flags,
			Setsid:      true,
			UseCgroupFD: group != noGroup, CgroupFD: max(group, 0),
			PidFD:       &pidfd,
			UidMappings: ids, GidMappings: ids,
			GidMappingsEnableSetgroups: true,
			Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		},
	})
	if back := setEUID(0); back != nil { // then this zygote is unusable; the clone exits when its socket is closed
		unix.Close(pidfd)
		return 0, -1, back
	}
	return pid, pidfd, err
}
