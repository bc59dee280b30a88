// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// writeFile writes the content of r to a file.
func writeFile(req *files.Write, r io.Reader) (*files.WriteAnswer, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	if name := baseOf(path); strings.HasSuffix(path, "/") || name == "." || name == ".." || name == "" {
		return nil, &files.Failure{Kind: files.IsDirectory, Text: "the path of a directory, not of a file"}
	}
	if err := checkXattrs(req.Xattrs); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, req.Most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > req.Most {
		return nil, &files.Failure{Kind: files.TooLarge, Text: fmt.Sprintf("a content of more than %d bytes", req.Most)}
	}
	if req.Parents {
		if err := makeParents(path); err != nil {
			return nil, err
		}
	}
	switch req.How {
	case files.Append:
		return appendTo(path, req, content)
	case files.Create, files.Overwrite:
		return overwriteFile(path, req, content)
	}
	return nil, &files.Failure{Kind: files.BadRequest, Field: "mode", Text: "unknown mode", Allowed: files.Overwrite + ", " + files.Append + ", " + files.Create}
}

func overwriteFile(path string, req *files.Write, content []byte) (*files.WriteAnswer, error) {
	if req.How == files.Create {
		// Not even a dangling link may be there.
		if err := unix.Lstat(path, &unix.Stat_t{}); !errors.Is(err, unix.ENOENT) {
			if err == nil {
				err = unix.EEXIST
			}
			return nil, err
		}
	}
	path, err := resolveFinal(path)
	if err != nil {
		return nil, err
	}
	old, err := statTarget(path, req.IfMatch, req.Most)
	if err != nil {
		return nil, err
	}
	mode := uint32(0o644)
	if old != nil {
		mode = old.Mode & 0o777
	}
	if req.Mode != nil {
		mode = *req.Mode & 0o777
	}
	st, err := replaceFile(path, content, mode, old, req.Xattrs, req.How == files.Create)
	if err != nil {
		return nil, err
	}
	a := &files.WriteAnswer{File: entryOf(string(req.Path), st), Created: old == nil}
	a.File.Digest = digestOfBytes(content)
	return a, nil
}

// statTarget returns the status of the file to be replaced at a path, nil if there is none. It must be a regular file that may be
// written to, with the requested digest.
func statTarget(path, match string, limit int64) (*unix.Stat_t, error) {
	f, st, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		if match != "" {
			return nil, &files.Failure{Kind: files.Changed, Text: "it no longer exists"}
		}
		return nil, nil
	}
	if errors.Is(err, unix.EACCES) && match == "" { // the old file need not be readable
		st = &unix.Stat_t{}
		if err := unix.Lstat(path, st); err != nil {
			return nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, notRegular(st)
		}
	} else if err != nil {
		return nil, err
	} else {
		defer f.Close()
	}
	if err := unix.Faccessat2(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return nil, err
	}
	if match == "" {
		return st, nil
	}
	is, err := digestOf(f, st, max(limit, st.Size, 1))
	if err == nil && is != match {
		err = &files.Failure{Kind: files.Changed, Text: "its digest is " + is + ", not that of if_match"}
	}
	return st, err
}

// replaceFile puts content at a path by renaming, so that no process sees a part of it. The file that was examined must still be
// there unchanged.
func replaceFile(path string, content []byte, mode uint32, old *unix.Stat_t, x *files.Xattrs, fresh bool) (*unix.Stat_t, error) {
	temp := parentOf(path) + "/" + stagePrefix + rand.Text()
	fd, err := unix.Open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	from := path
	if old == nil {
		from = ""
	}
	st, err := fillFile(os.NewFile(uintptr(fd), temp), content, mode, from, x)
	if err == nil && old != nil {
		var now unix.Stat_t
		if lerr := unix.Lstat(path, &now); lerr != nil || !isSame(old, &now) {
			err = &files.Failure{Kind: files.Changed, Text: "it was changed meanwhile"}
		}
	}
	if err == nil {
		flags := uint(0)
		if fresh {
			flags = unix.RENAME_NOREPLACE
		}
		err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, flags)
	}
	if err != nil {
		_ = unix.Unlink(temp)
		return nil, err
	}
	return st, nil
}

// fillFile fills a new file. from is the file that it replaces, whose extended attributes stay; "": none.
func fillFile(f *os.File, content []byte, mode uint32, from string, x *files.Xattrs) (*unix.Stat_t, error) {
	st := &unix.Stat_t{}
	err := copyXattrs(from, int(f.Fd()))
	if err == nil {
		err = replaceXattrs(int(f.Fd()), x)
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Chmod(os.FileMode(mode))
	}
	if err == nil {
		err = unix.Fstat(int(f.Fd()), st)
	}
	return st, errors.Join(err, f.Close())
}

// appendTo appends to a file, which it creates if it is missing. If there is not enough room for
// all of it, what was written stays.
func appendTo(path string, req *files.Write, content []byte) (*files.WriteAnswer, error) {
	created := errors.Is(unix.Lstat(path, &unix.Stat_t{}), unix.ENOENT)
	path, err := resolveFinal(path)
	if err != nil {
		return nil, err
	}
	if req.IfMatch != "" {
		if _, err := statTarget(path, req.IfMatch, req.Most); err != nil {
			return nil, err
		}
	}
	if created {
		mode := uint32(0o644)
		if req.Mode != nil {
			mode = *req.Mode & 0o777
		}
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|openFlags, mode)
		if err != nil {
			return nil, err
		}
		unix.Close(fd)
	}
	f, _, err := openRegular(unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := replaceXattrs(int(f.Fd()), req.Xattrs); err != nil {
		return nil, err
	}
	if _, err := f.Write(content); err != nil {
		return nil, err
	}
	if req.Mode != nil && !created {
		if err := f.Chmod(os.FileMode(*req.Mode & 0o777)); err != nil {
			return nil, err
		}
	}
	st := &unix.Stat_t{}
	if err := unix.Fstat(int(f.Fd()), st); err != nil {
		return nil, err
	}
	return &files.WriteAnswer{File: entryOf(string(req.Path), st), Created: created}, nil
}
