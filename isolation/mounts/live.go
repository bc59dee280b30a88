// SPDX-License-Identifier: Apache-2.0

// Mounts of a live box are added, replaced and removed from outside: PID 1 and the programs of a box may not mount,
// and gain no right to do so. The keeper does it on a thread that enters the box's mount namespace for one change
// and ends with it.
//
// Nothing in the box is trusted: its paths are resolved one component at a time, without following links, and where
// a mount has ended up is checked once it is there.

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

// Box is the box that is changed.
type Box struct {
	PID    int         // of its PID 1, on the host
	IDBase uint32      // first of its host ids
	Alive  func() bool // whether that process still is the one that is meant
	closed bool        // what is made for targets is root's, as for skills, and not the box user's
}

// place is a thread in the mount namespace of a box.
type place struct {
	root int    // of the box
	fds  int    // /proc/self/fd of the host
	uid  uint32 // of whose the directories are that are made for targets, on the host: the box user
}

// enter calls f on a thread that is in the box's mount namespace, with a working directory of its own. The thread
// ends with it.
func (b *Box) enter(f func(p *place) error) error {
	ns, err := unix.Open("/proc/"+strconv.Itoa(b.PID)+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return b.gone(err)
	}
	defer unix.Close(ns)
	if !b.Alive() { // it is of that process, as it has lived until after it was opened
		return unix.ESRCH
	}
	return apart(func() error { return b.inside(ns, f) })
}

// apart calls f on a thread that ends with it. The main thread cannot end: it would stay where f has brought it for
// as long as the keeper lives, and hold the box's mounts. If it is the one that is given, it waits meanwhile.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- apart(f) // on another, as this one is taken
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

func (b *Box) inside(ns int, f func(p *place) error) error {
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
	p := &place{root: root, fds: fds, uid: b.IDBase + isolation.BoxUID}
	if b.closed {
		p.uid = 0
	}
	return f(p)
}

// gone makes the end of a process of what is said of its directory. EINVAL: it is just ending, and has let go of its
// namespaces.
func (b *Box) gone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) || !b.Alive() {
		return unix.ESRCH
	}
	return err
}

// Add puts a mount on its target, of which the missing directories are made. EEXIST: there is a mount. ESTALE:
// somebody in the box moved the target meanwhile. After an error nothing has changed.
func (b *Box) Add(tree int, m *isolation.Mount) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	err := b.enter(func(p *place) error {
		made, err := p.makeTarget(m.Target)
		if err == nil {
			err = p.add(tree, m, done)
		}
		if err != nil && made != "" {
			p.removeMade(m.Target, made)
			return err
		}
		done.Made = made
		return err
	})
	return done, err
}

func (p *place) add(tree int, m *isolation.Mount, done *isolation.Mounted) error {
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
	return p.settle(tree, m, done)
}

// settle looks at a mount that has just been attached, and takes it away if it is not what it should be, or not
// where. The programs of the box may have used it for that moment; there is nothing in it they may not have.
func (p *place) settle(tree int, m *isolation.Mount, done *isolation.Mounted) error {
	err := note(tree, m, done)
	if err == nil {
		err = p.isAt(m.Target, done.ID)
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, p.detach(tree))
}

// note writes down what the kernel has made of a mount.
func note(tree int, m *isolation.Mount, done *isolation.Mounted) (err error) {
	if done.ID, err = mountID(tree, ""); err == nil {
		done.Attrs, err = verify(tree, m)
	}
	return err
}

// detach takes a mount off by its own root, wherever it is by now. That is found by a link of /proc, so that its
// filesystem is asked nothing: it may not answer, and to go there would be to ask (chdir(2)).
func (p *place) detach(root int) error {
	if err := unix.Fchdir(p.fds); err != nil {
		return err
	}
	defer func() { _ = unix.Fchdir(p.root) }()
	return unix.Unmount(strconv.Itoa(root), unix.MNT_DETACH)
}

// isAt reports whether a mount is what is found at a path; ESTALE: it is not.
func (p *place) isAt(target string, id uint64) error {
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

// Replace puts a mount into the place of another, given as it is known, and detaches that: programs that have
// something of it open keep it. Nobody finds the target without one of the two. On kernels that cannot put a
// mount below another (before 6.5), the old one stays there, covered.
func (b *Box) Replace(tree int, m *isolation.Mount, old uint64) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	return done, b.enter(func(p *place) error {
		err := p.replace(tree, m, old, done)
		if errors.Is(err, errNotBeneath) && !b.closed {
			err = p.onTop(tree, m, old, done)
		}
		return err
	})
}

