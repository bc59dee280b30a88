// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of requests about files.
const (
	MaxContent = 1 << 20 // bytes of a file that is read or written
	MaxListed  = 1000
	maxDir     = 10_000 // entries of a listed directory
	maxPath    = 1024
	maxDepth   = 32
)

// Entry is an entry of a skill's directory.
type Entry struct {
	Path, Name string // Path is relative to the skill
	Dir        bool
	Size       int64
	Program    bool // executable
}

// within returns a path in a skill in its shortest form.
func within(name string) (string, error) {
	bad := func(format string) (string, error) {
		f := fault.Errorf(fault.Invalid, "%s", format)
		f.Field, f.Value, f.Allowed = "path", shorten(name), "a path from the top of the skill, without .."
		return "", f
	}
	clean := path.Clean(name)
	switch {
	case strings.HasPrefix(name, "/") || strings.ContainsRune(name, '\\'):
		return bad("path must be relative to the skill package root")
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return bad("path must stay within the skill package root")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return bad("path must be text without control characters")
	case len(name) > maxPath || strings.Count(clean, "/") >= maxDepth || slices.ContainsFunc(strings.Split(clean, "/"), func(p string) bool { return len(p) > 255 }):
		return bad("path is too long")
	}
	return clean, nil
}

// inTree calls f with the tree of a skill.
func (s *Store) inTree(owner, name string, f func(dir *os.Root, k *Skill) error) error {
	sp, k, done, err := s.use(owner, name)
	if err != nil {
		return err
	}
	defer done()
	dir, err := s.root.OpenRoot(k.path(sp))
	if err != nil {
		return fmt.Errorf("skill %s: %w", name, err)
	}
	defer dir.Close()
	return f(dir, &k)
}

func noFile(what, name string) error {
	f := fault.Errorf(fault.NotFound, "Skill %s not found: %s", what, shorten(name)).WithHint("list the files of the skill")
	f.Field, f.Value = "path", shorten(name)
	return f
}

// Files lists a directory of a skill, by name; limit is from 1 to MaxListed. more says that there are more.
func (s *Store) Files(owner, name, at string, hidden bool, limit int) (list []Entry, more bool, err error) {
	at, err = within(at)
	if err != nil {
		return nil, false, err
	}
	if limit < 1 {
		return nil, false, fault.Field("limit", limit, fmt.Sprintf("1 to %d", MaxListed))
	}
	limit = min(limit, MaxListed)
	err = s.inTree(owner, name, func(dir *os.Root, _ *Skill) error {
		entries, err := readDir(dir, at)
		if errors.Is(err, errNoDir) {
			return noFile("directory", at)
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !hidden && strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if len(list) == limit {
				more = true
				return nil
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			x := Entry{Path: path.Join(at, e.Name()), Name: e.Name(), Dir: info.IsDir()}
			if !x.Dir {
				x.Size, x.Program = info.Size(), info.Mode()&0o111 != 0
			}
			list = append(list, x)
		}
		return nil
	})
	return list, more, err
}

var errNoDir = errors.New("not a directory")

// readDir lists a directory, by name.
func readDir(dir *os.Root, at string) ([]fs.DirEntry, error) {
	if info, err := dir.Lstat(at); err != nil || !info.IsDir() {
		return nil, errNoDir
	}
	f, err := dir.Open(at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxDir + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxDir {
		return nil, fault.Errorf(fault.Invalid, "Skill directory exceeds the configured entry limit").WithHint("use directories with at most %d entries", maxDir)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// File is a file of a skill.
type File struct {
	Path    string
	Data    []byte
	Program bool
	Digest  string // of the skill
}

// ReadFile reads a file of a skill, of at most MaxContent bytes.
func (s *Store) ReadFile(owner, name, at string) (f File, err error) {
	if f.Path, err = within(at); err != nil {
		return f, err
	}
	err = s.inTree(owner, name, func(dir *os.Root, k *Skill) error {
		f.Digest = k.Digest
		var err error
		f.Data, err = readFile(dir, f.Path, MaxContent)
		switch {
		case errors.Is(err, errTooLarge):
			return tooLong(f.Path)
		case errors.As(err, new(*os.PathError)) || errors.Is(err, fs.ErrNotExist):
			return noFile("file", f.Path)
		case err != nil:
			return err
		}
		info, err := dir.Lstat(f.Path)
		f.Program = err == nil && info.Mode()&0o111 != 0
		return err
	})
	return f, err
}

func tooLong(name string) error {
	f := fault.Errorf(fault.Invalid, "Skill file %s exceeds the %d-byte limit", shorten(name), MaxContent)
	f.Field, f.Allowed = "path", "a file of at most 1 MiB"
	return f
}

// WriteFile replaces the content of a skill's file, and makes the directories it needs. The skill's document must stay valid.
// ifMatch is the digest that the skill must have, "" any.
func (s *Store) WriteFile(owner, name string, file *File, ifMatch string, r Rules) (Skill, error) {
	at, err := within(file.Path)
	if err != nil {
		return Skill{}, err
	}
	if at == "." {
		return Skill{}, noFile("file", at)
	}
	if len(file.Data) > MaxContent {
		return Skill{}, tooLong(at)
	}
	return s.edit(owner, name, ifMatch, func(dir *os.Root, k *Skill) error {
		if at == k.Entry || at == ManifestFile {
			doc, err := readManifest(file.Data)
			if err != nil {
				return fault.Field("content", fault.Word("invalid"), "a "+ManifestFile+" with front matter").WithText("content: %v", err)
			}
			if err := wrong(at, r.check(doc, name)); err != nil {
				return err
			}
		}
		if err := dir.MkdirAll(path.Dir(at), 0o755); err != nil {
			return inTheWay(at, err)
		}
		if info, err := dir.Lstat(at); err == nil && info.IsDir() {
			return inTheWay(at, fs.ErrExist)
		}
		return replaceFile(dir, at, file.Data, file.Program)
	})
}

func inTheWay(at string, err error) error {
	f := fault.Errorf(fault.Conflict, "skill file %s: there is something else in its place: %w", shorten(at), err).WithHint("remove that first")
	f.Field, f.Value = "path", shorten(at)
	return f
}

// RemoveFile removes a file or directory of a skill, except its document.
func (s *Store) RemoveFile(owner, name, at, ifMatch string) (Skill, error) {
	at, err := within(at)
	if err != nil {
		return Skill{}, err
	}
	return s.edit(owner, name, ifMatch, func(dir *os.Root, k *Skill) error {
		if at == "." || at == k.Entry {
			return fault.Field("path", at, "a file other than the skill's own SKILL.md; or delete the whole skill")
		}
		if _, err := dir.Lstat(at); err != nil {
			return noFile("file", at)
		}
		return dir.RemoveAll(at)
	})
}
