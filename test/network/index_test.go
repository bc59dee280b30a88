// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// module returns a Node package with one module that exports a word.
func module(name string) []byte {
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	a := tar.NewWriter(z)
	for file, text := range map[string]string{
		"package.json": `{"name": "` + name + `", "version": "1.0.0"}`,
		"index.js":     "module.exports = 'hello from " + name + "'\n",
	} {
		err := a.WriteHeader(&tar.Header{Name: "package/" + file, Size: int64(len(text)), Mode: 0o644})
		if err == nil {
			_, err = io.WriteString(a, text)
		}
		if err != nil {
			panic(err)
		}
	}
	if a.Close() != nil || z.Close() != nil {
		panic("tar")
	}
	return archive.Bytes()
}

// The packages in the world's index. It is served under every name of the HTTP servers.
var (
	wheels = sync.OnceValue(func() map[string][]byte { //nolint:gochecknoglobals // of all worlds
		return map[string][]byte{"hello-box": boxtest.Wheel("hello_box", "word = 'hello from hello_box'\n"), "hello-dep": boxtest.Wheel("hello_dep", "word = 'hello from hello_dep'\n")}
	})
	modules = sync.OnceValue(func() map[string][]byte { //nolint:gochecknoglobals // of all worlds
		return map[string][]byte{"hello-npm": module("hello-npm")}
	})
)

// answerIndex serves a Python package index at /simple, and a Node registry at /npm.
func answerIndex(w http.ResponseWriter, r *http.Request) bool {
	at := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(at) == 2 && at[0] == "simple" && wheels()[at[1]] != nil:
		w.Header().Set("Content-Type", "text/html")
		file := strings.ReplaceAll(at[1], "-", "_") + "-1.0-py3-none-any.whl"
		fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"/wheels/%s/%s\">%s</a></body></html>\n", at[1], file, file)
	case len(at) == 3 && at[0] == "wheels":
		_, _ = w.Write(wheels()[at[1]])
	case len(at) == 2 && at[0] == "npm" && modules()[at[1]] != nil:
		w.Header().Set("Content-Type", "application/json")
		sum := sha512.Sum512(modules()[at[1]])
		fmt.Fprintf(w, `{"name":%q,"dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":%[1]q,"version":"1.0.0","dist":{"tarball":"http://%s/modules/%[1]s/1.tgz","integrity":"sha512-%[3]s"}}}}`,
			at[1], r.Host, base64.StdEncoding.EncodeToString(sum[:]))
	case len(at) == 3 && at[0] == "modules":
		_, _ = w.Write(modules()[at[1]])
	case at[0] == "simple" || at[0] == "npm":
		http.NotFound(w, r)
	default:
		return false
	}
	return true
}

// backend builds the project in its directory using only the standard library.
const backend = `import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = 'notes-1.0-py3-none-any.whl', 'notes-1.0.dist-info/'
    with zipfile.ZipFile(os.path.join(wheel_directory, name), 'w') as z:
        z.write('notes.py')
        z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: notes\nVersion: 1.0\nRequires-Dist: hello-dep\n')
        z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr(info + 'RECORD', '')
    return name
`

// answers is an MCP server in Python that only answers the handshake.
const answers = `import json, sys, hello_box, hello_dep, notes
for line in sys.stdin:
    m = json.loads(line)
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": [hello_box.word, hello_dep.word, notes.__file__]}), flush=True)
`

// MCP servers with dependencies run in boxes that can reach one name, that of the index set by the caller's environment
// variables. Clients find the packages installed. Another name with the same index is unreachable for pip and npm.
func TestDependenciesComeThroughAnAllowedIndex(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("index.allowed.example.", web4)
	z.set("index.other.example.", webOther4)
	d := boxtest.Start(t, byName)
	d.NewSession(t, api.SessionRequest{ID: "client", Profile: "mcp", NetworkRules: []string{"index.allowed.example"}})
	if r, err := d.Exec(t.Context(), "client", &api.ExecRequest{Argv: []string{"sh", "-c", "python3 -c 'import pip' && command -v npm"}}); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		boxtest.Missing(t, "pip and npm of the host in a box")
	}
	home := t.TempDir()
	for path, text := range map[string]string{
		"notes/requirements.txt": "hello-box==1.0\n",
		"notes/pyproject.toml":   "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"notes/backend.py":       backend,
		"notes/notes.py":         "",
		"notes/bin/server.py":    answers,
		"words/package.json":     `{"name": "words", "version": "1.0.0", "dependencies": {"hello-npm": "^1.0.0"}}`,
		"words/server.js": "const word = require('hello-npm')\nrequire('readline').createInterface({input: process.stdin}).on('line', l => " +
			"console.log(JSON.stringify({jsonrpc: '2.0', id: JSON.parse(l).id, result: [word]})))\n",
	} {
		path = filepath.Join(home, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	var wg sync.WaitGroup
	for want, argv := range map[string][]string{
		`["hello from hello_box", "hello from hello_dep", "/workspace/.installed/lib/python3`: {"python3", home + "/notes/bin/server.py"},
		`["hello from hello-npm"]`: {"node", home + "/words/server.js"},
	} {
		wg.Go(func() {
			args := append([]string{"mcp", "run", "--profile", "mcp", "--network-rule", "index.allowed.example", "server", "--"}, argv...)
			cmd := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxctl"), args...)
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"), "HOME=" + home, "BOXD_SOCKET=" + d.Socket, "PIP_CERT=/of/the/host",
				"PIP_INDEX_URL=http://index.allowed.example/simple", "PIP_TRUSTED_HOST=index.allowed.example", "NPM_CONFIG_REGISTRY=http://index.allowed.example/npm/",
			}
			cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n")
			var errs strings.Builder
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil || !strings.Contains(strings.ReplaceAll(string(out), `","`, `", "`), want) {
				t.Errorf("%q: %v: %s%s; want %s", argv, err, out, errs.String(), want)
			}
		})
	}
	for _, line := range []string{
		"python3 -m pip download --retries 0 --no-deps -d /tmp --trusted-host index.other.example -i http://index.other.example/simple hello-box",
		"npm view --fetch-retries=0 --registry http://index.other.example/npm/ hello-npm version",
	} {
		wg.Go(func() {
			r, err := d.Exec(t.Context(), "client", &api.ExecRequest{Argv: []string{"sh", "-c", line}})
			if printed := r.Stdout + r.Stderr; err != nil || r.ExitCode == nil || *r.ExitCode == 0 || !strings.Contains(printed, "index.other.example") {
				t.Errorf(`%s: printed = %s, err = %v, want no error and r.ExitCode != nil and *r.ExitCode != 0 and printed containing "index.other.example"`,
					line, printed, err)
			}
		})
	}
	wg.Wait()
	if z.wasQueried("other") {
		t.Error("the name that is not allowed was resolved outside")
	}
}
