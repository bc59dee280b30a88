// SPDX-License-Identifier: Apache-2.0

// Mounts of a live box are added, replaced and removed from outside: PID 1 and the programs of a
// box may not mount, and gain no right to do so. The keeper does it on a thread that enters the
// box's mount namespace for one change and then ends.
//
// Nothing in the box is trusted: its paths are resolved one component at a time, without
// following symbolic links, and once a mount is attached it is checked where it has ended up.

package mounts

import (
	"errors"
	"os"
	"path"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// Box is the box whose mounts are changed.
type Box struct {
	PID    int         // host PID of its PID 1
	IDBase uint32      // first of its host ids
	Alive  func() bool // whether the process with that PID is still PID 1 of the box
	closed bool        // directories made for targets belong to root, as for skills, and not to the box user
}

// nsThread is a thread in the mount namespace of a box.
type nsThread struct {
	root int    // root directory of the box
	fds  int    // /proc/self/fd of the host
	uid  uint32 // host uid that owns directories made for targets: that of the box user, or 0
}

// enter calls f on a thread in the box's mount namespace, with a working directory of its own.
// The thread ends when f returns.
func (b *Box) enter(f func(p *nsThread) error) error {
	ns, err := unix.Open("/proc/"+strconv.Itoa(b.PID)+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return b.ended(err)
	}
	defer unix.Close(ns)
	if !b.Alive() { // the namespace is that of PID 1, as PID 1 was alive after it was opened
		return unix.ESRCH
	}
	return onOwnThread(func() error { return b.inside(ns, f) })
}

// onOwnThread calls f on a thread that ends when f returns. The main thread cannot end: it would stay
// in the namespace that f has entered for as long as the keeper lives, and hold the box's mounts.
// If the goroutine happens to be on the main thread, that waits while another thread does the
// work.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onOwnThread(f) // on another thread, as this one is occupied
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

func (b *Box) inside(ns int, f func(p *nsThread) error) error {
	fds, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fds)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return err
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	p := &nsThread{root: root, fds: fds, uid: b.IDBase + isolation.BoxUID}
	if b.closed {
		p.uid = 0
	}
	return f(p)
}

// ended turns errors that mean the end of the box's process into ESRCH. The kernel says EINVAL of
// a process that is ending and has released its namespaces.
func (b *Box) ended(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) || !b.Alive() {
		return unix.ESRCH
	}
	return err
}

// Add attaches a mount to its target and makes missing directories of that first. EEXIST:
// something is mounted there. ESTALE: a program in the box moved the target meanwhile. After an
// error nothing has changed.
func (b *Box) Add(tree int, m *isolation.Mount) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	err := b.enter(func(p *nsThread) error {
		created, err := p.makeTarget(m.Target)
		if err == nil {
			err = p.add(tree, m, done)
		}
		if err != nil && created != "" {
			p.removeMade(m.Target, created)
			return err
		}
		done.Made = created
		return err
	})
	return done, err
}

func (p *nsThread) add(tree int, m *isolation.Mount, done *isolation.Mounted) error {
	target, err := p.open(m.Target)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if isRoot, err := isMountRoot(target); err != nil || isRoot {
		return errors.Join(err, ifTrue(isRoot, unix.EEXIST))
	}
	if err := linux.AttachMount(tree, target, ""); err != nil {
		return err
	}
	return p.checkAttached(tree, m, done)
}

// checkAttached checks a mount that has just been attached, and detaches it if its attributes or its place are wrong. Programs of
// the box may have used it in between, but it holds nothing they may not have.
func (p *nsThread) checkAttached(tree int, m *isolation.Mount, done *isolation.Mounted) error {
	err := readBack(tree, m, done)
	if err == nil {
		err = p.isAt(m.Target, done.ID)
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, p.detach(tree))
}

// readBack records the id and the attributes that the kernel has given to a mount.
func readBack(tree int, m *isolation.Mount, done *isolation.Mounted) (err error) {
	if done.ID, err = mountID(tree, ""); err == nil {
		done.Attrs, err = verify(tree, m)
	}
	return err
}

// detach unmounts by a descriptor of the mount's root, wherever that is by now. It goes by a link
// in /proc so that its filesystem is not asked, since that may never answer; chdir(2) to the
// mount would ask it.
func (p *nsThread) detach(root int) error {
	if err := unix.Fchdir(p.fds); err != nil {
		return err
	}
	defer func() { _ = unix.Fchdir(p.root) }()
	return unix.Unmount(strconv.Itoa(root), unix.MNT_DETACH)
}

// isAt checks that a path leads to a mount; ESTALE: it does not.
func (p *nsThread) isAt(target string, id uint64) error {
	fd, err := p.open(target)
	if err != nil {
		return unix.ESTALE
	}
	defer unix.Close(fd)
	if now, err := mountID(fd, ""); err != nil || now != id {
		return unix.ESTALE
	}
	return nil
}

// Replace puts a mount in the place of another, whose id must be old, and detaches the old one:
// programs keep what they have open of it. At no moment is the target without a mount. On kernels
// that cannot attach a mount beneath another (before 6.5), the old one stays there, covered.
func (b *Box) Replace(tree int, m *isolation.Mount, old uint64) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	return done, b.enter(func(p *nsThread) error {
		err := p.replace(tree, m, old, done)
		if errors.Is(err, errNotBeneath) && !b.closed {
			err = p.onTop(tree, m, old, done)
		}
		return err
	})
}

// errNotBeneath means that the kernel cannot attach a mount beneath another. Nothing has changed.
var errNotBeneath = errors.New("cannot mount beneath a mount")

