// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	main "github.com/boxd-dev/boxd/cmd/boxfiles"
	"github.com/boxd-dev/boxd/isolation/files"
)

// request sends a request as boxd does, and returns the answer with the data before it.
func request(t *testing.T, req *files.Request, body ...byte) (*files.Answer, []byte) {
	t.Helper()
	in := encode(t, req, body)
	var out, data bytes.Buffer
	if code := main.Main(in, &out); code != 0 {
		t.Fatalf("boxfiles ended with %d, want 0", code)
	}
	a, err := files.Receive(&out, &data, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return a, data.Bytes()
}

func encode(t *testing.T, req *files.Request, body []byte) *bytes.Buffer {
	t.Helper()
	head, err := req.Encode()
	if err != nil {
		t.Fatal(err)
	}
	in := bytes.NewBuffer(head)
	w := files.NewWriter(in)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return in
}

func mustFail(t *testing.T, kind files.Kind, req *files.Request, body ...byte) *files.Failure {
	t.Helper()
	a, _ := request(t, req, body...)
	if a.Failure == nil || a.Failure.Kind != kind {
		t.Fatalf("answered %+v (failure %+v), want %s", a, a.Failure, kind)
	}
	return a.Failure
}

func must(t *testing.T, req *files.Request, body ...byte) *files.Answer {
	t.Helper()
	a, _ := request(t, req, body...)
	if a.Failure != nil {
		t.Fatalf("%+v failed: a.Failure = %+v, want nil", req, a.Failure)
	}
	return a
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names lists the names in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestReadGivesLinesAndBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := put(t, dir+"/text", "one\ntwo\nthree\nvier ä\nfünf")
	for _, tc := range []struct {
		name        string
		req         files.Read
		want        string
		first, last int
		next        int64
		cut         string
	}{
		{"all", files.Read{Line: 1, Lines: 100, Bytes: 1000}, "one\ntwo\nthree\nvier ä\nfünf", 1, 5, 27, ""},
		{"some lines", files.Read{Line: 2, Lines: 2, Bytes: 1000}, "two\nthree\n", 2, 3, 14, files.CutLines},
		{"lines by bytes", files.Read{Line: 1, Lines: 100, Bytes: 9}, "one\ntwo\n", 1, 2, 8, files.CutBytes},
		{"a line that is too long", files.Read{Line: 3, Lines: 5, Bytes: 3}, "thr", 3, 3, 11, files.CutBytes},
		{"no half characters", files.Read{Line: 4, Lines: 5, Bytes: 6}, "vier ", 4, 4, 19, files.CutBytes},
		{"after the end", files.Read{Line: 9, Lines: 5, Bytes: 100}, "", 0, 0, 27, ""},
		{"bytes", files.Read{ByBytes: true, Offset: 4, Bytes: 3}, "two", 0, 0, 7, files.CutBytes},
		{"bytes to the end", files.Read{ByBytes: true, Offset: 22, Bytes: 300}, "fünf", 0, 0, 27, ""},
		{"no half character of bytes", files.Read{ByBytes: true, Offset: 18, Bytes: 2}, " ", 0, 0, 19, files.CutBytes},
		{"bytes after the end", files.Read{ByBytes: true, Offset: 100, Bytes: 2}, "", 0, 0, 100, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.req.Path = []byte(text)
			a, data := request(t, &files.Request{Read: &tc.req})
			if a.Failure != nil {
				t.Fatal(a.Failure)
			}
			r := a.Read
			if string(data) != tc.want || r.FirstLine != tc.first || r.LastLine != tc.last || r.Next != tc.next || r.Cut != tc.cut {
				t.Errorf("read %q %+v", data, r)
			}
		})
	}
}

func TestReadDistinguishesTextFromBinary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"nul": "a\x00b", "latin1": "caf\xe9 au lait"} {
		path := put(t, dir+"/"+name, text)
		mustFail(t, files.Binary, &files.Request{Read: &files.Read{Path: []byte(path), Line: 1, Lines: 10, Bytes: 100}})
		a, data := request(t, &files.Request{Read: &files.Read{Path: []byte(path), ByBytes: true, Bytes: 100, Raw: true, Digest: 100}})
		if a.Failure != nil || string(data) != text || !strings.HasPrefix(a.Read.File.Digest, files.DigestPrefix) {
			t.Errorf("%s: raw %q, %+v", name, data, a)
		}
	}
}

func TestWhatIsNoFileIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine := []byte(put(t, dir+"/mine", "x"))
	for _, path := range []string{dir + "/fifo", dir + "/socket", "/dev/zero", "/dev/tty", "/proc/self/status", "/proc/self/mem"} {
		p := []byte(path)
		mustFail(t, files.NotRegular, &files.Request{Read: &files.Read{Path: p, Line: 1, Lines: 1, Bytes: 10}})
		mustFail(t, files.NotRegular, &files.Request{Edit: &files.Edit{Path: p, Most: 10, Edits: []files.Replacement{{Old: []byte("a")}}}})
		mustFail(t, files.NotRegular, &files.Request{Write: &files.Write{Path: p, How: files.Overwrite, Most: 10}}, 'x')
		mustFail(t, files.NotRegular, &files.Request{Write: &files.Write{Path: p, How: files.Append, Most: 10}}, 'x')
		if a := must(t, &files.Request{Stat: &files.Stat{Path: p, Follow: true}}); a.Stat.Type == files.TypeFile && !strings.HasPrefix(path, "/proc") {
			t.Errorf(`%s is %+v, want a.Stat.Type != files.TypeFile or path starting with "/proc"`, path, a.Stat)
		}
	}
	// Searches skip them.
	a := must(t, &files.Request{Grep: &files.Grep{Path: []byte(dir), Pattern: "x", Limit: 10, Walk: 100, MaxFile: 100, MaxTotal: 100, MaxLine: 10}})
	if a.Grep.Matches != 1 || string(a.Grep.Files[0].Path) != "mine" {
		t.Errorf("found %+v beside what is no file, want %s", a.Grep, mine)
	}
	mustFail(t, files.IsDirectory, &files.Request{Read: &files.Read{Path: []byte(dir), Line: 1, Lines: 1, Bytes: 10}})
	mustFail(t, files.IsDirectory, &files.Request{Write: &files.Write{Path: []byte(dir), How: files.Overwrite, Most: 10}})
}

func TestWriteReplacesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := []byte(dir + "/a/b/file")
	write := func(w files.Write, body string) *files.Answer {
		w.Path, w.Most = path, 1000
		a, _ := request(t, &files.Request{Write: &w}, []byte(body)...)
		return a
	}
	if a := write(files.Write{How: files.Overwrite}, "x"); a.Failure == nil || a.Failure.Kind != files.NotFound {
		t.Errorf("without parents: a = %+v, want a.Failure != nil and a.Failure.Kind == files.NotFound", a)
	}
	mode := uint32(0o750)
	if a := write(files.Write{How: files.Create, Parents: true, Mode: &mode}, "first"); a.Failure != nil || !a.Write.Created || a.Write.File.Mode != 0o750 {
		t.Errorf("create: a = %+v, want a.Failure == nil and a.Write.Created == true and a.Write.File.Mode == 0o750", a)
	}
	if a := write(files.Write{How: files.Create}, "x"); a.Failure == nil || a.Failure.Kind != files.Exists {
		t.Errorf("create again: a = %+v, want a.Failure != nil and a.Failure.Kind == files.Exists", a)
	}
	a := write(files.Write{How: files.Overwrite}, "second")
	if a.Failure != nil || a.Write.Created || a.Write.File.Mode != 0o750 || content(t, string(path)) != "second" {
		t.Errorf("overwrite: %+v, want the mode kept", a)
	}
	seen := a.Write.File.Digest
	if a := write(files.Write{How: files.Overwrite, IfMatch: seen}, "third"); a.Failure != nil {
		t.Errorf("with its digest: a = %+v, want a.Failure == nil", a)
	}
	if a := write(files.Write{How: files.Overwrite, IfMatch: seen}, "fourth"); a.Failure == nil || a.Failure.Kind != files.Changed {
		t.Errorf("with an old digest: a = %+v, want a.Failure != nil and a.Failure.Kind == files.Changed", a)
	}
	if a := write(files.Write{How: files.Append}, " and more"); a.Failure != nil || content(t, string(path)) != "third and more" {
		t.Errorf(`append: a = %+v, content(t, string(path)) = %q, want a.Failure == nil and content(t, string(path)) == "third and more"`,
			a, content(t, string(path)))
	}
	if a := write(files.Write{How: files.Overwrite}, strings.Repeat("x", 1001)); a.Failure == nil || a.Failure.Kind != files.TooLarge {
		t.Errorf("too much: a = %+v, want a.Failure != nil and a.Failure.Kind == files.TooLarge", a)
	}
	if got := names(t, dir+"/a/b"); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the directory has %q, want nothing but the file", got)
	}
}

