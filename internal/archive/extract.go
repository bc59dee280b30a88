// SPDX-License-Identifier: Apache-2.0

// Untrusted archives, zip and tar, are unpacked into directories. An archive is checked before
// anything is written where its format allows that, and otherwise while writing. Nothing is
// executed, and an archive inside an archive is just a file.

package archive

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Limits bound one archive.
type Limits struct {
	Archive int64 // bytes of the archive itself
	Bytes   int64 // bytes of all files together
	File    int64 // bytes of one file
	Entries int   // files and directories
}

// Bounds of names, whatever the limits are.
const (
	maxPart         = 255 // bytes of one component: what filesystems accept
	extractMaxDepth = 32  // components of a name
)

// extractMaxRatio is how many times longer content may be than it is in the archive. The first bytes of a tar archive are exempt,
// since small archives are mostly padding.
const (
	extractMaxRatio  = 100
	extractFreeBytes = 1 << 20
)

// maxStream bounds how much of a tar archive is read if only a part of it is unpacked, as a
// multiple of Limits.Bytes.
const maxStream = 8

// Extract unpacks an archive into an empty directory. After an error, what it has created is left to the caller. below names a
// directory of the archive, from its root (see Root): nothing else of a tar archive is unpacked; "": everything is.
func Extract(f *os.File, dir *os.Root, below string, l Limits) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case info.Size() == 0:
		return refuse("Uploaded file is empty")
	case info.Size() > l.Archive:
		return refuse("Uploaded archive exceeds the compressed size limit (%d bytes)", l.Archive)
	}
	head := make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.HasPrefix(head, []byte("PK")) {
		return unzip(f, info.Size(), dir, l)
	}
	content, err := stream(io.NewSectionReader(f, 0, info.Size()), head, l)
	if err != nil {
		return err
	}
	return untar(content, dir, below, l)
}

func refuse(format string, args ...any) error {
	f := fault.Errorf(fault.Invalid, format, args...)
	f.Field, f.Allowed = "archive", "a zip archive, or a tar archive that may be compressed by gzip, within the limits of [skills] in box.toml"
	return f
}

// stream returns the tar archive itself, without gzip.
func stream(packed io.Reader, head []byte, l Limits) (io.Reader, error) {
	if !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return packed, nil
	}
	in := &counter{r: packed}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, refuse("not an archive, or damaged: %v", err)
	}
	return &inflated{z, in, 0, l.Bytes*maxStream + extractFreeBytes}, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

type inflated struct {
	z     io.Reader
	in    *counter
	n     int64
	limit int64
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.z.Read(p)
	switch i.n += int64(n); {
	case i.n > i.limit:
		return 0, refuse("Archive exceeds the total uncompressed size limit")
	case i.n > extractFreeBytes && i.n > i.in.n*extractMaxRatio:
		return 0, refuse("Archive exceeds the aggregate compression ratio limit")
	}
	return n, err
}

// untar unpacks a tar archive. Entries that it leaves out cost only time, which stream bounds.
func untar(in io.Reader, dir *os.Root, below string, l Limits) error {
	rules := Rules{
		Bounds:    Bounds{Bytes: l.Bytes, File: l.File, Entries: l.Entries},
		CaseTwins: true, NoLinks: true,
		Take: func(name string) (bool, error) {
			if below != "" && !beneath(name, below) {
				return false, nil
			}
			return true, CheckName(name)
		},
	}
	stats, err := Unpack(in, dir, rules)
	if r, ok := errors.AsType[*Refusal](err); ok {
		return refuse("%s", tarText(r))
	}
	if fault.KindOf(err) != fault.Internal || err == nil && stats.Entries > 0 {
		return err
	}
	if err == nil && below == "" {
		return refuse("not an archive, or empty")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("not an archive, or truncated")
	}
	return damaged(err)
}

// damaged distinguishes errors of the archive from errors of the disk.
func damaged(err error) error {
	if err == nil || errors.As(err, new(*os.PathError)) || errors.As(err, new(*os.LinkError)) {
		return err
	}
	return refuse("not an archive, or damaged: %v", err)
}

func tarText(r *Refusal) string {
	switch r.Reason {
	case "a link":
		return "Archive contains a symbolic link: " + shown(r.Name)
	case "the name is there twice":
		return "Archive contains a duplicate path: " + shown(r.Name)
	}
	return r.Error()
}

// beneath reports whether an entry is below a directory, which may be inside one more directory
// of any name: archives of a repository have such a directory.
func beneath(name, below string) bool {
	_, rest, _ := strings.Cut(name, "/")
	return rest == below || strings.HasPrefix(rest, below+"/")
}

// CheckName refuses names that some tool or terminal would misread.
func CheckName(name string) error {
	parts := strings.Split(name, "/")
	switch {
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) || strings.ContainsRune(name, '\\'):
		return refuse("Archive contains an unsafe path: %s", shown(name))
	case len(parts) > extractMaxDepth:
		return refuse("Archive contains an unsafe path: %s: more than %d directories below each other", shown(name), extractMaxDepth)
	}
	for _, part := range parts {
		if len(part) > maxPart {
			return refuse("Archive contains an unsafe path: %s: a part of more than %d bytes", shown(name), maxPart)
		}
	}
	return nil
}

// shown returns a name in a form that is safe in a message.
func shown(name string) string {
	const limit = 120
	if len(name) > limit {
		name = strings.ToValidUTF8(name[:limit], "") + "…"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Sprintf("%q", name)
	}
	return name
}

// Receive writes an archive that a client sends to a file, and returns how much came: one byte more than limit if it is longer.
func Receive(f *os.File, body io.Reader, limit int64) (int64, error) {
	n, err := io.Copy(f, io.LimitReader(body, limit+1))
	if err != nil && !errors.As(err, new(*os.PathError)) && fault.KindOf(err) == fault.Internal {
		err = fault.Errorf(fault.Invalid, "read the archive: %w", err).WithHint("the upload was cut short; send it again")
	}
	return n, err
}

// Entry is a file or directory of a sealed tree.
type Entry struct {
	Path    string `json:"path"` // from the top of the tree
	Dir     bool   `json:"dir,omitempty"`
	Size    int64  `json:"size,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Program bool   `json:"program,omitempty"` // executable
}

// Seal gives an entry of an unpacked tree the mode with which the tree is mounted, syncs it if it is a file, and describes it. It
// refuses what is neither a file nor a directory.
func Seal(dir *os.Root, name string, e fs.DirEntry) (x Entry, err error) {
	x.Path = name
	info, err := e.Info()
	switch {
	case err != nil:
		return x, err
	case info.IsDir():
		x.Dir = true
		return x, dir.Chmod(name, 0o755)
	case !info.Mode().IsRegular():
		return x, fmt.Errorf("%q is neither a file nor a directory", name)
	}
	mode := fs.FileMode(0o644)
	if x.Program = info.Mode()&0o111 != 0; x.Program {
		mode = 0o755
	}
	if err := dir.Chmod(name, mode); err != nil { // first: an archive's mode may keep us from reading it
		return x, err
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return x, err
	}
	defer f.Close()
	sum := sha256.New()
	if x.Size, err = io.Copy(sum, f); err != nil {
		return x, err
	}
	x.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return x, f.Sync()
}
