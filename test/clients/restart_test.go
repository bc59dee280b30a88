// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// outlives runs a script of testdata, kills and stops boxd while the script works, and expects it not to notice.
func (h *host) outlives(t *testing.T, dir string, env []string, want string, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(h.env, env...)
	var problems strings.Builder
	cmd.Stderr = &problems
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		_ = cmd.Wait()
		t.Fatalf(`the client prints %q: err = %v, problems = %s, want line == "ready\n"`, line, err, &problems)
	}
	for range 2 {
		h.Kill()
		h.Restart()
		h.Stop()
		h.Restart()
	}
	_, _ = io.WriteString(in, "go on\n") // fails if it has ended
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || string(rest) != want {
		t.Errorf("the client prints %q and exits with %v, want %q\n%s", rest, err, want, &problems)
	}
}

// Streams in both directions, calls with an id, logs and events go on when boxd is killed, or stopped, and restarted.
func TestThePythonClientOutlivesBoxd(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	script, err := filepath.Abs("testdata/restart.py")
	if err != nil {
		t.Fatal(err)
	}
	start(t, boxtest.Kept).outlives(t, python, fromSource, "(5, True) (True, True) 5 True 5 True\n", "python3", script)
}

// The same for the TypeScript client.
func TestTheTypeScriptClientOutlivesBoxd(t *testing.T) {
	t.Parallel()
	dir := compiled(t)
	copyFile(t, "testdata/restart.js", filepath.Join(dir, "restart.js"))
	start(t, boxtest.Kept).outlives(t, dir, nil, "5,true true,true 5 true 5 true\n", "node", "restart.js")
}