func TestWriteGoesThroughLinksAndKeepsThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir+"/real", "old")
	for name, target := range map[string]string{"link": "hop", "hop": "real", "dangling": "nowhere", "loop": "loop", "slashed": "real/"} {
		if err := os.Symlink(target, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	must(t, &files.Request{Write: &files.Write{Path: []byte(dir + "/link"), How: files.Overwrite, Most: 10}}, []byte("new")...)
	if content(t, dir+"/real") != "new" {
		t.Error("the link's file was not written")
	}
	if target, err := os.Readlink(dir + "/link"); err != nil || target != "hop" {
		t.Errorf(`the link is %q, %v, want no error and target == "hop"`, target, err)
	}
	for name, kind := range map[string]files.Kind{"dangling": files.NotFound, "loop": files.BadPath, "slashed": files.NotDirectory, "real/": files.IsDirectory, "real/..": files.IsDirectory} {
		for _, how := range []string{files.Overwrite, files.Append} {
			mustFail(t, kind, &files.Request{Write: &files.Write{Path: []byte(dir + "/" + name), How: how, Most: 10}}, 'x')
		}
	}
	mustFail(t, files.Exists, &files.Request{Write: &files.Write{Path: []byte(dir + "/dangling"), How: files.Create, Most: 10}}, 'x')
	if _, err := os.Lstat(dir + "/nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nothing was followed: err = %v, want err is fs.ErrNotExist", err)
	}
}

func TestWriteTakesNoPartOfAContent(t *testing.T) {
	t.Parallel()
	path := put(t, t.TempDir()+"/file", "old")
	in := encode(t, &files.Request{Write: &files.Write{Path: []byte(path), How: files.Overwrite, Most: 100}}, []byte("new content"))
	for cut := in.Len() - 1; cut > in.Len()-20; cut-- {
		var out, data bytes.Buffer
		main.Main(bytes.NewReader(in.Bytes()[:cut]), &out)
		if a, err := files.Receive(&out, &data, 10); err != nil || a.Failure == nil {
			t.Fatalf("of %d bytes %d: a = %+v, err = %v, want no error and a.Failure != nil", in.Len(), cut, a, err)
		}
	}
	if content(t, path) != "old" {
		t.Error("an incomplete content replaced the file")
	}
}

func TestEditDoesAllOrNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const text = "alpha\nbeta\nalpha\ngamma\r\n"
	r := func(old, fresh string, all bool) files.Replacement {
		return files.Replacement{Old: []byte(old), New: []byte(fresh), All: all}
	}
	for _, tc := range []struct {
		name  string
		edits []files.Replacement
		want  string
		kind  files.Kind
	}{
		{"one", []files.Replacement{r("beta", "BETA", false)}, "alpha\nBETA\nalpha\ngamma\r\n", ""},
		{"all", []files.Replacement{r("alpha", "a", true)}, "a\nbeta\na\ngamma\r\n", ""},
		{"several build on each other", []files.Replacement{r("beta", "x", false), r("x\nalpha", "y", false)}, "alpha\ny\ngamma\r\n", ""},
		{"not unique", []files.Replacement{r("beta", "x", false), r("alpha", "y", false)}, "", files.NotUnique},
		{"not there", []files.Replacement{r("beta", "x", false), r("delta", "y", false)}, "", files.NoMatch},
		{"other white space", []files.Replacement{r("beta  alpha", "y", false)}, "", files.NoMatch},
		{"empty", []files.Replacement{r("", "y", false)}, "", files.BadRequest},
		{"the same", []files.Replacement{r("beta", "beta", false)}, "", files.BadRequest},
		{"too large", []files.Replacement{r("a", strings.Repeat("a", 400), true)}, "", files.TooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := put(t, dir+"/"+tc.name, text)
			req := &files.Request{Edit: &files.Edit{Path: []byte(path), Edits: tc.edits, Most: 1000}}
			want := text
			if tc.kind != "" {
				mustFail(t, tc.kind, req)
			} else {
				must(t, req)
				want = tc.want
			}
			if got := content(t, path); got != want {
				t.Errorf("the file is %q, want %q", got, want)
			}
		})
	}
	if got := names(t, dir); len(got) != 9 {
		t.Errorf("the directory has %q: something was left", got)
	}
}

func TestStatListMoveRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir+"/a/one", "1")
	put(t, dir+"/a/sub/two", "22")
	if err := os.Symlink("one", dir+"/a/link"); err != nil {
		t.Fatal(err)
	}
	p := func(s string) []byte { return []byte(dir + "/" + s) }
	if e := must(t, &files.Request{Stat: &files.Stat{Path: p("a/link"), Digest: 10}}).Stat; e.Type != files.TypeLink || string(e.Target) != "one" {
		t.Errorf(`link: e = %+v, want e.Type == files.TypeLink and e.Target == "one"`, e)
	}
	if e := must(t, &files.Request{Stat: &files.Stat{Path: p("a/link"), Follow: true, Digest: 10}}).Stat; e.Type != files.TypeFile || e.Digest == "" {
		t.Errorf(`followed: e = %+v, want e.Type == files.TypeFile and e.Digest != ""`, e)
	}
	list := func(depth, limit int) (got []string, cut string) {
		a := must(t, &files.Request{List: &files.List{Path: p("a"), Depth: depth, Limit: limit}}).List
		for _, e := range a.Entries {
			got = append(got, string(e.Path))
		}
		return got, a.Cut
	}
	if got, cut := list(1, 10); !slices.Equal(got, []string{"link", "one", "sub"}) || cut != "" {
		t.Errorf("listed %q %q", got, cut)
	}
	if got, cut := list(2, 10); !slices.Equal(got, []string{"link", "one", "sub", "sub/two"}) || cut != "" {
		t.Errorf("listed %q %q", got, cut)
	}
	if got, cut := list(2, 2); len(got) != 2 || cut != files.CutEntries {
		t.Errorf("listed %q %q", got, cut)
	}
	mustFail(t, files.NotDirectory, &files.Request{List: &files.List{Path: p("a/one"), Depth: 1, Limit: 10}})

	mustFail(t, files.Exists, &files.Request{Move: &files.Move{From: p("a/one"), To: p("a/sub/two")}})
	mustFail(t, files.NotFound, &files.Request{Move: &files.Move{From: p("a/one"), To: p("x/y/one")}})
	mustFail(t, files.BadPath, &files.Request{Move: &files.Move{From: p("a"), To: p("a/sub/a"), Overwrite: true}})
	must(t, &files.Request{Move: &files.Move{From: p("a/one"), To: p("x/y/one"), Parents: true}})
	must(t, &files.Request{Move: &files.Move{From: p("x/y/one"), To: p("a/sub/two"), Overwrite: true}})

	mustFail(t, files.NotEmpty, &files.Request{Remove: &files.Remove{Path: p("a")}})
	mustFail(t, files.NotFound, &files.Request{Remove: &files.Remove{Path: p("missing")}})
	mustFail(t, files.BadPath, &files.Request{Remove: &files.Remove{Path: p("a/sub/.."), Recursive: true}})
	must(t, &files.Request{Remove: &files.Remove{Path: p("missing"), Missing: true}})
	must(t, &files.Request{Remove: &files.Remove{Path: p("a/link")}})
	must(t, &files.Request{Remove: &files.Remove{Path: p("a"), Recursive: true}})
	if got := names(t, dir); !slices.Equal(got, []string{"x"}) {
		t.Errorf(`left is %q, want []string{"x"}`, got)
	}
}

