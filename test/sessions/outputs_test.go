// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// versioned returns an execution of a shell line with an output directory of the given version.
func versioned(line, version string) api.ExecRequest {
	req := boxtest.Shell(line)
	req.OutputVersion = version
	return req
}

// Each execution has the output directory of its version; a program that runs with an earlier one keeps that. Versions are
// directories of the workspace: they are listed, fetched and, in a named workspace, kept with it.
func TestExecutionsHaveVersionsOfTheirOutput(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "project")
	d.NewSession(t, api.SessionRequest{ID: "s", Workspace: "project"})
	old := `{"id":"old","detach":true,"output_version":"run-1","timeout":"2m","command":"cd $OUTPUT_DIR && mkfifo go && cat go > late"}`
	if r := d.Raw(t, "POST", "/v1/sessions/s/exec", old); r.Code != 202 {
		t.Fatalf("r.Code = %d, r.Body = %s, want r.Code == 202", r.Code, r.Body)
	}
	if got := d.Output(t, "s", versioned(`echo two > "$OUTPUT_DIR/file"; echo $OUTPUT_DIR; pwd`, "run-2")); got != "/workspace/output/run-2\n/workspace\n" {
		t.Errorf(`got %s, want "/workspace/output/run-2\n/workspace\n"`, got)
	}
	boxtest.Eventually(t, "the earlier execution waits", func() bool {
		return d.Result(t, "s", boxtest.Shell("test -p output/run-1/go && echo yes")).Stdout == "yes\n"
	})
	d.Output(t, "s", versioned("echo text > output/run-1/go", "run-3"))
	if _, err := d.Process(t.Context(), "s", "old", 60e9); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "the earlier execution has written to its own version", func() bool { return d.Result(t, "s", boxtest.Shell("cat output/run-1/late")).Stdout == "text\n" })
	if got := d.Output(t, "s", versioned("echo more >> $OUTPUT_DIR/file; ls output; stat -c %u output/run-2", "run-2")); got != "run-1\nrun-2\nrun-3\n1000\n" {
		t.Errorf(`got %s, want "run-1\nrun-2\nrun-3\n1000\n"`, got)
	}
	there := versioned("pwd; echo $OUTPUT_DIR", "run-2")
	there.Cwd = "output"
	if got := d.Output(t, "s", there); got != "/workspace/output/run-2\n/workspace/output/run-2\n" {
		t.Errorf(`got %s, want "/workspace/output/run-2\n/workspace/output/run-2\n"`, got)
	}
	there.OutputVersion = ""
	_, err := d.Exec(t.Context(), "s", &there)
	boxtest.Refused(t, err, 400, "cwd")
	one, err := d.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Workspace: "project"}, Exec: versioned("cat output/run-2/file; touch $OUTPUT_DIR/x", "run-4")})
	if err != nil || one.Stdout != "two\nmore\n" {
		t.Errorf(`one = %s, err = %v, want no error and one.Stdout == "two\nmore\n"`, boxtest.Show(one), err)
	}
	archive, err := d.DownloadArchive(t.Context(), "s", "/workspace/output", false)
	if err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, archive); !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "run-2/file") }) || !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "run-4/x") }) {
		t.Errorf("names = %q", names)
	}
	if got := d.Sh(t, "s", "echo -$OUTPUT_DIR-"); got != "--\n" {
		t.Errorf(`got %s, want "--\n"`, got)
	}
}

// Invalid version names, and output paths that lead elsewhere, are refused: output is only created by the box user, inside the box.
func TestOutputsAreTheBoxsOwn(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for _, version := range []string{".", "..", "a/b", "../x", "-x", "a\n", strings.Repeat("x", 65)} {
		_, err := d.Exec(t.Context(), "s", new(versioned("true", version)))
		boxtest.Refused(t, err, 400, "output_version")
	}
	given := versioned("true", "v")
	given.Env = map[string]string{"OUTPUT_DIR": "/tmp"}
	_, err := d.Exec(t.Context(), "s", &given)
	boxtest.Refused(t, err, 400, "env")
	if got := d.Sh(t, "s", "ls -A | wc -l"); got != "0\n" {
		t.Errorf(`got %s, want "0\n"`, got)
	}
	for _, put := range []string{"echo x > output", "ln -s /usr output", "ln -s /proc/1/root output"} {
		d.Sh(t, "s", "rm -rf output; "+put)
		before := d.Sh(t, "s", "ls -lA /usr output . | grep -v total")
		_, err := d.Exec(t.Context(), "s", new(versioned("touch /workspace/ran", "v")))
		if got := boxtest.StatusOf(err); got < 400 || got >= 500 {
			t.Errorf("%s: err = %v, want got >= 400 and got < 500", put, err)
		}
		if after := d.Sh(t, "s", "ls -lA /usr output . | grep -v total"); after != before {
			t.Errorf("put = %s:, want after == before:\n%s\n%s", put, before, after)
		}
	}
	d.Sh(t, "s", "rm -rf output; mkdir /tmp/there; ln -s /tmp/there output")
	if got := d.Output(t, "s", versioned("touch $OUTPUT_DIR/x; ls /tmp/there", "v")); got != "v\n" { // the box's own business
		t.Errorf(`got %s, want "v\n"`, got)
	}
}

// Creating a version removes old ones, but keeps the newest and those that a program uses, and follows no link.
func TestOldVersionsOfOutputsAreRemoved(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[files]\noutput_versions = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	busy := `{"id":"busy","detach":true,"output_version":"v0","timeout":"2m","command":"mkfifo $OUTPUT_DIR/go && cat $OUTPUT_DIR/go"}`
	if r := d.Raw(t, "POST", "/v1/sessions/s/exec", busy); r.Code != 202 {
		t.Fatalf("r.Code = %d, r.Body = %s, want r.Code == 202", r.Code, r.Body)
	}
	boxtest.Eventually(t, "the program runs", func() bool {
		return d.Result(t, "s", boxtest.Shell("test -p output/v0/go")).ExitCode != nil && *d.Result(t, "s", boxtest.Shell("test -p output/v0/go")).ExitCode == 0
	})
	for _, v := range []string{"v1", "v2", "v3"} {
		d.Output(t, "s", versioned("echo x > $OUTPUT_DIR/f; sleep 0.05", v))
	}
	if got := d.Output(t, "s", versioned("ls output", "v4")); got != "v0\nv3\nv4\n" {
		t.Errorf(`got %s, want "v0\nv3\nv4\n"`, got)
	}
	d.Sh(t, "s", "echo > output/v0/go; mv output kept; mkdir /tmp/other && mkdir /tmp/other/a /tmp/other/b /tmp/other/c; ln -s /tmp/other output")
	if got := d.Output(t, "s", versioned("ls output", "v5")); got != "a\nb\nc\nv5\n" {
		t.Errorf(`got %s, want "a\nb\nc\nv5\n"`, got)
	}
}
