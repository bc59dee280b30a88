// SPDX-License-Identifier: Apache-2.0

package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/archive"
)

func limits() archive.Bounds { return archive.Bounds{Bytes: 4096, Entries: 20, File: 2048} }

func file(name, body string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: body, Size: int64(len(body)), Mode: 0o4777}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

// packed writes an archive. The content of a file is given in its Linkname.
func packed(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body, h.Linkname = h.Linkname, ""
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpack unpacks into a directory and checks that its neighbour stays as it is.
func unpack(t *testing.T, data []byte, rules archive.Rules) (string, archive.Stats, error) {
	t.Helper()
	top := t.TempDir()
	for _, dir := range []string{top + "/in", top + "/in/here", top + "/beside"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(top + "/in/here")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stats, err := archive.Unpack(bytes.NewReader(data), root, rules)
	for _, dir := range []string{top, top + "/in", top + "/beside"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(entries); dir == top && n != 2 || dir == top+"/in" && n != 1 || dir == top+"/beside" && n != 0 {
			t.Errorf("%s has %v: an entry was unpacked outside the directory", dir, entries)
		}
	}
	return top + "/in/here", stats, err
}

// T26: what an archive must not contain.
func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	many := make([]tar.Header, 0, 30)
	for i := range 30 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	for _, tc := range []struct {
		name    string
		headers []tar.Header
		tooMuch bool
	}{
		{"a parent", []tar.Header{file("../x", "")}, false},
		{"a parent inside", []tar.Header{file("a/../../x", "")}, false},
		{"a parent that stays within", []tar.Header{file("a/../x", "")}, false},
		{"an absolute name", []tar.Header{file("/tmp/x", "")}, false},
		{"a name twice", []tar.Header{file("x", "1"), file("x", "2")}, false},
		{"a name twice, spelled differently", []tar.Header{file("x", "1"), file("./x", "2")}, false},
		{"a file as a directory", []tar.Header{file("x", "1"), file("x/y", "2")}, false},
		{"a directory as a file", []tar.Header{file("x/y", "1"), file("x", "2")}, false},
		{"a link and a file through it", []tar.Header{link("x", "y"), file("x/z", "1")}, false},
		{"a link outwards", []tar.Header{link("x", "../y")}, false},
		{"an absolute link", []tar.Header{link("x", "/etc/passwd")}, false},
		{"a link that goes down to come up", []tar.Header{link("x", "a/../../y")}, false},
		{"a link by another one", []tar.Header{link("a/b/c", "../.."), link("x", "a/b/c/..")}, false},
		{"an empty link", []tar.Header{link("x", "")}, false},
		{"a hard link outwards", []tar.Header{{Typeflag: tar.TypeLink, Name: "x", Linkname: "/etc/passwd"}}, false},
		{"a hard link upwards", []tar.Header{{Typeflag: tar.TypeLink, Name: "x", Linkname: "../beside"}}, false},
		{"a hard link to a link", []tar.Header{link("a", "b"), {Typeflag: tar.TypeLink, Name: "x", Linkname: "a"}}, false},
		{"a hard link to itself", []tar.Header{{Typeflag: tar.TypeLink, Name: "x", Linkname: "x"}}, false},
		{"a device", []tar.Header{{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1, Devminor: 3}}, false},
		{"a FIFO", []tar.Header{{Typeflag: tar.TypeFifo, Name: "x"}}, false},
		{"case twins", []tar.Header{file("Read/me", ""), file("read/you", "")}, false},
		{"many entries", many, true},
		{"many directories", []tar.Header{file(strings.Repeat("d/", 30)+"x", "")}, true},
		{"a long file", []tar.Header{file("x", strings.Repeat("x", 2049))}, true},
		{"many bytes", []tar.Header{file("x", strings.Repeat("x", 2000)), file("y", strings.Repeat("x", 2000)), file("z", strings.Repeat("x", 2000))}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := unpack(t, packed(t, tc.headers...), archive.Rules{Bounds: limits(), CaseTwins: true})
			if r, ok := errors.AsType[*archive.Refusal](err); !ok || r.TooMuch != tc.tooMuch || r.Error() == "" {
				t.Errorf(`err = %v, want ok == true and r.TooMuch == tc.tooMuch and r != ""`, err)
			}
		})
	}
}

