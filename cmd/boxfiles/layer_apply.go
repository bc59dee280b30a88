// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// imageRoot is the directory of the image, in the box.
const imageRoot = "/workspace/rootfs"

// layerLimits bound what a layer may contain.
type layerLimits struct {
	Bytes   int64 // of all files together
	Entries int
}

// layerTotals count what a layer contains. Devices and FIFOs are left out.
type layerTotals struct {
	Bytes   int64
	Entries int
	LeftOut int
}

// layerRefusal says why an archive is not unpacked.
type layerRefusal struct {
	Entry string // "": the archive as a whole
	Why   string
}

func (r *layerRefusal) Error() string {
	if r.Entry == "" {
		return r.Why
	}
	return "entry " + strconv.Quote(shortenEntry(r.Entry)) + ": " + r.Why
}

func shortenEntry(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// Bounds of paths, far beyond those of real images.
const (
	maxName  = 255
	maxPath  = 4000
	maxDepth = 200
)

// runLayer unpacks one layer and returns the exit status. The arguments are the limits and, with the last layer, files.LastLayer
// and the directory in which programs of the image start. The answer is a line of numbers; the reason of a failure goes to
// stderr.
func runLayer(args []string, in *os.File, out, problems io.Writer) int {
	unix.Umask(0)
	t, err := applyArgs(args, in)
	if err != nil {
		fmt.Fprintln(problems, strings.ToValidUTF8(err.Error(), "?"))
		return 1
	}
	if _, err := fmt.Fprintln(out, t.Bytes, t.Entries, t.LeftOut); err != nil {
		return 1
	}
	return 0
}

func applyArgs(args []string, in *os.File) (layerTotals, error) {
	if len(args) < 2 || len(args) > 4 {
		return layerTotals{}, errors.New("want bytes and entries")
	}
	bytes, err := strconv.ParseInt(args[0], 10, 64)
	entries, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err, err2); err != nil {
		return layerTotals{}, err
	}
	if err := os.Mkdir(imageRoot, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return layerTotals{}, err
	}
	root, err := unix.Open(imageRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return layerTotals{}, err
	}
	defer unix.Close(root)
	t, err := applyLayer(root, in, layerLimits{Bytes: bytes, Entries: entries})
	if err == nil && len(args) == 4 && args[2] == files.LastLayer {
		err = (&layerTree{root: root, limits: layerLimits{Entries: maxDepth}}).finish(args[3])
	}
	return t, err
}

// applyLayer applies a layer to a directory with the layers before it. A layer is an untrusted tar archive: it is checked before
// anything is unpacked, and all its paths are resolved below that directory (openat2, RESOLVE_IN_ROOT). After an error the
// directory is unusable.
func applyLayer(root int, in io.ReadSeeker, l layerLimits) (layerTotals, error) {
	t := &layerTree{root: root, limits: l}
	// Whiteouts remove entries of earlier layers only, wherever in the archive they are: so they
	// come first.
	for _, pass := range []func(*tar.Header, string, io.Reader) error{t.whiteout, t.add} {
		if _, err := in.Seek(0, io.SeekStart); err != nil {
			return t.totals, err
		}
		if err := t.each(in, pass); err != nil {
			return t.totals, err
		}
	}
	return t.totals, nil
}

// layerTree is an image that is being unpacked.
type layerTree struct {
	root    int
	limits  layerLimits
	checked layerTotals // counted in the first pass
	totals  layerTotals // unpacked so far
}

// each calls do for each entry of an archive.
func (t *layerTree) each(in io.Reader, do func(*tar.Header, string, io.Reader) error) error {
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return &layerRefusal{Why: "the archive ends in the middle of an entry"}
		case errors.Is(err, tar.ErrInsecurePath): // clean names the entry
		case errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong):
			return &layerRefusal{Why: "not a tar archive, or damaged"}
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := cleanEntry(h.Name)
		if err == nil && name != "." {
			err = do(h, name, r)
		}
		if errno := unix.Errno(0); errors.As(err, &errno) {
			err = describeErrno(h.Name, errno)
		}
		if err != nil {
			return err
		}
	}
}

// describeErrno returns a layerRefusal for an errno about an entry.
func describeErrno(name string, errno unix.Errno) error {
	if errno == unix.ENOSPC || errno == unix.EDQUOT {
		return &layerRefusal{Entry: name, Why: "no room for it: " + errno.Error()}
	}
	if errno == unix.ELOOP {
		return &layerRefusal{Entry: name, Why: "too many symbolic links on the way to it"}
	}
	if errno == unix.ENOTDIR {
		return &layerRefusal{Entry: name, Why: "a parent of it is not a directory"}
	}
	return &layerRefusal{Entry: name, Why: errno.Error()}
}

// cleanEntry returns the name of an entry in its shortest form, "." for the root itself.
func cleanEntry(name string) (string, error) {
	refuse := func(why string) (string, error) { return "", &layerRefusal{Entry: name, Why: why} }
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return refuse("no name")
	case name[0] == '/':
		return refuse("an absolute path")
	case len(name) > maxPath:
		return refuse("the path is too long")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return refuse("a path with ..")
		}
		if len(part) > maxName {
			return refuse("the name is too long")
		}
		depth++
	}
	if depth > maxDepth {
		return refuse("the path is too deep")
	}
	return path.Clean(name), nil
}