// errNotBeneath means that the kernel cannot put a mount below another. Nothing has changed.
var errNotBeneath = errors.New("no mount can be put below another")

// onTop covers what is on a target.
func (p *place) onTop(tree int, m *isolation.Mount, old uint64, done *isolation.Mounted) error {
	target, err := p.open(m.Target)
	if err != nil {
		return unix.ESTALE
	}
	defer unix.Close(target)
	if now, err := mountID(target, ""); err != nil || now != old {
		return errors.Join(err, unix.ESTALE)
	}
	done.Below = true
	if err := linux.AttachMount(tree, target, ""); err != nil {
		return err
	}
	return p.settle(tree, m, done)
}

// moveMountBeneath is MOVE_MOUNT_BENEATH of move_mount(2), from Linux 6.5 on.
const moveMountBeneath = 0x200

func (p *place) replace(tree int, m *isolation.Mount, old uint64, done *isolation.Mounted) error {
	target, err := p.open(m.Target)
	if err != nil {
		return unix.ESTALE
	}
	defer unix.Close(target)
	if now, err := mountID(target, ""); err != nil || now != old {
		return errors.Join(err, unix.ESTALE)
	}
	err = unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	if errors.Is(err, unix.EINVAL) {
		return errNotBeneath
	}
	if err != nil {
		return err
	}
	// The new one is below the old one, which goes. From then on it is where the old one was, and found by its
	// number if the box has moved that: taken away, it would leave nothing in that place.
	if err := p.detach(target); err != nil {
		return err
	}
	if err := note(tree, m, done); err != nil {
		return errors.Join(err, p.detach(tree))
	}
	return nil
}

// Remove takes mounts off their target, the first of them being the uppermost, and removes what was made for it.
// If the first is in use, it is Busy and nothing has changed, unless force is set: what is open of it then stays
// so. A mount that is not there any more is no error.
func (b *Box) Remove(target string, ids []uint64, made string, force bool) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	where := target
	for i, id := range ids {
		var at string
		users, err := b.idle(id, func() (err error) {
			at, err = b.take(id, force || i > 0)
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
	if made == "" || where != target {
		return done, nil // where the box has put it, it is the box's
	}
	return done, b.enter(func(p *place) error {
		p.removeMade(target, made)
		return nil
	})
}

// maxTries is how often it is tried to catch a mount that a box moves about.
const maxTries = 64

// maxBusy bounds how long a mount may be in use by nobody that can be named. A process that was forked and has not
// reached its execve(2) has the descriptors of its parent, those that are closed there included: umount(2) then says
// EBUSY of a mount that none of the box uses.
const maxBusy = 250 * time.Millisecond

// idle calls remove again while it says EBUSY and no user can be named. EBUSY comes with the users there are.
func (b *Box) idle(id uint64, remove func() error) ([]isolation.MountUser, error) {
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

// take takes a mount off, wherever it is, and says where it has found it: "", nowhere. It is done when the box has
// no mount of that number any more. EPERM: it is where none is that was given to a living box.
func (b *Box) take(id uint64, force bool) (at string, err error) {
	for range maxTries {
		now, err := b.find(id)
		if err != nil || now == "" {
			return at, err
		}
		if at = now; !b.given(at) {
			return at, unix.EPERM
		}
		// ESTALE: somebody in the box moves it about.
		if err = b.enter(func(p *place) error { return p.remove(at, id, force) }); err != nil && !errors.Is(err, unix.ESTALE) {
			return at, err
		}
	}
	return at, unix.ESTALE
}

// given reports whether a living box can have been given a mount that is at a place now. Skills stay where they are.
func (b *Box) given(at string) bool {
	if b.closed {
		return path.Dir(at) == isolation.SkillsDir || isolation.IsDriveTarget(at)
	}
	return isolation.UnderRoots(at) && at != isolation.Workspace && at != isolation.Home && at != "/tmp"
}

// remove takes a mount off. By force that is done by its own root. Else it is by its name, which nobody of the box
// can give to anything else meanwhile; who has the same directory elsewhere can.
func (p *place) remove(at string, id uint64, force bool) error {
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

// mountID is the number of the mount that a name below a directory is in; "": of the directory itself. Nothing is asked of
// its filesystem (AT_STATX_DONT_SYNC).
func mountID(dir int, name string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	return st.Mnt_id, nil
}

// isMountRoot reports whether a descriptor is of the root of a mount.
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
