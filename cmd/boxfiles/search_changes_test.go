// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

func snapshotOf(t *testing.T, dir string, exclude ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := takeSnapshot(&files.Snapshot{Path: []byte(dir), Exclude: exclude, Walk: 100_000, Most: 1 << 20}, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func changesIn(t *testing.T, req *files.Changes, dir string, before []byte) *files.ChangesAnswer {
	t.Helper()
	req.Path, req.Walk = []byte(dir), 100_000
	if req.Limit == 0 {
		req.Limit = 1000
	}
	a, err := changesSince(req, bytes.NewReader(before))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func changesOf(a *files.ChangesAnswer) []string {
	list := []string{}
	for _, c := range a.Changes {
		list = append(list, c.What+" "+c.Entry.Type+" "+string(c.Entry.Path))
	}
	return list
}

func putText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestChangesListWhatDiffersFromTheSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"same", "longer", "other", "gone", "mode", "replaced", "kind", "d/x", "d-y", "d/gone/deep/file", "was\nodd", "touched"} {
		putText(t, dir+"/"+name, "1234")
	}
	noError(t, os.Symlink("same", dir+"/link"))
	before := snapshotOf(t, dir)
	if got := changesOf(changesIn(t, &files.Changes{}, dir, before)); len(got) != 0 {
		t.Fatalf("without any change, the changes are %q, want len(got) == 0", got)
	}
	noError(t, os.WriteFile(dir+"/longer", []byte("12345"), 0o644))
	noError(t, os.WriteFile(dir+"/other", []byte("4321"), 0o644)) // the same size, perhaps in the same tick of a coarse clock
	noError(t, os.Remove(dir+"/gone"))
	noError(t, os.Chmod(dir+"/mode", 0o600))
	putText(t, dir+"/new", "1234")
	noError(t, os.Rename(dir+"/new", dir+"/replaced"))
	noError(t, os.Remove(dir+"/kind"))
	putText(t, dir+"/kind/inner", "x")
	noError(t, os.RemoveAll(dir+"/d/gone"))
	putText(t, dir+"/d/fresh/file", "12")
	putText(t, dir+"/caf\xe9", "")
	noError(t, os.Remove(dir+"/was\nodd"))
	noError(t, os.Remove(dir+"/link"))
	noError(t, os.Symlink("d", dir+"/link"))
	noError(t, unix.Mkfifo(dir+"/pipe", 0o600))
	info, err := os.Stat(dir + "/touched")
	noError(t, err)
	noError(t, os.WriteFile(dir+"/touched", []byte("4321"), 0o644))
	noError(t, os.Chtimes(dir+"/touched", info.ModTime(), info.ModTime())) // a program may reset the modification time, but not the change time
	a := changesIn(t, &files.Changes{Digest: 1 << 20}, dir, before)
	want := []string{
		"created file caf\xe9", "created directory d/fresh", "created file d/fresh/file", "removed directory d/gone", "removed directory d/gone/deep",
		"removed file d/gone/deep/file", "removed file gone", "changed directory kind", "created file kind/inner", "changed symlink link",
		"changed file longer", "changed file mode", "changed file other", "created fifo pipe", "changed file replaced", "changed file touched", "removed file was\nodd",
	}
	if got := changesOf(a); !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
	if a.Created != 5 || a.Changed != 7 || a.Removed != 5 || a.Cut != "" || a.Large != 0 {
		t.Errorf("counted %+v", a)
	}
	for _, c := range a.Changes {
		if has := c.Entry.Digest != ""; has != (c.Entry.Type == files.TypeFile && c.What != files.WasRemoved) {
			t.Errorf("%s: digest %q", c.Entry.Path, c.Entry.Digest)
		}
		if string(c.Entry.Path) == "longer" && (c.Entry.Size != 5 || c.Entry.Digest != "sha256:5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5") {
			t.Errorf(`longer is %+v, want c.Entry.Path != "longer" or c.Entry.Size == 5 and c.Entry.Digest == "sha256:5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"`,
				c.Entry)
		}
	}
}

func TestChangesTakeFiltersAndLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putText(t, dir+"/node_modules/old", "")
	putText(t, dir+"/old.txt", "")
	before := snapshotOf(t, dir, "node_modules")
	for _, name := range []string{"node_modules/new.txt", "a.txt", "b.txt", "c.md", "sub/d.txt"} {
		putText(t, dir+"/"+name, "12345")
	}
	noError(t, os.Remove(dir+"/old.txt"))
	noError(t, os.Remove(dir+"/node_modules/old"))
	putText(t, dir+"/large.txt", strings.Repeat("x", 100))
	req := func(limit int) *files.Changes {
		return &files.Changes{Exclude: []string{"node_modules"}, Include: []string{"*.txt"}, Limit: limit, MaxSize: 50, Digest: 12}
	}
	a := changesIn(t, req(0), dir, before)
	want := []string{"created file a.txt", "created file b.txt", "removed file old.txt", "created file sub/d.txt"}
	if got := changesOf(a); !slices.Equal(got, want) || a.Created != 4 || a.Removed != 1 || a.Large != 1 || a.Cut != "" {
		t.Errorf("got %q, %+v", got, a)
	}
	if a.Changes[1].Entry.Digest == "" || a.Changes[3].Entry.Digest != "" {
		t.Errorf(`12 bytes are for the digests of two files of 5: a.Changes = %+v, want a.Changes[1].Entry.Digest != "" and a.Changes[3].Entry.Digest == ""`,
			a.Changes)
	}
	a = changesIn(t, req(2), dir, before)
	if got := changesOf(a); !slices.Equal(got, want[:2]) || a.Created != 4 || a.Removed != 1 || a.Cut != files.CutEntries {
		t.Errorf("of two at most: %q, %+v", got, a)
	}
	for _, bad := range []*files.Changes{{Include: []string{"["}}, {Exclude: []string{"{"}}} {
		bad.Path, bad.Walk = []byte(dir), 10
		_, err := changesSince(bad, bytes.NewReader(before))
		if f, ok := errors.AsType[*files.Failure](err); !ok || f.Kind != files.BadPattern {
			t.Errorf("%+v: err = %v, want ok == true and f.Kind == files.BadPattern", bad, err)
		}
	}
}

