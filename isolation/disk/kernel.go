// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of quotactl_fd(2), from linux/quota.h.
const (
	qGetQuota     = 0x800007 // Q_GETQUOTA
	qSetQuota     = 0x800008 // Q_SETQUOTA
	qGetNextQuota = 0x800009 // Q_GETNEXTQUOTA: the first entry with this id or a higher one
	qGetState     = 0x5808   // Q_XGETQSTATV: what is counted and enforced

	projectQuota = 2 // PRJQUOTA: the type, in the low byte of a command
	commandShift = 8 // SUBCMDSHIFT

	limitUnit = 1024     // QIF_DQBLKSIZE: bytes in a unit of a space limit
	setLimits = 1 | 1<<2 // QIF_BLIMITS|QIF_ILIMITS: what qSetQuota changes
)

// dqblk is struct if_nextdqblk of linux/quota.h. Without its last field it is struct if_dqblk, which
// ends in padding where that field is: one type serves all three commands.
type dqblk struct {
	spaceHard  uint64 // limits of space are in limitUnit
	spaceSoft  uint64
	space      uint64 // in bytes, including those reserved for delayed writes
	inodesHard uint64
	inodesSoft uint64
	inodes     uint64
	spaceTime  uint64
	inodesTime uint64
	valid      uint32
	id         uint32
}

func (d *dqblk) limited() bool {
	return d.spaceHard|d.spaceSoft|d.inodesHard|d.inodesSoft != 0
}

func (d *dqblk) used() bool { return d.space|d.inodes != 0 }

// quotactl acts on the filesystem of fd (quotactl_fd(2), Linux 5.14).
func quotactl(fd int, command, id uint32, d *dqblk) error {
	return quotactlAt(fd, command, id, unsafe.Pointer(d))
}

func quotactlAt(fd int, command, id uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command<<commandShift|projectQuota), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// quotaState is the beginning of struct fs_quota_statv of linux/dqblk_xfs.h, and room for the
// rest of it.
type quotaState struct {
	version uint8
	_       uint8
	flags   uint16
	_       [156]byte
}

const (
	stateVersion    = 1      // FS_QSTATV_VERSION1
	projectEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD
)

// enforced returns whether the kernel says that it enforces project limits on an open file's
// filesystem.
func enforced(fd int) (bool, error) {
	s := quotaState{version: stateVersion}
	if err := quotactlAt(fd, qGetState, 0, unsafe.Pointer(&s)); err != nil {
		return false, err
	}
	return s.flags&projectEnforced != 0, nil
}

// Requests of ioctl(2): _IOR('X', 31, struct fsxattr) and _IOW('X', 32, struct fsxattr) of
// linux/fs.h, _IOW('f', 16, __u64) of the kernel's fs/ext4/ext4.h, and _IOW('X', 110, struct xfs_growfs_data) of
// its fs/xfs/libxfs/xfs_fs.h. The numbers are those of
// architectures that use asm-generic/ioctl.h.
const (
	fsGetXattr   = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr   = 0x401c5820 // FS_IOC_FSSETXATTR
	ext4ResizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS: the new size in blocks
	xfsGrowFS    = 0x4010586e // XFS_IOC_FSGROWFSDATA

	projectInherit = 0x200 // FS_XFLAG_PROJINHERIT: what is created in a directory inherits its project id
)

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags      uint32
	extentSize uint32
	extents    uint32
	project    uint32
	cowSize    uint32
	_          [8]byte
}

// xfsSize is struct xfs_growfs_data of the kernel's fs/xfs/libxfs/xfs_fs.h.
type xfsSize struct {
	blocks uint64
	inodes uint32 // percent
	_      uint32
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// project returns the project id of an open file, and whether it is inherited.
func project(fd int) (id uint32, inherit bool, err error) {
	var x fsxattr
	if err := ioctl(fd, fsGetXattr, unsafe.Pointer(&x)); err != nil {
		return 0, false, err
	}
	return x.project, x.flags&projectInherit != 0, nil
}

// setProject moves an open file and its usage to a project. Only a directory can have inherit.
func setProject(fd int, id uint32, inherit bool) error {
	var x fsxattr
	if err := ioctl(fd, fsGetXattr, unsafe.Pointer(&x)); err != nil {
		return err
	}
	x.project = id
	x.flags &^= projectInherit
	if inherit {
		x.flags |= projectInherit
	}
	return ioctl(fd, fsSetXattr, unsafe.Pointer(&x))
}
