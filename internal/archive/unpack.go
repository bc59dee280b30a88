// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Rules of unpacking.
type Rules struct {
	Bounds       Bounds
	CaseTwins    bool // refuse names that differ only in case
	OutwardLinks bool // accept symbolic links that lead out of the directory
	NoLinks      bool // refuse links of both kinds
	LeaveOut     bool // leave out links and special files that are refused, and report them
	// Umask has bits that no file or directory gets, whatever the archive says (umask(2)).
	Umask fs.FileMode
	// Take is called with the name of each entry, and may refuse it; an entry for which it
	// returns false is left out and not counted. nil: all are unpacked.
	Take func(name string) (bool, error)
}

// maxNames bounds the bytes of all names, which are kept to find duplicates.
const maxNames = 32 << 20

// unpacker unpacks one archive.
type unpacker struct {
	dir    *os.Root
	open   []opened // open directories, down to the one used last
	rules  Rules
	stats  Stats
	kinds  map[string]byte // type of each name, parent directories included
	folded map[string]string
	names  int
	later  []*tar.Header // directories, whose modes and times are set last
}

// Unpack unpacks a tar archive, which may be compressed by gzip, into an empty directory. After an error, what it has created is
// left to the caller.
//
// It refuses names that are absolute or contain .., duplicate names, entries below something that
// is no directory, links out of the directory, and anything that is neither file, directory nor
// link.
func Unpack(r io.Reader, dir *os.Root, rules Rules) (Stats, error) {
	u := &unpacker{dir: dir, rules: rules, kinds: map[string]byte{}, folded: map[string]string{}}
	defer u.close(0)
	in, err := decompress(r)
	if err != nil {
		return u.stats, err
	}
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			if err := u.finish(); err != nil {
				return u.stats, err
			}
			_, err := io.Copy(io.Discard, in) // read the padding, so that the sender of the archive can finish
			return u.stats, err
		}
		if errors.Is(err, tar.ErrHeader) {
			return u.stats, &Refusal{Reason: "not a tar archive, or a damaged one"}
		}
		if errors.Is(err, tar.ErrInsecurePath) {
			err = nil // the header is there, and its name is checked below
		}
		if err == nil {
			err = u.entry(h, t)
		}
		if err != nil {
			return u.stats, err
		}
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		if text, ok := strings.CutPrefix(h.PAXRecords["comment"], leftOut); ok && u.rules.LeaveOut {
			u.stats.leaveOut(text)
		}
		return nil // or by git archive
	}
	name, err := u.name(h)
	if err != nil || name == "." {
		return err
	}
	if u.rules.Take != nil {
		if take, err := u.rules.Take(name); err != nil || !take {
			return err
		}
	}
	if u.rules.NoLinks && (h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink) {
		return &Refusal{Name: name, Reason: "a link"}
	}
	if why := u.unwanted(h, name); why != "" {
		if !u.rules.LeaveOut {
			return &Refusal{Name: name, Reason: why}
		}
		u.stats.leaveOut(fmt.Sprintf("%q: %s", name, why))
		return nil
	}
	if err := u.parents(name); err != nil {
		return err
	}
	if err := u.claim(h, name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(h, name)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(h, name, content)
	case tar.TypeSymlink:
		in, base, err := u.in(name)
		if err != nil {
			return err
		}
		return in.Symlink(h.Linkname, base)
	case tar.TypeLink:
		target, err := clean(h.Linkname)
		if err != nil || u.kinds[target] != tar.TypeReg || target == name {
			return &Refusal{Name: name, Reason: fmt.Sprintf("a hard link to %.100q, which is not an earlier file", h.Linkname)}
		}
		u.kinds[name] = tar.TypeReg
		return u.dir.Link(target, name)
	}
	return nil // unwanted has refused it already
}

// unwanted says why an entry is refused or left out; "": it is not.
func (u *unpacker) unwanted(h *tar.Header, name string) string {
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeGNUSparse, tar.TypeLink:
	case tar.TypeSymlink:
		if !u.rules.OutwardLinks && outward(name, h.Linkname) {
			return fmt.Sprintf("a link that leads out of the directory, to %.100q", h.Linkname)
		}
	default:
		return "neither file, directory nor link"
	}
	return ""
}

func (u *unpacker) name(h *tar.Header) (string, error) {
	if u.names += len(h.Name); u.names > maxNames {
		return "", &Refusal{Reason: "the names are too long together", TooMuch: true}
	}
	name, err := clean(h.Name)
	if err != nil {
		return "", &Refusal{Name: h.Name, Reason: err.Error()}
	}
	return name, nil
}

// clean returns a name in its shortest form, "." for the directory itself.
func clean(name string) (string, error) {
	switch {
	case name == "" || strings.HasPrefix(name, "/"):
		return "", errors.New("an absolute or empty name")
	case strings.IndexByte(name, 0) >= 0:
		return "", errors.New("a name with NUL")
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", errors.New("a name with .. in it")
	case strings.Count(name, "/") >= maxDepth:
		return "", errors.New("too many directories below each other")
	}
	return path.Clean(name), nil
}

