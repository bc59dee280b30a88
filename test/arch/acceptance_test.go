// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/acceptance names a test as `directory.TestName`, and a script by its path.
var (
	testReference   = regexp.MustCompile("`([a-z0-9_/]*)\\.((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	scriptReference = regexp.MustCompile("`([a-z0-9_/]+/testdata/script/[a-z0-9_-]+\\.txtar)`")
)

func TestAcceptanceNamesTestsThatExistAndRun(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/acceptance/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in docs/acceptance: err = %v, want no error and len(pages) != 0", err)
	}
	pages = append(pages, casesPage)
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
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| asked") && !strings.HasPrefix(line, "| case") && !strings.Contains(line, "`") && !strings.Contains(line, "*open*") && !strings.Contains(line, "*does not apply*") {
				t.Errorf("%s:%d neither names a test nor says that it is open", page, i+1)
			}
		}
	}
}

// The threat model names, for each of its claims, a test that exists.
func TestTheThreatModelNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	const page = "docs/design/threats.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tests := declaredTests(t)
	for i, line := range strings.Split(string(text), "\n") {
		named := testReference.FindAllStringSubmatch(line, -1)
		for _, ref := range named {
			if skips, exists := tests[ref[1]+"."+ref[2]]; !exists || skips {
				t.Errorf("%s:%d: %s in %q does not exist, or skips by itself", page, i+1, ref[2], ref[1])
			}
		}
		claim := strings.HasPrefix(line, "| ") && strings.Count(line, "|") == 3 && !strings.Contains(line, "shown by")
		if claim && len(named) == 0 && !strings.Contains(line, "*open*") && !inAssets(string(text), line) {
			t.Errorf(`%s:%d: a claim neither names a test nor says that it is open: line = %s, want claim == false or len(named) != 0 or line containing "*open*" or inAssets(string(text), line)`,
				page, i+1, line)
		}
	}
}

// inAssets reports whether a line is in the table of assets, which makes no claims.
func inAssets(text, line string) bool {
	_, assets, _ := strings.Cut(text, "## What is protected")
	assets, _, _ = strings.Cut(assets, "## Boundaries")
	return strings.Contains(assets, line)
}

// declaredTests lists the tests of the module by directory and name; true means that the test can skip itself by other means than
// internal/boxtest, where skipping can be forbidden.
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

// The tests that test/run omits from its machine, or runs there with SELinux or on arm64, are lists of names; a name without a
// test would go unnoticed.
func TestListsOfTheMachineNameTests(t *testing.T) {
	t.Parallel()
	tests := declaredTests(t)
	for _, list := range []string{"test/vm/elsewhere", "test/vm/selinux", "test/vm/arm64"} {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			dir, name := path.Split(line)
			if _, exists := tests[strings.TrimSuffix(dir, "/")+"."+name]; !exists {
				t.Errorf("%s: %q names no test", list, line)
			}
			named++
		}
		if named == 0 {
			t.Errorf("%s names no test", list)
		}
	}
}
