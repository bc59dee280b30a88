// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// maxNumber is the highest number of a version.
const maxNumber = math.MaxInt32

// Filling says what to do with an archive.
type Filling struct {
	Into   string // directory of the drive to put it into; "": its top
	Add    bool   // keep the rest of the newest version; otherwise the archive is everything
	IfLast *int   // expected number of the newest version, 0: there is none; nil: any
	Number int    // of the version, which need not be the newest; 0: the next one
	Digest string // that the version must have; "": any
	DryRun bool   // find out what the version would be, and make none
	Origin string
}

// into returns the target directory in its shortest form.
func (f *Filling) into() (string, error) {
	clean := path.Clean(cmp.Or(f.Into, "."))
	if strings.HasPrefix(f.Into, "/") || clean == ".." || strings.HasPrefix(clean, "../") || archive.CheckName(clean) != nil {
		return "", fault.Field("into", f.Into, "a path from the top of the drive, without ..")
	}
	return clean, nil
}

// Fill makes the next version of a drive from an archive, and the drive if it does not exist: all of it or nothing. If that would
// equal the newest version, none is made; isNew tells.
func (s *Drives) Fill(ctx context.Context, owner, name string, f *Filling, body io.Reader) (v Version, isNew bool, err error) {
	if err := policy.ValidDriveName("drive", name); err != nil {
		return v, false, err
	}
	into, err := f.into()
	if err != nil {
		return v, false, err
	}
	if f.Number > maxNumber {
		return v, false, fault.Field("as_version", f.Number, fmt.Sprintf("at most %d", maxNumber))
	}
	if f.Number > 0 && (f.Add || f.IfLast != nil) {
		return v, false, fault.Field("as_version", f.Number, "left out with add or if_version")
	}
	release, err := s.stages.Enter(ctx, owner)
	if err != nil {
		return v, false, err
	}
	defer release()
	at, err := durable.NewScratch(s.root)
	if err != nil {
		return v, false, err
	}
	defer func() {
		if err := s.root.RemoveAll(at); err != nil {
			s.log.Warn("cannot clean up after filling a drive", "error", err)
		}
	}()
	content := at + "/content"
	if err := s.root.MkdirAll(content, 0o700); err != nil {
		return v, false, err
	}
	if err := s.unpack(at, path.Join(content, into), body); err != nil {
		return v, false, err
	}
	last, err := s.keepRest(owner, name, f, content)
	if err != nil {
		return v, false, err
	}
	n, err := s.seal(content, at+"/index")
	if err != nil {
		return v, false, err
	}
	n.Origin = f.Origin
	switch {
	case f.Digest != "" && f.Digest != n.Digest:
		return v, false, fault.Field("digest", f.Digest, n.Digest+", that of the content").Of(fault.Conflict)
	case f.DryRun:
		return n, false, nil
	case f.Number > 0:
		n.Number = f.Number
		return s.commitAs(owner, name, at, n)
	}
	return s.commit(owner, name, at, last, n)
}

// unpack reads an archive to its end and unpacks it into a directory.
func (s *Drives) unpack(scratch, to string, body io.Reader) error {
	f, err := s.root.OpenFile(scratch+"/archive", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	limit := int64(s.cfg.MaxArchive)
	if _, err := archive.Receive(f, body, limit); err != nil {
		return err
	}
	if err := s.root.MkdirAll(to, 0o700); err != nil {
		return err
	}
	dir, err := s.root.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = archive.Extract(f, dir, "", archive.Limits{Archive: limit, Bytes: int64(s.cfg.MaxBytes), File: int64(s.cfg.MaxFile), Entries: s.cfg.MaxEntries})
	if wrong, ok := errors.AsType[*fault.Error](err); ok && wrong.Allowed != "" {
		wrong.Allowed = "a zip archive, or a tar archive that may be compressed by gzip, without links, within the limits of [drives] in box.toml"
	}
	return errors.Join(err, s.root.Remove(scratch+"/archive"))
}

// keepRest adds the files of the newest version that the archive does not replace, and returns that version's number.
func (s *Drives) keepRest(owner, name string, f *Filling, content string) (last int, err error) {
	v, tree, err := s.Take(owner, name, 0)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		err = nil
	case err == nil:
		defer s.Release(tree)
		last = v.Number
	}
	if err != nil || f.IfLast != nil && *f.IfLast != last {
		return last, cmp.Or(err, changed(name, last))
	}
	if !f.Add || last == 0 {
		return last, nil
	}
	src, err := s.root.OpenRoot(tree)
	if err != nil {
		return last, err
	}
	defer src.Close()
	return last, fs.WalkDir(src.FS(), ".", func(at string, e fs.DirEntry, err error) error {
		if err != nil || at == "." {
			return err
		}
		to := path.Join(content, at)
		info, err := s.root.Lstat(to)
		switch {
		case err == nil && e.IsDir() && !info.IsDir():
			return fs.SkipDir
		case err == nil:
			return nil
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case e.IsDir():
			return s.root.Mkdir(to, 0o755)
		}
		return s.root.Link(path.Join(tree, at), to) // files of trees are never modified
	})
}

func changed(name string, last int) error {
	f := fault.Errorf(fault.Conflict, "the newest version of drive %s is now %d", name, last).WithHint("someone else has filled it meanwhile; look at the new version, and try again")
	f.Field, f.Allowed = "if_version", fmt.Sprint(last)
	return f
}

