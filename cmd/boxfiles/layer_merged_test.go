// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/files"
)

// makeTree makes the given entries in a directory: "dir/", "dir!/" for an opaque one, "file=content",
// "link->target", "a<b" for another name of b, and "-gone". Everything belongs to the box user,
// except what begins with "^".
func makeTree(t *testing.T, entries ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, e := range entries {
		e, ours := strings.CutPrefix(e, "^")
		name := strings.TrimLeft(e[:strings.IndexAny(e+"!", "!=<>")], "-")
		name = strings.TrimSuffix(name, "-")
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		own := func(path string) error {
			if ours {
				return os.Lchown(path, 0, 0)
			}
			return os.Lchown(path, 1000, 1000)
		}
		for up := filepath.Dir(at); err == nil && !ours && up != dir; up = filepath.Dir(up) {
			var st unix.Stat_t
			if err = unix.Lstat(up, &st); err == nil && st.Mode&0o1000 == 0 {
				err = own(up)
			}
		}
		if err == nil {
			switch _, rest, _ := strings.Cut(e, name); {
			case e[0] == '-':
				err = unix.Mknod(at, unix.S_IFCHR, 0)
			case strings.HasSuffix(e, "/"):
				err = os.MkdirAll(at, 0o755)
				if ours && err == nil {
					err = unix.Chmod(at, 0o1777)
				}
				if strings.Contains(e, "!") && err == nil {
					err = unix.Setxattr(at, "user.overlay.opaque", []byte("y"), 0)
				}
			case strings.HasPrefix(rest, "->"):
				err = os.Symlink(rest[2:], at)
			case rest[0] == '<':
				err = os.Link(filepath.Join(dir, rest[1:]), at)
			case rest[0] == '=':
				err = os.WriteFile(at, []byte(rest[1:]), 0o644)
			}
		}
		if err = errors.Join(err, own(at)); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
	}
	return dir
}

func packs(image, changed string, b files.Bounds) (string, *files.Archived, error) {
	var out bytes.Buffer
	a, err := packCommit(&files.Commit{Image: []byte(image), Changed: []byte(changed), Bounds: b}, &out)
	if err != nil {
		return "", nil, err
	}
	var list []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(list, " "), a, nil
		}
		if err != nil {
			return "", nil, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return "", nil, err
		}
		text := h.Name
		switch h.Typeflag {
		case tar.TypeReg:
			text += "=" + string(content)
		case tar.TypeSymlink:
			text += "->" + h.Linkname
		case tar.TypeLink:
			text += "<" + h.Linkname
		case tar.TypeDir:
			if h.Mode != 0o755 {
				text += fmt.Sprintf("%o", h.Mode)
			}
		}
		list = append(list, text)
	}
}

func defaultBounds() files.Bounds { return files.Bounds{Bytes: 1 << 20, Entries: 100} }

