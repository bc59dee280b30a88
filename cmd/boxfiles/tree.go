// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
)

// statFile describes what is at a path.
func statFile(req *files.Stat) (*files.Entry, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	flags := unix.AT_SYMLINK_NOFOLLOW
	if req.Follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, flags); err != nil {
		return nil, err
	}
	e := (&describer{Xattrs: req.Xattrs}).Describe(unix.AT_FDCWD, path, path, &st)
	if e.Type != files.TypeFile || st.Size > req.Digest || req.Digest == 0 {
		return &e, nil
	}
	f, now, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return &e, nil // an unreadable file has no digest, but the rest is known
	}
	defer f.Close()
	e.Digest, err = digestOf(f, now, req.Digest)
	return &e, err
}

// targetOf reads a symbolic link; nil if it is no longer one.
func targetOf(dir int, path string) []byte {
	buf := make([]byte, files.MaxPath+1)
	n, err := unix.Readlinkat(dir, path, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

// movePath renames a file or directory.
func movePath(req *files.Move) error {
	from, err := checkPath(req.From)
	if err != nil {
		return err
	}
	to, err := checkPath(req.To)
	if err != nil {
		return err
	}
	if err := unix.Lstat(from, &unix.Stat_t{}); err != nil {
		return failureOf(from, err)
	}
	if req.Parents {
		if err := makeParents(to); err != nil {
			return failureOf(to, err)
		}
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if req.Overwrite {
		flags = 0
	}
	err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	if errors.Is(err, unix.EINVAL) && flags == 0 {
		err = &files.Failure{Kind: files.BadPath, Text: "a directory cannot be moved into itself"}
	}
	if err != nil {
		return failureOf(to, err)
	}
	return nil
}

// chmodPath changes the permission bits of what is at a path.
func chmodPath(req *files.Chmod) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	return unix.Fchmodat(unix.AT_FDCWD, path, req.Mode&0o777, 0)
}

// removePath removes a file, an empty directory, or on request a directory with everything in it.
func removePath(req *files.Remove) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	name := baseOf(path)
	if name == "" || name == "." || name == ".." {
		return &files.Failure{Kind: files.BadPath, Text: "not the name of a file or directory"}
	}
	err = removeAt(parentOf(path), name, strings.HasSuffix(path, "/"), req.Recursive)
	if errors.Is(err, unix.ENOENT) && req.Missing {
		return nil
	}
	return err
}

func removeAt(dir, name string, mustBeDirectory, recursive bool) error {
	root, err := os.OpenRoot(dir) // the directory is resolved once; nothing below it leads out of it
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	switch {
	case mustBeDirectory && !info.IsDir():
		return unix.ENOTDIR
	case info.IsDir() && recursive:
		return root.RemoveAll(name)
	}
	err = root.Remove(name)
	if errors.Is(err, unix.ENOTEMPTY) {
		return &files.Failure{Kind: files.NotEmpty, Text: "the directory is not empty", Hint: "recursive = true removes that too"}
	}
	return err
}

// maxCompared bounds the size of files that are compared.
const maxCompared = 64 << 20

// usersOf returns what a box has had from its start at a path that is relative to its root, where that is not what its image has
// (cmd/boxinit, recordUsers); nil: nothing.
func usersOf(at string) []byte {
	if at != "etc/passwd" && at != "etc/group" {
		return nil
	}
	text, err := os.ReadFile(isolation.RunDir + "/" + path.Base(at))
	if err != nil {
		return nil
	}
	return text
}

// isUsers reports whether a file is as usersOf has it.
func isUsers(dir int, name string, users []byte) bool {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(len(users))+1))
	return err == nil && bytes.Equal(text, users)
}

// sameOwner reports whether something still belongs to whom it did, as far as this process can change that.
func sameOwner(orig *unix.Stat_t, uid, gid uint32) bool {
	return !isRootOfBox() || orig.Uid == uid && orig.Gid == gid
}

// sameFile reports whether a name in two directories stands for files with the same content,
// owner, permissions and time, or for the same link. Files that are too large count as different.
func sameFile(oldDir int, orig *unix.Stat_t, newDir int, cur *unix.Stat_t, name string) bool {
	if orig.Mode != cur.Mode || orig.Size != cur.Size || !sameOwner(orig, cur.Uid, cur.Gid) {
		return false
	}
	switch cur.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target := targetOf(oldDir, name)
		return target != nil && bytes.Equal(target, targetOf(newDir, name))
	case unix.S_IFREG:
		if orig.Mtim != cur.Mtim || cur.Size > maxCompared {
			return false
		}
		old := digestAt(oldDir, name, max(cur.Size, 1))
		return old != "" && old == digestAt(newDir, name, max(cur.Size, 1))
	}
	return false
}
