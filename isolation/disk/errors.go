// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Errors of requests that cannot be met; all others come from the kernel.
var (
	// errNoID means that every project id of the range is in use on this filesystem.
	errNoID = errors.New("no project id is free")
	// ErrNotEmpty means that a directory is not empty; a new project would not count what is in
	// it.
	ErrNotEmpty = errors.New("the directory is not empty")
	// ErrForeign means that this package has not limited this directory or id.
	ErrForeign = errors.New("not limited by boxd")
)

// UsedError means that limits cannot be lowered or removed because of what is used. They stay as
// they were.
type UsedError struct {
	ID    uint32
	Usage Usage
	Want  Limits // zero if the limits were to be removed
}

func (e *UsedError) Error() string {
	if e.Want == (Limits{}) {
		return fmt.Sprintf("project %d is still in use: %d bytes, %d inodes", e.ID, e.Usage.Bytes, e.Usage.Inodes)
	}
	return fmt.Sprintf("project %d uses %d bytes and %d inodes: more than %d bytes or %d inodes", e.ID, e.Usage.Bytes, e.Usage.Inodes, e.Want.Bytes, e.Want.Inodes)
}

// Reason is why a host has no project quota, or cannot have a store.
type Reason uint8

// All reasons.
const (
	NoKernel    Reason = iota + 1 // the kernel has no quotactl_fd(2), or no quota for this filesystem
	NoKind                        // filesystems of this kind have no project quota
	Off                           // the filesystem supports it, but it is not enabled
	NotEnforced                   // usage is counted and limits are stored, but the kernel does not enforce them
	NoPrivilege                   // the caller may not set quota
	NoProgram                     // what makes the filesystem of a store is not installed
	NoLoop                        // the kernel gives no loop device
	NoMount                       // the image of the store cannot be mounted
)

// UnavailableError says why there is no project quota on a filesystem.
type UnavailableError struct {
	Reason Reason
	Path   string // the path that was tried
	Kind   string // type of filesystem, such as "ext4"; empty if it does not matter
	Err    error  // error of the kernel, or nil
}

func (e *UnavailableError) Error() string {
	text := e.Path + ": " + e.what()
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *UnavailableError) Unwrap() error { return e.Err }

func (e *UnavailableError) what() string {
	switch e.Reason {
	case NoKernel:
		return "the kernel has no project quota for " + e.Kind
	case NoKind:
		return e.Kind + " has no project quota"
	case Off:
		return "project quota is off on this " + e.Kind
	case NotEnforced:
		return "project quota on this " + e.Kind + " is counted, but not enforced"
	case NoPrivilege:
		return "no permission to set quotas"
	case NoProgram:
		program, _ := mkfs(e.Kind)
		return program + " is not installed, so no store can be created"
	case NoLoop:
		return "no loop device for the store"
	case NoMount:
		return "the store cannot be mounted"
	}
	return "no project quota"
}

// Hint returns what an administrator can do about it, or "".
func (e *UnavailableError) Hint() string {
	switch e.Reason {
	case NoKernel:
		return "use Linux 5.14 or later with CONFIG_QUOTA, CONFIG_QFMT_V2 and CONFIG_QUOTACTL"
	case NoKind:
		return "use ext4 or xfs for the state directory, or set workspaces.store_size in box.toml"
	case Off, NotEnforced:
		return offHint(e.Kind)
	case NoPrivilege:
		return "run boxkeeper as root with CAP_SYS_ADMIN"
	case NoProgram:
		if e.Kind == isolation.StoreXFS {
			return "install xfsprogs"
		}
		return "install e2fsprogs"
	case NoLoop:
		return "modprobe loop, and give boxkeeper access to /dev/loop-control and /dev/loop*"
	case NoMount:
		if e.Kind == isolation.StoreXFS {
			return "use a kernel with CONFIG_XFS_FS and CONFIG_XFS_QUOTA; dmesg has the reason"
		}
		return "use a kernel with ext4, CONFIG_QUOTA and CONFIG_QFMT_V2; dmesg has the reason"
	}
	return ""
}

func offHint(kind string) string {
	switch kind {
	case "ext4":
		return "unmount it, run tune2fs -O quota,project -Q prjquota DEVICE, mount it with -o prjquota"
	case "xfs":
		return "mount it with -o prjquota"
	}
	return "mount it with project quotas enabled"
}

// explain turns an error of the first call on a filesystem into the reason it stands for.
func explain(path string, fd int, err error) error {
	unavailable := &UnavailableError{Path: path, Kind: kindOf(fd), Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		unavailable.Reason = NoPrivilege
	case errors.Is(quotactl(-1, qGetQuota, 0, &dqblk{}), unix.ENOSYS):
		unavailable.Reason = NoKernel // a kernel that has the call would return EBADF
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EOPNOTSUPP):
		unavailable.Reason = Off
	case errors.Is(err, unix.ENOSYS) && unavailable.Kind == "xfs":
		unavailable.Reason = Off // also the error of a kernel without CONFIG_XFS_QUOTA
	case errors.Is(err, unix.ENOSYS) && (unavailable.Kind == "ext4" || unavailable.Kind == "f2fs"):
		unavailable.Reason = NoKernel
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY):
		unavailable.Reason = NoKind
	default:
		return fmt.Errorf("project quota of %s: %w", path, err)
	}
	return unavailable
}

// kindOf returns the type of an open file's filesystem, by linux/magic.h.
func kindOf(fd int) string {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "filesystem"
	}
	return kindName(uint32(st.Type))
}

func kindName(magic uint32) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case zfsMagic:
		return "zfs"
	}
	return fmt.Sprintf("filesystem of type %#x", magic)
}

// zfsMagic is not in linux/magic.h; it is what zfs returns in statfs(2).
const zfsMagic = 0x2fc12fc1
