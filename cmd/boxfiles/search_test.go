// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		glob, yes, no string // separated by spaces
	}{
		{"*.go", "a.go .go", "a/b.go a.gox"},
		{"**/*.go", "a.go a/b.go a/b/c.go", "a.c"},
		{"src/**", "src/a src/a/b", "src asrc/b"},
		{"src/**/test_*.py", "src/test_a.py src/x/y/test_b.py", "src/x/a.py test_a.py"},
		{"a**b", "ab axb", "a/b"},
		{"?x", "ax äx", "x aax /x"},
		{"[a-c]x[!0-9]", "axx cxä", "dxx ax1 ax/"},
		{"[]]", "]", "a"},
		{"[^a]", "b", "a"},
		{"*.{ts,tsx,j{s,sx}}", "a.ts a.tsx a.js a.jsx", "a.j a.tsy"},
		{`\*\{`, "*{", "a{"},
		{"a.b+c(d)|$^", "a.b+c(d)|$^", "axb+c(d)|$^"},
		{"}x,", "}x,", "x"},
	} {
		re, err := compileGlob(tc.glob)
		if err != nil {
			t.Errorf("%s: %v", tc.glob, err)
			continue
		}
		for name := range strings.FieldsSeq(tc.yes) {
			if !re.MatchString(name) {
				t.Errorf("%q does not match %q (%v)", tc.glob, name, re)
			}
		}
		for name := range strings.FieldsSeq(tc.no) {
			if re.MatchString(name) {
				t.Errorf("%q matches %q (%v)", tc.glob, name, re)
			}
		}
	}
	for _, bad := range []string{"[", "[a", "{a", "{a,{b}", strings.Repeat("x", 2000), strings.Repeat("{a}", 40), "[z-a]", "caf\xe9*"} {
		if re, err := compileGlob(bad); err == nil {
			t.Errorf("%.20q is %v, want an error", bad, re)
		}
	}
}

func TestIgnoreRules(t *testing.T) {
	t.Parallel()
	top := &ignoreRules{list: parseRules("# comment\n*.log\n!keep.log\n/only-top\nsecret/\na/**/z\n\\#hash\nname{1}\n  \n")}
	sub := &ignoreRules{above: top, dir: "sub/", list: parseRules("!*.log\nlocal.txt\r\n/anchored")}
	for _, tc := range []struct {
		path string
		dir  bool
		want bool
	}{
		{"x.log", false, true},
		{"keep.log", false, false},
		{"deep/er/x.log", false, true},
		{"only-top", false, true},
		{"deep/only-top", false, false},
		{"secret", true, true},
		{"secret", false, false},
		{"a/b/c/z", false, true},
		{"a/z", false, true},
		{"#hash", false, true},
		{"name{1}", false, true},
		{"# comment", false, false},
		{"sub/x.log", false, false},
		{"sub/local.txt", false, true},
		{"sub/anchored", false, true},
		{"sub/x/anchored", false, false},
	} {
		r := top
		if strings.HasPrefix(tc.path, "sub/") {
			r = sub
		}
		if got := r.ignored(tc.path, filepath.Base(tc.path), tc.dir); got != tc.want {
			t.Errorf("%s (directory %v) is ignored: got %v, want %v", tc.path, tc.dir, got, tc.want)
		}
	}
}

// A .gitignore above the searched directory counts, up to the root of the repository.
func TestIgnoreFilesAboveCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{
		".gitignore": "*.go\n", "repo/.git/HEAD": "x", "repo/.gitignore": "*.log\n/a/b/only\nsecret/\n!kept.log\n", "repo/a/.gitignore": "!again.log\nb/c.txt\n",
		"repo/a/b/x.go": "", "repo/a/b/x.log": "", "repo/a/b/kept.log": "", "repo/a/b/again.log": "", "repo/a/b/only": "", "repo/a/b/d/only": "", "repo/a/b/c.txt": "",
		"repo/a/b/secret/x": "", "repo/a/b/d/c.txt": "",
	})
	for at, want := range map[string]string{"repo/a/b": "again.log d/c.txt d/only kept.log x.go", "repo/a/b/secret": "x"} {
		fd, err := unix.Open(filepath.Join(dir, at), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		w := &walk{left: 1000, ignore: true, depth: 10, visit: func(_ int, p, _ string, kind byte) error {
			if kind == unix.DT_REG {
				found = append(found, p)
			}
			return nil
		}}
		err = w.run(fd)
		unix.Close(fd)
		if got := strings.Join(found, " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", at, got, err, want)
		}
	}
}

