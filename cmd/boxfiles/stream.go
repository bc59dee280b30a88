// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// makeDir makes a directory.
func makeDir(req *files.Mkdir) (*files.WriteAnswer, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	if req.Parents {
		if err := makeParents(path); err != nil {
			return nil, err
		}
	}
	mode := req.Mode & 0o777
	err = unix.Mkdir(path, mode)
	var st unix.Stat_t
	switch {
	case errors.Is(err, unix.EEXIST):
		if err := unix.Stat(path, &st); errors.Is(err, unix.ENOENT) {
			return nil, &files.Failure{Kind: files.NotDirectory, Text: "a dangling symbolic link, not a directory"}
		} else if err != nil {
			return nil, err
		}
		if kind := typeOf(st.Mode); kind != files.TypeDirectory {
			return nil, &files.Failure{Kind: files.NotDirectory, Text: "a " + kind + ", not a directory"}
		}
		if !req.Existing {
			return nil, &files.Failure{Kind: files.Exists, Text: "the directory already exists"}
		}
	case err != nil:
		return nil, err
	default:
		if mode&0o022 != 0 { // the umask has removed these
			if err := unix.Fchmodat(unix.AT_FDCWD, path, mode, 0); err != nil {
				return nil, err
			}
		}
		if err := unix.Stat(path, &st); err != nil {
			return nil, err
		}
	}
	return &files.WriteAnswer{File: new(describer).Describe(unix.AT_FDCWD, path, path, &st), Created: err == nil}, nil
}

// getFile writes a part of a file to w, after a notice of what it will be.
func getFile(req *files.Get, notify func(*files.Notice) error, w io.Writer) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	f, st, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	o := &files.Opening{File: new(describer).Describe(unix.AT_FDCWD, path, path, st), Offset: req.Offset}
	if o.Offset < 0 {
		o.Offset = max(o.File.Size+o.Offset, 0)
	}
	if o.Length = max(o.File.Size-o.Offset, 0); req.Length > 0 {
		o.Length = min(o.Length, req.Length)
	}
	if err := notify(&files.Notice{Opening: o}); err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(f, o.Offset, o.Length), make([]byte, files.MaxData))
	return err
}

// putFile writes the content of r to a file as it comes.
func putFile(req *files.Put, r io.Reader) (*files.WriteAnswer, error) {
	requested, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	if name := baseOf(requested); strings.HasSuffix(requested, "/") || name == "." || name == ".." || name == "" {
		return nil, &files.Failure{Kind: files.IsDirectory, Text: "the path of a directory, not of a file"}
	}
	if err := checkXattrs(req.Xattrs); err != nil {
		return nil, err
	}
	if req.Parents {
		if err := makeParents(requested); err != nil {
			return nil, err
		}
	}
	path, err := resolveFinal(requested)
	if err != nil {
		return nil, err
	}
	f, created, err := openInPlace(path, req.Mode)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := replaceXattrs(int(f.Fd()), req.Xattrs); err != nil { // first: the content is still there if it fails
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, files.MaxData)); err != nil {
		return nil, err
	}
	st := &unix.Stat_t{}
	if err := unix.Fstat(int(f.Fd()), st); err != nil {
		return nil, err
	}
	d := &describer{Xattrs: req.Xattrs != nil}
	return &files.WriteAnswer{File: d.Describe(unix.AT_FDCWD, byDescriptor(int(f.Fd())), requested, st), Created: created}, nil
}

// openInPlace opens a file for writing, or creates it. It does not truncate it yet.
func openInPlace(path string, mode *uint32) (f *os.File, created bool, err error) {
	const tries = 10 // another process may create and remove it all the time
	for range tries {
		f, _, err = openRegular(unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_NOFOLLOW)
		if !errors.Is(err, unix.ENOENT) {
			return f, false, err
		}
		permissions := uint32(0o644)
		if mode != nil {
			permissions = *mode & 0o777
		}
		var fd int
		fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|openFlags, permissions)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		f = os.NewFile(uintptr(fd), path)
		if permissions&0o022 != 0 { // the umask has removed these
			err = f.Chmod(os.FileMode(permissions))
		}
		if err != nil {
			f.Close()
			return nil, false, err
		}
		return f, true, nil
	}
	return nil, false, err
}
