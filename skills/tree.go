// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/fault"
)

// weight is the size of a tree.
type weight struct {
	digest  string
	bytes   int64
	entries int
}

// seal sets the modes with which a tree is mounted, checks that it is within the limits and has nothing but files and
// directories, syncs it, and returns its digest: of all names, contents, and which files are programs.
func (s *Store) seal(dir *os.Root) (w weight, err error) {
	all := sha256.New()
	fmt.Fprintln(all, "boxd-skill-1")
	err = fs.WalkDir(dir.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return dir.Chmod(".", 0o755)
		}
		if w.entries++; w.entries > s.cfg.MaxEntries {
			return tooMuch("skills.max_entries", fmt.Sprint(s.cfg.MaxEntries), "entries")
		}
		x, err := archive.Seal(dir, name, e)
		switch {
		case err != nil:
			return err
		case x.Dir:
			fmt.Fprintf(all, "d %q\n", name)
			return nil
		case x.Size > int64(s.cfg.MaxFile):
			return tooMuch("skills.max_file", s.cfg.MaxFile.String(), "in one file")
		}
		if w.bytes += x.Size; w.bytes > int64(s.cfg.MaxBytes) {
			return tooMuch("skills.max_bytes", s.cfg.MaxBytes.String(), "in all files")
		}
		letter := "f"
		if x.Program {
			letter = "x"
		}
		fmt.Fprintf(all, "%s %s %q\n", letter, x.SHA256, name)
		return nil
	})
	w.digest = "sha256:" + hex.EncodeToString(all.Sum(nil))
	return w, err
}

func tooMuch(key, limit, of string) error {
	f := fault.Errorf(fault.Invalid, "the skill would have more than %s %s", limit, of).WithHint("make it smaller").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: key, Allowed: limit, Setting: key + " in box.toml"})
	f.Field, f.Allowed = "skill", limit
	return f
}

// link makes a tree of the same files as another. Files of trees are never modified, so they can be shared.
func (s *Store) link(from, to string) error {
	src, err := s.root.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return fs.WalkDir(src.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case e.IsDir():
			return s.root.Mkdir(to+"/"+name, 0o755)
		}
		return s.root.Link(from+"/"+name, to+"/"+name)
	})
}

// document reads the document at the top of a directory, and returns which file it was.
func document(dir *os.Root) (*manifest, string, error) {
	for _, entry := range []string{ManifestFile, otherManifestFile} {
		data, err := readFile(dir, entry, maxManifest)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, entry, err
		}
		doc, err := readManifest(data)
		return doc, entry, err
	}
	return nil, "", fs.ErrNotExist
}

// errTooLarge means that a file is larger than its reader accepts.
var errTooLarge = errors.New("too large")

// readFile reads a whole regular file. It neither follows nor waits for anything else of that name.
func readFile(dir *os.Root, name string, limit int64) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}

// python reports whether a package is a Python project.
func python(dir *os.Root) bool {
	for _, name := range []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg", ".venv"} {
		if info, err := dir.Lstat(name); err == nil && info.IsDir() == (name == ".venv") {
			return true
		}
	}
	return false
}