// Ten thousand changes are counted, and as many listed as requested.
func TestTenThousandChangesAreCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := snapshotOf(t, dir)
	for i := range 10_000 {
		if i%100 == 0 {
			noError(t, os.Mkdir(fmt.Sprintf("%s/d%02d", dir, i/100), 0o755))
		}
		noError(t, os.WriteFile(fmt.Sprintf("%s/d%02d/f%d", dir, i/100, i), nil, 0o644))
	}
	a := changesIn(t, &files.Changes{Limit: 1000}, dir, before)
	if a.Created != 10_100 || len(a.Changes) != 1000 || a.Cut != files.CutEntries {
		t.Errorf("%d created, %d listed, cut %q", a.Created, len(a.Changes), a.Cut)
	}
	after := snapshotOf(t, dir)
	t.Logf("a snapshot of them has %d bytes", len(after))
	if a := changesIn(t, &files.Changes{}, dir, after); a.Created+a.Changed+a.Removed != 0 {
		t.Errorf("nothing was done: a = %+v, want a.Created + a.Changed + a.Removed == 0", a)
	}
	for _, few := range []files.Snapshot{{Walk: 10_000, Most: 1 << 20}, {Walk: 20_000, Most: 1000}} {
		few.Path = []byte(dir)
		_, err := takeSnapshot(&few, &bytes.Buffer{})
		if f, ok := errors.AsType[*files.Failure](err); !ok || f.Kind != files.TooMany {
			t.Errorf("%+v: err = %v, want ok == true and f.Kind == files.TooMany", few, err)
		}
	}
}

func TestPathsSortInTheOrderOfATreeWalk(t *testing.T) {
	t.Parallel()
	walked := []string{"a", "a/b", "a/b/c", "a/b-c", "a-b", "a-b/c", "ab", "b"}
	for i, a := range walked {
		for j, b := range walked {
			if before(a, b) != (i < j) {
				t.Errorf("before(%q, %q) = %v", a, b, i >= j)
			}
		}
	}
}

// A snapshot from boxd is checked although boxfiles made it: parsing arbitrary bytes has no side effect.
func FuzzSnapshot(f *testing.F) {
	var b bytes.Buffer
	p := newSnapshotWriter(&b, 1<<20)
	for _, s := range []fileState{{path: "a", mode: 0o40755}, {path: "a/b", mode: 0o100644, inode: 7, size: 5, changed: 9}} {
		if err := p.add(&s); err != nil {
			f.Fatal(err)
		}
	}
	if err := p.end(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()-3])
	f.Fuzz(func(t *testing.T, data []byte) {
		u := newSnapshotReader(bytes.NewReader(data))
		for range 100_000 {
			s, err := u.next()
			if err != nil || s == nil {
				return
			}
			if s.path == "" || len(s.path) > maxDeep || s.size < 0 {
				t.Fatalf(`s = %+v, want s.path != "" and len(s.path) <= maxDeep and s.size >= 0`, s)
			}
		}
	})
}
