// SPDX-License-Identifier: Apache-2.0

package boxd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A test is named in docs/acceptance as `directory.TestName`, a script by its path.
var (
	testReference   = regexp.MustCompile("`([a-z0-9_/]*)\\.((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	scriptReference = regexp.MustCompile("`([a-z0-9_/]+/testdata/script/[a-z0-9_-]+\\.txtar)`")
)

func TestAcceptanceNamesTestsThatExistAndRun(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/acceptance/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in docs/acceptance: %v", err)
	}
	tests := declaredTests(t)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		references := testReference.FindAllStringSubmatch(string(text), -1)
		if len(references) == 0 {
			t.Errorf("%s names no test", page)
		}
		for _, ref := range references {
			switch skips, ok := tests[ref[1]+"."+ref[2]]; {
			case !ok:
				t.Errorf("%s names %s in %q, which does not exist", page, ref[2], ref[1])
			case skips:
				t.Errorf("%s names %s in %q, which skips by itself", page, ref[2], ref[1])
			}
		}
		for _, ref := range scriptReference.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(ref[1]); err != nil {
				t.Errorf("%s names %s: %v", page, ref[1], err)
			}
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| asked") && !strings.Contains(line, "`") && !strings.Contains(line, "*open*") {
				t.Errorf("%s:%d neither names a test nor says that it is open", page, i+1)
			}
		}
	}
}

// declaredTests lists the tests of the module by directory and name; true means that the test can
// skip itself otherwise than through internal/boxtest, where skipping can be forbidden.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), ".")
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				found[dir+"."+f.Name.Name] = callsSkip(f)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func callsSkip(f *ast.FuncDecl) bool {
	skips := false
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				skips = skips || strings.HasPrefix(sel.Sel.Name, "Skip")
			}
		}
		return true
	})
	return skips
}

// What the virtual machine runs for every change is a list of names; one that names nothing would be silence.
func TestEverydayTestsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("test/vm/everyday")
	if err != nil {
		t.Fatal(err)
	}
	suite, err := os.ReadFile("test/vm/suite.sh")
	if err != nil {
		t.Fatal(err)
	}
	tests, named := declaredTests(t), 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		dir, pattern := path.Split(line)
		dir = strings.TrimSuffix(dir, "/")
		if !strings.Contains(string(suite), " "+dir+" ") && !strings.Contains(string(suite), " "+dir+";") {
			t.Errorf("%q: no such directory is in test/vm/suite.sh", line)
		}
		match := regexp.MustCompile(`^` + regexp.QuoteMeta(dir) + `\.` + pattern)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(tests)), match.MatchString) {
			t.Errorf("%q names no test", line)
		}
		named++
	}
	if named == 0 {
		t.Error("it names nothing")
	}
}
