// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// leading returns the leading text of an expression as far as it is constant; whole reports whether that is all of it.
func leading(x ast.Expr) (text string, whole bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			s, err := strconv.Unquote(x.Value)
			return s, err == nil
		}
	case *ast.BinaryExpr:
		text, whole = leading(x.X)
		if rest, all := leading(x.Y); whole {
			return text + rest, all
		}
		return text, false
	case *ast.CallExpr: // fmt.Sprintf
		if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" && len(x.Args) > 0 {
			return leading(x.Args[0])
		}
	}
	return "", false
}

var (
	// unreadable matches what does not read well after "must be".
	unreadable = regexp.MustCompile(`^(nothing|none\b|left out:|one of (no |\d))`)
	// sentence matches a full stop followed by another sentence.
	sentence = regexp.MustCompile(`[a-z]\. [A-Z]`)
)

// wrong says how a message breaks the common form, or returns "".
func wrong(phrases []string, call, text string, whole bool) string {
	switch {
	case strings.Contains(text, "allowed is"):
		return `"allowed is"`
	case call == "Field" && unreadable.MatchString(text):
		return `does not read after "must be"`
	case whole && strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "..") && !strings.HasSuffix(text, " ."):
		return "a full stop at the end"
	case call == "WithHint" && sentence.MatchString(text):
		return "a hint of two sentences"
	case call == "WithHint" && strings.Contains(text, "\n"):
		return "a hint of two lines"
	}
	for _, phrase := range phrases {
		if strings.Contains(" "+strings.ToLower(text)+" ", " "+strings.TrimSpace(phrase)+" ") {
			return "it says " + phrase
		}
	}
	return ""
}

// unclear returns the phrases that texts for people must not contain.
func unclear(t *testing.T) (phrases []string) {
	t.Helper()
	data, err := os.ReadFile("../../docs/testdata/unclear-words.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "#") {
			phrases = append(phrases, line)
		}
	}
	if len(phrases) < 20 {
		t.Fatalf("only %d phrases", len(phrases))
	}
	return phrases
}

func TestMessagesThatAreNotInTheForm(t *testing.T) {
	t.Parallel()
	phrases := unclear(t)
	for _, tc := range []struct{ call, text, want string }{
		{"Errorf", "for so long there was no room", "it says so long"},
		{"Field", "left out: only operators see that", `does not read after "must be"`},
		{"Field", "nothing without code", `does not read after "must be"`},
		{"Field", "none: there is no quota", `does not read after "must be"`},
		{"Field", "one of 1 to 64 characters", `does not read after "must be"`},
		{"Field", "left out with a template", ""},
		{"Field", "1 to 65535", ""},
		{"Errorf", "x is y: allowed is z", `"allowed is"`},
		{"Errorf", "the keeper is gone.", "a full stop at the end"},
		{"WithHint", "try again. It may work", "a hint of two sentences"},
		{"WithHint", "list boxes: boxctl ls", ""},
	} {
		if got := wrong(phrases, tc.call, tc.text, true); got != tc.want {
			t.Errorf("%s %q: %q, want %q", tc.call, tc.text, got, tc.want)
		}
	}
}

// Every refusal, hint and error in the source of the server side follows one form.
func TestMessagesOfTheSourceHaveOneForm(t *testing.T) {
	t.Parallel()
	var fields, hints, keys int
	phrases := unclear(t)
	for _, top := range []string{"supervisor", "relay", "isolation", "cgroup", "skills", "systemd", "internal", "cmd"} {
		root := filepath.Join("..", "..", filepath.FromSlash(top))
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "actionrpc") { // its texts are LangBot's
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				if bad, ok := call.Fun.(*ast.Ident); ok && bad.Name == "bad" && len(call.Args) == 3 { // a key of box.toml, its value and what is allowed
					keys++
					text, whole := leading(call.Args[2])
					if why := wrong(phrases, "Field", text, whole); why != "" {
						t.Errorf(`%s: text = %q, why = %s, want why == ""`, set.Position(call.Pos()), text, why)
					}
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				arg := call.Args[0]
				switch pkg, _ := f.X.(*ast.Ident); {
				case f.Sel.Name == "Field" && pkg != nil && pkg.Name == "fault" && len(call.Args) == 3:
					fields++
					arg = call.Args[2]
				case f.Sel.Name == "Errorf" && pkg != nil && pkg.Name == "fault" && len(call.Args) > 1:
					arg = call.Args[1]
				case f.Sel.Name == "WithHint":
					hints++
				case f.Sel.Name == "WithText", f.Sel.Name == "Errorf" && pkg != nil && pkg.Name == "fmt", f.Sel.Name == "New" && pkg != nil && pkg.Name == "errors":
				default:
					return true
				}
				text, whole := leading(arg)
				if why := wrong(phrases, f.Sel.Name, text, whole); why != "" {
					t.Errorf(`%s: text = %q, why = %s, want why == ""`, set.Position(call.Pos()), text, why)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if fields < 200 || hints < 150 || keys < 50 {
		t.Errorf("only %d refused fields, %d hints and %d keys of box.toml were found", fields, hints, keys)
	}
}