// An archive of an image with the changes of a box contains what programs see, except what every box has.
func TestARootIsPackedAsProgramsSeeIt(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t) // whiteouts of overlayfs are devices, which need root
	for _, test := range []struct {
		name           string
		image, changed []string
		want           string
		skipped        int
	}{
		{"nothing is changed", []string{"a=1", "d/b=2", "l->a", "d/c<a"}, nil, "a=1 d/ d/b=2 d/c<a l->a", 0},
		{"made, changed, removed", []string{"a=1", "d/b=2", "d/c=3", "e/x=1"}, []string{"a=one", "d/new=n", "-d/b", "-e", "-never"}, "a=one d/ d/c=3 d/new=n", 0},
		{"other kinds", []string{"a=1", "d/b=2", "l->a"}, []string{"a/x=in", "d=file", "l=file"}, "a/ a/x=in d=file l=file", 0},
		{"a directory that was made again", []string{"d/b=2", "d/e/f=3"}, []string{"d!/", "d/e/g=4"}, "d/ d/e/ d/e/g=4", 0},
		{"no link of the image leads anywhere", []string{"usr/lib/a=1", "link->usr"}, []string{"link/lib/b=2"}, "link/ link/lib/ link/lib/b=2 usr/ usr/lib/ usr/lib/a=1", 0},
		{
			"what every box has",
			[]string{"etc/passwd=p", "etc/hosts=h", "var/run->/run", "proc->/usr", "opt=file"},
			[]string{"^etc/", "^etc/hosts->../run/box/hosts", "^etc/mtab->m", "^var/", "^var/run/", "^var/lib/", "^proc/", "^opt/", "^home/", "^home/box/"},
			"etc/ etc/hosts=h etc/passwd=p opt=file proc->/usr var/ var/run->/run", 0,
		},
		{
			"links of every box that were made again or replaced",
			[]string{"etc/hosts=h", "etc/mtab->x", "d/hosts=1"},
			[]string{"^etc/", "etc/hosts->../run/box/hosts", "etc/hostname=mine", "etc/mtab->../proc/mounts", "d/hosts->../run/box/hosts"},
			"d/ d/hosts->../run/box/hosts etc/ etc/hostname=mine etc/hosts=h etc/mtab->../proc/mounts", 0,
		},
		{"an /etc that is a link, which boxes hide", []string{"etc->usr/etc", "usr/etc/a=1"}, []string{"^etc/", "etc/hosts->../run/box/hosts", "etc/mtab->../proc/self/mounts"}, "etc->usr/etc usr/ usr/etc/ usr/etc/a=1", 0},
		{"an /etc that is a link, and what programs have put there", []string{"etc->usr/etc"}, []string{"^etc/", "etc/hosts->../run/box/hosts", "etc/mine=1"}, "etc/mine=1", 0},
		{"what programs have put there", []string{"opt=file"}, []string{"^opt/", "opt/tool/x=1", "^var/", "^var/lib/", "var/lib/db=2"}, "opt/tool/ opt/tool/x=1 var/lib/db=2", 0},
		{"names of one file", []string{"a=1", "b<a"}, []string{"c=2", "d<c", "b=other"}, "a=1 b=other c=2 d<c", 0},
		{"names that would take something away", []string{"a=1", ".wh.x=1"}, []string{".wh.a=", ".wh..wh..opq="}, "a=1", 3},
	} {
		got, a, err := packs(makeTree(t, test.image...), makeTree(t, test.changed...), defaultBounds())
		if err != nil || got != test.want || a.Skipped != test.skipped || a.Entries != strings.Count(got, " ")+1 {
			t.Errorf("%s: %v\n%s, %+v, want\n%s", test.name, err, got, a, test.want)
		}
	}
}

// An archive over the limits is refused, and special files are left out.
func TestOversizedTreesAndSpecialFilesAreNotPacked(t *testing.T) {
	t.Parallel()
	image, changed := makeTree(t, "a=12345", "d/b=12345"), makeTree(t)
	for _, b := range []files.Bounds{{Bytes: 9, Entries: 3}, {Bytes: 10, Entries: 2}} {
		if got, _, err := packs(image, changed, b); err == nil || !strings.Contains(err.Error(), "images.max_") {
			t.Errorf(`%+v: got %s, err = %v, want an error containing "images.max_"`, b, got, err)
		}
	}
	deep := filepath.Join(changed, strings.Repeat("d/", mergedMaxDepth+1))
	if err := errors.Join(os.MkdirAll(deep, 0o755), unix.Mkfifo(filepath.Join(image, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, a, err := packs(image, makeTree(t), defaultBounds()); err != nil || a.Skipped != 1 || strings.Contains(got, "fifo") {
		t.Errorf(`got %s, a = %+v, err = %v, want no error and a.Skipped == 1 and got without "fifo"`, got, a, err)
	}
	// Everything belongs to the test's user, who may be in-box root: so it is packed as if it
	// were the image.
	if got, _, err := packs(changed, image, files.Bounds{Bytes: 1 << 20, Entries: 1000}); err == nil || !strings.Contains(err.Error(), "below each other") {
		t.Errorf(`got %s, err = %v, want an error containing "below each other"`, got, err)
	}
}

// mutator changes files while an archive is written.
type mutator func() error

func (m mutator) Write(p []byte) (int, error) { return len(p), m() }

func TestAFileThatChangesWhileItIsReadIsRefused(t *testing.T) {
	t.Parallel()
	image, changed := makeTree(t), makeTree(t, "a=12345")
	for _, size := range []int64{2, 9} {
		name := filepath.Join(changed, "a")
		if err := os.Truncate(name, 5); err != nil {
			t.Fatal(err)
		}
		_, err := packCommit(&files.Commit{Image: []byte(image), Changed: []byte(changed), Bounds: defaultBounds()}, mutator(func() error { return os.Truncate(name, size) }))
		if f, ok := errors.AsType[*files.Failure](err); !ok || f.Kind != files.Changed || string(f.Path) != "/a" {
			t.Errorf("%d bytes instead of 5: %v", size, err)
		}
	}
}
