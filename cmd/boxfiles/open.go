// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// failureOf returns a Failure for an error about a path.
func failureOf(path string, err error) *files.Failure {
	if f, ok := errors.AsType[*files.Failure](err); ok {
		if len(f.Path) == 0 {
			f.Path = []byte(path)
		}
		return f
	}
	f := &files.Failure{Kind: files.Broken, Path: []byte(path), Text: err.Error()}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return f
	}
	f.Kind, f.Text = kindOf(errno), errno.Error()
	if errno == unix.EXDEV {
		f.Hint = "it is on another filesystem: copy it, with cp in the box, and remove the old one"
	}
	return f
}

func kindOf(errno syscall.Errno) files.Kind {
	switch errno {
	case unix.ENOENT:
		return files.NotFound
	case unix.EEXIST:
		return files.Exists
	case unix.EISDIR:
		return files.IsDirectory
	case unix.ENOTDIR:
		return files.NotDirectory
	case unix.ENXIO, unix.ENODEV:
		return files.NotRegular
	case unix.EACCES, unix.EPERM:
		return files.NotPermitted
	case unix.EROFS:
		return files.ReadOnly
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return files.NoSpace
	case unix.ENOTEMPTY:
		return files.NotEmpty
	case unix.EBUSY, unix.ETXTBSY:
		return files.Busy
	case unix.EXDEV:
		return files.OtherDisk
	case unix.ENAMETOOLONG, unix.ELOOP, unix.EINVAL:
		return files.BadPath
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return files.TooMany
	case unix.ENOTSUP:
		return files.Unsupported
	default:
		return files.Broken
	}
}

// checkPath refuses paths that the kernel would read as something else, or not at all.
func checkPath(path []byte) (string, error) {
	switch p := string(path); {
	case p == "":
		return "", &files.Failure{Kind: files.BadPath, Text: "an empty path"}
	case strings.IndexByte(p, 0) >= 0:
		return "", &files.Failure{Kind: files.BadPath, Text: "a path with NUL"}
	case len(p) > files.MaxPath:
		return "", &files.Failure{Kind: files.BadPath, Text: fmt.Sprintf("a path of %d bytes, more than %d", len(p), files.MaxPath)}
	default:
		return p, nil
	}
}

// openFlags are used for every file that is opened: opening never blocks, and never makes a terminal our controlling terminal.
const openFlags = unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// openRegular opens a regular file for reading, relative to a directory or unix.AT_FDCWD.
// Anything else is refused at once: it does not wait for a writer of a FIFO, or for a device.
func openRegular(dir int, path string, flags int) (*os.File, *unix.Stat_t, error) {
	fd, err := unix.Openat(dir, path, flags|openFlags, 0)
	if err != nil {
		var st unix.Stat_t
		if !errors.Is(err, unix.ENOENT) && unix.Fstatat(dir, path, &st, 0) == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, nil, notRegular(&st) // a socket cannot be opened, nor a FIFO for writing without a reader
		}
		return nil, nil, err
	}
	st := &unix.Stat_t{}
	if err := unix.Fstat(fd, st); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, nil, notRegular(st)
	}
	var where unix.Statfs_t
	if err := unix.Fstatfs(fd, &where); err == nil && ofKernel(where.Type) {
		unix.Close(fd)
		return nil, nil, &files.Failure{Kind: files.NotRegular, Text: "a file of the kernel's, not of a disk"}
	}
	return os.NewFile(uintptr(fd), path), st, nil
}

// ofKernel reports whether the kernel generates the files of a filesystem: their sizes mean
// nothing, and reading one may block.
func ofKernel(kind int64) bool {
	switch uint32(kind) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}

func notRegular(st *unix.Stat_t) *files.Failure {
	kind := typeOf(st.Mode)
	if kind == files.TypeDirectory {
		return &files.Failure{Kind: files.IsDirectory, Text: "a directory", Hint: "list shows what is in it"}
	}
	return &files.Failure{Kind: files.NotRegular, Text: "a " + kind + ", not a regular file"}
}

// typeOf returns the type in a mode (inode(7)).
func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return files.TypeFile
	case unix.S_IFDIR:
		return files.TypeDirectory
	case unix.S_IFLNK:
		return files.TypeLink
	case unix.S_IFIFO:
		return files.TypeFIFO
	case unix.S_IFSOCK:
		return files.TypeSocket
	}
	return files.TypeDevice
}

// entryOf describes a file or directory by its status.
func entryOf(path string, st *unix.Stat_t) files.Entry {
	at := time.Unix(st.Mtim.Unix()).UTC()
	if at.Year() < 0 || at.Year() > 9999 { // any program may set any time, and JSON has no other years
		at = time.Unix(0, 0).UTC()
	}
	return files.Entry{Path: []byte(path), Type: typeOf(st.Mode), Size: max(st.Size, 0), Mode: st.Mode & 0o7777, Time: at}
}

// isSame reports whether two results of stat(2) are of the same file, unchanged.
func isSame(a, b *unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

// resolveFinal follows the symbolic links at the end of a path, so that replacing the file leaves them as they are. A dangling
// link is not followed: the caller did not ask for the file that it names.
func resolveFinal(path string) (string, error) {
	const most = 40 // as many as the kernel follows
	for i := 0; ; i++ {
		buf := make([]byte, files.MaxPath+1)
		n, err := unix.Readlink(path, buf)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) && i == 0 {
			return path, nil // not a link, or it does not exist
		}
		if errors.Is(err, unix.ENOENT) {
			return "", &files.Failure{Kind: files.NotFound, Text: "a symbolic link to nothing"}
		}
		if err != nil {
			return "", err
		}
		if i == most {
			return "", unix.ELOOP
		}
		target := string(buf[:n])
		if !strings.HasPrefix(target, "/") {
			target = parentOf(path) + "/" + target // not cleaned: the part before .. may be a link
		}
		if len(target) > files.MaxPath {
			return "", unix.ENAMETOOLONG
		}
		path = target
	}
}

// parentOf returns the directory of a path, as it is spelled.
func parentOf(path string) string {
	trimmed := strings.TrimRight(path, "/")
	i := strings.LastIndexByte(trimmed, '/')
	switch {
	case i < 0:
		return "."
	case i == 0:
		return "/"
	}
	return trimmed[:i]
}

// baseOf returns the last name of a path.
func baseOf(path string) string {
	trimmed := strings.TrimRight(path, "/")
	return trimmed[strings.LastIndexByte(trimmed, '/')+1:]
}

// makeParents makes the directories a path needs.
func makeParents(path string) error {
	dir := parentOf(path)
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := makeParents(dir); err != nil {
		return err
	}
	if err := unix.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
