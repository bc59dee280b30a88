// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// followed runs the programs of a page as one, which must print what their comments say. Empty lines do not count.
func (h *host) followed(t *testing.T, page, language, program string, printed *regexp.Regexp, dir string, env []string, argv ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/guide", page))
	if err != nil {
		t.Fatal(err)
	}
	var whole strings.Builder
	blocks := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	for _, block := range blocks {
		if !printed.MatchString(block[1]) {
			t.Errorf("the page does not say what this prints:\n%s", block[1])
		}
		whole.WriteString(block[1] + "\n")
	}
	if len(blocks) < 8 {
		t.Errorf("only %d programs are found", len(blocks))
	}
	var want []string
	for _, m := range printed.FindAllStringSubmatch(whole.String(), -1) {
		want = append(want, m[1])
	}
	path := filepath.Join(dir, program)
	if err := os.WriteFile(path, []byte(whole.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	var got []string
	for line := range strings.Lines(h.runs(t, dir, env, append(argv, program)...)) {
		if line = strings.TrimSpace(line); line != "" {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s prints\n%s\nbut the page has\n%s", page, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheGuideOfPython(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	source, err := filepath.Abs(python)
	if err != nil {
		t.Fatal(err)
	}
	env := append([]string{"PYTHONPATH=" + source}, fromSource[1:]...)
	start(t).followed(t, "python.md", "python", "guide.py", regexp.MustCompile(`(?m)print\(.*\)  # (.*)$`), t.TempDir(), env, "python3")
}

func TestTheGuideOfTypeScript(t *testing.T) {
	t.Parallel()
	start(t).followed(t, "typescript.md", "js", "guide.js", regexp.MustCompile(`(?m)console\.log\(.*\); // (.*)$`), compiled(t), nil, "node")
}