// T27: a bomb is refused by the sizes in its headers and by what it decompresses to.
func TestUnpackRefusesBombs(t *testing.T) {
	t.Parallel()
	// The header says four gigabytes, and nothing follows.
	claim := packed(t, tar.Header{Typeflag: tar.TypeDir, Name: "x/"})
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: 4 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := unpack(t, b.Bytes(), archive.Rules{Bounds: limits()}); !tooMuch(err) {
		t.Errorf("claimed size: err = %v, want tooMuch(err)", err)
	}
	// Padding that compresses to a thousandth.
	b.Reset()
	z := gzip.NewWriter(&b)
	if _, err := z.Write(claim); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 64 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	z.Close()
	if _, _, err := unpack(t, b.Bytes(), archive.Rules{Bounds: limits()}); !tooMuch(err) {
		t.Errorf("ratio: err = %v, want tooMuch(err)", err)
	}
	for name, data := range map[string][]byte{"nothing of the sort": []byte(strings.Repeat("no archive ", 100)), "no gzip": []byte("\x1f\x8bxxxxxxxxxxx")} {
		if _, _, err := unpack(t, data, archive.Rules{Bounds: limits()}); err == nil || tooMuch(err) {
			t.Errorf("%s: err = %v, want an error and not tooMuch(err)", name, err)
		}
	}
}

func tooMuch(err error) bool {
	r, ok := errors.AsType[*archive.Refusal](err)
	return ok && r.TooMuch
}

func TestUnpackAcceptsValidArchives(t *testing.T) {
	t.Parallel()
	data := packed(
		t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "commit"}}, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o500}, file("dir/file", "content"), tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o500},
		link("dir/link", "../top"), file("top", "1"), tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "dir/file"}, file("caf\xe9\n", "latin"),
	)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	z.Close()
	for _, data := range [][]byte{data, zipped.Bytes()} {
		dir, stats, err := unpack(t, data, archive.Rules{Bounds: limits(), CaseTwins: true})
		if err != nil || stats.Entries != 6 || stats.Bytes != 13 {
			t.Fatalf("stats = %+v, err = %v, want no error and stats.Entries == 6 and stats.Bytes == 13", stats, err)
		}
		for name, want := range map[string]string{"dir/file": "content", "dir/link": "1", "hard": "content", "caf\xe9\n": "latin"} {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
				t.Errorf("%q is %q, %v, want no error and got == want", name, got, err)
			}
		}
		info, err := os.Stat(dir + "/dir/file")
		if err != nil || info.Mode() != 0o777 {
			t.Errorf("mode %v, %v: want it without setuid", info.Mode(), err)
		}
		if info, err = os.Stat(dir + "/dir"); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("directory's mode %v, %v", info.Mode(), err)
		}
	}
	dir, _, err := unpack(t, data, archive.Rules{Bounds: limits(), Umask: 0o077})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dir", "/dir/file"} {
		if info, err := os.Stat(dir + name); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s with an umask: info.Mode() = %v, err = %v, want no error and info.Mode().Perm() == 0o700",
				name, info.Mode(), err)
		}
	}
	if _, _, err := unpack(t, packed(t, link("x", "/usr/bin/python3"), link("y", "../../z")), archive.Rules{Bounds: limits(), OutwardLinks: true}); err != nil {
		t.Errorf("links outwards, where they may: %v", err)
	}
}