func writeTree(t *testing.T, dir string, tree map[string]string) {
	t.Helper()
	for name, text := range tree {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func grepFor(dir, pattern string) *files.Grep {
	return &files.Grep{Path: []byte(dir), Pattern: pattern, Limit: 1000, Walk: 10000, MaxFile: 1 << 20, MaxTotal: 1 << 30, MaxLine: 500}
}

func pathsOf(a *files.GrepAnswer) (list []string) {
	for i := range a.Files {
		list = append(list, string(a.Files[i].Path))
	}
	return list
}

func TestGrepSkipsExcludedAndBinaryFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{
		"a.go": "needle", "b.txt": "needle", "sub/c.go": "needle", "sub/skip/d.go": "needle", "sub/.gitignore": "skip\n",
		".git/config": "needle", "node_modules/x.js": "needle", "bin": "needle\x00", "large": strings.Repeat("needle\n", 200<<10), ".hidden": "needle",
	})
	if err := os.Symlink("a.go", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*files.Grep)
		want   string
	}{
		{"with rules", func(g *files.Grep) { g.Ignore = true }, ".hidden a.go b.txt sub/c.go"},
		{"without", func(*files.Grep) {}, ".git/config .hidden a.go b.txt node_modules/x.js sub/c.go sub/skip/d.go"},
		{"include", func(g *files.Grep) { g.Include = []string{"*.go"} }, "a.go sub/c.go sub/skip/d.go"},
		{"include a path", func(g *files.Grep) { g.Include = []string{"sub/**"} }, "sub/c.go sub/skip/d.go"},
		{"exclude", func(g *files.Grep) { g.Ignore, g.Exclude = true, []string{"*.go", ".*"} }, "b.txt"},
		{"one file", func(g *files.Grep) { g.Path = append(g.Path, "/a.go"...) }, "a.go"},
		{"names", func(g *files.Grep) { g.NamesOnly, g.Ignore, g.Limit = true, true, 2 }, ".hidden a.go"},
		{"few entries", func(g *files.Grep) { g.Walk, g.Ignore = 0, true }, ""},
	} {
		g := grepFor(dir, "needle")
		tc.change(g)
		a, err := grepFiles(g)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := strings.Join(pathsOf(a), " "); got != tc.want {
			t.Errorf("%s: found in %q, want %q", tc.name, got, tc.want)
		}
		if tc.name == "without" && (a.Binary != 1 || a.Large != 1 || a.Searched != 8) {
			t.Errorf("counted %+v", a)
		}
		if (tc.name == "names" || tc.name == "few entries") && a.Cut == "" {
			t.Errorf("%s: the answer is not marked as truncated", tc.name)
		}
	}
	if _, err := grepFiles(grepFor(dir, "(")); err == nil {
		t.Error("no error for an invalid pattern")
	}
	if _, err := grepFiles(grepFor(dir+"/nowhere", "x")); err == nil {
		t.Error("no error for a missing directory")
	}
}

func TestGrepShowsContextOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"f": "1\n2\nhit 3\n4\nhit 5\n6\n7\n8\n9\nhit 10 " + strings.Repeat("x", 600)})
	g := grepFor(dir, "hit")
	g.Before, g.After = 1, 1
	a, err := grepFiles(g)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, l := range a.Files[0].Lines {
		fmt.Fprintf(&b, "%d:%v:%d:%v ", l.Number, l.Match, l.Column, l.Cut)
	}
	if want := "2:false:0:false 3:true:1:false 4:false:0:false 5:true:1:false 6:false:0:false 9:false:0:false 10:true:1:true "; b.String() != want {
		t.Errorf("shown %q, want %q", b.String(), want)
	}
	g.Limit = 2
	if a, err = grepFiles(g); err != nil || a.Matches != 2 || a.Cut != files.CutLines {
		t.Errorf("two of them: a = %+v, err = %v, want no error and a.Matches == 2 and a.Cut == files.CutLines", a, err)
	}
}

