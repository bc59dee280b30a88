// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A refusal names a field and what is allowed there, or has a hint: the caller can do something about it.
func TestRefusalsSayWhatCanBeDone(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			refusals, helped := refusalsOf(f.Body)
			found += len(refusals)
			for _, r := range refusals {
				if !helped[r] {
					t.Errorf("%s: this error names no field and has no hint", files.Position(r.Pos()))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 30 {
		t.Errorf("only %d refusals are found", found)
	}
}

// refusalsOf lists the calls of fault.Errorf; helped are those whose result gets a hint or a field, in the same expression or
// through a variable.
func refusalsOf(body *ast.BlockStmt) (list []*ast.CallExpr, helped map[*ast.CallExpr]bool) {
	helped = map[*ast.CallExpr]bool{}
	variables := map[string][]*ast.CallExpr{} // the calls assigned to them
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isErrorf(n) {
				list = append(list, n)
			}
		case *ast.AssignStmt:
			for i, v := range n.Rhs {
				call, isCall := v.(*ast.CallExpr)
				name, isName := n.Lhs[i].(*ast.Ident)
				if isCall && isName && isErrorf(call) {
					variables[name.Name] = append(variables[name.Name], call)
				}
			}
		case *ast.SelectorExpr:
			if n.Sel.Name != "WithHint" && n.Sel.Name != "Field" {
				return true
			}
			switch x := n.X.(type) {
			case *ast.CallExpr:
				helped[x] = true
			case *ast.Ident:
				for _, call := range variables[x.Name] {
					helped[call] = true
				}
			}
		}
		return true
	})
	return list, helped
}

func isErrorf(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Errorf" {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "fault"
}