func TestPackIsWhatUnpackTakes(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	for _, dir := range []string{"/a", "/a/b", "/empty"} {
		if err := os.Mkdir(from+dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"/top": "1", "/a/b/" + strings.Repeat("n", 200): "22", "/a/caf\xe9": "333"} {
		if err := os.WriteFile(from+name, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../top", from+"/a/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(from+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var b bytes.Buffer
	stats, err := archive.PackDir(&b, root, "", limits(), archive.PackRules{})
	if err != nil || stats.Skipped != 1 || stats.Entries != 7 || stats.Bytes != 6 {
		t.Fatalf("packed %+v, %v", stats, err)
	}
	dir, again, err := unpack(t, b.Bytes(), archive.Rules{Bounds: limits()})
	if err != nil || again.Entries != stats.Entries || again.Bytes != stats.Bytes {
		t.Fatalf("unpacked %+v, %v", again, err)
	}
	if got, err := os.ReadFile(dir + "/a/link"); err != nil || string(got) != "1" {
		t.Errorf("the link leads to %q, %v", got, err)
	}
	if info, err := os.Stat(dir + "/empty"); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("empty directory: info = %v, err = %v, want no error and info.Mode().Perm() == 0o750", info, err)
	}
	b.Reset()
	if stats, err := archive.PackFile(&b, root, "top", "other", limits()); err != nil || stats.Entries != 1 {
		t.Errorf("one file: stats = %+v, err = %v, want no error and stats.Entries == 1", stats, err)
	}
	for _, bounds := range []archive.Bounds{{Bytes: 5, Entries: 20, File: 20}, {Bytes: 100, Entries: 6, File: 20}, {Bytes: 100, Entries: 20, File: 2}} {
		if _, err := archive.PackDir(io.Discard, root, "", bounds, archive.PackRules{}); !tooMuch(err) {
			t.Errorf("%+v: err = %v, want tooMuch(err)", bounds, err)
		}
	}
}

// Whatever the archive contains, nothing gets out of the directory, and the bounds hold.
func FuzzUnpack(f *testing.F) {
	add := func(headers ...tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Size = 0
			if h.Typeflag == tar.TypeReg {
				h.Linkname = ""
			}
			_ = w.WriteHeader(&h)
		}
		w.Close()
		f.Add(b.Bytes())
	}
	add(file("a/b", ""), link("a/l", "../x"), tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "a/b"})
	add(link("a/b/c", "../.."), link("x", "a/b/c/.."), file("x/y", ""))
	add(file("../x", ""))
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, stats, err := unpack(t, data, archive.Rules{Bounds: limits()})
		if err != nil {
			return
		}
		if stats.Entries > limits().Entries || stats.Bytes > limits().Bytes {
			t.Fatalf("took %+v", stats)
		}
		err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink == 0 {
				return err
			}
			to, err := filepath.EvalSymlinks(path)
			if err == nil && to != dir && !strings.HasPrefix(to, dir+"/") {
				t.Fatalf("%q leads to %q", path, to)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A file with several hard links is packed once, if that is requested, and is unpacked as one file.
func TestHardLinksArePackedOnce(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	if err := errors.Join(os.Mkdir(from+"/d", 0o755), os.WriteFile(from+"/d/one", []byte("text"), 0o644), os.Link(from+"/d/one", from+"/two"), os.WriteFile(from+"/other", []byte("text"), 0o644)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for links, size := range map[bool]int64{true: 8, false: 12} {
		var b bytes.Buffer
		if stats, err := archive.PackDir(&b, root, "", limits(), archive.PackRules{Links: links}); err != nil || stats.Entries != 4 || stats.Bytes != size {
			t.Errorf("packed %+v, %v", stats, err)
		}
		dir, _, err := unpack(t, b.Bytes(), archive.Rules{Bounds: limits()})
		if err != nil {
			t.Fatal(err)
		}
		one, err := os.Stat(dir + "/d/one")
		two, err2 := os.Stat(dir + "/two")
		other, err3 := os.Stat(dir + "/other")
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		if os.SameFile(one, two) != links || os.SameFile(one, other) {
			t.Errorf("with links %v, they are one file: !links = %v, want os.SameFile(one, two) == links and not os.SameFile(one, other)",
				links, !links)
		}
	}
}

// Entries that are removed or replaced by something else while a directory is packed fail nothing, and what stays is packed.
func TestEntriesComeAndGoWhileTheyArePacked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/stays", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	defer changing.Wait()
	defer close(stop)
	for i := range 4 {
		name := fmt.Sprint(dir, "/goes", i)
		changing.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				switch n % 4 {
				case 0:
					_ = os.WriteFile(name, []byte("content"), 0o600)
				case 1:
					_ = os.Mkdir(name, 0o700)
					_ = os.WriteFile(name+"/sub", nil, 0o600)
				case 2:
					_ = os.Symlink("stays", name)
				case 3:
					_ = os.Symlink("/etc/passwd", name)
				}
				_ = os.RemoveAll(name)
			}
		})
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for range 1000 {
		var b bytes.Buffer
		if _, err := archive.PackDir(&b, root, "", limits(), archive.PackRules{}); err != nil {
			t.Fatalf("the directory: %v", err)
		}
		if !bytes.Contains(b.Bytes(), []byte("kept")) || bytes.Contains(b.Bytes(), []byte("root:")) {
			t.Fatalf(`the archive has %q, want b.Bytes() containing []byte("kept") and b.Bytes() without []byte("root:")`,
				b.Bytes())
		}
		if _, err := archive.PackSome(io.Discard, root, []string{"goes0", "goes1", "stays"}, limits()); err != nil {
			t.Fatalf("some of it: %v", err)
		}
	}
}