// parents makes the parent directories of a name that were not in the archive, and checks that
// those that were are directories.
func (u *unpacker) parents(name string) error {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		dir := name[:i]
		switch kind, ok := u.kinds[dir]; {
		case ok && kind != tar.TypeDir:
			return &Refusal{Name: name, Reason: fmt.Sprintf("its parent %.100q is not a directory", dir)}
		case ok:
			continue
		}
		if u.names += i; u.names > maxNames {
			return &Refusal{Reason: "the names are too long together", TooMuch: true}
		}
		if err := u.count(dir); err != nil {
			return err
		}
		u.kinds[dir] = tar.TypeDir
		in, base, err := u.in(dir)
		if err != nil {
			return err
		}
		if err := in.Mkdir(base, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// claim records a name, which must be new. Directories may occur more than once.
func (u *unpacker) claim(h *tar.Header, name string) error {
	kind, found := u.kinds[name]
	if found && (kind != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return &Refusal{Name: name, Reason: "the name is there twice"}
	}
	if !found {
		if err := u.count(name); err != nil {
			return err
		}
	}
	u.kinds[name] = h.Typeflag
	if h.Typeflag == tar.TypeGNUSparse {
		u.kinds[name] = tar.TypeReg
	}
	return nil
}

func (u *unpacker) count(name string) error {
	if u.stats.Entries++; u.stats.Entries > u.rules.Bounds.Entries {
		return &Refusal{Reason: fmt.Sprintf("more than %d entries", u.rules.Bounds.Entries), TooMuch: true}
	}
	if !u.rules.CaseTwins {
		return nil
	}
	folded := strings.ToLower(name)
	if other, ok := u.folded[folded]; ok && other != name {
		return &Refusal{Name: name, Reason: fmt.Sprintf("it differs from %.100q in case alone", other)}
	}
	u.folded[folded] = name
	return nil
}

func (u *unpacker) makeDir(h *tar.Header, name string) error {
	in, base, err := u.in(name)
	if err == nil {
		err = in.Mkdir(base, 0o755)
	}
	if errors.Is(err, fs.ErrExist) && u.kinds[name] == tar.TypeDir {
		err = nil
	}
	h.Name = name
	u.later = append(u.later, h)
	return err
}

func (u *unpacker) file(h *tar.Header, name string, content io.Reader) error {
	if h.Size < 0 || h.Size > u.rules.Bounds.File || h.Size > u.rules.Bounds.Bytes-u.stats.Bytes {
		return tooLarge(name, h.Size, u.rules.Bounds)
	}
	u.stats.Bytes += h.Size
	in, base, err := u.in(name)
	if err != nil {
		return err
	}
	f, err := in.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & 0o777 &^ u.rules.Umask) // no file from an archive is setuid
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	return in.Chtimes(base, time.Time{}, h.ModTime)
}

// finish sets the modes and times of directories, the deepest first. Their owner can always write
// to them.
func (u *unpacker) finish() error {
	for _, h := range slices.Backward(u.later) {
		in, base, err := u.in(h.Name)
		if err != nil {
			return err
		}
		if err := in.Chmod(base, fs.FileMode(h.Mode)&0o777&^u.rules.Umask|0o700); err != nil {
			return err
		}
		if err := in.Chtimes(base, time.Time{}, h.ModTime); err != nil {
			return err
		}
	}
	return nil
}

// opened is an open directory.
type opened struct {
	path string
	root *os.Root
}

// in opens the parent directory of a name, which exists, from the one used last: a name with a
// thousand components would otherwise be walked from its beginning each time.
func (u *unpacker) in(name string) (dir *os.Root, base string, err error) {
	parent, base := path.Split(name)
	keep := len(u.open)
	for keep > 0 && !strings.HasPrefix(parent, u.open[keep-1].path) {
		keep--
	}
	u.close(keep)
	dir, at := u.dir, ""
	if keep > 0 {
		dir, at = u.open[keep-1].root, u.open[keep-1].path
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(parent[len(at):], "/"), "/") {
		if part == "" {
			continue
		}
		if dir, err = dir.OpenRoot(part); err != nil {
			return nil, "", err
		}
		at += part + "/"
		u.open = append(u.open, opened{at, dir})
	}
	return dir, base, nil
}

// close closes all directories except the first keep.
func (u *unpacker) close(keep int) {
	for _, o := range u.open[keep:] {
		o.root.Close()
	}
	u.open = u.open[:keep]
}

// outward reports whether a link leads out of the directory. The parents of its name are
// directories, so .. at the beginning of the target is one step up; later in the target it could
// be a step up from wherever another link leads.
func outward(name, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") || len(target) > 4095 || strings.IndexByte(target, 0) >= 0 {
		return true
	}
	up, down := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down:
			return true
		default:
			if up--; up < 0 {
				return true
			}
		}
	}
	return false
}
