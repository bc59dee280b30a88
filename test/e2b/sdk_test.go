// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// runs runs a script of testdata with the SDKs, and checks that it does all its steps.
func (h *host) runs(t *testing.T, packages, script string, env ...string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	dir := boxtest.NPM(t, packages)
	file, err := os.CreateTemp(dir, "*-"+script) // beside the modules it imports
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file.Name())
	if _, err := file.Write(source); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	h.steps(t, packages, script, exec.CommandContext(t.Context(), boxtest.Node(t), file.Name()), env...)
}

// steps runs a command for a script of testdata, and checks that it does all its steps.
func (h *host) steps(t *testing.T, packages, script string, cmd *exec.Cmd, env ...string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "E2B_API_KEY="+h.keys["agent"], "E2B_VALIDATE_API_KEY=false", "E2B_API_URL=http://"+h.address, "E2B_SANDBOX_URL=http://"+h.address)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil || strings.Contains(text, "FAILED ") {
		t.Errorf("%s: err = %v, want no error and text without \"FAILED \":\n%s", packages, err, text)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:@?step|refused|newer)\('([^']*)'`).FindAllStringSubmatch(string(source), -1) {
		if strings.HasPrefix(m[0], "newer") && slices.Contains(env, olderSDK) {
			continue
		}
		if !strings.Contains(text, "ok "+m[1]+"\n") && !strings.Contains(text, "FAILED "+m[1]) {
			t.Errorf("%s: %s was not done", packages, m[1])
		}
	}
}

// certificate makes a certificate for TLS, and returns its directory and the keys of [e2b] that use it.
func certificate(t *testing.T) (dir, keys string) {
	t.Helper()
	dir = boxtest.TempDir(t)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxctl"), "e2b", "certificate", "-o", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir, fmt.Sprintf("tls_listen = %q\ncertificate = %q\nkey = %q\n", boxtest.FreeAddress(t, "127.0.0.2"), filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem"))
}

// scalebox returns the environment of programs that use the Scalebox SDK, with the certificate of a directory.
func (h *host) scalebox(dir string) []string {
	return []string{"SCALEBOX_API_KEY=" + h.keys["agent"], "SCALEBOX_API_URL=http://" + h.address, "NODE_EXTRA_CA_CERTS=" + filepath.Join(dir, "ca.pem")}
}

// Everything that the published SDK does with sandboxes, commands, terminals and files works.
func TestTheSDKOfE2B(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	start(t).runs(t, boxtest.E2BPackages, "sdk.mjs")
}

// The published SDK of the code interpreter runs code and shows its results.
func TestTheSDKOfTheCodeInterpreter(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	start(t).runs(t, boxtest.E2BPackages, "code.mjs")
}

// Both also work in older versions, which use older paths.
func TestOlderSDKsOfE2B(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	for _, script := range []string{"sdk.mjs", "code.mjs"} {
		t.Run(script, func(t *testing.T) {
			start(t).runs(t, boxtest.OldE2BPackages, script)
		})
	}
}

// Other methods of the published SDK work, or fail with the message that they are not supported.
func TestOtherMethodsOfTheSDKOfE2B(t *testing.T) {
	boxtest.RequireProgram(t, "git")
	start(t).runs(t, boxtest.E2BPackages, "methods.mjs")
}

// The published Scalebox SDK works over TLS as Refly uses it.
func TestTheSDKOfScalebox(t *testing.T) { runsScalebox(t, boxtest.ScaleboxPackages) }

// So does an older version, as far as it goes.
func TestTheOlderSDKOfScalebox(t *testing.T) { runsScalebox(t, boxtest.OldScaleboxPackages, olderSDK) }

// olderSDK has a script leave out what only a newer version has.
const olderSDK = "OLDER_SDK=1"

