// SPDX-License-Identifier: Apache-2.0

// Package archive packs directories into tar archives, or unpacks untrusted archives.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"
)

// Bounds of an archive; all of them apply.
type Bounds struct {
	Bytes   int64 // of all contents together
	Entries int   // missing parent directories count as entries too
	File    int64 // bytes of one file
}

// Stats count what was packed or unpacked.
type Stats struct {
	Entries int
	Bytes   int64
	Skipped int      // number of entries that are neither file, directory nor link
	LeftOut []string // what was left out, where allowed: names with the reason, at most maxLeftOut
}

// maxLeftOut bounds how many names of left-out entries are remembered.
const maxLeftOut = 1000

func (s *Stats) leaveOut(text string) {
	if len(s.LeftOut) < maxLeftOut {
		s.LeftOut = append(s.LeftOut, text)
	}
}

// leftOut begins the comment in an archive that names what was left out. Other programs ignore comments (pax(1)).
const leftOut = "left out: "

// Refusal says what is unacceptable in an archive or directory.
type Refusal struct {
	Name    string // of the entry; "" for the archive as a whole
	Reason  string
	TooMuch bool // a bound was exceeded; otherwise it is wrong whatever the bounds
}

func (r *Refusal) Error() string {
	if r.Name == "" {
		return "archive: " + r.Reason
	}
	name := r.Name
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("archive entry %q: %s", name, r.Reason)
}

// maxDepth bounds the levels of directories.
const maxDepth = 4096

// packer writes one archive.
type packer struct {
	out    *tar.Writer
	bounds Bounds
	rules  PackRules
	packed map[inode]string // files with several names: the first
	stats  Stats
}

// PackRules say what becomes of some entries of a directory.
type PackRules struct {
	LeaveOut bool // leave out what cannot be read, too, and say so in the archive
	Links    bool // a file with several names is packed once, and its other names as hard links to that
}

// inode is a file of a host.
type inode struct{ dev, ino uint64 }

// Unreadable says which entry of a directory cannot be packed.
type Unreadable struct {
	Name string
	Err  error
}

func (e *Unreadable) Error() string { return fmt.Sprintf("%q: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *Unreadable) Unwrap() error { return e.Err }

// leaveOut records in the archive that something is missing.
func (p *packer) leaveOut(name, why string) error {
	text := fmt.Sprintf("%q: %s", name, why)
	p.stats.leaveOut(text)
	return p.out.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "left_out", PAXRecords: map[string]string{"comment": leftOut + text}})
}

// PackDir writes the content of a directory, with names relative to it, or below a directory named as if that is given. Links are
// packed, not followed; anything but files, directories and links is left out and counted. A file that changes meanwhile keeps
// the length it had first, and an entry that is removed or replaced meanwhile may be left out.
//
// An entry that cannot be read is an *Unreadable.
func PackDir(w io.Writer, dir *os.Root, as string, b Bounds, how PackRules) (Stats, error) {
	p := &packer{out: tar.NewWriter(w), bounds: b, rules: how, packed: map[inode]string{}}
	if as != "" {
		as += "/"
		info, err := dir.Stat(".")
		if err == nil {
			err = p.head(&tar.Header{Typeflag: tar.TypeDir, Name: as}, info)
		}
		if err != nil {
			return p.stats, err
		}
	}
	if err := p.directory(dir, as, 1); err != nil {
		return p.stats, err
	}
	return p.stats, p.out.Close()
}

// PackSome writes the entries of a directory with these names, directories with everything in them. Names that no longer exist
// are left out and counted.
func PackSome(w io.Writer, dir *os.Root, names []string, b Bounds) (Stats, error) {
	p := &packer{out: tar.NewWriter(w), bounds: b}
	for _, name := range names {
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			p.stats.Skipped++
			continue
		}
		if err == nil {
			err = p.entry(dir, name, "", info, 1)
		}
		if errors.Is(err, errVanished) {
			p.stats.Skipped++
			continue
		}
		if err != nil {
			return p.stats, err
		}
	}
	return p.stats, p.out.Close()
}

// PackFile writes one file of a directory, as the only entry, with the name as.
func PackFile(w io.Writer, dir *os.Root, name, as string, b Bounds) (Stats, error) {
	p := &packer{out: tar.NewWriter(w), bounds: b}
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) // as in entry
	if err != nil {
		return p.stats, err
	}
	defer f.Close()
	if err := p.file(f, as); err != nil {
		return p.stats, err
	}
	return p.stats, p.out.Close()
}

func (p *packer) directory(dir *os.Root, prefix string, depth int) error {
	if depth > maxDepth {
		return &Refusal{Name: prefix, Reason: "too many directories below each other", TooMuch: true}
	}
	names, err := p.names(dir, prefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just removed
		}
		if err == nil {
			err = p.entry(dir, name, prefix, info, depth)
		}
		if err != nil && !errors.Is(err, errVanished) {
			return err
		}
	}
	return nil
}

