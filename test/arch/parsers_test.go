// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// parsersPage lists the functions that read bytes from outside.
const parsersPage = "test/parsers.md"

var (
	readsByName = regexp.MustCompile(`^([Pp]arse|[Dd]ecode|[Uu]nmarshal)([A-Z]\w*|d)?$`)
	listedName  = regexp.MustCompile("`([a-z0-9_/]+)\\.(\\w+)`")
)

// Every function that reads bytes from outside has a fuzz target: each listed one has an existing target, every target is listed,
// and so is every function whose name says that it parses something.
func TestEveryParserHasAFuzzTarget(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(parsersPage)
	if err != nil {
		t.Fatal(err)
	}
	tests := declaredTests(t)
	named := map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		columns := strings.Split(line, " |")
		for _, m := range listedName.FindAllStringSubmatch(line, -1) {
			name := m[1] + "." + m[2]
			if _, exists := tests[name]; strings.HasPrefix(m[2], "Fuzz") && !exists {
				t.Errorf("%s:%d names the target %s, which does not exist", parsersPage, i+1, name)
			}
			named[name] = true
		}
		if strings.HasPrefix(line, "| ") && len(columns) == 5 && !strings.HasPrefix(line, "| what ") && !strings.Contains(columns[3], ".Fuzz") {
			t.Errorf("%s:%d has no target", parsersPage, i+1)
		}
	}
	for name := range tests {
		if strings.Contains(name, ".Fuzz") && !named[name] {
			t.Errorf("%s does not name the target %s", parsersPage, name)
		}
	}
	found := parsers(t)
	for name := range found {
		if !named[name] {
			t.Errorf("%s does not name %s (%s): give it a fuzz target and a row, or a row in the second table that says why it needs none", parsersPage, name, found[name])
		}
	}
	for name := range named {
		if _, exists := tests[name]; !exists && found[name] == "" {
			t.Errorf("%s names %s, which does not exist", parsersPage, name)
		}
	}
}

// parsers finds the functions of the programs whose names say that they parse something, each with its file.
func parsers(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, "test/") || strings.HasPrefix(path, "internal/boxtest/") || strings.Contains(path, "testdata") || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) {
			return nil
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && readsByName.MatchString(f.Name.Name) {
				found[filepath.ToSlash(filepath.Dir(path))+"."+f.Name.Name] = path
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 60 {
		t.Errorf("only %d functions that read something were found", len(found))
	}
	return found
}
