// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// describer describes files with more than their status: names of owners, link targets, extended attributes. It reads the lists
// of users and groups once.
type describer struct {
	Xattrs bool // include extended attributes

	users, groups map[uint32]string // nil: not read yet
	owners        map[[2]uint32]*files.Owner
}

// Describe describes a name in a directory (or unix.AT_FDCWD), given its status from lstat(2) or, to describe what a link leads
// to, from stat(2). The result has the given path.
func (d *describer) Describe(dir int, name, path string, st *unix.Stat_t) files.Entry {
	e := entryOf(path, st)
	e.Owner = d.ownerOf(st)
	switch e.Type {
	case files.TypeLink:
		e.Target = targetOf(dir, name)
		followLink(dir, name, &e)
	case files.TypeFile, files.TypeDirectory:
		if d.Xattrs {
			e.Xattrs, e.XattrsCut = xattrsOf(dir, name)
		}
	}
	return e
}

func (d *describer) ownerOf(st *unix.Stat_t) *files.Owner {
	if d.users == nil {
		d.users, d.groups, d.owners = readNames("/etc/passwd"), readNames("/etc/group"), map[[2]uint32]*files.Owner{}
	}
	id := [2]uint32{st.Uid, st.Gid}
	if d.owners[id] == nil {
		d.owners[id] = &files.Owner{UID: st.Uid, GID: st.Gid, User: d.users[st.Uid], Group: d.groups[st.Gid]}
	}
	return d.owners[id]
}

// maxNamesFile bounds what is read of /etc/passwd and /etc/group, in bytes: an image may contain anything.
const maxNamesFile = 1 << 20

// readNames reads names by number from a file in the format of passwd(5) or group(5). As in all programs, the first of several
// names of a number counts.
func readNames(path string) map[uint32]string {
	names := map[uint32]string{}
	f, _, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return names
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNamesFile))
	if err != nil {
		return names
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 4)
		if len(fields) < 4 || fields[0] == "" || len(fields[0]) > files.MaxUserName || !utf8.ValidString(fields[0]) || strings.ContainsFunc(fields[0], unicode.IsControl) {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := names[uint32(id)]; err == nil && !known {
			names[uint32(id)] = fields[0]
		}
	}
	return names
}

// followLink describes the target of a link through a descriptor, so that all of it is about the same file. The target is opened
// only with O_PATH.
func followLink(dir int, name string, e *files.Entry) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return
	}
	e.TargetType, e.TargetMode = typeOf(st.Mode), st.Mode&0o7777
	if where := targetOf(unix.AT_FDCWD, byDescriptor(fd)); len(where) > 0 && where[0] == '/' && st.Nlink > 0 {
		e.Resolved = where
	}
}

// byDescriptor returns a path for a descriptor.
func byDescriptor(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// userPrefix begins the names of the attributes that the box user may set.
const userPrefix = "user."

// xattrsOf returns the extended attributes of a file or directory, as many as fit. A file that cannot be read has none.
func xattrsOf(dir int, name string) (set map[string][]byte, truncated bool) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, false
	}
	defer unix.Close(fd)
	room := files.MaxXattrs
	for _, attr := range listXattrs(fd, userPrefix) {
		if !utf8.ValidString(attr) {
			continue
		}
		value, err := xattr(fd, attr)
		if err != nil {
			continue // removed meanwhile
		}
		if room -= len(attr) + len(value); room < 0 {
			return set, true
		}
		if set == nil {
			set = map[string][]byte{}
		}
		set[attr] = value
	}
	return set, false
}

// listXattrs lists the names of attributes that begin with a prefix.
func listXattrs(fd int, prefix string) (names []string) {
	buf := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return nil
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

func xattr(fd int, name string) ([]byte, error) {
	n, err := unix.Fgetxattr(fd, name, nil)
	if err != nil {
		return nil, err
	}
	value := make([]byte, n)
	if n > 0 {
		n, err = unix.Fgetxattr(fd, name, value)
	}
	return value[:max(n, 0)], err
}

// checkXattrs refuses an invalid replacement of attributes.
func checkXattrs(x *files.Xattrs) error {
	if x == nil {
		return nil
	}
	wrong := func(text, allowed string) error {
		return &files.Failure{Kind: files.BadRequest, Field: "xattrs", Text: text, Allowed: allowed}
	}
	if !strings.HasPrefix(x.Prefix, userPrefix) || strings.IndexByte(x.Prefix, 0) >= 0 {
		return wrong("the prefix of attributes does not begin with "+userPrefix, "the beginning of their names, such as user.app")
	}
	total := 0
	for name, value := range x.Values {
		switch total += len(name) + len(value); {
		case !strings.HasPrefix(name, x.Prefix) || len(name) == len(userPrefix) || strings.IndexByte(name, 0) >= 0:
			return wrong("the name of an attribute does not begin with the prefix", "names such as "+x.Prefix+"name")
		case len(name) > 255: // XATTR_NAME_MAX
			return wrong("the name of an attribute has more than 255 bytes", "shorter names")
		case total > files.MaxXattrs:
			return wrong("attributes of more than 65536 bytes", "fewer or shorter ones")
		}
	}
	return nil
}

// aclXattr is the attribute with the access control list beyond the mode (acl(5)).
const aclXattr = "system.posix_acl_access"

// copyXattrs copies to an open file the attributes that programs set on another: user attributes and the access control list.
// Those of an unreadable file are not copied.
func copyXattrs(from string, fd int) error {
	if from == "" {
		return nil
	}
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Llistxattr(from, names)
	if err != nil {
		return nil // none, or the file is gone, which is noticed later
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, userPrefix) && name != aclXattr {
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Lgetxattr(from, name, value)
		if err != nil {
			continue
		}
		switch err := unix.Fsetxattr(fd, name, value[:n], 0); {
		case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
			return unix.ENOSPC
		case err != nil:
			return err
		}
	}
	return nil
}

// replaceXattrs replaces the attributes of an open file that begin with a prefix.
func replaceXattrs(fd int, x *files.Xattrs) error {
	if x == nil {
		return nil
	}
	for name, value := range x.Values { // before any is removed: the filesystem may have no room for them
		switch err := unix.Fsetxattr(fd, name, value, 0); {
		case errors.Is(err, unix.ENOTSUP):
			return &files.Failure{Kind: files.Unsupported, Text: "its filesystem has no extended attributes", Hint: "write it to /workspace, or without attributes"}
		case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
			return unix.ENOSPC
		case err != nil:
			return err
		}
	}
	for _, name := range listXattrs(fd, x.Prefix) {
		if _, wanted := x.Values[name]; wanted {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	return nil
}
