// SPDX-License-Identifier: Apache-2.0

//go:build pypi

package e2b_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// pythonSDK are the published Python packages.
const pythonSDK = "e2b e2b-code-interpreter"

// pythonPackages returns a directory with freshly downloaded Python packages. E2B_PYTHON_PACKAGES names one to use instead.
func pythonPackages(t *testing.T, packages string) string {
	t.Helper()
	if dir := os.Getenv("E2B_PYTHON_PACKAGES"); dir != "" {
		return dir
	}
	dir := boxtest.TempDir(t)
	cmd := exec.CommandContext(t.Context(), "python3", append([]string{"-m", "pip", "install", "--quiet", "--target", dir, "--only-binary", ":all:"}, strings.Fields(packages)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip cannot fetch %s: %v\n%s", packages, err, out)
	}
	return dir
}

// Everything in the published Python SDKs works.
func TestTheSDKOfPython(t *testing.T) {
	boxtest.RequireProgram(t, "git")
	h := start(t)
	h.steps(t, pythonSDK, "sdk.py", exec.CommandContext(t.Context(), "python3", filepath.Join("testdata", "sdk.py")), "PYTHONPATH="+pythonPackages(t, pythonSDK))
}

// Each Python program of the page that prints something prints what the page says.
func TestPythonProgramsOfTheGuideRun(t *testing.T) {
	boxtest.RequireSources(t)
	text, err := os.ReadFile("../../docs/guide/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	h, packages, found := start(t), pythonPackages(t, pythonSDK), 0
	for _, block := range regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		var want strings.Builder
		for _, line := range regexp.MustCompile(`(?m)print\(.*\)  # (.*)$`).FindAllStringSubmatch(block[1], -1) {
			want.WriteString(line[1] + "\n")
		}
		if want.Len() == 0 {
			continue // an incomplete program
		}
		found++
		cmd := exec.CommandContext(t.Context(), "python3", "-c", block[1])
		cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "E2B_API_KEY="+h.keys["agent"], "E2B_VALIDATE_API_KEY=false", "E2B_API_URL=http://"+h.address, "E2B_SANDBOX_URL=http://"+h.address)
		out, err := cmd.CombinedOutput()
		if got := strings.ReplaceAll(string(out), "\n\n", "\n"); err != nil || got != want.String() { // some print a line with its newline
			t.Errorf("%s, want no error and got == want.String():\nprints %q and ends with %v; the page says %q",
				block[1], out, err, &want)
		}
	}
	if found < 2 {
		t.Errorf("only %d programs are found", found)
	}
}
