// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// example is a command of the guide with the output shown there.
type example struct{ command, output string }

// examples returns the commands of a page in order: indented lines that begin with a dollar sign, with continuation lines after a
// backslash or with > as in a shell.
func examples(t *testing.T, path string) (list []example) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var now *example
	for line := range strings.Lines(string(text)) {
		code, indented := strings.CutPrefix(line, "    ")
		command, starts := strings.CutPrefix(code, "$ ")
		more, goesOn := strings.CutPrefix(code, ">")
		switch {
		case !indented:
			now = nil
		case starts:
			list = append(list, example{command: command})
			now = &list[len(list)-1]
		case now != nil && now.output == "" && strings.HasSuffix(now.command, "\\\n"):
			now.command += code
		case now != nil && now.output == "" && goesOn:
			now.command += strings.TrimPrefix(more, " ")
		case now != nil:
			now.output += code
		}
	}
	return list
}

// The examples of the guide work: run in one shell they print the output shown there.
func TestTheGuideIsTrue(t *testing.T) {
	t.Parallel()
	boxtest.RequireSources(t)
	boxtest.RequireProgram(t, "curl")
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t)
	list := examples(t, "../../docs/guide/api.md")
	if len(list) < 12 {
		t.Fatalf("only %d examples are found", len(list))
	}
	const end = "--- end of the example ---\n"
	var script strings.Builder
	for _, e := range list {
		script.WriteString(e.command + "printf '%s' '" + end + "'\n")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", script.String())
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "BOXD_SOCKET="+d.Socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("the examples end with %v", err)
	}
	parts := strings.Split(string(out), end)
	for i, e := range list {
		if i >= len(parts)-1 {
			t.Fatalf("%s is not run", e.command)
		}
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(e.output), "…", ".*") + "$"
		if !regexp.MustCompile(pattern).MatchString(parts[i]) {
			t.Errorf("%s prints\n%sbut the guide has:\n%s", e.command, parts[i], e.output)
		}
	}
}