// Names by which a layer removes entries of earlier layers (OCI image specification, layer.md).
const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	whiteoutOther  = ".wh..wh." // metadata of aufs
)

// whiteout checks an entry, and removes what it whites out. Nothing of this layer is unpacked
// yet.
func (t *layerTree) whiteout(h *tar.Header, name string, _ io.Reader) error {
	if t.checked.Entries++; t.checked.Entries > t.limits.Entries {
		return &layerRefusal{Why: "more than " + strconv.Itoa(t.limits.Entries) + " entries (images.max_entries)"}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		if h.Size > t.limits.Bytes-t.checked.Bytes {
			return &layerRefusal{Entry: name, Why: "the image is larger than images.max_bytes"}
		}
		t.checked.Bytes += h.Size
	case tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeLink:
		if _, err := cleanEntry(h.Linkname); err != nil {
			return &layerRefusal{Entry: name, Why: "a hard link to " + strconv.Quote(shortenEntry(h.Linkname)) + ", which is not in the image"}
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath || strings.IndexByte(h.Linkname, 0) >= 0 {
			return &layerRefusal{Entry: name, Why: "a symbolic link without a target"}
		}
	default:
		return &layerRefusal{Entry: name, Why: fmt.Sprintf("an entry of the unknown type %q", h.Typeflag)}
	}
	dir, base := path.Split(name)
	victim, is := strings.CutPrefix(base, whiteoutPrefix)
	switch {
	case !is || strings.HasPrefix(base, whiteoutOther) && base != opaqueMark:
		return nil
	case victim == "" || victim == "." || victim == "..":
		return &layerRefusal{Entry: name, Why: "a whiteout without a name"}
	}
	parent, err := t.open(path.Clean(dir))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // what it would remove does not exist
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if base == opaqueMark {
		return emptyDir(parent)
	}
	return removeEntry(parent, victim)
}

// add unpacks an entry.
func (t *layerTree) add(h *tar.Header, name string, r io.Reader) error {
	dir, base := path.Split(name)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		t.totals.LeftOut++
		return nil
	}
	parent, err := t.directory(path.Clean(dir))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	t.totals.Entries++
	switch h.Typeflag {
	case tar.TypeDir:
		return t.addDir(parent, base, h)
	case tar.TypeSymlink:
		if err := removeEntry(parent, base); err != nil {
			return err
		}
		return unix.Symlinkat(h.Linkname, parent, base)
	case tar.TypeLink:
		return t.addLink(parent, base, h)
	}
	return t.addFile(parent, base, h, r)
}

// modeOf returns the permissions of an entry in a box. Programs there do not run as the owners meant by the image, above all not
// as root, so everyone may read and execute what the owner may. setuid and setgid bits are dropped.
func modeOf(h *tar.Header, least uint32) uint32 {
	m := uint32(h.Mode)&0o1777 | least
	return m | m>>6&0o5
}

func (t *layerTree) addDir(parent int, base string, h *tar.Header) error {
	err := unix.Mkdirat(parent, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		err = nil
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err = removeEntry(parent, base); err == nil {
				err = unix.Mkdirat(parent, base, 0o755)
			}
		}
	}
	if err != nil {
		return err
	}
	return unix.Fchmodat(parent, base, modeOf(h, 0o700), 0) // it was checked to be a directory, and no other process can change that here
}

func (t *layerTree) addLink(parent int, base string, h *tar.Header) error {
	target, err := cleanEntry(h.Linkname)
	if err != nil {
		return err
	}
	dir, name := path.Split(target)
	from, err := t.open(path.Clean(dir))
	if err == nil {
		defer unix.Close(from)
		err = removeEntry(parent, base)
	}
	if err == nil {
		err = unix.Linkat(from, name, parent, base, 0)
	}
	if errors.Is(err, unix.ENOENT) {
		return &layerRefusal{Entry: h.Name, Why: "a hard link to " + strconv.Quote(shortenEntry(h.Linkname)) + ", which is not in the image"}
	}
	return err
}

func (t *layerTree) addFile(parent int, base string, h *tar.Header, r io.Reader) error {
	if err := removeEntry(parent, base); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	// The header's size was checked against the limit; this checks the data itself.
	n, err := io.Copy(f, io.LimitReader(r, t.limits.Bytes-t.totals.Bytes+1))
	t.totals.Bytes += n
	if err == nil && t.totals.Bytes > t.limits.Bytes {
		err = &layerRefusal{Entry: h.Name, Why: "the image is larger than images.max_bytes"}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = &layerRefusal{Entry: h.Name, Why: "the archive ends in the middle of it"}
	}
	if err == nil {
		err = f.Chmod(os.FileMode(modeOf(h, 0o600) & 0o777))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Compiled files are matched to their sources by this time.
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}
