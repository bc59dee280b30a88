// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Filesystems whose files have holes, can be unnamed, and answer without a server or a program.
func localFilesystem(kind int64) bool {
	switch uint32(kind) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// isSpool reports whether fd can hold a ring on disk: an unnamed file of a filesystem that reads it like memory, only slower.
func isSpool(fd int) bool {
	var st unix.Stat_t
	var fs unix.Statfs_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0 && unix.Fstatfs(fd, &fs) == nil && localFilesystem(int64(fs.Type))
}

// sameDevice reports whether two files are of one filesystem.
func sameDevice(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev
}

// NoSpool is the error of CreateIn where the filesystem of the directory cannot hold a ring.
const NoSpool = unix.EMEDIUMTYPE

// CreateIn creates the file on disk, without a name, in a directory: it is gone with its last descriptor, whichever process dies,
// and counts in the quota of that directory.
func (r *Ring) CreateIn(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || err == nil && !isSpool(fd) {
		if err == nil {
			unix.Close(fd)
		}
		return NoSpool
	}
	if err != nil {
		return err
	}
	r.FD, r.spooled = fd, true
	return nil
}

// Spooled reports whether the file is on disk.
func (r *Ring) Spooled() bool { return r.spooled }

// noSpace reports whether the disk is full or over a limit. A broken disk ends the stream instead.
func noSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// spoolChunk is how much one Fill moves to a disk, to bound how long PID 1 waits for it.
const spoolChunk = 64 << 10

// noRoom handles a full disk. The program neither waits nor fails: the oldest output that no reader waits for is dropped, and if
// there is none, what the program writes now. To readers both look like any dropped output. The next output is in a pipe, or else
// in data.
func (r *Ring) noRoom(pipe int, data []byte) (int64, error) {
	if r.giveUp() {
		return 0, unix.EINTR // try again
	}
	if err := r.align(); err != nil {
		return 0, err
	}
	return r.skip(pipe, data, spoolChunk)
}

// giveUp frees the older half of the kept output after the beginning, if there is any.
func (r *Ring) giveUp() bool {
	start, end := max((r.Head+page-1)&^(page-1), r.holeTo), r.size
	if r.held >= 0 {
		end = min(end, r.held)
	}
	end = (start + (end-start)/2 + page - 1) &^ (page - 1)
	if end <= start || end > r.size || unix.Fallocate(r.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, end-start) != nil {
		return false
	}
	r.holeTo = end
	return true
}

// align ends the data with a whole page, as the unwritten part of one would read as zeros: the content of the last page is
// dropped, even if a reader waits for it.
func (r *Ring) align() error {
	if r.skipped || r.size%page == 0 {
		return nil
	}
	return unix.Fallocate(r.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.size&^(page-1), page)
}

// skip drops the next bytes of the stream, at most most. They become a hole.
func (r *Ring) skip(pipe int, data []byte, limit int64) (n int64, err error) {
	if data != nil {
		n = min(int64(len(data)), limit)
	} else {
		if r.scratch == nil {
			r.scratch = make([]byte, spoolChunk)
		}
		read, err := unix.Read(pipe, r.scratch[:limit])
		if n = int64(read); err != nil || n == 0 {
			return max(n, 0), err
		}
	}
	if err := unix.Ftruncate(r.FD, r.size+n); err != nil {
		return 0, err
	}
	r.size += n
	r.skipped = true
	return n, nil
}

// left returns how much more of a page that begins with a hole has to be dropped, 0 if the next bytes can be kept.
func (r *Ring) left() int64 {
	if !r.skipped || r.size%page == 0 {
		r.skipped = false
		return 0
	}
	return page - r.size%page
}