// Names are bytes, and paths may be longer than one system call takes (T25).
func TestStrangeNamesHaveDefinedResults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	strange := []string{"new\nline", "caf\xe9", "\xff\xfe", "tab\there", "-rf", " ", "…"}
	slices.Sort(strange)
	for _, name := range strange {
		must(t, &files.Request{Write: &files.Write{Path: []byte(dir + "/" + name), How: files.Overwrite, Most: 10}}, []byte("needle")...)
	}
	a := must(t, &files.Request{List: &files.List{Path: []byte(dir), Depth: 1, Limit: 100}})
	var got []string
	for _, e := range a.List.Entries {
		got = append(got, string(e.Path))
	}
	if !slices.Equal(got, strange) {
		t.Errorf("listed %q, want %q", got, strange)
	}
	for _, path := range [][]byte{nil, []byte("a\x00b"), bytes.Repeat([]byte("x"), 5000), []byte(dir + "/" + strings.Repeat("x", 300))} {
		mustFail(t, files.BadPath, &files.Request{Stat: &files.Stat{Path: path}})
		mustFail(t, files.BadPath, &files.Request{List: &files.List{Path: path, Depth: 1, Limit: 1}})
		mustFail(t, files.BadPath, &files.Request{Write: &files.Write{Path: path, How: files.Overwrite, Most: 10}})
		mustFail(t, files.BadPath, &files.Request{Remove: &files.Remove{Path: path, Recursive: true}})
	}

	// A thousand levels with long names: no path reaches the end.
	deep := dir + "/deep"
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := "deep"
	for range 1000 {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd, name = next, "dir-with-a-name"
	}
	end, err := unix.Openat(fd, "end", unix.O_WRONLY|unix.O_CREAT, 0o644)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(end, []byte("needle")); err != nil {
		t.Fatal(err)
	}
	unix.Close(end)
	g := must(t, &files.Request{Grep: &files.Grep{Path: []byte(deep), Pattern: "needle", Limit: 10, Walk: 2000, MaxFile: 100, MaxTotal: 100, MaxLine: 10}}).Grep
	if g.Matches != 1 || !strings.HasSuffix(string(g.Files[0].Path), "/end") {
		t.Errorf("found %d in the deep", g.Matches)
	}
	if l := must(t, &files.Request{Glob: &files.Glob{Path: []byte(deep), Pattern: "**/end", Limit: 10, Walk: 2000}}).List; len(l.Entries) != 1 {
		t.Errorf("globbed %d in the deep", len(l.Entries))
	}
	packed, archive := request(t, &files.Request{Pack: &files.Pack{Path: []byte(deep), Bounds: files.Bounds{Bytes: 100, Entries: 2000, File: 100}}})
	if packed.Failure != nil || packed.Archive.Entries != 1000 {
		t.Fatalf("packed %+v", packed)
	}
	must(t, &files.Request{Unpack: &files.Unpack{Path: []byte(dir + "/again"), Bounds: files.Bounds{Bytes: 100, Entries: 2000, File: 100}}}, archive...)
	for _, d := range []string{deep, dir + "/again"} {
		must(t, &files.Request{Remove: &files.Remove{Path: []byte(d), Recursive: true}})
	}
	if got := names(t, dir); len(got) != len(strange) {
		t.Errorf("left is %q, want len(got) == len(strange)", got)
	}
}

func TestArchivesComeInWhollyOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir+"/from/a/one", "1")
	put(t, dir+"/from/b/two", "22")
	put(t, dir+"/from/top", "new")
	bounds := files.Bounds{Bytes: 1000, Entries: 10, File: 100}
	a, archive := request(t, &files.Request{Pack: &files.Pack{Path: []byte(dir + "/from"), Bounds: bounds}})
	if a.Failure != nil || a.Archive.Entries != 5 || a.Archive.Bytes != 6 {
		t.Fatalf("packed %+v", a)
	}
	unpack := func(to string, overwrite bool) *files.Request {
		return &files.Request{Unpack: &files.Unpack{Path: []byte(dir + "/" + to), Bounds: bounds, Overwrite: overwrite}}
	}
	must(t, unpack("fresh/below", false), archive...)
	if content(t, dir+"/fresh/below/b/two") != "22" {
		t.Error("the new directory differs from the archive")
	}
	// An existing file is in the way: nothing changes.
	put(t, dir+"/to/b/mine", "mine")
	put(t, dir+"/to/top", "old")
	mustFail(t, files.Exists, unpack("to", false), archive...)
	put(t, dir+"/way/a", "a file where a directory comes")
	put(t, dir+"/way/top", "old")
	mustFail(t, files.Exists, unpack("way", true), archive...)
	for path, want := range map[string][]string{"to": {"b", "top"}, "to/b": {"mine"}, "way": {"a", "top"}} {
		if got := names(t, dir+"/"+path); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	if content(t, dir+"/to/top") != "old" || content(t, dir+"/way/top") != "old" {
		t.Error("a refused archive has changed a file")
	}
	must(t, unpack("to", true), archive...)
	if content(t, dir+"/to/top") != "new" || content(t, dir+"/to/b/mine") != "mine" || content(t, dir+"/to/a/one") != "1" {
		t.Error("the archive was not merged into the directory")
	}
	// A truncated archive is invalid.
	mustFail(t, files.BadArchive, unpack("part", false), archive[:700]...)
	if got := names(t, dir); !slices.Equal(got, []string{"fresh", "from", "to", "way"}) {
		t.Errorf(`there is %q, want []string{"fresh", "from", "to", "way"}`, got)
	}
}

