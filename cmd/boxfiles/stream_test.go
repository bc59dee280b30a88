// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	main "github.com/boxd-dev/boxd/cmd/boxfiles"
	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/files"
)

func TestMkdirReportsExistingEntries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mkdir := func(path string, change ...func(*files.Mkdir)) *files.Request {
		m := &files.Mkdir{Path: []byte(dir + "/" + path), Mode: 0o755, Parents: true}
		for _, c := range change {
			c(m)
		}
		return &files.Request{Mkdir: m}
	}
	a := must(t, mkdir("a/b/c"))
	if !a.Write.Created || a.Write.File.Type != files.TypeDirectory || a.Write.File.Mode != 0o755 || a.Write.File.Owner == nil {
		t.Errorf("made %+v", a.Write)
	}
	mustFail(t, files.Exists, mkdir("a/b/c"))
	mustFail(t, files.Exists, mkdir("a/b/c/"))
	if a := must(t, mkdir("a/b", func(m *files.Mkdir) { m.Existing, m.Mode = true, 0o700 })); a.Write.Created || a.Write.File.Mode != 0o755 {
		t.Errorf("an existing directory: %+v, want it as it was", a.Write)
	}
	if a := must(t, mkdir("wide", func(m *files.Mkdir) { m.Mode = 0o777 })); a.Write.File.Mode != 0o777 {
		t.Errorf("requested mode 0777, got %o", a.Write.File.Mode)
	}
	put(t, dir+"/file", "x")
	for link, to := range map[string]string{"dangling": "nowhere", "tofile": "file", "todir": "a"} {
		if err := os.Symlink(to, dir+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	for path, kind := range map[string]files.Kind{"file": files.NotDirectory, "file/below": files.NotDirectory, "dangling": files.NotDirectory, "tofile": files.NotDirectory, "todir": files.Exists} {
		mustFail(t, kind, mkdir(path))
	}
	mustFail(t, files.NotFound, mkdir("x/y", func(m *files.Mkdir) { m.Parents = false }))
}

func TestEntriesTellOwnersLinksAndAttributes(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := put(t, dir+"/real/file", "x")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(file, "user.boxd.a", []byte{0, 0xff}, 0); errors.Is(err, unix.ENOTSUP) {
		boxtest.Missing(t, "extended attributes in the directory for temporary files")
	} else if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "hop", "hop": "real/../real/file", "todir": "real", "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(to, dir+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	list := must(t, &files.Request{List: &files.List{Path: []byte(dir), Depth: 2, Limit: 100, Xattrs: true}}).List
	by := map[string]files.Entry{}
	for _, e := range list.Entries {
		by[string(e.Path)] = e
		if e.Owner == nil || e.Owner.UID != uint32(os.Getuid()) || os.Getuid() == 0 && (e.Owner.User != "root" || e.Owner.Group != "root") {
			t.Errorf(`%s belongs to %+v, want e.Owner != nil and e.Owner.UID == uint32(os.Getuid()) and (os.Getuid() != 0 or e.Owner.User == "root" and e.Owner.Group == "root")`,
				e.Path, e.Owner)
		}
	}
	for name, want := range map[string][2]string{"link": {file, files.TypeFile}, "hop": {file, files.TypeFile}, "todir": {dir + "/real", files.TypeDirectory}, "dangling": {}, "loop": {}} {
		e := by[name]
		if e.Type != files.TypeLink || string(e.Resolved) != want[0] || e.TargetType != want[1] {
			t.Errorf("%s leads to %q, a %q, want %q", name, e.Resolved, e.TargetType, want)
		}
	}
	if e := by["link"]; e.TargetMode != 0o640 || e.Mode != 0o777 {
		t.Errorf("the link has mode %o, its target %o", e.Mode, e.TargetMode)
	}
	if got := by["real/file"].Xattrs; len(got) != 1 || !bytes.Equal(got["user.boxd.a"], []byte{0, 0xff}) {
		t.Errorf("attributes %q", got)
	}
	if a := must(t, &files.Request{Stat: &files.Stat{Path: []byte(dir + "/link"), Follow: true, Xattrs: true}}); len(a.Stat.Xattrs) != 1 || a.Stat.Type != files.TypeFile {
		t.Errorf("through the link: a.Stat = %+v, want len(a.Stat.Xattrs) == 1 and a.Stat.Type == files.TypeFile",
			a.Stat)
	}
	if a := must(t, &files.Request{Stat: &files.Stat{Path: []byte(file)}}); a.Stat.Xattrs != nil {
		t.Errorf("attributes that were not requested: a.Stat.Xattrs = %q, want nil", a.Stat.Xattrs)
	}
}

// get reads a part of a file as a stream.
func get(t *testing.T, req files.Get) (*files.Opening, string, *files.Failure) {
	t.Helper()
	var out bytes.Buffer
	if code := main.Main(encode(t, &files.Request{Get: &req}, nil), &out); code != 0 {
		t.Fatalf("boxfiles ended with %d, want 0", code)
	}
	var opening *files.Opening
	var text strings.Builder
	for in := files.NewIncoming(&out); ; {
		p, err := in.Next()
		switch {
		case err != nil:
			t.Fatal(err)
		case p.Answer != nil:
			return opening, text.String(), p.Answer.Failure
		case p.Notice != nil:
			if opening != nil || text.Len() > 0 {
				t.Fatal("a notice came after the first one, or after data")
			}
			opening = p.Notice.Opening
		}
		text.Write(p.Data)
	}
}

func TestGetSendsPartsAndSaysWhichFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := []byte(put(t, dir+"/file", "0123456789"))
	for _, tc := range []struct {
		offset, length int64
		want           string
		from, of       int64
	}{
		{0, 0, "0123456789", 0, 10},
		{3, 4, "3456", 3, 4},
		{8, 100, "89", 8, 2},
		{-3, 0, "789", 7, 3},
		{-30, 0, "0123456789", 0, 10},
		{-3, 2, "78", 7, 2},
		{10, 0, "", 10, 0},
		{100, 5, "", 100, 0},
	} {
		o, text, failed := get(t, files.Get{Path: path, Offset: tc.offset, Length: tc.length})
		if failed != nil || text != tc.want || o.Offset != tc.from || o.Length != tc.of || o.File.Size != 10 {
			t.Errorf("from %d, %d bytes: text = %q, o = %+v, failed = %v, want failed == nil and text == %q and o.Offset == %v and o.Length == %v and o.File.Size == 10",
				tc.offset, tc.length, text, o, failed, tc.want, tc.from, tc.of)
		}
	}
	big := strings.Repeat("a line of a file that needs many frames\n", 20_000)
	put(t, dir+"/big", big)
	if _, text, failed := get(t, files.Get{Path: []byte(dir + "/big")}); failed != nil || text != big {
		t.Errorf("%d of %d bytes, %v", len(text), len(big), failed)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]files.Kind{dir + "/none": files.NotFound, dir: files.IsDirectory, dir + "/fifo": files.NotRegular, "/dev/zero": files.NotRegular, "/proc/self/mem": files.NotRegular} {
		if o, _, failed := get(t, files.Get{Path: []byte(path)}); o != nil || failed == nil || failed.Kind != kind {
			t.Errorf("%s: %+v, want %s", path, failed, kind)
		}
	}
}

func TestPutWritesInPlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := dir + "/a/b/file"
	req := &files.Request{Put: &files.Put{Path: []byte(path), Parents: true}}
	if a := must(t, req, []byte("first, and a long one")...); !a.Write.Created || a.Write.File.Mode != 0o644 || a.Write.File.Size != 21 {
		t.Errorf("a new one: a.Write = %+v, want a.Write.Created == true and a.Write.File.Mode == 0o644 and a.Write.File.Size == 21",
			a.Write)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Link(path, dir+"/other"), os.Symlink("other", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	req.Put.Path = []byte(dir + "/link")
	if a := must(t, req, []byte("second")...); a.Write.Created || a.Write.File.Mode != 0o600 || a.Write.File.Size != 6 {
		t.Errorf("through a link: a.Write = %+v, want a.Write.Created == false and a.Write.File.Mode == 0o600 and a.Write.File.Size == 6",
			a.Write)
	}
	if content(t, path) != "second" || content(t, dir+"/other") != "second" {
		t.Errorf("the file has %q, its other name %q", content(t, path), content(t, dir+"/other"))
	}
	mode := uint32(0o666)
	if a := must(t, &files.Request{Put: &files.Put{Path: []byte(dir + "/wide"), Mode: &mode}}); a.Write.File.Mode != 0o666 {
		t.Errorf("mode %o", a.Write.File.Mode)
	}
	if err := errors.Join(unix.Mkfifo(dir+"/fifo", 0o644), os.Symlink("nowhere", dir+"/dangling")); err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]files.Kind{
		dir: files.IsDirectory, dir + "/new/": files.IsDirectory, dir + "/fifo": files.NotRegular, "/dev/null": files.NotRegular, dir + "/dangling": files.NotFound,
		dir + "/wide/x": files.NotDirectory, "/proc/self/comm": files.NotRegular, "/dev/full": files.NotRegular,
	} {
		mustFail(t, kind, &files.Request{Put: &files.Put{Path: []byte(name)}}, 'x')
	}
	// Data that arrived before the stream was cut off is kept.
	in := encode(t, &files.Request{Put: &files.Put{Path: []byte(path)}}, []byte("half of it"))
	in.Truncate(in.Len() - 5)
	var out bytes.Buffer
	main.Main(in, &out)
	if a, err := files.Receive(&out, io.Discard, 0); err != nil || a.Failure == nil || content(t, path) != "half of it" {
		t.Errorf(`without an end: %+v, %v; the file has %q, want no error and a.Failure != nil and content(t, path) == "half of it"`,
			a, err, content(t, path))
	}
}

