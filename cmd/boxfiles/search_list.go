// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// maxNames bounds the bytes of the paths and attributes in an answer: those of a deep tree are long.
const maxNames = 8 << 20

// collector collects entries as long as there is room.
type collector struct {
	entries  []files.Entry
	limit    int
	names    int
	describe *describer // nil: the status and the link itself are enough
}

func (c *collector) add(dir int, path, name string) error {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil //nolint:nilerr // it is gone
	}
	var e files.Entry
	if c.describe != nil {
		e = c.describe.Describe(dir, name, path, &st)
	} else if e = entryOf(path, &st); e.Type == files.TypeLink {
		e.Target = targetOf(dir, name)
	}
	c.names += len(path) + len(e.Target) + len(e.Resolved)
	for attr, value := range e.Xattrs {
		c.names += len(attr) + len(value)
	}
	if len(c.entries) == c.limit || c.names > maxNames {
		return errEnough
	}
	c.entries = append(c.entries, e)
	return nil
}

// listDir lists a directory.
func listDir(req *files.List) (*files.ListAnswer, error) {
	dir, err := openDirPath(req.Path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	c := &collector{limit: req.Limit, describe: &describer{Xattrs: req.Xattrs}}
	w := &walk{left: listFactor * max(req.Limit, listFactor), depth: req.Depth, visit: func(dir int, path, name string, _ byte) error {
		return c.add(dir, path, name)
	}}
	a := &files.ListAnswer{}
	if err := w.run(dir); errors.Is(err, errEnough) {
		a.Cut = files.CutEntries
	} else if err != nil {
		return nil, err
	}
	a.Entries = c.entries
	return a, nil
}

// listFactor is how many times more entries are visited than a list may have: the list is sorted.
const listFactor = 100

// globFiles finds files and directories whose path matches a pattern.
func globFiles(req *files.Glob) (*files.ListAnswer, error) {
	re, err := compileGlob(req.Pattern)
	if err != nil {
		return nil, err
	}
	root, prefix := literalDir(req.Path, req.Pattern)
	dir, err := openDirPath(root)
	if prefix != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) {
		var at int
		if at, err = openDirPath(req.Path); err == nil { // the directory itself exists, so there are just no matches
			unix.Close(at)
			return &files.ListAnswer{}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	found := &collector{limit: req.Walk}
	w := &walk{left: req.Walk, depth: files.MaxDepth, ignore: req.Ignore, visit: func(dir int, path, name string, _ byte) error {
		if !re.MatchString(prefix + path) {
			return nil
		}
		return found.add(dir, prefix+path, name)
	}}
	a := &files.ListAnswer{}
	if err := w.run(dir); errors.Is(err, errEnough) {
		a.Cut = files.CutEntries
	} else if err != nil {
		return nil, err
	}
	if !req.ByName {
		slices.SortStableFunc(found.entries, func(a, b files.Entry) int { return b.Time.Compare(a.Time) })
	}
	if len(found.entries) > req.Limit {
		found.entries, a.Cut = found.entries[:req.Limit], files.CutEntries
	}
	a.Entries = found.entries
	return a, nil
}

// literalDir returns the directory that contains the first wildcard of a pattern: nothing outside it can match.
func literalDir(at []byte, pattern string) (dir []byte, prefix string) {
	i := strings.IndexAny(pattern, `*?[{\`)
	if i < 0 {
		i = len(pattern)
	}
	prefix = pattern[:strings.LastIndexByte(pattern[:i], '/')+1]
	if prefix == "" || path.Clean("/" + prefix)[1:]+"/" != prefix {
		return at, ""
	}
	return append(slices.Clip(slices.Clone(at)), "/"+prefix...), prefix
}
