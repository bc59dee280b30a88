// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"boxctl": main})
}

// TestScripts runs the scripts in testdata/script, each with a boxd of its own. Their environment, and their commands beyond
// those of testscript, are in their setup.
func TestScripts(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join("testdata", "script"),
		RequireUniqueNames: true,
		Setup:              setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":        exits,
			"json":         jsonHas,
			"nothing-left": nothingLeft,
		},
	})
}

// scriptDirOwner owns the directory that scripts can mount writable; root's cannot be.
const scriptDirOwner = 1000

// scriptConfig lets sessions mount the directories that makeScriptDirs creates.
const scriptConfig = "[mounts]\nallow = [\"%DIR%/lent\", \"%DIR%/rooted\"]\n"

// makeScriptDirs creates the directories of scriptConfig, and one beside them that must not be mounted.
func makeScriptDirs(t testing.TB, d *boxtest.Daemon) (lent string) {
	t.Helper()
	lent = filepath.Join(d.Dir, "lent")
	for _, dir := range []string{lent, filepath.Join(d.Dir, "rooted"), filepath.Join(d.Dir, "other")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(lent, scriptDirOwner, scriptDirOwner); err != nil {
		t.Fatal(err)
	}
	return lent
}

// stage is what a script's commands need from its setup, and stageKey where they find it.
type (
	stage struct {
		daemon *boxtest.Daemon
		before boxtest.Traces
	}
	stageKey struct{}
)

func setUp(env *testscript.Env) error {
	t, ok := env.T().(testing.TB)
	if !ok {
		return errors.New("a script runs outside of a test")
	}
	d := boxtest.Start(t, scriptConfig)
	lent := makeScriptDirs(t, d)
	d.Warm()
	env.Values[stageKey{}] = &stage{daemon: d, before: d.Look()}
	env.Setenv("BOXD_SOCKET", d.Socket)
	env.Setenv("XDG_STATE_HOME", filepath.Join(d.Dir, "state"))
	env.Setenv("LENT", lent)                                // may be mounted
	env.Setenv("ROOTED", filepath.Join(d.Dir, "rooted"))    // may be mounted, but belongs to root
	env.Setenv("OTHER", filepath.Join(d.Dir, "other"))      // may not be mounted
	env.Setenv("LONG", strings.Repeat("x", 10_000))         // an invalid id
	env.Setenv("BIN", boxtest.Programs(t))                  // for other users, who cannot open ours
	env.Setenv("NO_SOCKET", filepath.Join(d.Dir, "nobody")) // without a boxd
	env.Setenv("RIGHT_TO_LEFT", "\u202e")                   // would reverse the text that follows
	return nil
}

// exits CODE PROGRAM ARG...: the program exits with this code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// json PATH [VALUE]: the output of the last program is one JSON value that contains this. A path is keys and indexes joined with
// dots, the empty one the whole value; with ! the path must be missing.
func jsonHas(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || len(args) > 2 || neg && len(args) > 1 {
		ts.Fatalf("usage: [!] json PATH [VALUE]")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	d.UseNumber()
	var v any
	ts.Check(d.Decode(&v))
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		ts.Fatalf("more than one JSON value (%v)", err)
	}
	found := walk(v, args[0])
	switch {
	case neg && found != nil:
		ts.Fatalf("%s exists: %s", args[0], *found)
	case !neg && found == nil:
		ts.Fatalf("there is no %s", args[0])
	case len(args) > 1 && *found != args[1]:
		ts.Fatalf("%s is %s, want %s", args[0], *found, args[1])
	}
}

// walk returns the value at a path of a JSON value, as JSON; a string without quotes.
func walk(v any, path string) *string {
	for step := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[step]
			if !ok && step != "" {
				return nil
			}
			if ok {
				v = next
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	if _, ok := v.(string); ok {
		text = text[1 : len(text)-1]
	}
	return new(string(text))
}

// nothing-left: the host is as it was before the script.
func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	s, ok := ts.Value(stageKey{}).(*stage)
	if neg || len(args) > 0 || !ok {
		ts.Fatalf("usage: nothing-left")
	}
	s.daemon.NothingLeft(s.before)
}
