// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// typing parses a command line without running it.
func typing(t *testing.T, args ...string) typed {
	t.Helper()
	root := (&app{}).root()
	args = joinHere(root, args)
	cmd, rest, err := root.Find(args)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	return typed{cmd, args}
}

func refused(field string, value any, allowed string) error {
	f := fault.Field(field, value, allowed)
	return &client.Error{Problem: api.Problem{Detail: f.Error(), Field: f.Field, Value: f.Value, Allowed: f.Allowed}}
}

func TestRefusalsNameWhatWasTyped(t *testing.T) {
	t.Parallel()
	const run = "run -m 1B --here -v /a:/b -v /c:/d --network-rule x --network-rule y --env=A=b -w x -- true"
	for _, tc := range []struct{ line, field, value, allowed, want string }{
		{run, "memory", "1B", "32MiB to 1024TiB", `-m "1B": must be 32MiB to 1024TiB`},
		{"run --memory 1B -- true", "memory", "1B", "32MiB to 1024TiB", `--memory "1B": must be 32MiB to 1024TiB`},
		{"run --memory=1B -- true", "session.memory", "1B", "more", `session.memory = "1B": must be more`},
		{run, "mounts[1].source", "/c", "outside system directories", "-v /c:/d: the source must be outside system directories"},
		{run, "mounts[2].source", "/h", "yours", `--here ("/h"): the source must be yours`},
		{run, "network_rules[1]", "y", "a host", "--network-rule y: must be a host"},
		{run, "env", "a", "names", `--env "a": must be names`},
		{run, "cwd", "x", "a path", `-w "x": must be a path`},
		{run, "ulimit", "x", "a path", `--ulimit "x": must be a path`},
		{run, "rlimits.stack", "x", "a size", `--ulimit stack "x": must be a size`},
		{run, "labels", "", "a name", `--label "": must be a name`},
		{run, "argv", "", "a program", `program "": must be a program`},
		{run, "read_only_root", "true", "left out of this image", "--writable-root: leave it out of this image"},
		{run, "all", "true", "left out: only operators see the sessions of others", "all: leave it out: only operators see the boxes of others"},
		{"create x", "id", "x", "short", `box "x": must be short`},
		{"start --restart no a b -- c", "restart.policy", "x", "no", `--restart "x": must be no`},
		{"start a b -- c", "ready.timeout", "x", "more", `--ready-timeout "x": must be more`},
		{"grant a b --until 1h", "for", "1h", "less", `--until "1h": must be less`},
		{"set a", "network_bandwidth", "x", "left out of a session whose network is off", `--network-bandwidth "x": leave it out of a box whose network is off`},
		{"drives keep a", "keep_versions", "x", "more", `keep versions "x": must be more`},
	} {
		err := refused(tc.field, tc.value, tc.allowed)
		if strings.HasPrefix(tc.want, "session.") { // a request nested in another has its own field names
			tc.want = `--memory "1B": must be more`
		}
		if got := typing(t, strings.Fields(tc.line)...).sentence(err); got != tc.want {
			t.Errorf("%s of %q:\n%s, want\n%s", tc.field, tc.line, got, tc.want)
		}
	}
	joined := errors.Join(fmt.Errorf("a: %w", refused("pids", 0, "1 or more")), errors.New("b"))
	if got, want := typing(t, "run", "--pids", "0").sentence(joined), "a: --pids 0: must be 1 or more\nb"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	never := &client.Error{Problem: api.Problem{Type: api.ProblemType + "denied", Detail: "memory = 3GiB: all your boxes together may have 2GiB (policy.ci.total_memory)", Field: "memory"}}
	if got, want := typing(t, "run", "-m", "3g").sentence(never), "-m 3GiB: all your boxes together may have 2GiB (policy.ci.total_memory)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	different := &client.Error{Problem: api.Problem{Type: api.ProblemType + "conflict", Detail: `session "a" already exists with a different cpus, read_only_root`, Field: "cpus, read_only_root"}}
	if got, want := typing(t, "run").sentence(different), `box "a" already exists with a different --cpus, --writable-root`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	noProgram := &client.Error{Problem: api.Problem{Type: api.ProblemType + "invalid", Detail: "another text in any release", Field: programFields}}
	if got := typing(t, "exec", "a").sentence(noProgram); got != oneProgram {
		t.Errorf("%q, want %q", got, oneProgram)
	}
	if got, want := typing(t, "run").sentence(refused("drives", 20, "at most 16")), "--drive 20: must be at most 16"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := typing(t, "run", "--drive", "a").sentence(refused("drives", 20, "at most 16")), "--drive is given 20 times: must be at most 16"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := typing(t, "run").sentence(refused("id", fault.Word("missing"), "a name")), "box is missing: must be a name"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// fieldsOf returns the names of a request's fields, including nested ones.
func fieldsOf(typ reflect.Type, prefix string) []string {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct {
		return fieldsOf(typ.Elem(), strings.TrimSuffix(prefix, ".")+"[0].")
	}
	if typ.Kind() != reflect.Struct || strings.Contains(typ.String(), "Time") {
		return nil
	}
	var names []string
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			names = append(names, fieldsOf(f.Type, prefix)...)
			continue
		}
		names = append(append(names, prefix+name), fieldsOf(f.Type, prefix+name+".")...)
	}
	return names
}

