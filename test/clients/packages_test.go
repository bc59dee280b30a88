// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// packaged builds a package of a client, and returns its path.
func packaged(t *testing.T, kind string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../packaging/clients.sh", kind, boxtest.TempDir(t))
	cmd.Env = append(os.Environ(), "VERSION=9.8.7~git20260102030405.0abcdef", "SOURCE_DATE_EPOCH=1700000000")
	var problems strings.Builder
	cmd.Stderr = &problems
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("clients.sh %s: %v: %s", kind, err, &problems)
	}
	return strings.TrimSpace(string(path))
}

// twice builds a package twice, and expects the same bytes.
func twice(t *testing.T, kind, name string) (path string) {
	t.Helper()
	var all [2][]byte
	for i := range all {
		path = packaged(t, kind)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = data
	}
	if filepath.Base(path) != name {
		t.Errorf("the package is %s, want %s", filepath.Base(path), name)
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Errorf("two builds of %s differ", name)
	}
	return path
}

// holds expects certain files in a package, and no others than these and Python or JavaScript with types.
func holds(t *testing.T, files map[string]string, want ...string) {
	t.Helper()
	for _, name := range want {
		if files[name] == "" {
			t.Errorf(`the package has no %s: slices.Sorted(maps.Keys(files)) = %v, want files[name] != ""`,
				name, slices.Sorted(maps.Keys(files)))
		}
	}
	for name := range files {
		if !slices.Contains(want, name) && !strings.HasSuffix(name, ".py") && !strings.HasSuffix(name, ".js") && !strings.HasSuffix(name, ".d.ts") {
			t.Errorf(`the package has %s, want want containing name or name ending with ".py" or name ending with ".js" or name ending with ".d.ts"`,
				name)
		}
	}
}

// The wheel is reproducible, has the right files, and works in a fresh environment without a network.
func TestTheWheel(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	need(t, "pip3")
	wheel := twice(t, "wheel", "boxd-9.8.7.dev20260102030405+0abcdef-py3-none-any.whl")
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := map[string]string{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = string(data) + "\n"
	}
	const info = "boxd-9.8.7.dev20260102030405+0abcdef.dist-info/"
	holds(t, files, "boxd/__init__.py", "boxd/_client.py", "boxd/answers.py", "boxd/requests.py", "boxd/py.typed", info+"METADATA", info+"WHEEL", info+"RECORD", info+"LICENSE")
	if meta := files[info+"METADATA"]; !strings.Contains(meta, "\nRequires-Python: >=3.9\n") || strings.Contains(meta, "Requires-Dist") {
		t.Errorf(`METADATA: meta = %s, want meta containing "\nRequires-Python: >=3.9\n" and meta without "Requires-Dist"`,
			meta)
	}
	dir := boxtest.TempDir(t)
	h := start(t)
	h.runs(t, dir, nil, "python3", "-m", "venv", "--without-pip", "venv")
	interpreter := filepath.Join(dir, "venv", "bin", "python")
	h.runs(t, dir, []string{"PIP_NO_INDEX=1"}, "pip3", "--python", interpreter, "install", "--quiet", "--no-deps", "--disable-pip-version-check", wheel)
	if got := h.runs(t, dir, nil, interpreter, "-c", "import boxd; print(boxd.__version__, boxd.__file__)"); !strings.HasPrefix(got, "9.8.7.dev20260102030405+0abcdef "+dir) {
		t.Errorf(`it is %q, want got starting with "9.8.7.dev20260102030405+0abcdef " + dir`, got)
	}
	source, err := filepath.Abs(python) // pip builds it with the same script
	if err != nil {
		t.Fatal(err)
	}
	h.runs(t, dir, nil, "python3", "-m", "venv", "--without-pip", "source")
	other := filepath.Join(dir, "source", "bin", "python")
	h.runs(t, dir, []string{"PIP_NO_INDEX=1"}, "pip3", "--python", other, "install", "--quiet", "--no-deps", "--disable-pip-version-check", source)
	if got := h.runs(t, dir, nil, other, "-c", "import boxd; print(boxd.__version__)"); got != "0.0.0\n" {
		t.Errorf(`from the source tree it is %q, want "0.0.0\n"`, got)
	}
	for _, name := range []string{"run", "process"} {
		path, err := filepath.Abs(filepath.Join(python, "examples", name+".py"))
		if err != nil {
			t.Fatal(err)
		}
		if got := h.runs(t, dir, nil, interpreter, "-I", path); got != examples[name] {
			t.Errorf("%s prints %q, want got == examples[name]", name, got)
		}
	}
}

// The npm package is reproducible, has the right files, and works where npm has installed it without a network.
func TestTheNpmPackage(t *testing.T) {
	t.Parallel()
	need(t, "node")
	need(t, "npm")
	path := twice(t, "npm", "boxd-client-9.8.7-dev.20260102030405.0abcdef.tgz")
	data, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	zipped, err := gzip.NewReader(data)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
	holds(t, files, "package/package.json", "package/LICENSE", "package/README.md", "package/dist/index.js", "package/dist/index.d.ts", "package/dist/types.d.ts", "package/dist/stream.js")
	if about := files["package/package.json"]; strings.Contains(about, "ependencies") {
		t.Errorf(`it depends on something: about = %s, want about without "ependencies"`, about)
	}
	dir := boxtest.TempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	npm(t, dir, "install", "--offline", "--no-audit", "--no-fund", path)
	h := start(t)
	for _, name := range []string{"run", "process"} {
		copyFile(t, filepath.Join(typescript, "examples", name+".js"), filepath.Join(dir, name+".js"))
		if got := h.runs(t, dir, nil, "node", name+".js"); got != examples[name] {
			t.Errorf("%s prints %q, want got == examples[name]", name, got)
		}
	}
}
