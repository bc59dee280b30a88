// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/zip"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Bytes of the central directory for each entry that an archive may have, and for its end record.
// If more entries follow than the end record says, no more than this is read.
const (
	entryBytes = 1 << 10
	endBytes   = 256 << 10
)

var errTooLong = errors.New("archive: its directory exceeds the limits")

// metered reads until a budget is used up; a negative budget is unlimited.
type metered struct {
	f    io.ReaderAt
	left int64
}

func (m *metered) ReadAt(p []byte, at int64) (int, error) {
	if m.left >= 0 {
		if m.left -= int64(len(p)); m.left < 0 {
			return 0, errTooLong
		}
	}
	return m.f.ReadAt(p, at)
}

// unzip unpacks a zip archive: its whole central directory is checked against the limits before
// the first file is made.
func unzip(f *os.File, size int64, dir *os.Root, l Limits) error {
	m := &metered{f, int64(l.Entries)*entryBytes + endBytes}
	r, err := zip.NewReader(m, size)
	if errors.Is(err, errTooLong) {
		return tooMany(l)
	}
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // names are checked below
		return invalidZip()
	}
	m.left = -1
	if len(r.File) > l.Entries {
		return tooMany(l)
	}
	names, err := plan(r.File, l)
	if err != nil {
		return err
	}
	for i, e := range r.File {
		if err := extract(e, names[i], dir, l); err != nil {
			return err
		}
	}
	return nil
}

func tooMany(l Limits) error {
	return refuse("Archive contains too many entries (maximum %d)", l.Entries)
}

func invalidZip() error { return refuse("Uploaded file must be a valid .zip archive") }

// plan returns the names of the entries to make, if all of them are acceptable.
func plan(entries []*zip.File, l Limits) ([]string, error) {
	names := make([]string, len(entries))
	seen, folded := map[string]bool{}, map[string]string{}
	kinds := map[string]bool{} // for each name, parents included: whether it is a directory
	var packed, total uint64
	for i, e := range entries {
		name, err := zipName(e.Name)
		if err != nil {
			return nil, err
		}
		names[i] = name
		isDir, err := kindOf(e, name)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, refuse("Archive contains a duplicate path: %s", shown(name))
		}
		seen[name] = true
		if err := claim(name, isDir, kinds, folded); err != nil {
			return nil, err
		}
		if err := sizes(e, name, l); err != nil {
			return nil, err
		}
		packed += e.CompressedSize64
		if total += e.UncompressedSize64; total > uint64(l.Bytes) {
			return nil, refuse("Archive exceeds the total uncompressed size limit")
		}
	}
	if longer(total, packed) {
		return nil, refuse("Archive exceeds the aggregate compression ratio limit")
	}
	if len(kinds) > l.Entries {
		return nil, tooMany(l)
	}
	return names, nil
}

// zipName returns an entry's name in its shortest form; "" is the root itself.
func zipName(raw string) (string, error) {
	if raw == "" || strings.IndexByte(raw, 0) >= 0 {
		return "", refuse("Archive contains an unsafe empty or NUL path")
	}
	name := strings.ReplaceAll(raw, `\`, "/")
	drive := len(name) > 1 && name[1] == ':'
	if strings.HasPrefix(name, "/") || drive || name == ".." || strings.HasPrefix(name, "../") || strings.Contains(name, "/../") || strings.HasSuffix(name, "/..") {
		return "", refuse("Archive contains an unsafe path: %s", shown(raw))
	}
	if name = path.Clean(name); name == "." {
		return "", nil
	}
	return name, CheckName(name)
}

// kindOf reports whether an entry is a directory, and refuses anything that is neither that nor a
// file.
func kindOf(e *zip.File, name string) (isDir bool, err error) {
	const unixMade, typeBits = 3, 0o170000
	isDir = strings.HasSuffix(strings.ReplaceAll(e.Name, `\`, "/"), "/") || name == ""
	if e.CreatorVersion>>8 == unixMade || e.ExternalAttrs>>16 != 0 {
		switch (e.ExternalAttrs >> 16) & typeBits {
		case 0o120000:
			return false, refuse("Archive contains a symbolic link: %s", shown(name))
		case 0o040000:
			isDir = true
		case 0:
		case 0o100000:
			if isDir {
				return false, refuse("Archive contains a non-regular entry: %s", shown(name))
			}
		default:
			return false, refuse("Archive contains a non-regular entry: %s", shown(name))
		}
	}
	if isDir && e.UncompressedSize64 != 0 {
		return false, refuse("Archive directory has unexpected content: %s", shown(name))
	}
	return isDir, nil
}

// claim records a name and its parents.
func claim(name string, isDir bool, kinds map[string]bool, folded map[string]string) error {
	for at := name; at != "" && at != "."; at = path.Dir(at) {
		dir := isDir || at != name
		if was, ok := kinds[at]; ok && was != dir {
			return refuse("Archive contains a duplicate path: %s, as a file and as a directory", shown(at))
		}
		kinds[at] = dir
		low := strings.ToLower(at)
		if other, ok := folded[low]; ok && other != at {
			return refuse("Archive contains a duplicate path: %s differs from %s in case alone", shown(at), shown(other))
		}
		folded[low] = at
	}
	return nil
}

// longer reports whether content is more than maxRatio times longer than it is in the archive.
func longer(content, packed uint64) bool { return (content+extractMaxRatio-1)/extractMaxRatio > packed }

func sizes(e *zip.File, name string, l Limits) error {
	const encrypted = 1
	switch {
	case e.Flags&encrypted != 0:
		return refuse("Archive contains an encrypted entry: %s", shown(name))
	case e.UncompressedSize64 > uint64(l.File):
		return refuse("Archive entry exceeds the uncompressed size limit: %s", shown(name))
	case longer(e.UncompressedSize64, e.CompressedSize64):
		return refuse("Archive entry exceeds the compression ratio limit: %s", shown(name))
	}
	return nil
}

// extract makes one entry. It does not trust the header about the content.
func extract(e *zip.File, name string, dir *os.Root, l Limits) error {
	if name == "" {
		return nil
	}
	if isDir, err := kindOf(e, name); err != nil || isDir {
		return cmp.Or(err, dir.MkdirAll(name, 0o755))
	}
	if parent := path.Dir(name); parent != "." {
		if err := dir.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	in, err := e.Open()
	if err != nil {
		return invalidZip()
	}
	defer in.Close()
	mode := fs.FileMode(0o644)
	if e.Mode()&0o111 != 0 {
		mode = 0o755
	}
	out, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, min(int64(e.UncompressedSize64), l.File)+1))
	if closed := out.Close(); closed != nil {
		return closed
	}
	switch {
	case errors.As(err, new(*os.PathError)):
		return err
	case err != nil:
		return invalidZip()
	case uint64(n) != e.UncompressedSize64:
		return refuse("Archive entry size changed while extracting: %s", shown(name))
	}
	return nil
}
