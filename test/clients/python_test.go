// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

const python = "../../clients/python"

// fromSource makes Python use the client from the tree, and treat warnings, such as of an open socket, as errors.
var fromSource = []string{"PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=error"}

var ranTests = regexp.MustCompile(`(?m)^Ran (\d+) tests? in`)

// The tests of the Python client pass, both against faulty servers and against boxd. They use every route for agents.
func TestThePythonClient(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	h, out := start(t), ""
	h.asksForAll(t, nil, func() {
		out = h.runs(t, python, fromSource, "python3", "-m", "unittest", "discover", "-t", ".", "-s", "tests")
	})
	if m := ranTests.FindStringSubmatch(out); m == nil || len(m[1]) < 2 {
		t.Errorf("which tests have run?\n%s", out)
	}
}

// On a filesystem with shared blocks the Python and TypeScript clients can take and restore snapshots.
func TestClientsTakeSnapshots(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	dir := compiled(t)
	state := "state_dir = " + strconv.Quote(filepath.Join(boxtest.NewFilesystem(t, "xfs"), "state")) + "\n"
	h := startAt(t, state)
	h.runs(t, python, fromSource, "python3", "-m", "unittest", "tests.test_api.BoxdTest.test_snapshots")
	h.runs(t, dir, nil, "node", "--test", "--test-reporter=tap", "--test-name-pattern=^snapshots$", "tests/api.test.js")
	route := "DELETE /v1/sessions/{id}/snapshots/{snapshot}"
	if after := h.done(t); after[route] != "2 " {
		t.Errorf(`snapshots removed: after[route] = %q, want "2 "`, after[route])
	}
}

// mypy finds no error in the Python client, its tests and its examples, for the oldest Python too.
func TestTypesOfThePythonClient(t *testing.T) {
	t.Parallel()
	need(t, "mypy")
	for _, version := range []string{"3.9", "3.13"} {
		cmd := exec.CommandContext(t.Context(), "mypy", "--strict", "--enable-incomplete-feature=Unpack", "--python-version", version, "--cache-dir", t.TempDir(), "--scripts-are-modules", "boxd", "tests", "examples", "wheel.py")
		cmd.Dir, cmd.Env = python, append(os.Environ(), "LC_ALL=C.UTF-8")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("for Python %s: %v\n%s", version, err, out)
		}
	}
}

// pyright, which editors use, finds no error in the Python client and its examples, for the oldest Python.
func TestTypesOfThePythonClientByPyright(t *testing.T) {
	t.Parallel()
	pyright := filepath.Join(boxtest.NPM(t, "pyright@1.1.414"), "node_modules/pyright/index.js")
	cmd := exec.CommandContext(t.Context(), "node", pyright, "--pythonversion", "3.9", "boxd", "examples")
	cmd.Dir = python
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