// A line that is skipped because it lacks a text must not be a match: every way of searching
// finds the same as the expression alone, line by line.
func TestGrepFindsWhatTheExpressionMatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	words := []string{"foo", "Foo", "FOO", "bar", "K", "\u212a", "k", "\u017f", "s", "x_1", "x_22", "", " ", "ab", "abab", "\r", "é", "\xff"}
	random := rand.New(rand.NewPCG(1, 2))
	var all []string
	for i := range 40 {
		var b strings.Builder
		for range random.IntN(60) {
			b.WriteString(words[random.IntN(len(words))])
			if random.IntN(3) == 0 {
				b.WriteByte('\n')
			}
		}
		all = append(all, b.String())
		writeTree(t, dir, map[string]string{fmt.Sprintf("%03d", i): b.String()})
	}
	for _, pattern := range []string{
		"foo", "foo|bar", "f(oo|OO)", "(ab)+", "(?i)foo", "(?i)k", "(?i)s", "(?i)foo|BAR", "^foo", "foo$", `\bfoo\b`, `x_\d+`, "x*", `\s`, "[^x]",
		"a.*b", `\Afoo`, `foo\z`, "foo.bar", "(?s)foo.bar", "foo{2}", "foo?", "(foo)?bar", "é", "^$", "", "(?i)fo(o|b)", "fooK?", "(?i:foo)bar", "foo(?i:bar)",
	} {
		if pattern == "" {
			continue
		}
		a, err := grepFiles(grepFor(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for i := range a.Files {
			for _, l := range a.Files[i].Lines {
				got = append(got, fmt.Sprintf("%s:%d:%d:%q", a.Files[i].Path, l.Number, l.Column, l.Text))
			}
		}
		re := regexp.MustCompile("(?m)" + pattern)
		for i, text := range all {
			for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
				if text == "" {
					continue
				}
				if loc := re.FindStringIndex(line); loc != nil {
					want = append(want, fmt.Sprintf("%03d:%d:%d:%q", i, n+1, loc[0]+1, line))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: found %d lines, want %d", pattern, len(got), len(want))
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Errorf("first difference: %v, want %v", got[min(i, len(got)):min(i+1, len(got))], want[min(i, len(want)):min(i+1, len(want))])
					break
				}
			}
		}
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("a/**/b", "*.log\n!x", "foo|ba+r", []byte("foo\nbar\nbaz"))
	f.Add("[!a]{b,c}", "/x/\n**/y", "(?i)k\\b", []byte("K\n\xff\xfe"))
	f.Fuzz(func(t *testing.T, glob, ignore, pattern string, text []byte) {
		if re, err := compileGlob(glob); err == nil {
			re.MatchString(string(text))
		}
		r := &ignoreRules{list: parseRules(ignore)}
		r.ignored("a/b", "b", true)
		m, err := newMatcher(&files.Grep{Pattern: pattern})
		if err != nil || bytes.IndexByte(text, 0) >= 0 || len(text) > 4096 {
			return
		}
		look, _ := m.match(text, nil)
		pos := 0
		for n := 1; ; n++ {
			begin, end, column := look.next(pos)
			if begin < 0 {
				break
			}
			if begin < pos || end < begin || column < 0 || column > end-begin || n > len(text)+1 {
				t.Fatalf("line %d is %d to %d at %d after %d of %d", n, begin, end, column, pos, len(text))
			}
			if !m.re.Match(text[begin:end]) {
				t.Fatalf("%q does not match %q", pattern, text[begin:end])
			}
			pos = end + 1
		}
	})
}
