// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// commitPacker writes one archive.
type commitPacker struct {
	out    *tar.Writer
	bounds files.Bounds
	stats  files.Archived
	links  map[inode]string // first name of each file that has several
}

type inode struct{ dev, ino uint64 }

// packCommit writes an archive of a root, as a layer of an image: the image with its changes. Everything but files, directories
// and links is left out and counted, and so is what every box has. A file that changes while it is read is a Failure: each file
// is as it was at one moment, but not all at the same moment.
func packCommit(req *files.Commit, w io.Writer) (*files.Archived, error) {
	l, err := openOverlay(req.Image, req.Changed)
	if err != nil {
		return nil, err
	}
	defer l.close()
	p := &commitPacker{out: tar.NewWriter(w), bounds: req.Bounds, links: map[inode]string{}}
	if err := p.directory(l, "", 1); err != nil {
		return nil, err
	}
	return &p.stats, p.out.Close()
}

func (p *commitPacker) directory(l overlayDirs, prefix string, depth int) error {
	if depth > mergedMaxDepth {
		return &files.Failure{Kind: files.TooMany, Path: []byte("/" + prefix), Text: fmt.Sprintf("more than %d directories below each other", mergedMaxDepth)}
	}
	names, err := l.names(p.bounds.Entries)
	if err != nil {
		return failAt(prefix, err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".wh.") { // in a layer it would be a whiteout
			p.stats.Skipped++
			continue
		}
		o, err := l.find(prefix, name)
		if err == nil && o.st != nil {
			err = p.entry(l, o, prefix, name, depth)
		}
		if err != nil {
			return failAt(prefix+name, err)
		}
	}
	return nil
}

func (p *commitPacker) entry(l overlayDirs, o origin, prefix, name string, depth int) error {
	from := l.changed
	if !o.changed {
		from = l.image
	}
	switch o.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if !o.implied {
			if err := p.head(&tar.Header{Typeflag: tar.TypeDir, Name: prefix + name + "/"}, o.st); err != nil {
				return err
			}
		}
		next, err := l.below(name, o)
		if err != nil {
			return err
		}
		defer next.close()
		return p.directory(next, prefix+name+"/", depth+1)
	case unix.S_IFREG:
		return p.file(from, prefix, name, o.st)
	case unix.S_IFLNK:
		return p.head(&tar.Header{Typeflag: tar.TypeSymlink, Name: prefix + name, Linkname: string(targetOf(from, name))}, o.st)
	}
	p.stats.Skipped++
	return nil
}

func (p *commitPacker) head(h *tar.Header, st *unix.Stat_t) error {
	if p.stats.Entries++; p.stats.Entries > p.bounds.Entries {
		return tooMany(p.bounds.Entries)
	}
	h.Mode, h.ModTime = int64(st.Mode&0o7777), time.Unix(st.Mtim.Unix())
	if year := h.ModTime.UTC().Year(); year < 1970 || year > 9999 {
		h.ModTime = time.Unix(0, 0)
	}
	return p.out.WriteHeader(h)
}

func (p *commitPacker) file(from int, prefix, name string, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if first, ok := p.links[key]; ok {
			return p.head(&tar.Header{Typeflag: tar.TypeLink, Name: prefix + name, Linkname: first}, st)
		}
		p.links[key] = prefix + name
	}
	// O_NONBLOCK: opening it does not block, even if it has been replaced by a FIFO since it was
	// examined.
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return err
	}
	if !isRegular(&before) {
		return changing()
	}
	if p.stats.Bytes += before.Size; before.Size > p.bounds.Bytes || p.stats.Bytes > p.bounds.Bytes {
		return &files.Failure{Kind: files.TooLarge, Path: []byte("/" + prefix + name), Text: fmt.Sprintf("with it the image has more than %d bytes (images.max_bytes)", p.bounds.Bytes), Hint: "remove what the image does not need"}
	}
	if err := p.head(&tar.Header{Typeflag: tar.TypeReg, Name: prefix + name, Size: before.Size}, &before); err != nil {
		return err
	}
	if _, err := io.CopyN(p.out, f, before.Size); errors.Is(err, io.EOF) {
		return changing()
	} else if err != nil {
		return err
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return err
	}
	if after.Size != before.Size || after.Mtim != before.Mtim {
		return changing()
	}
	return nil
}

func changing() error {
	return &files.Failure{Kind: files.Changed, Text: "it changes while it is read", Hint: "try again while no program of the box writes there"}
}
