// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// Names of the store in the state directory.
const (
	StoreImage = "store.img" // a sparse file with a filesystem
	StoreDir   = "store"     // where it is mounted

	newImage = StoreImage + ".new" // name until it is complete
)

// The smallest sizes of a store in bytes. Below that an ext4 is all journal; mkfs.xfs(8) makes no smaller one.
const (
	minExt4 = 64 << 20
	minXFS  = 300 << 20
)

// Store is a filesystem with project quota in a file, for a state directory that has none. It
// takes up as much of the disk below as is written to it, and gives that back when it is deleted.
// Nothing reserves room for it there: when the disk below is full, writes in the store fail with
// EIO.
type Store struct {
	state *os.File
	image *os.File
	root  *os.Root
	kind  string // isolation.StoreExt4 or isolation.StoreXFS
}

// OpenStore mounts the store of a state directory, or finds it mounted, and makes it first if
// there is none, with a filesystem of that kind, isolation.StoreExt4 or isolation.StoreXFS; one that is there keeps its own.
// It grows to at least so many bytes and never shrinks. state must be closed to
// all but root, and children must be the caller's to wait for. An *UnavailableError says what the
// host lacks.
func OpenStore(ctx context.Context, state *os.Root, kind string, bytes uint64) (*Store, error) {
	if (kind != isolation.StoreExt4 || bytes < minExt4) && (kind != isolation.StoreXFS || bytes < minXFS) {
		return nil, fmt.Errorf("store of %d bytes with %q: want ext4 of at least %d or xfs of at least %d: %w", bytes, kind, minExt4, minXFS, unix.EINVAL)
	}
	dir, err := state.Open(".")
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{state: dir, kind: kind}
	err = s.locked(func() error {
		if err := s.openImage(ctx, state, bytes); err != nil {
			return err
		}
		if err := s.attach(state); err != nil {
			return err
		}
		return s.grow(bytes)
	})
	if err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// locked calls f while no other process makes, mounts or unmounts the same store.
func (s *Store) locked(f func() error) error {
	if err := retry(func() error { return unix.Flock(int(s.state.Fd()), unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("lock %s: %w", s.state.Name(), err)
	}
	defer func() { _ = unix.Flock(int(s.state.Fd()), unix.LOCK_UN) }()
	return f()
}

func (s *Store) abandon() {
	if s.root != nil {
		s.root.Close()
	}
	if s.image != nil {
		s.image.Close()
	}
	s.state.Close()
}

// openImage opens the image, and makes it if there is none. It gets its name only once it is
// complete.
func (s *Store) openImage(ctx context.Context, state *os.Root, bytes uint64) error {
	f, err := state.OpenFile(StoreImage, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = s.makeImage(ctx, state, bytes); err == nil {
			if err = state.Rename(newImage, StoreImage); err == nil {
				err = s.state.Sync()
			}
			if err != nil {
				f.Close()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("image of the store: %w", err)
	}
	s.image = f
	return s.recognize()
}

// recognize determines the image's filesystem: it may predate the present configuration.
func (s *Store) recognize() error {
	var magic [4]byte // XFS_SB_MAGIC, at the beginning of an xfs; the first block of an ext4 is not its own
	if _, err := s.image.ReadAt(magic[:], 0); err != nil {
		return fmt.Errorf("image of the store: %w", err)
	}
	if s.kind = isolation.StoreExt4; string(magic[:]) == "XFSB" {
		s.kind = isolation.StoreXFS
	}
	return nil
}

// Kind is the type of the filesystem of the store.
func (s *Store) Kind() string { return s.kind }

func (s *Store) makeImage(ctx context.Context, state *os.Root, bytes uint64) (*os.File, error) {
	if err := state.Remove(newImage); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	name, args := mkfs(s.kind)
	program, err := findProgram(name)
	if err != nil {
		return nil, s.unavailable(NoProgram, err)
	}
	f, err := state.OpenFile(newImage, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(int64(bytes))
	if err == nil {
		err = makeFilesystem(ctx, program, args, f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		f.Close()
		return nil, errors.Join(err, state.Remove(newImage))
	}
	return f, nil
}

// findProgram searches where distributions install mkfs programs; the PATH of a service often lacks /sbin.
func findProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// mkfs returns the program that makes a filesystem, and its arguments but for the file.
//
// For ext4 the lazy options leave the image sparse: its holes read as the
// zeros that would be written. No blocks are reserved for root, as limits already keep others
// from filling it. For xfs the sectors are those of the loop device (attachLoop), and reflink is for snapshots.
func mkfs(kind string) (program string, args []string) {
	if kind == isolation.StoreXFS {
		return "mkfs.xfs", []string{"-q", "-f", "-b", "size=4096", "-s", "size=4096", "-m", "reflink=1", "-i", "maxpct=" + strconv.Itoa(xfsInodes)}
	}
	return "mke2fs", []string{
		"-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-i", "8192", "-e", "remount-ro",
		"-O", "quota,project,resize_inode", "-E", "quotatype=prjquota,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0",
	}
}

func makeFilesystem(ctx context.Context, program string, args []string, image *os.File) error {
	cmd := exec.CommandContext(ctx, program, append(args, "/proc/self/fd/3")...)
	cmd.ExtraFiles = []*os.File{image}
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, out)
	}
	return nil
}

// attach mounts the image at its directory unless it is mounted.
func (s *Store) attach(state *os.Root) error {
	if err := state.Mkdir(StoreDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory of the store: %w", err)
	}
	// An image may be attached to a loop device though it is not mounted here, perhaps in the
	// mount namespace of an earlier keeper. The same device gives the same filesystem; a second
	// device for the image would destroy it.
	loop, err := findLoop(s.image)
	if err == nil && loop == nil {
		loop, err = attachLoop(s.image, s.path())
	}
	if err != nil {
		return s.unavailable(NoLoop, err)
	}
	defer loop.Close() // from here on it is detached with its last mount
	mounted, err := s.mountedFrom(loop)
	if err == nil && !mounted {
		if err := s.mount(loop.Name()); err != nil {
			return s.unavailable(NoMount, err)
		}
	}
	if err == nil {
		s.root, err = state.OpenRoot(StoreDir)
	}
	if err == nil {
		err = s.root.Chmod(".", 0o700) // it is made open to all users
	}
	if err != nil {
		return fmt.Errorf("directory of the store: %w", err)
	}
	return nil
}

func (s *Store) path() string { return filepath.Join(s.state.Name(), StoreImage) }

func (s *Store) unavailable(reason Reason, err error) error {
	return &UnavailableError{Reason: reason, Path: s.path(), Kind: s.kind, Err: err}
}

// mountedFrom reports whether the filesystem on a device is mounted at the directory of the
// store. EBUSY: another one is.
func (s *Store) mountedFrom(device *os.File) (bool, error) {
	var on, below, st unix.Stat_t
	if err := unix.Fstat(int(device.Fd()), &st); err != nil {
		return false, err
	}
	if err := unix.Fstat(int(s.state.Fd()), &below); err != nil {
		return false, err
	}
	if err := unix.Fstatat(int(s.state.Fd()), StoreDir, &on, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if on.Dev != st.Rdev && on.Dev != below.Dev {
		return false, fmt.Errorf("another filesystem is mounted on %s: %w", StoreDir, unix.EBUSY)
	}
	return on.Dev == st.Rdev, nil
}

func (s *Store) mount(device string) error {
	fsfd, err := unix.Fsopen(s.kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigSetString(fsfd, "source", device); err != nil {
		return err
	}
	for _, flag := range []string{"prjquota", "discard"} {
		if err := unix.FsconfigSetFlag(fsfd, flag); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return err
	}
	tree, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return linux.AttachMount(tree, int(s.state.Fd()), StoreDir)
}

// Root returns the root directory of the store, for OpenQuotas and for what is stored in it. The
// store closes it.
func (s *Store) Root() *os.Root { return s.root }

// Grow makes the store larger while it is used. A size smaller than it has is no error and
// changes nothing.
func (s *Store) Grow(bytes uint64) error {
	return s.locked(func() error { return s.grow(bytes) })
}

func (s *Store) grow(bytes uint64) error {
	info, err := s.image.Stat()
	if err != nil {
		return fmt.Errorf("grow the store: %w", err)
	}
	bytes = max(bytes, uint64(info.Size()))
	bytes -= bytes % storeBlock
	if bytes > uint64(info.Size()) {
		if err := s.image.Truncate(int64(bytes)); err != nil {
			return fmt.Errorf("grow the store: %w", err)
		}
	}
	// The rest is done even if the image has its size already, as an earlier attempt may have
	// stopped here.
	loop, err := findLoop(s.image)
	if err == nil && loop == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("grow the store: %w", s.unavailable(NoLoop, err))
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("grow %s: %w", loop.Name(), err)
	}
	root, err := s.root.Open(".")
	if err != nil {
		return fmt.Errorf("grow the store: %w", err)
	}
	defer root.Close()
	if err := s.resize(int(root.Fd()), bytes/storeBlock); err != nil {
		return fmt.Errorf("grow the store to %d bytes: %w", bytes, err)
	}
	return nil
}

// resize gives the mounted filesystem so many blocks; it is no error if it has them.
func (s *Store) resize(fd int, blocks uint64) error {
	if s.kind == isolation.StoreXFS {
		return ioctl(fd, xfsGrowFS, unsafe.Pointer(&xfsSize{blocks: blocks, inodes: xfsInodes}))
	}
	return ioctl(fd, ext4ResizeFS, unsafe.Pointer(&blocks))
}

const (
	storeBlock = 4096 // the size of a block, in bytes
	xfsInodes  = 25   // the share of an xfs that inodes may take, in percent: the default of mkfs.xfs(8) below a terabyte
)

// Close unmounts the store and thereby releases its loop device. EBUSY: something in it is open
// or mounted; it stays mounted, and OpenStore will find it.
func (s *Store) Close() error {
	defer s.abandon()
	return s.locked(func() error {
		s.root.Close()
		path := fmt.Sprintf("/proc/self/fd/%d/%s", s.state.Fd(), StoreDir)
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount the store: %w", err)
		}
		return nil
	})
}

// leave closes the store but leaves it mounted for the next user: OpenStore will find it.
func (s *Store) leave() { s.abandon() }

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
