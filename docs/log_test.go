// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	verb       = regexp.MustCompile(`%(\[\d\])?[a-z]`)
	logBegins  = regexp.MustCompile(`^([a-z]|E2B|LangBot|DAMAGED RECORD)`) // a word, or a name
	attributes = regexp.MustCompile(`^[a-z][a-z_]*$`)
)

// unlike says what of a log message is not in the form that all have: one phrase that says what happened, without values, which are
// attributes; only programs that log without attributes put them into the text.
func unlike(phrases []string, text string, values bool) string {
	words := 0
	for word := range strings.FieldsSeq(text) {
		if !verb.MatchString(word) {
			words++
		}
	}
	switch {
	case !values && verb.MatchString(text):
		return "a value in the text"
	case !logBegins.MatchString(text):
		return "does not begin with a small letter"
	case strings.TrimRight(text, ".:!\n") != text:
		return "ends like a sentence"
	case words < 2, values && words < 3:
		return "does not say what happened"
	}
	return strings.Join(unplain(phrases, text, 24), ", ")
}

func TestLogMessagesThatAreNotInTheForm(t *testing.T) {
	t.Parallel()
	phrases := unclear(t)
	for _, tc := range []struct {
		text   string
		values bool
		bad    bool
	}{
		{"cannot write record", false, false},
		{"E2B's protocol is no longer served", false, false},
		{"cannot end box %s: %v", true, false},
		{"cannot end box %s", false, true},
		{"Cannot write record", false, true},
		{"cannot write record.", false, true},
		{"keeper", false, true},
		{"box %s: %v", true, true},
		{"no box is made ahead of need", false, true},
		{"what is left of it: %v", true, false},
	} {
		if got := unlike(phrases, tc.text, tc.values); (got != "") != tc.bad {
			t.Errorf(`%q: got %q, want (got != "") == %v`, tc.text, got, tc.bad)
		}
	}
}

// logged is the text of a log message, if a call writes one; ok is false where it is not in the source as it is.
func logged(call *ast.CallExpr) (text string, values, is, ok bool) {
	f, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod {
		return "", false, false, true
	}
	var receiver string
	switch x := f.X.(type) {
	case *ast.Ident:
		receiver = x.Name
	case *ast.SelectorExpr:
		receiver = x.Sel.Name
	}
	if !strings.EqualFold(receiver, "log") {
		return "", false, false, true
	}
	at := 0
	switch strings.TrimSuffix(f.Sel.Name, "Context") {
	case "Debug", "Info", "Warn", "Error":
		if strings.HasSuffix(f.Sel.Name, "Context") {
			at = 1
		}
	case "Printf":
		values = true
	case "Print", "Println":
		return "", true, true, false
	default:
		return "", false, false, true
	}
	if literal, isText := call.Args[at].(*ast.BasicLit); isText {
		text, err := strconv.Unquote(literal.Value)
		return text, values, true, err == nil
	}
	return "", values, true, false
}

// Every message that a program writes to its log, and the names of what goes with it.
func TestLogMessagesHaveOneForm(t *testing.T) {
	t.Parallel()
	phrases, n := unclear(t), 0
	for _, top := range []string{"cmd", "supervisor", "relay", "isolation", "cgroup", "skills", "systemd"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				call, isCall := node.(*ast.CallExpr)
				if !isCall {
					return true
				}
				text, values, is, ok := logged(call)
				if !is {
					return true
				}
				n++
				why := "is not a text in the source"
				if ok {
					why = unlike(phrases, text, values)
				}
				if why != "" {
					t.Errorf(`%s: text = %q, why = %s, want why == ""`, set.Position(call.Pos()), text, why)
				}
				if values {
					return true
				}
				for _, arg := range call.Args[1:] {
					if key, isText := arg.(*ast.BasicLit); isText && key.Kind == token.STRING {
						if name, err := strconv.Unquote(key.Value); err == nil && !strings.Contains(name, " ") && name != text && !attributes.MatchString(name) {
							t.Errorf("%s: attribute %q", set.Position(call.Pos()), name)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 150 {
		t.Errorf("only %d messages were found", n)
	}
}
