// SPDX-License-Identifier: Apache-2.0

package archive_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/fault"
)

func unpackLimits() archive.Limits {
	return archive.Limits{Archive: 1 << 20, Bytes: 64 << 10, File: 32 << 10, Entries: 16}
}

// entry is an entry of an archive.
type entry struct {
	name, body string
	mode       uint32 // Unix mode with the type; 0: that of a file
	link       string // tar: target of a link
}

func zipped(t testing.TB, change func(*zip.FileHeader), entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, CreatorVersion: 3 << 8, ExternalAttrs: e.mode << 16}
		if change != nil {
			change(h)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, e.body); err != nil && !strings.HasSuffix(e.name, "/") {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tarred(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.body)), Mode: 0o644}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// run unpacks into a directory and checks that its neighbours stay as they are.
func run(t testing.TB, data []byte, below string, l archive.Limits) (string, error) {
	t.Helper()
	top := t.TempDir()
	for _, dir := range []string{"/in", "/in/here", "/beside"} {
		if err := os.Mkdir(top+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(top+"/beside/archive", data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(top + "/beside/archive")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.OpenRoot(top + "/in/here")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	err = archive.Extract(f, root, below, l)
	for dir, want := range map[string]int{top: 2, top + "/in": 1, top + "/beside": 1} {
		if entries, _ := os.ReadDir(dir); len(entries) != want {
			t.Errorf("%s has %v: an entry was unpacked outside the directory", dir, entries)
		}
	}
	return top + "/in/here", err
}

// made lists what is in a directory, and counts its bytes.
func made(t testing.TB, dir string) (names []string, total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			t.Errorf("%s is %v, want info.IsDir() or info.Mode().IsRegular()", path, info.Mode())
		}
		if info.Mode().IsRegular() {
			total += info.Size()
		}
		names = append(names, strings.TrimPrefix(path, dir+"/"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, total
}

func TestArchivesAreUnpacked(t *testing.T) {
	t.Parallel()
	entries := []entry{{name: "a/", mode: 0o040755}, {name: "a/SKILL.md", body: "text"}, {name: "a/b/run.sh", body: "#!", mode: 0o100755}, {name: "empty"}}
	for what, data := range map[string][]byte{"zip": zipped(t, nil, entries...), "tar": tarred(t, entries...)} {
		dir, err := run(t, data, "", unpackLimits())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if names, _ := made(t, dir); fmt.Sprint(names) != "[a a/SKILL.md a/b a/b/run.sh empty]" {
			t.Errorf(`%s: names = %v, want fmt.Sprint(names) == "[a a/SKILL.md a/b a/b/run.sh empty]"`, what, names)
		}
		if text, _ := os.ReadFile(dir + "/a/SKILL.md"); string(text) != "text" {
			t.Errorf(`%s: text = %q, want text == "text"`, what, text)
		}
		if info, err := os.Stat(dir + "/a/b/run.sh"); what == "zip" && (err != nil || info.Mode().Perm()&0o100 == 0) {
			t.Errorf(`%s: the program is not executable: err = %v, want what != "zip" or no error and info.Mode().Perm() & 0o100 != 0`,
				what, err)
		}
	}
}

// T26 for zip: it is refused, and nothing is written.
func TestZipsAreRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	many := make([]entry, 0, 17)
	for i := range 17 {
		many = append(many, entry{name: fmt.Sprint(i)})
	}
	for what, tc := range map[string]struct {
		entries []entry
		message string
	}{
		"a parent":              {[]entry{{name: "../x"}}, "unsafe path"},
		"a parent inside":       {[]entry{{name: "a/../../x"}}, "unsafe path"},
		"a parent at the end":   {[]entry{{name: "a/.."}}, "unsafe path"},
		"a parent of Windows":   {[]entry{{name: `..\x`}}, "unsafe path"},
		"absolute":              {[]entry{{name: "/x"}}, "unsafe path"},
		"absolute of Windows":   {[]entry{{name: `\x`}}, "unsafe path"},
		"a drive":               {[]entry{{name: `C:\x`}}, "unsafe path"},
		"no name":               {[]entry{{name: ""}}, "empty or NUL"},
		"NUL":                   {[]entry{{name: "a\x00b"}}, "empty or NUL"},
		"newline":               {[]entry{{name: "a\nb"}}, "unsafe path"},
		"no UTF-8":              {[]entry{{name: "a\xffb"}}, "unsafe path"},
		"1,000 levels":          {[]entry{{name: strings.Repeat("a/", 1000) + "b"}}, "unsafe path"},
		"a long part":           {[]entry{{name: strings.Repeat("a", 256)}}, "unsafe path"},
		"twice":                 {[]entry{{name: "x", body: "1"}, {name: "x", body: "2"}}, "duplicate path: x"},
		"twice, spelled":        {[]entry{{name: "x", body: "1"}, {name: "./x", body: "2"}}, "duplicate path: x"},
		"case twins":            {[]entry{{name: "SKILL.md"}, {name: "Skill.md"}}, "in case alone"},
		"case twins above":      {[]entry{{name: "A/x"}, {name: "a/y"}}, "in case alone"},
		"a file as a directory": {[]entry{{name: "x"}, {name: "x/y"}}, "as a file and as a directory"},
		"a directory as a file": {[]entry{{name: "x/y"}, {name: "x"}}, "as a file and as a directory"},
		"a link":                {[]entry{{name: "x", body: "/etc/passwd", mode: 0o120777}}, "symbolic link: x"},
		"a link and through it": {[]entry{{name: "x", body: "..", mode: 0o120777}, {name: "x/y"}}, "symbolic link: x"},
		"a device":              {[]entry{{name: "x", mode: 0o020666}}, "non-regular entry: x"},
		"a pipe":                {[]entry{{name: "x", mode: 0o010666}}, "non-regular entry: x"},
		"a directory's content": {[]entry{{name: "x", body: "text", mode: 0o040755}}, "unexpected content: x"},
		"too many":              {many, "too many entries (maximum 16)"},
		"too many above":        {[]entry{{name: "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17"}}, "too many entries"},
		"too large":             {[]entry{{name: "x", body: noise(33 << 10)}}, "uncompressed size limit: x"},
		"too large together":    {[]entry{{name: "x", body: noise(32 << 10)}, {name: "y", body: noise(32 << 10)}, {name: "z", body: "1"}}, "total uncompressed"},
		"a bomb":                {[]entry{{name: "x", body: strings.Repeat("\x00", 32<<10)}}, "ratio limit: x"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			good := entry{name: "first", body: "must not be there"}
			dir, err := run(t, zipped(t, nil, append([]entry{good}, tc.entries...)...), "", unpackLimits())
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("%v, want %q", err, tc.message)
			}
			if names, _ := made(t, dir); len(names) != 0 {
				t.Errorf("made %v", names)
			}
		})
	}
}

// noise returns text that does not get shorter by compression.
func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// T27: an archive whose headers say less than it contains.
func TestZipsWithFalseHeadersAreRefused(t *testing.T) {
	t.Parallel()
	honest := zipped(t, nil, entry{name: "x", body: noise(30 << 10)})
	at := bytes.LastIndex(honest, []byte("PK\x01\x02")) // its entry in the central directory
	small := bytes.Clone(honest)
	binary.LittleEndian.PutUint32(small[at+24:], 1000) // size of the content
	large := bytes.Clone(honest)
	binary.LittleEndian.PutUint32(large[at+24:], 31<<10)
	locked := bytes.Clone(honest)
	locked[at+8] |= 1
	damaged := bytes.Clone(honest)
	damaged[200] ^= 0xff
	claim := bytes.Clone(honest)
	binary.LittleEndian.PutUint32(claim[at+24:], 0xfffffffe) // nearly 4 GiB
	for what, tc := range map[string]struct {
		data    []byte
		message string
	}{
		"less than it has":   {small, "valid .zip"}, // the zip reader finds this itself
		"more than it has":   {large, "valid .zip"},
		"encrypted":          {locked, "encrypted"},
		"a checksum":         {damaged, "valid .zip"},
		"a claim of 4 GiB":   {claim, "uncompressed size limit"},
		"cut off":            {honest[:len(honest)-30], "valid .zip"},
		"only its beginning": {[]byte("PK\x03\x04"), "valid .zip"},
		"empty":              {nil, "empty"},
		"no archive":         {[]byte("# a text\n"), "not an archive"},
		"zeros":              {make([]byte, 2048), "not an archive, or empty"},
		"too long":           {make([]byte, 1<<20+1), "compressed size limit (1048576 bytes)"},
	} {
		if _, err := run(t, tc.data, "", unpackLimits()); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %v, want %q", what, err, tc.message)
		}
	}
}