func runsScalebox(t *testing.T, packages string, env ...string) {
	t.Helper()
	boxtest.RequireProgram(t, "python3")
	dir, keys := certificate(t)
	h := start(t, keys+"[e2b.object_storage]\n\"s3://bucket\" = \"team/results\"")
	results := boxtest.TempDir(t)
	if err := os.WriteFile(filepath.Join(results, "numbers"), []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxctl"), "--socket", h.Socket, "--owner", "agent", "drives", "fill", "team/results", results)
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	boxctl := fmt.Sprintf("%s --socket %s --owner agent drives ", filepath.Join(boxtest.Programs(t), "boxctl"), h.Socket)
	next := fmt.Sprintf("echo two >>%s/numbers; %s fill team/results %s; %s switch $1 team/results", results, boxctl, results, boxctl)
	h.runs(t, packages, "scalebox.mjs", slices.Concat(h.scalebox(dir), env, []string{"NEXT_VERSION=" + next})...)
}

// The published SDKs measure, limit and pause sandboxes that have control groups.
func TestTheSDKsWhereSandboxesHaveGroups(t *testing.T) {
	boxtest.RequireGroups(t)
	boxtest.RequireSpeed(t) // for node
	boxtest.RequireProgram(t, "python3")
	dir, keys := certificate(t)
	t.Setenv("BOXD__PROFILES__E2B__MEMORY", "128MiB")
	h := start(t, keys)
	h.runs(t, boxtest.E2BPackages, "groups.mjs")
	h.runs(t, boxtest.ScaleboxPackages, "groups-scalebox.mjs", h.scalebox(dir)...)
}

// cli is E2B's published command line tool.
const cli = "@e2b/cli@2.19.0"

// The published command line tool works with sandboxes as its users expect.
func TestTheCommandLineOfE2B(t *testing.T) {
	h := start(t)
	program, node := filepath.Join(boxtest.NPM(t, cli), "node_modules", ".bin", "e2b"), boxtest.Node(t)
	run := func(input string, status int, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), node, append([]string{program}, args...)...)
		cmd.Env = append(os.Environ(), "E2B_API_KEY="+h.keys["agent"], "E2B_API_URL=http://"+h.address, "E2B_SANDBOX_URL=http://"+h.address, "HOME="+boxtest.TempDir(t))
		var out, problems strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &problems
		err := cmd.Run()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
			t.Fatalf("e2b %s: %v\n%s%s", strings.Join(args, " "), err, &out, &problems)
		}
		return out.String(), problems.String()
	}
	made, _ := run("", 0, "sandbox", "create", "--detach", "--timeout", "600", "base")
	id := strings.TrimSpace(made)
	if list, _ := run("", 0, "sandbox", "list", "--format", "json"); !strings.Contains(list, `"`+id+`"`) {
		t.Errorf("%s is not listed: list = %s, want list containing `\"` + id + `\"`", id, list)
	}
	if info, _ := run("", 0, "sandbox", "info", id); !strings.Contains(info, "running") {
		t.Errorf(`info = %s, want info containing "running"`, info)
	}
	if out, problems := run("in\n", 3, "sandbox", "exec", id, "cat; echo err >&2; exit 3"); out != "in\n" || !strings.Contains(problems, "err\n") {
		t.Errorf(`out = %q, problems = %q, want out == "in\n" and problems containing "err\n"`, out, problems)
	}
	if text, _ := run("", 0, "sandbox", "metrics", id); !strings.Contains(text, "CPU") {
		t.Errorf(`text = %s, want text containing "CPU"`, text)
	}
	boxtest.Eventually(t, "the log has the session and the end of the program", func() bool { // that may come after the end of its output
		log, _ := run("", 0, "sandbox", "logs", "--format", "json", id)
		return strings.Contains(log, `"message":"session started"`) && strings.Contains(log, `"detail":"exit code 3"`)
	})
	run("", 0, "sandbox", "kill", id)
	if list, _ := run("", 0, "sandbox", "list"); strings.Contains(list, id) {
		t.Errorf("list = %s, want list without %q", list, id)
	}
}
