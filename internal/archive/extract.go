// SPDX-License-Identifier: Apache-2.0

// Archives that nobody vouches for, zip and tar, become directories. What is wrong with one is found before
// anything is written where the format allows it, and while writing otherwise. Nothing is executed, and an archive
// in an archive is a file.

package archive

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

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
	maxPart         = 255 // bytes of a part of a name: what filesystems take
	extractMaxDepth = 32  // parts of a name
)

// maxRatio is how many times as long as in the archive content may be. The first bytes of a tar archive are free,
// since small ones are mostly padding.
const (
	extractMaxRatio  = 100
	extractFreeBytes = 1 << 20
)

// maxStream is how many times Limits.Bytes may go by of a tar archive of which only a part is taken.
const maxStream = 8

// Extract makes what is in an archive, in an empty directory. What was made before something turned out to be wrong
// is left to the caller. below names a directory of the archive, from its root (see Root): of a tar archive nothing
// else is looked at; "": all is taken.
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

// stream is the tar archive itself, without gzip around it.
func stream(packed io.Reader, head []byte, l Limits) (io.Reader, error) {
	if !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return packed, nil
	}
	in := &counter{r: packed}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, refuse("the archive is damaged, or none: %v", err)
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
	z    io.Reader
	in   *counter
	n    int64
	most int64
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.z.Read(p)
	switch i.n += int64(n); {
	case i.n > i.most:
		return 0, refuse("Archive exceeds the total uncompressed size limit")
	case i.n > extractFreeBytes && i.n > i.in.n*extractMaxRatio:
		return 0, refuse("Archive exceeds the aggregate compression ratio limit")
	}
	return n, err
}

// untar takes a tar archive. What it leaves out counts for nothing but time, which stream bounds.
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
		return refuse("the archive is empty, or none")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("the archive ends in the middle of something, or is none")
	}
	return damaged(err)
}

// damaged tells what an archive has done wrong from what the disk has.
func damaged(err error) error {
	if err == nil || errors.As(err, new(*os.PathError)) || errors.As(err, new(*os.LinkError)) {
		return err
	}
	return refuse("the archive is damaged, or none: %v", err)
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

// beneath reports whether an entry is below a directory, with a directory of any name around all of it: archives of
// a repository have one.
func beneath(name, below string) bool {
	_, rest, _ := strings.Cut(name, "/")
	return rest == below || strings.HasPrefix(rest, below+"/")
}

// CheckName refuses names that some tool or terminal would take for something else.
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

// shown is a name that can stand in a message.
func shown(name string) string {
	const most = 120
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Sprintf("%q", name)
	}
	return name
}