// Every refused field of every request that flags set is reported in one form, by a name that users know.
func TestEveryRefusalOfAFlagHasTheForm(t *testing.T) {
	t.Parallel()
	wire := regexp.MustCompile(`[a-z]_[a-z]|\[\d+\]| = |allowed is|session`)
	seen := 0
	for line, request := range map[string]reflect.Type{
		"run --here -v /a:/b --input a -- true": reflect.TypeFor[api.OneShotRequest](),
		"create --here -v /a:/b --input a work": reflect.TypeFor[api.SessionRequest](),
		"set work":                              reflect.TypeFor[api.SessionChange](),
		"exec work -- true":                     reflect.TypeFor[api.ExecRequest](),
		"start work web -- true":                reflect.TypeFor[api.ProcessRequest](),
	} {
		said := typing(t, strings.Fields(line)...)
		for _, field := range fieldsOf(request, "") {
			for _, value := range []any{"x", 1, true, fault.Word("missing")} {
				for _, kind := range []fault.Kind{fault.Invalid, fault.Denied} {
					f := fault.Field(field, value, "1 to 2").Of(kind).WithHint("leave out network_rules, or have network = \"egress\" in the session")
					err := &client.Error{Problem: api.Problem{Detail: f.Error(), Field: f.Field, Value: f.Value, Allowed: f.Allowed, Hint: f.Hint}}
					text, hint := said.sentence(err), said.hint(err)
					seen++
					if wire.MatchString(text) || !strings.HasSuffix(text, " must be 1 to 2") || strings.Contains(text, "\n") || !strings.Contains(text, ": ") {
						t.Errorf(`%s, field %s: text = %s, want not wire.MatchString(text) and text ending with " must be 1 to 2" and text without "\n" and text containing ": "`,
							line, field, text)
					}
					if strings.Contains(hint, "\n") || strings.Contains(hint, "session") || said.flag("network-rule") != "" && strings.Contains(hint, "network_rules") ||
						said.flag("network") != "" && !strings.Contains(hint, "--network egress") {
						t.Errorf("%s: hint %s", line, hint)
					}
				}
			}
		}
	}
	if seen < 500 {
		t.Errorf("only %d refusals were checked", seen)
	}
}

