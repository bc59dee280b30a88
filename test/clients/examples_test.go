// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// examples are the outputs of the examples, the same in every language.
var examples = map[string]string{
	"run":     "exited 0 42\n",
	"live":    "name?\nhello world 1\nhello world 2\nhello world 3\nexited 3\n",
	"process": "0 first\n6 second\nended\n",
	"files":   "print('two')\nmain.py\ncreated other.py\ncopy/main.py copy/other.py\nnot_found not_found\n",
	"events":  "session.started\nexec.started\nexec.ended\n",
	"agent":   "50 40425\n",
}

// examples runs all examples of a language, which are the files of a directory.
func (h *host) examples(t *testing.T, dir, ext string, env []string, argv ...string) {
	t.Helper()
	for name, want := range examples {
		t.Run(name, func(t *testing.T) {
			if got := h.runs(t, dir, env, append(slices.Clone(argv), filepath.Join("examples", name+ext))...); got != want {
				t.Errorf("it prints %q, want %q", got, want)
			}
		})
	}
	entries, err := os.ReadDir(filepath.Join(dir, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ext); examples[name] == "" && !e.IsDir() {
			t.Errorf("the page does not mention the example %s", e.Name())
		}
	}
}

func TestExamplesOfPython(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	start(t).examples(t, python, ".py", fromSource, "python3")
}

// The Go client has the same examples. They are separate programs in no package, so that go build leaves them out.
func TestExamplesOfGo(t *testing.T) {
	t.Parallel()
	h, bin := start(t), boxtest.TempDir(t)
	if err := os.Mkdir(filepath.Join(bin, "examples"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range examples {
		h.runs(t, "../../clients/go", []string{"CGO_ENABLED=0"}, "go", "build", "-o", filepath.Join(bin, "examples", name), filepath.Join("examples", name+".go"))
		h.runs(t, "../../clients/go", []string{"CGO_ENABLED=0"}, "go", "vet", filepath.Join("examples", name+".go"))
	}
	h.examples(t, bin, "", nil, "/usr/bin/env", "--chdir="+bin)
}
