// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The examples of the Go client are built as a module of their own, which cannot import internal packages.
func TestTheGoExamplesAreForAnybody(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	const own = "github.com/boxd-dev/boxd"
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(text), "module example.org/agent")
	mod += fmt.Sprintf("\nrequire %s v0.0.0\nreplace %s => %s\n", own, own, root)
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", mod)
	write("go.sum", string(sums))
	examples, err := filepath.Glob("go/examples/*.go")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples = %v, err = %v, want no error and len(examples) != 0", examples, err)
	}
	for _, name := range examples {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Base(name)
		write(file, string(source))
		cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", filepath.Join(dir, strings.TrimSuffix(file, ".go")), file)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
