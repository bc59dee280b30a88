// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// pruneDir removes subdirectories of a directory: it keeps this many of the newest, and none that is too old. It never removes
// one that a process uses, as its working directory or in an environment variable. A symbolic link in place of the directory is
// not followed.
func pruneDir(req *files.Prune) error {
	dir, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	var found []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			found = append(found, info)
		}
	}
	slices.SortFunc(found, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	used := pathsInUse(dir)
	used[string(req.Except)] = true
	for i, info := range found {
		many := req.Keep > 0 && i >= req.Keep
		old := req.Age > 0 && time.Since(info.ModTime()) > req.Age
		if (many || old) && !used[info.Name()] {
			if err := root.RemoveAll(info.Name()); err != nil {
				return failureOf(dir+"/"+info.Name(), err)
			}
		}
	}
	return nil
}

// pathsInUse returns the names in a directory that processes of the box use.
func pathsInUse(dir string) map[string]bool {
	used := map[string]bool{}
	note := func(p string) {
		if rest, ok := strings.CutPrefix(path.Clean(p), dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			used[name] = true
		}
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return used
	}
	for _, p := range processes {
		if p.Name()[0] < '0' || p.Name()[0] > '9' {
			continue
		}
		if at, err := os.Readlink("/proc/" + p.Name() + "/cwd"); err == nil {
			note(at)
		}
		env, _ := os.ReadFile("/proc/" + p.Name() + "/environ") // empty if the process has ended
		for variable := range bytes.SplitSeq(env, []byte{0}) {
			if _, value, ok := bytes.Cut(variable, []byte("=")); ok && bytes.HasPrefix(value, []byte(dir)) {
				note(string(value))
			}
		}
	}
	return used
}