// Files that a killed Unpack has left behind are removed by the next one, except those that a user has named like that or copied,
// and those still in use.
func TestLeftoversOfAKilledUnpackAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unpack := &files.Request{Unpack: &files.Unpack{Path: []byte(dir), Bounds: files.Bounds{Bytes: 1000, Entries: 10, File: 100}}}
	head, err := unpack.Encode()
	if err != nil {
		t.Fatal(err)
	}
	left := func() []string { return names(t, dir) }
	// One in use: its standard input has not ended yet.
	in, feed := io.Pipe()
	var working sync.WaitGroup
	working.Go(func() { main.Main(in, io.Discard) })
	if _, err := feed.Write(head); err != nil {
		t.Fatal(err)
	}
	for len(left()) == 0 {
		runtime.Gosched()
	}
	stage := left()[0]
	for _, err := os.Stat(dir + "/" + stage + "/content"); err != nil; _, err = os.Stat(dir + "/" + stage + "/content") {
		runtime.Gosched()
	}
	mark := content(t, dir+"/"+stage+"/unfinished")
	must(t, &files.Request{Sweep: &files.Sweep{Path: []byte(dir)}})
	if !slices.Equal(left(), []string{stage}) {
		t.Errorf("swept away while it works: left() = %q, want []string{stage}", left())
	}
	feed.Close()
	working.Wait()
	if len(left()) != 0 {
		t.Errorf("left: left() = %q, want len(left()) == 0", left())
	}
	// Not in use: a leftover, one that was renamed, a copy, one without a mark file, and one whose mark was not written.
	ours, copied, named := dir+"/.boxd-AAAAAAAAAAAAAAAAAAAAAAAAAA", dir+"/.boxd-BBBBBBBBBBBBBBBBBBBBBBBBBB", dir+"/.boxd-CCCCCCCCCCCCCCCCCCCCCCCCCC"
	unmarked := dir + "/.boxd-DDDDDDDDDDDDDDDDDDDDDDDDDD"
	for _, at := range []string{ours, copied, named, unmarked} {
		put(t, at+"/content/file", "mine")
	}
	var st unix.Stat_t
	if err := unix.Stat(ours, &st); err != nil {
		t.Fatal(err)
	}
	inode := regexp.MustCompile(`inode [0-9]+`)
	own := inode.ReplaceAllString(strings.Replace(mark, stage, filepath.Base(ours), 1), fmt.Sprintf("inode %d", st.Ino))
	put(t, ours+"/unfinished", own)
	put(t, copied+"/unfinished", strings.Replace(own, filepath.Base(ours), filepath.Base(copied), 1))
	put(t, unmarked+"/unfinished", "")
	// Their makers were killed before they wrote the mark, while they did, and after they removed it.
	put(t, dir+"/.boxd-EEEEEEEEEEEEEEEEEEEEEEEEEE/unfinished", "")
	cut := dir + "/.boxd-FFFFFFFFFFFFFFFFFFFFFFFFFF"
	if err := os.Mkdir(cut, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(cut, &st); err != nil {
		t.Fatal(err)
	}
	begun := inode.ReplaceAllString(strings.Replace(mark, stage, filepath.Base(cut), 1), fmt.Sprintf("inode %d", st.Ino))
	put(t, cut+"/unfinished", begun[:len(begun)-2])
	if err := os.Mkdir(dir+"/.boxd-GGGGGGGGGGGGGGGGGGGGGGGGGG", 0o700); err != nil {
		t.Fatal(err)
	}
	must(t, &files.Request{Sweep: &files.Sweep{Path: []byte(dir + "/gone")}})
	if want := []string{filepath.Base(copied), filepath.Base(named), filepath.Base(unmarked)}; !slices.Equal(left(), want) {
		t.Errorf("the directory has %q, want %q", left(), want)
	}
}