// seal sets the modes with which a tree is mounted, checks that it is within the limits and has nothing but files and
// directories, syncs it, and writes the index.
func (s *Drives) seal(at, index string) (v Version, err error) {
	dir, err := s.root.OpenRoot(at)
	if err != nil {
		return v, err
	}
	defer dir.Close()
	out, err := s.root.OpenFile(index, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return v, err
	}
	defer out.Close()
	all, lines := sha256.New(), bufio.NewWriter(out)
	enc := json.NewEncoder(lines)
	fmt.Fprintln(all, "boxd-drive-1")
	err = fs.WalkDir(dir.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return dir.Chmod(".", 0o755)
		}
		if v.Entries++; v.Entries > s.cfg.MaxEntries {
			return tooMuch("drives.max_entries", fmt.Sprint(s.cfg.MaxEntries), "entries")
		}
		x, err := archive.Seal(dir, name, e)
		if err != nil {
			return err
		}
		if v.Bytes += x.Size; v.Bytes > int64(s.cfg.MaxBytes) {
			return tooMuch("drives.max_bytes", s.cfg.MaxBytes.String(), "in all files")
		}
		fmt.Fprintf(all, "%v %v %s %q\n", x.Dir, x.Program, x.SHA256, name)
		return enc.Encode(&x)
	})
	err = errors.Join(err, lines.Flush(), out.Sync())
	v.Digest = "sha256:" + hex.EncodeToString(all.Sum(nil))
	return v, err
}

func tooMuch(key, limit, of string) error {
	f := fault.Errorf(fault.Invalid, "the drive is too large: at most %s %s are allowed", limit, of).WithHint("use fewer or smaller files").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: key, Allowed: limit, Setting: key + " in box.toml"})
	f.Field, f.Allowed = "drive", limit
	return f
}

// commit makes a tree the next version of a drive if last is still its newest version.
func (s *Drives) commit(owner, name, at string, last int, n Version) (Version, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, next := s.next(owner, name)
	newest, err := next.version(0)
	switch {
	case err == nil && newest.Digest == n.Digest && newest.Number == last:
		return *newest, false, nil
	case err == nil && newest.Number != last || err != nil && last > 0:
		return n, false, changed(name, next.Last)
	case next.Last >= maxNumber:
		return n, false, fault.Field("drive", name, fmt.Sprintf("one with a version below %d", maxNumber)).Of(fault.Exhausted)
	}
	n.Number = next.Last + 1
	return s.insert(sp, &next, at, n)
}

// commitAs makes a tree the version of a drive that has its number. One that there is already has to be the same.
func (s *Drives) commitAs(owner, name, at string, n Version) (Version, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, next := s.next(owner, name)
	version, err := next.version(n.Number)
	switch {
	case err == nil && version.Digest == n.Digest:
		return *version, false, nil
	case err == nil:
		return n, false, fault.Field("as_version", n.Number, "left out, as that version is "+version.Digest).Of(fault.Conflict)
	}
	n.Delivered = true
	return s.insert(sp, &next, at, n)
}

// next returns a copy of a drive, a new one if there is none. The lock is held.
func (s *Drives) next(owner, name string) (*driveSpace, Drive) {
	sp := s.spaces[statedir.OwnerDir(owner)]
	if sp == nil {
		sp = &driveSpace{key: statedir.OwnerDir(owner), drives: map[string]*Drive{}}
	}
	if d := sp.drives[name]; d != nil {
		return sp, s.copied(sp, d)
	}
	return sp, Drive{Name: name, Created: s.now().UTC()}
}

// insert makes a tree a version of a drive, at its place among the others. The lock is held.
func (s *Drives) insert(sp *driveSpace, next *Drive, at string, n Version) (Version, bool, error) {
	if err := s.allow(sp, next.Name, &n); err != nil {
		return n, false, err
	}
	if next.Versions = nil; sp.drives[next.Name] != nil { // allow may have removed some
		next.Versions = s.copied(sp, sp.drives[next.Name]).Versions
	}
	if err := s.reconcile(sp); err != nil {
		return n, false, err
	}
	n.Created = s.now().UTC()
	n.Tree = statedir.NewTree(n.Digest)
	next.Versions, next.Last = append(next.Versions, n), max(next.Last, n.Number)
	for i := len(next.Versions) - 1; i > 0 && next.Versions[i-1].Number > n.Number; i-- {
		next.Versions[i-1], next.Versions[i] = n, next.Versions[i-1]
	}
	err := errors.Join(s.root.Rename(at+"/index", path.Join(sp.key, indexDir, n.Tree)), s.root.Rename(at+"/content", treePath(sp, &n)))
	if err == nil {
		err = errors.Join(s.sync(path.Join(sp.key, treesDir)), s.sync(path.Join(sp.key, indexDir)))
	}
	if err == nil {
		err = s.write(sp, next)
	}
	if err != nil {
		s.removeTrees(sp, []Version{n})
		return n, false, fmt.Errorf("fill drive %s: %w", next.Name, err)
	}
	sp.drives[next.Name] = next
	s.wakeSweeper()
	return n, true, nil
}

// sync syncs a directory.
func (s *Drives) sync(dir string) error {
	f, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// reconcile makes the directory of a principal, if it has none. The lock is held.
func (s *Drives) reconcile(sp *driveSpace) error {
	if s.spaces[sp.key] == sp {
		return nil
	}
	for _, dir := range []string{namesDir, indexDir, treesDir} {
		if err := s.root.MkdirAll(path.Join(sp.key, dir), 0o700); err != nil {
			return err
		}
	}
	s.spaces[sp.key] = sp
	return nil
}