// openMount opens a target, where the mount with this id must be.
func (p *nsThread) openMount(target string, id uint64) (int, error) {
	fd, err := p.open(target)
	if err != nil {
		return -1, unix.ESTALE
	}
	if now, err := mountID(fd, ""); err != nil || now != id {
		unix.Close(fd)
		return -1, errors.Join(err, unix.ESTALE)
	}
	return fd, nil
}

// onTop attaches a mount on top of the one that is on the target.
func (p *nsThread) onTop(tree int, m *isolation.Mount, old uint64, done *isolation.Mounted) error {
	target, err := p.openMount(m.Target, old)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	done.Below = true
	if err := linux.AttachMount(tree, target, ""); err != nil {
		return err
	}
	return p.checkAttached(tree, m, done)
}

// moveMountBeneath is MOVE_MOUNT_BENEATH of move_mount(2), since Linux 6.5.
const moveMountBeneath = 0x200

func (p *nsThread) replace(tree int, m *isolation.Mount, old uint64, done *isolation.Mounted) error {
	target, err := p.openMount(m.Target, old)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	err = unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	if errors.Is(err, unix.EINVAL) {
		return errNotBeneath
	}
	if err != nil {
		return err
	}
	// The new mount is beneath the old one, which is detached now. The new one is then where the
	// old one was, and if the box has moved that, it is still found by its id. Detaching the new
	// one would leave that place without any mount.
	if err := p.detach(target); err != nil {
		return err
	}
	if err := readBack(tree, m, done); err != nil {
		return errors.Join(err, p.detach(tree))
	}
	return nil
}

// Remove unmounts the mounts of a target, the uppermost first, and removes the directories that
// were made for it. If the first is in use, the result is Busy and nothing has changed, unless
// force is set: then programs keep what they have open of it. It is no error if a mount is not
// there any more.
func (b *Box) Remove(target string, ids []uint64, created string, force bool) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	where := target
	for i, id := range ids {
		var at string
		users, err := b.retryBusy(id, func() (err error) {
			at, err = b.unmount(id, force || i > 0)
			return err
		})
		if errors.Is(err, unix.EBUSY) {
			done.Busy, done.Users = true, users
			return done, nil
		}
		if err != nil {
			return done, err
		}
		if at != "" {
			where = at
		}
	}
	if created == "" || where != target {
		return done, nil // the box has moved the mount, so the directories are the box's to remove
	}
	return done, b.enter(func(p *nsThread) error {
		p.removeMade(target, created)
		return nil
	})
}

// maxTries is how often Remove tries to catch a mount that a program in the box keeps moving.
const maxTries = 64

// maxBusy bounds how long a mount may be busy without a user that can be named. A process that
// was forked and has not reached its execve(2) still has the descriptors of its parent, also
// those that close on exec: umount(2) then says EBUSY for a mount that nothing in the box uses.
const maxBusy = 250 * time.Millisecond

// retryBusy repeats remove while that says EBUSY and no user can be named. It returns EBUSY together
// with the users it found.
func (b *Box) retryBusy(id uint64, remove func() error) ([]isolation.MountUser, error) {
	end := time.Now().Add(maxBusy)
	for wait := time.Millisecond; ; wait *= 2 {
		err := remove()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
		if users := b.users(id); len(users) > 0 || time.Now().Add(wait).After(end) {
			return users, err
		}
		<-time.After(wait) // bounded by maxBusy
	}
}

// unmount unmounts a mount wherever it is, and returns the path where it has found it, or "" if the
// box does not have it. It succeeds once the box has no mount with that id any more. EPERM: at
// that path there can be no mount that was added to a live box.
func (b *Box) unmount(id uint64, force bool) (at string, err error) {
	for range maxTries {
		now, err := b.find(id)
		if err != nil || now == "" {
			return at, err
		}
		if at = now; !b.addedLive(at) {
			return at, unix.EPERM
		}
		// ESTALE: a program in the box moves it about; try again.
		if err = b.enter(func(p *nsThread) error { return p.remove(at, id, force) }); err != nil && !errors.Is(err, unix.ESTALE) {
			return at, err
		}
	}
	return at, unix.ESTALE
}

// addedLive reports whether a mount at this path may be one that was added to a live box. Skills
// cannot be moved.
func (b *Box) addedLive(at string) bool {
	if b.closed {
		return path.Dir(at) == isolation.SkillsDir || isolation.IsDriveTarget(at)
	}
	return isolation.UnderRoots(at) && at != isolation.Workspace && at != isolation.Home && at != "/tmp"
}

// remove unmounts a mount. With force it goes by a descriptor of the mount's root. Without, it
// goes by the name in the parent directory, which programs of the box cannot reuse while
// something is mounted there; a process outside that has the same directory can.
func (p *nsThread) remove(at string, id uint64, force bool) error {
	if force {
		root, err := p.open(at)
		if err != nil {
			return unix.ESTALE
		}
		defer unix.Close(root)
		if now, err := mountID(root, ""); err != nil || now != id {
			return unix.ESTALE
		}
		return p.detach(root)
	}
	parent, err := p.open(path.Dir(at))
	if err != nil {
		return unix.ESTALE
	}
	defer unix.Close(parent)
	name := path.Base(at)
	if now, err := mountID(parent, name); err != nil || now != id {
		return unix.ESTALE
	}
	if err := unix.Fchdir(parent); err != nil {
		return err
	}
	return unix.Unmount(name, unix.UMOUNT_NOFOLLOW)
}

// mountID returns the id of the mount that a name in a directory belongs to; "" stands for the
// directory itself. Its filesystem is not asked (AT_STATX_DONT_SYNC).
func mountID(dir int, name string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	return st.Mnt_id, nil
}

// isMountRoot reports whether a descriptor refers to the root of a mount.
func isMountRoot(fd int) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

func ifTrue(cond bool, err error) error {
	if cond {
		return err
	}
	return nil
}