// T27: a central directory with hundreds of thousands of entries is not read.
func TestAHugeZipDirectoryIsNotRead(t *testing.T) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := range 200_000 {
		if _, err := w.CreateHeader(&zip.FileHeader{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l := unpackLimits()
	l.Archive = int64(b.Len())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := run(t, b.Bytes(), "", l)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "too many entries") {
		t.Errorf(`err = %v, want an error containing "too many entries"`, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("it took %d bytes of memory", took)
	}
}

// T26 and T27 for tar, where skills are stricter than other archives.
func TestTarsAreRefused(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		data    []byte
		message string
	}{
		"a link":             {tarred(t, entry{name: "x", link: "y"}), "symbolic link: x"},
		"a parent":           {tarred(t, entry{name: "../x"}), ".. in it"},
		"newline":            {tarred(t, entry{name: "a\nb"}), "unsafe path"},
		"backslash":          {tarred(t, entry{name: `a\b`}), "unsafe path"},
		"twice":              {tarred(t, entry{name: "x"}, entry{name: "x"}), "duplicate path: x"},
		"case twins":         {tarred(t, entry{name: "x"}, entry{name: "X"}), "in case alone"},
		"1,000 levels":       {tarred(t, entry{name: strings.Repeat("a/", 1000)}), "unsafe path"},
		"too large":          {tarred(t, entry{name: "x", body: noise(33 << 10)}), "more than 32768"},
		"too large together": {tarred(t, entry{name: "x", body: noise(32 << 10)}, entry{name: "y", body: noise(32 << 10)}, entry{name: "z", body: "1"}), "exceed 65536"},
		"cut off":            {tarred(t, entry{name: "x", body: noise(3000)})[:1000], "truncated"},
	} {
		if _, err := run(t, tc.data, "", unpackLimits()); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %v, want %q", what, err, tc.message)
		}
	}
}