// Every hint in boxd's source, as boxctl shows it: without API field names, whatever the command.
func TestHintsOfBoxdNameFlags(t *testing.T) {
	t.Parallel()
	hint := regexp.MustCompile(`WithHint\("((?:[^"\\]|\\.)*)"`)
	key := regexp.MustCompile(`[a-z]+(\.[A-Za-z_]+)+|"[^"]*"|/[a-z/]+_[a-z_]+|boxctl [a-z -]+`) // of box.toml, or a value
	wire := regexp.MustCompile(`[a-z]_[a-z]|\bsessions?\b`)
	// Keys of box.toml without their table, and words for agents' tools.
	others := regexp.MustCompile(`in box.toml|template|role = |list_skills|box_create|take_over|\[principals`)
	var lines []typed
	for _, line := range []string{"run -- true", "exec work -- true", "diff work", "ls", "forward work 1:1", "skills activate work a"} {
		lines = append(lines, typing(t, strings.Fields(line)...))
	}
	n := 0
	for _, top := range []string{"supervisor", "relay", "isolation", "skills"} {
		err := filepath.WalkDir(filepath.Join("..", "..", top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "actionrpc") || strings.Contains(path, "e2b") || strings.Contains(path, "mcp") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range hint.FindAllStringSubmatch(string(data), -1) {
				n++
				text := strings.ReplaceAll(m[1], `\"`, `"`)
				for _, said := range lines {
					if got := said.words(text); wire.MatchString(key.ReplaceAllString(got, "")) && !others.MatchString(got) {
						t.Errorf(`%s: boxctl %s: got %s, want not wire.MatchString(key.ReplaceAllString(got, "")) or others.MatchString(got)`,
							path, said.cmd.Name(), got)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 150 {
		t.Errorf("only %d hints were found", n)
	}
}

func TestWordsOfBoxdLeaveKeysAndQuotesAlone(t *testing.T) {
	t.Parallel()
	said := typing(t, "run", "--", "true")
	for in, want := range map[string]string{
		`no session "session"`: `no box "session"`,
		"Sessions of others":   "boxes of others",
		"[sessions] of box.toml has sessions.max, see /v1/sessions": "[sessions] of box.toml has sessions.max, see /v1/sessions",
		"policy.ci.sessions is reached":                             "policy.ci.sessions is reached",
		"profiles.x.network_rules":                                  "profiles.x.network_rules",
		"leave network_rules out":                                   "leave --network-rule out",
		"create the session with read_only_root = false":            "create the box with --writable-root",
	} {
		if got := said.words(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestLongLinesAreFolded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in    string
		width int
		want  string
	}{
		{"boxctl: a b", 80, "boxctl: a b"},
		{"boxctl: one two three", 12, "boxctl: one\n  two three"},
		{"boxctl: one two three", 11, "boxctl: one\n  two three"},
		{"boxctl: averylongwordindeed x", 10, "boxctl:\n  averylongwordindeed\n  x"},
		{"äöü äöü", 7, "äöü äöü"},
	} {
		if got := fold(tc.in, tc.width); got != tc.want {
			t.Errorf("%q at %d: %q, want %q", tc.in, tc.width, got, tc.want)
		}
	}
}

func TestHereMayHaveItsModeBehindIt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"run --here ro -- make":               "run --here=ro -- make",
		"run -m 1g --here rw -it make":        "run -m 1g --here=rw -it make",
		"--json run --here ro make":           "run --json --here=ro make",
		"run --here make":                     "run --here make",
		"run --here -- ro":                    "run --here -- ro",
		"run make --here ro":                  "run make --here ro",
		"run -e --here ro":                    "run -e --here ro",
		"run -- --here ro":                    "run -- --here ro",
		"exec work echo --here ro":            "exec work echo --here ro",
		"create --here ro --name x":           "create --here=ro --name x",
		"mcp run --here ro x -- y --here ro":  "mcp run --here=ro x -- y --here ro",
		"run --env=A=b -v a:b --here ro -itd": "run --env=A=b -v a:b --here=ro -itd",
	} {
		if got := strings.Join(joinHere((&app{}).root(), strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestRulesArePlainHostsPortsOrAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"pypi.org": "pypi.org", "*.pypi.org": "*.pypi.org", "pypi.org tcp 443": "pypi.org tcp 443", "10.0.0.0/8 any": "10.0.0.0/8 any",
		"https://pypi.org": "pypi.org tcp 443", "https://pypi.org/": "pypi.org tcp 443", "http://pypi.org": "pypi.org tcp 80",
		"https://pypi.org:8443": "pypi.org tcp 8443", "pypi.org:443": "pypi.org tcp 443", "pypi.org:8000-8100": "pypi.org tcp 8000-8100",
		"192.0.2.7": "192.0.2.7/32", "192.0.2.7:53": "192.0.2.7/32 tcp 53", "2001:db8::1": "2001:db8::1/128", "2001:db8::/32": "2001:db8::/32",
		"https://[2001:db8::1]:8443": "2001:db8::1/128 tcp 8443",
		// Refused.
		"https://pypi.org/simple": "", "https://": "", "gopher://pypi.org": "", "https://pypi.org?x": "",
	} {
		got, err := networkRule(in)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), "--network-rule "+"https://") && !strings.Contains(err.Error(), "must be") {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestMistakesNameWhatWasMeant(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ line, message, hint string }{
		{"pul x", `unknown command "pul"`, "boxctl images pull"},
		{"pull x", `unknown command "pull"`, "boxctl images pull"},
		{"restart x", `unknown command "restart"`, "boxctl stop BOX PROCESS, then"},
		{"inspec x", `unknown command "inspec"`, "did you mean boxctl inspect?"},
		{"images imprt x", `unknown command "images imprt"`, "did you mean boxctl images import?"},
		{"quite-other", `unknown command "quite-other"`, "boxctl --help"},
		{"run --volume .:/x y", "boxctl run: unknown flag --volume", "-v SOURCE:TARGET"},
		{"run --rm y", "boxctl run: unknown flag --rm", "leave it out: run always removes its box"},
		{"run --memroy 1g y", "boxctl run: unknown flag --memroy", "did you mean --memory?"},
		{"create -u root y", "boxctl create: unknown flag -u", "programs run as the box user; boxctl exec --user root"},
		{"ps -a x", "boxctl ps: unknown flag -a", "boxctl ls lists boxes"},
		{"run --memory", "--memory: SIZE is missing", "boxctl run --help"},
		{"run --cpus x y", "--cpus x: must be a number", "boxctl run --help"},
		{"run --dry-run=x y", "--dry-run x: must be true or false", "boxctl run --help"},
		{"mcp run --health x y -- z", "--health x: must be a time, for example 30s, 5m or 1d", "boxctl mcp run --help"},
		{"grant uid:1 none", "the role must be viewer, user, operator or admin", "boxctl revoke uid:1"},
		{"rm --all", "rm --all: standard input is not a terminal", "boxctl rm --all --force"},
	} {
		var out, errs strings.Builder
		code := realMain(append([]string{"--socket", "/nonexistent"}, strings.Fields(tc.line)...), strings.NewReader(""), &out, &errs)
		said, hint, _ := strings.Cut(errs.String(), "\nhint: ")
		if tc.line == "rm --all" { // boxd is asked first
			continue
		}
		if code != exitUsage || !strings.Contains(said, tc.message) || !regexp.MustCompile(tc.hint).MatchString(hint) && !strings.HasPrefix(hint, tc.hint) || out.String() != "" {
			t.Errorf(`%s: code = %d, errs = %q, want code == exitUsage and said containing %q and (regexp.MustCompile(tc.hint).MatchString(hint) or hint starting with %q) and out.String() == ""`,
				tc.line, code, errs.String(), tc.message, tc.hint)
		}
	}
}

// The commands and flags in a hint exist.
func TestHabitsPointAtCommandsAndFlagsThereAre(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	flags := map[string]bool{}
	eachCommand(root, func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
	})
	command, flag := regexp.MustCompile(`boxctl((?: [a-z]+)+)`), regexp.MustCompile(`--[a-z-]+`)
	for _, table := range []map[string]string{commandHabits(), flagHabits()} {
		for typed, hint := range table {
			for _, m := range command.FindAllStringSubmatch(hint, -1) {
				words := strings.Fields(m[1])
				if cmd, _, err := root.Find(words[:1]); err != nil || cmd == root {
					t.Errorf("%s: no command %q in %q", typed, words[0], hint)
				} else if cmd.HasSubCommands() && len(words) > 1 {
					if sub, _, err := root.Find(words[:2]); err != nil || sub == cmd && cmd.Name() != "grant" {
						t.Errorf("%s: no command %q in %q", typed, words[:2], hint)
					}
				}
			}
			for _, name := range flag.FindAllString(hint, -1) {
				if !flags[name] {
					t.Errorf("%s: no flag %s in %q", typed, name, hint)
				}
			}
		}
	}
	for typed := range commandHabits() {
		name, _, _ := strings.Cut(strings.TrimPrefix(typed, "boxctl "), " ")
		if cmd, _, err := root.Find([]string{name}); err == nil && cmd != root && !strings.Contains(typed, "-") {
			t.Errorf("%s is a command, so its suggestion is never used", typed)
		}
	}
}