// names lists a directory, sorted.
func (p *packer) names(dir *os.Root, prefix string) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for {
		batch, err := f.Readdirnames(1024)
		names = append(names, batch...)
		if p.stats.Entries+len(names) > p.bounds.Entries {
			return nil, &Refusal{Name: prefix, Reason: fmt.Sprintf("more than %d entries", p.bounds.Entries), TooMuch: true}
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *packer) entry(dir *os.Root, name, prefix string, info fs.FileInfo, depth int) error {
	full := prefix + name
	switch {
	case info.IsDir():
		if err := p.head(&tar.Header{Typeflag: tar.TypeDir, Name: full + "/"}, info); err != nil {
			return err
		}
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return p.unopened(dir, name, full, info, err)
		}
		defer sub.Close()
		err = p.directory(sub, full+"/", depth+1)
		if errors.Is(err, fs.ErrNotExist) { // it was removed while it was listed
			return nil
		}
		return p.unreadable(full, err)
	case info.Mode().IsRegular():
		// O_NONBLOCK: opening it does not block, even if it has been replaced by a FIFO since it was
		// examined.
		f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if err != nil {
			return p.unopened(dir, name, full, info, err)
		}
		defer f.Close()
		return p.unreadable(full, p.file(f, full))
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := dir.Readlink(name)
		if err != nil {
			return p.unopened(dir, name, full, info, err)
		}
		return p.head(&tar.Header{Typeflag: tar.TypeSymlink, Name: full, Linkname: target}, info)
	}
	p.stats.Skipped++
	if p.rules.LeaveOut {
		return p.leaveOut(full, "neither file, directory nor link")
	}
	return nil
}

// errVanished means that an entry was removed or replaced after it was examined, and nothing of its content is in the archive.
var errVanished = errors.New("it has been removed meanwhile")

// unopened returns the error for an entry that cannot be opened: it may no longer be what it was.
func (p *packer) unopened(dir *os.Root, name, full string, was fs.FileInfo, err error) error {
	now, lerr := dir.Lstat(name)
	vanished := errors.Is(err, fs.ErrNotExist) || errors.Is(lerr, fs.ErrNotExist)
	if vanished || lerr == nil && (now.Mode().Type() != was.Mode().Type() || !os.SameFile(was, now)) {
		return errVanished
	}
	return p.unreadable(full, err)
}

// unreadable records that something cannot be read, where that is allowed.
func (p *packer) unreadable(name string, err error) error {
	if p.rules.LeaveOut && errors.Is(err, fs.ErrPermission) {
		return p.leaveOut(name, "may not be read")
	}
	if _, named := errors.AsType[*Unreadable](err); !named && errors.Is(err, fs.ErrPermission) {
		return &Unreadable{name, err}
	}
	return err
}

func (p *packer) head(h *tar.Header, info fs.FileInfo) error {
	if p.stats.Entries++; p.stats.Entries > p.bounds.Entries {
		return &Refusal{Name: h.Name, Reason: fmt.Sprintf("more than %d entries", p.bounds.Entries), TooMuch: true}
	}
	h.Mode, h.ModTime = int64(info.Mode().Perm()), info.ModTime()
	if year := h.ModTime.UTC().Year(); year < 1970 || year > 9999 {
		h.ModTime = time.Unix(0, 0)
	}
	return p.out.WriteHeader(h)
}

func (p *packer) file(f *os.File, full string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		p.stats.Skipped++
		return nil
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && p.rules.Links && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := p.packed[id]; ok {
			return p.head(&tar.Header{Typeflag: tar.TypeLink, Name: full, Linkname: first}, info)
		}
		p.packed[id] = full
	}
	size := info.Size()
	if p.stats.Bytes += size; size > p.bounds.File || p.stats.Bytes > p.bounds.Bytes {
		return tooLarge(full, size, p.bounds)
	}
	if err := p.head(&tar.Header{Typeflag: tar.TypeReg, Name: full, Size: size}, info); err != nil {
		return err
	}
	n, err := io.Copy(p.out, io.LimitReader(f, size))
	if err == nil && n < size { // the file has been truncated
		_, err = io.CopyN(p.out, zeros{}, size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func tooLarge(name string, size int64, b Bounds) *Refusal {
	if size > b.File {
		return &Refusal{Name: name, Reason: fmt.Sprintf("it has %d bytes, more than %d", size, b.File), TooMuch: true}
	}
	return &Refusal{Name: name, Reason: fmt.Sprintf("the total would exceed %d bytes", b.Bytes), TooMuch: true}
}