// Only the part that is unpacked counts.
func TestAPartOfATarIsTaken(t *testing.T) {
	t.Parallel()
	entries := []entry{{name: "repo-main/link", link: "/etc"}, {name: "repo-main/large", body: noise(40 << 10)}, {name: "repo-main/skills/a/SKILL.md", body: "x"}, {name: "repo-main/skills/ab/no"}}
	dir, err := run(t, tarred(t, entries...), "skills/a", unpackLimits())
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := made(t, dir); fmt.Sprint(names) != "[repo-main repo-main/skills repo-main/skills/a repo-main/skills/a/SKILL.md]" {
		t.Errorf(`names = %v, want fmt.Sprint(names) == "[repo-main repo-main/skills repo-main/skills/a repo-main/skills/a/SKILL.md]"`,
			names)
	}
	if _, err := run(t, tarred(t, entries...), "", unpackLimits()); err == nil {
		t.Error("no error for an archive of which only a part is allowed")
	}
	bomb := tarred(t, entry{name: "repo-main/zeros", body: strings.Repeat("\x00", 8<<20)})
	if _, err := run(t, bomb, "skills/a", unpackLimits()); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf(`an oversized entry beside those that are unpacked: err = %v, want an error containing "limit"`, err)
	}
}

// Whatever the archive contains, everything stays in the directory and within the limits.
func FuzzArchive(f *testing.F) {
	f.Add(zipped(f, nil, entry{name: "a/SKILL.md", body: "text"}, entry{name: "a/run", body: "x", mode: 0o100755}))
	f.Add(zipped(f, func(h *zip.FileHeader) { h.Method = zip.Store }, entry{name: "../a", body: "text"}, entry{name: "b/", mode: 0o040755}))
	f.Add(tarred(f, entry{name: "a/SKILL.md", body: "text"}, entry{name: "l", link: ".."}))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := unpackLimits()
		dir, _ := run(t, data, "", l)
		names, total := made(t, dir)
		if len(names) > l.Entries || total > l.Bytes+l.File {
			t.Errorf("%d entries of %d bytes", len(names), total)
		}
	})
}