// Archives that come at the same time into one directory do not sweep each other away, and leave nothing.
func TestArchivesThatComeAtOnceDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var coming sync.WaitGroup
	var want []string
	for i := range 8 {
		name := fmt.Sprint("file", i)
		want = append(want, name)
		coming.Go(func() {
			for range 40 {
				var tarred bytes.Buffer
				w := tar.NewWriter(&tarred)
				if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
					t.Error(err)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				req := &files.Request{Unpack: &files.Unpack{Path: []byte(dir), Overwrite: true, Bounds: files.Bounds{Bytes: 1000, Entries: 10, File: 100}}}
				if a, _ := request(t, req, tarred.Bytes()...); a.Failure != nil {
					t.Errorf("a.Failure = %+v, want nil", a.Failure)
				}
			}
		})
	}
	coming.Wait()
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("the directory has %q, want %q", got, want)
	}
}

// A program that renames directories during an operation leads nothing out of the directory
// (T20), and no operation hangs or fails with an undefined error.
func TestConcurrentRenamesLeadNoOperationAstray(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := put(t, dir+"/outside/file", "outside")
	put(t, dir+"/work/d/file", "inside")
	put(t, dir+"/work/d/sub/file", "inside")
	if err := os.Symlink("../outside", dir+"/work/swap"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var renamer sync.WaitGroup
	renamer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default: // a directory becomes a symbolic link to another one, and a directory again
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/work/d", unix.AT_FDCWD, dir+"/work/swap", unix.RENAME_EXCHANGE)
			}
		}
	})
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"d/file", "d/new/file"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, "new")
	}
	w.Close()
	bounds := files.Bounds{Bytes: 1000, Entries: 10, File: 100}
	for range 100 {
		ask := func(req *files.Request, body ...byte) *files.Answer {
			a, _ := request(t, req, body...)
			if a.Failure != nil && a.Failure.Kind == files.Broken {
				t.Errorf("an error that is not the caller's: a.Failure = %+v, want a.Failure == nil or a.Failure.Kind != files.Broken",
					a.Failure)
			}
			return a
		}
		// Walks go from descriptor to descriptor.
		if a := ask(&files.Request{Grep: &files.Grep{Path: []byte(dir + "/work"), Pattern: "outside", Limit: 10, Walk: 100, MaxFile: 100, MaxTotal: 1000, MaxLine: 100}}); a.Failure == nil && a.Grep.Matches > 0 {
			t.Fatalf("a search has followed a link: a.Grep = %+v, want a.Failure != nil or a.Grep.Matches <= 0", a.Grep)
		}
		if a := ask(&files.Request{Glob: &files.Glob{Path: []byte(dir + "/work"), Pattern: "**/file", Limit: 10, Walk: 100}}); a.Failure != nil {
			t.Fatal(a.Failure)
		}
		ask(&files.Request{Pack: &files.Pack{Path: []byte(dir + "/work"), Bounds: bounds}})
		ask(&files.Request{Unpack: &files.Unpack{Path: []byte(dir + "/stage"), Bounds: bounds}}, archive.Bytes()...)
		ask(&files.Request{Move: &files.Move{From: []byte(dir + "/stage"), To: []byte(dir + "/work/d/stage")}})
		ask(&files.Request{Remove: &files.Remove{Path: []byte(dir + "/work/swap/sub"), Recursive: true}})
	}
	close(stop)
	renamer.Wait()
	if content(t, outside) != "outside" {
		t.Error("a file outside was changed")
	}
}

// If another program removes the directory that an archive comes into, and puts something else there, that is an error of the
// caller.
func TestReplacingTheTargetDuringAnUnpackIsACallersError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	into := dir + "/into"
	stop := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Mkdir(into, 0o755)
				_ = os.Rename(into, dir+"/was")
				_ = os.Symlink("/usr", into)
				_ = os.Remove(into)
				_ = os.RemoveAll(dir + "/was")
			}
		}
	})
	var archive bytes.Buffer
	if err := tar.NewWriter(&archive).Close(); err != nil {
		t.Fatal(err)
	}
	made := 0
	for range 500 {
		req := &files.Request{Unpack: &files.Unpack{Path: []byte(into), Bounds: files.Bounds{Bytes: 1000, Entries: 10, File: 100}}}
		a, _ := request(t, req, archive.Bytes()...)
		if a.Failure == nil {
			made++
		} else if a.Failure.Kind == files.Broken {
			t.Errorf("an error that is not the caller's: a.Failure = %+v, want a.Failure.Kind != files.Broken",
				a.Failure)
		}
	}
	close(stop)
	remover.Wait()
	t.Logf("%d of 500 were unpacked", made)
}
