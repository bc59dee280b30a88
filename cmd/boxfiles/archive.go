// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/isolation/files"
)

// packTree writes an archive of a directory's content, or of one file.
func packTree(req *files.Pack, w io.Writer) (*files.Archived, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	var where unix.Statfs_t
	if err := unix.Statfs(path, &where); err != nil {
		return nil, err
	}
	if ofKernel(where.Type) {
		return nil, &files.Failure{Kind: files.NotRegular, Text: "files of the kernel's, not of a disk"}
	}
	var stats archive.Stats
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		var root *os.Root
		if root, err = os.OpenRoot(path); err != nil {
			return nil, err
		}
		defer root.Close()
		if req.Some == nil {
			stats, err = archive.PackDir(w, root, "", archive.Bounds(req.Bounds), req.LeaveOut)
			break
		}
		var names []string
		if names, err = existing(root, req.Some); err != nil {
			return nil, err
		}
		stats, err = archive.PackSome(w, root, names, archive.Bounds(req.Bounds))
	case unix.S_IFREG:
		if req.Some != nil {
			return nil, unix.ENOTDIR
		}
		if path, err = resolveFinal(path); err != nil {
			return nil, err
		}
		var root *os.Root
		if root, err = os.OpenRoot(parentOf(path)); err != nil {
			return nil, err
		}
		defer root.Close()
		stats, err = archive.PackFile(w, root, baseOf(path), baseOf(string(req.Path)), archive.Bounds(req.Bounds))
	default:
		return nil, notRegular(&st)
	}
	if err != nil {
		return nil, asFailure(err)
	}
	a := files.Archived{Entries: stats.Entries, Bytes: stats.Bytes, Skipped: stats.Skipped}
	return &a, nil
}

// existing checks that paths exist before anything is packed, and leaves out those inside another
// one.
func existing(root *os.Root, paths [][]byte) ([]string, error) {
	names := make([]string, 0, len(paths))
	whole := map[string]bool{} // directories that are packed whole
	for _, p := range paths {
		name := string(p)
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." || strings.IndexByte(name, 0) >= 0 {
			return nil, &files.Failure{Kind: files.BadPath, Path: p, Text: "not the clean path of something in the directory"}
		}
		info, err := root.Lstat(name)
		if err != nil {
			return nil, failureOf(name, err)
		}
		if info.IsDir() {
			whole[name] = true
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		for at := filepath.Dir(name); at != "."; at = filepath.Dir(at) {
			if whole[at] {
				return true
			}
		}
		return false
	}), nil
}

// asFailure turns an error of an archive into a Failure.
func asFailure(err error) error {
	r, ok := errors.AsType[*archive.Refusal](err)
	switch {
	case ok && r.TooMuch:
		return &files.Failure{Kind: files.TooLarge, Text: r.Error()}
	case ok:
		return &files.Failure{Kind: files.BadArchive, Text: r.Error()}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &files.Failure{Kind: files.BadArchive, Text: "the archive ends early"}
	}
	return err
}

// unpackTree unpacks an archive into a directory. Everything is unpacked beside the existing files before any of them changes;
// then it is moved into place, and back again if something is in the way.
func unpackTree(req *files.Unpack, r io.Reader) (*files.Archived, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Stat(path, &st)
	missing := errors.Is(err, unix.ENOENT)
	switch {
	case missing:
		err = makeParents(path)
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	within := path
	if missing {
		within = parentOf(path)
	}
	root, err := os.OpenRoot(within)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	stage, err := newStage(root)
	if err != nil {
		return nil, err
	}
	defer stage.end() // what has been moved is not in the stage any more
	stats, err := archive.Unpack(r, stage.content, archive.Rules{Bounds: archive.Bounds(req.Bounds), CaseTwins: req.CaseTwins, OutwardLinks: req.OutwardLinks})
	if err != nil {
		return nil, asFailure(err)
	}
	content := within + "/" + stage.name + "/" + contentDir
	switch {
	case missing:
		err = unix.Renameat2(unix.AT_FDCWD, content, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	case req.Overwrite: // replaced files are moved there, and if this is interrupted it has their only copy
		if err = stage.keep(); err != nil {
			break
		}
		fallthrough
	default:
		err = mergeStaged(stage.content, content, within, req.Overwrite)
	}
	a := files.Archived{Entries: stats.Entries, Bytes: stats.Bytes, Skipped: stats.Skipped}
	return &a, err
}

// movedEntry says how to undo one step of a merge.
type movedEntry struct {
	from, to string
	flags    uint
}

// mergeStaged moves the content of one directory into another: all of it, or nothing.
func mergeStaged(stage *os.Root, from, to string, overwrite bool) error {
	var done []movedEntry
	err := mergeDir(stage, ".", from, to, overwrite, &done)
	if err == nil {
		return nil
	}
	for _, m := range slices.Backward(done) {
		_ = unix.Renameat2(unix.AT_FDCWD, m.to, unix.AT_FDCWD, m.from, m.flags) // if another process has moved it meanwhile, it stays there
	}
	return err
}

func mergeDir(stage *os.Root, rel, from, to string, overwrite bool, done *[]movedEntry) error {
	dir, err := stage.Open(rel)
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := from+"/"+e.Name(), to+"/"+e.Name()
		var st unix.Stat_t
		err := unix.Lstat(target, &st)
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		flags := uint(unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return failureOf(target, err)
		case e.IsDir() && isDir:
			if err := mergeDir(stage, rel+"/"+e.Name(), source, target, overwrite, done); err != nil {
				return err
			}
			continue
		case e.IsDir() != isDir:
			return &files.Failure{Kind: files.Exists, Path: []byte(target), Text: "a directory is there, or comes in place of something else"}
		case !overwrite:
			return &files.Failure{Kind: files.Exists, Path: []byte(target), Text: "something is there", Hint: "overwrite = true replaces it"}
		default:
			flags = unix.RENAME_EXCHANGE // the old file is then where the new one was, to be moved back or removed
		}
		if err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, target, flags); err != nil {
			return failureOf(target, err)
		}
		*done = append(*done, movedEntry{source, target, flags})
	}
	return nil
}
