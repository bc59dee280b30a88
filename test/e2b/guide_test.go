// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

var (
	programOfTheGuide = regexp.MustCompile("(?ms)^```js\n(.*?)^```$")
	printedByIt       = regexp.MustCompile(`(?m)console\.log\(.*\) // (.*)$`)
)

// frameworks are the packages that use the SDK, and what else the page's programs import.
const frameworks = boxtest.E2BPackages + " @langchain/core@1.4.0 zod@4.6.7 @computesdk/e2b@1.7.52"

// Each JavaScript program of the E2B page runs unchanged, with the packages that it imports, and prints what the page says.
func TestProgramsOfTheGuideRun(t *testing.T) {
	boxtest.RequireSources(t)
	boxtest.RequireProgram(t, "python3")
	text, err := os.ReadFile("../../docs/guide/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, keys := certificate(t)
	h := start(t, keys)
	imported := map[string]int{}
	for _, block := range programOfTheGuide.FindAllStringSubmatch(string(text), -1) {
		program := block[1]
		packages, of, key := boxtest.E2BPackages, "e2b", h.keys["agent"]
		switch {
		case strings.Contains(program, "@scalebox/sdk"):
			packages, of = boxtest.ScaleboxPackages, "scalebox"
		case strings.Contains(program, "@langchain/"), strings.Contains(program, "@computesdk/"):
			packages, of, key = frameworks, "frameworks", "e2b_"+hex.EncodeToString([]byte(key))
		}
		imported[of]++
		var want strings.Builder
		for _, line := range printedByIt.FindAllStringSubmatch(program, -1) {
			want.WriteString(line[1] + "\n")
		}
		if want.Len() == 0 {
			t.Errorf("the page does not say what this prints:\n%s", program)
			continue
		}
		path := filepath.Join(boxtest.NPM(t, packages), fmt.Sprintf("guide-%d-%d.mjs", os.Getpid(), imported[of])) // beside its imports
		if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		cmd := exec.CommandContext(t.Context(), boxtest.Node(t), path)
		cmd.Env = append(append(os.Environ(), "E2B_API_KEY="+key, "E2B_API_URL=http://"+h.address, "E2B_SANDBOX_URL=http://"+h.address), h.scalebox(dir)...)
		var problems strings.Builder
		cmd.Stderr = &problems
		if out, err := cmd.Output(); err != nil || string(out) != want.String() {
			t.Errorf("%s, want no error and out == want.String():\nprints %q and ends with %v %s; the page says %q",
				program, out, err, &problems, &want)
		}
	}
	if imported["e2b"] < 5 || imported["scalebox"] < 1 || imported["frameworks"] < 2 {
		t.Errorf("only %v programs are found", imported)
	}
}