func TestWritingReplacesASetOfAttributes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := put(t, dir+"/file", "x")
	for name, value := range map[string]string{"user.mine": "1", "user.e2b.old": "2", "user.e2b.both": "3"} {
		if err := unix.Setxattr(path, name, []byte(value), 0); errors.Is(err, unix.ENOTSUP) {
			boxtest.Missing(t, "extended attributes in the directory for temporary files")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		a := must(t, &files.Request{Stat: &files.Stat{Path: []byte(path), Xattrs: true}})
		return slices.Sorted(maps.Keys(a.Stat.Xattrs))
	}
	set := &files.Xattrs{Prefix: "user.e2b.", Values: map[string][]byte{"user.e2b.both": []byte("4"), "user.e2b.new": {}}}
	must(t, &files.Request{Put: &files.Put{Path: []byte(path)}}, 'y')
	if got := names(); len(got) != 3 {
		t.Errorf("without a set there are %q, want them kept", got)
	}
	must(t, &files.Request{Put: &files.Put{Path: []byte(path), Xattrs: set}}, 'y')
	if got := names(); !slices.Equal(got, []string{"user.e2b.both", "user.e2b.new", "user.mine"}) {
		t.Errorf(`there are %q, want []string{"user.e2b.both", "user.e2b.new", "user.mine"}`, got)
	}
	must(t, &files.Request{Put: &files.Put{Path: []byte(path), Xattrs: &files.Xattrs{Prefix: "user.e2b."}}}, 'y')
	if got := names(); !slices.Equal(got, []string{"user.mine"}) {
		t.Errorf(`cleared, there are %q, want []string{"user.mine"}`, got)
	}
	must(t, &files.Request{Write: &files.Write{Path: []byte(path), How: files.Overwrite, Most: 10, Xattrs: set}}, 'z')
	if got := names(); !slices.Equal(got, []string{"user.e2b.both", "user.e2b.new", "user.mine"}) {
		t.Errorf(`replaced, there are %q, want []string{"user.e2b.both", "user.e2b.new", "user.mine"}`, got)
	}
	must(t, &files.Request{Write: &files.Write{Path: []byte(path), How: files.Overwrite, Most: 10}}, 'o')
	must(t, &files.Request{Edit: &files.Edit{Path: []byte(path), Edits: []files.Replacement{{Old: []byte("o"), New: []byte("z")}}, Most: 10}})
	if got := names(); !slices.Equal(got, []string{"user.e2b.both", "user.e2b.new", "user.mine"}) || content(t, path) != "z" {
		t.Errorf(`written to and edited, there are %q, want got == []string{"user.e2b.both", "user.e2b.new", "user.mine"} and content(t, path) == "z"`,
			got)
	}
	for _, bad := range []*files.Xattrs{{}, {Prefix: "trusted."}, {Prefix: "user.a", Values: map[string][]byte{"user.b": nil}}, {Prefix: "user.", Values: map[string][]byte{"user.": nil}}} {
		if f := mustFail(t, files.BadRequest, &files.Request{Put: &files.Put{Path: []byte(path), Xattrs: bad}}, 'n'); f.Field != "xattrs" || content(t, path) != "z" {
			t.Errorf(`%+v: %+v, the file has %q, want f.Field == "xattrs" and content(t, path) == "z"`,
				bad, f, content(t, path))
		}
	}
}
