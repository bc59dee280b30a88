// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// inspector is npm's MCP inspector in its CLI mode, an independent client. npm caches what it has downloaded.
type inspector struct {
	t    *testing.T
	bin  string // the directory of its programs, with a Node that is new enough
	list string // an mcp.json
}

// The npm packages that these tests install, in tested versions.
const (
	inspectorPackage  = "@modelcontextprotocol/inspector@2.12.0"
	everythingPackage = "@modelcontextprotocol/server-everything@2026.8.31"
	filesystemPackage = "@modelcontextprotocol/server-filesystem@2026.8.31"
)

// installed returns the directory where npm has a program of some packages, which it downloads if necessary.
func installed(t *testing.T, program string, packages ...string) (bin string) {
	t.Helper()
	boxtest.RequireProgram(t, "npx")
	argv := []string{"--yes", "--call=command -v " + program}
	for _, p := range packages {
		argv = append(argv, "--package="+p)
	}
	cmd := exec.CommandContext(t.Context(), "npx", argv...)
	cmd.Dir = t.TempDir()
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("npm does not install %q: %v\n%s", packages, err, errs.String())
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

func inspect(t *testing.T, servers map[string]any) *inspector {
	t.Helper()
	i := &inspector{t, installed(t, "mcp-inspector", "node@22", inspectorPackage), filepath.Join(t.TempDir(), "mcp.json")}
	text, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err == nil {
		err = os.WriteFile(i.list, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// stdio returns the entry of a boxctl mcp in an mcp.json.
func stdio(t *testing.T, d *boxtest.Daemon, args ...string) map[string]any {
	t.Helper()
	return map[string]any{"command": filepath.Join(boxtest.Programs(t), "boxctl"), "args": args, "env": map[string]string{"BOXD_SOCKET": d.Socket}}
}

// req makes the inspector connect to a server, make one request and print the answer, which must contain want.
func (i *inspector) req(want, server, method string, args ...string) {
	i.t.Helper()
	argv := append([]string{"--cli", "--config", i.list, "--server", server, "--method", method}, args...)
	cmd := exec.CommandContext(i.t.Context(), filepath.Join(i.bin, "mcp-inspector"), argv...)
	cmd.Env = append(os.Environ(), "PATH="+i.bin+":"+os.Getenv("PATH"), "HOME="+filepath.Dir(i.list))
	var errs strings.Builder
	cmd.Stderr = &errs
	if out, err := cmd.Output(); !strings.Contains(string(out), want) {
		i.t.Errorf("%q: %v: %s%s; want %q", argv, err, out, errs.String(), want)
	}
}

// call uses a tool with arguments in JSON.
func (i *inspector) call(want, server, tool, args string) {
	i.t.Helper()
	i.req(want, server, "tools/call", "--tool-name", tool, "--tool-args-json", args)
}

// The inspector does a coding task, on standard input and output and over HTTP.
func TestTheInspectorDoesATask(t *testing.T) {
	t.Parallel()
	d := boxtest.StartWith(t, "http = \"127.0.0.1:0\"\nhttp_insecure = true\n"+boxtest.BestEffort)
	at := regexp.MustCompile(`serves HTTP on the loopback" address=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.Log())
	if at == nil {
		t.Fatalf("it serves no HTTP:\n%s", d.Log())
	}
	i := inspect(t, map[string]any{
		"boxes": stdio(t, d, "mcp", "--session", "work"),
		"http":  map[string]any{"type": "streamable-http", "url": "http://" + at[1] + "/mcp?session=work2"},
	})
	for _, server := range []string{"boxes", "http"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			i := &inspector{t, i.bin, i.list}
			i.req(`"box_exec"`, server, "tools/list", "--strict")
			i.call("created", server, "box_write", `{"path": "add.sh", "content": "echo $(($1 - $2))\n"}`)
			i.call("-1", server, "box_exec", `{"argv": ["sh", "add.sh", "2", "3"]}`)
			i.call("1 replaced", server, "box_edit", `{"path": "add.sh", "edits": [{"old": "-", "new": "+"}]}`)
			i.call("5", server, "box_exec", `{"argv": ["sh", "add.sh", "2", "3"]}`)
		})
	}
}

// Reference servers of the protocol's authors run in boxes and behave normally to their clients; they have access to what their
// box has.
func TestReferenceServersRunInBoxes(t *testing.T) {
	t.Parallel()
	ref := filepath.Join(installed(t, "mcp-server-everything", everythingPackage, filesystemPackage), "../..")
	d := boxtest.Start(t, fmt.Sprintf("[mounts]\nallow = [%q]\n", ref))
	d.Warm()
	before := d.Look()
	const bin = "/opt/ref/node_modules/.bin/"
	lent := []string{"-v", ref + ":/opt/ref:ro", "--profile", "mcp", "--network", "off"}
	hosts := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(hosts, []byte(`{"mcpServers": {"files": {"command": "`+bin+`mcp-server-filesystem", "args": ["/"]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := connect(t, d, append(append([]string{"run"}, lent...), "everything", "--", bin+"mcp-server-everything")...)
	a.mustCall("Echo: hi", "echo", in{"message": "hi"})
	a.mustCall("5", "get-sum", in{"a": 2, "b": 3})
	if _, err := a.ListResources(t.Context(), nil); err != nil {
		t.Error(err)
	}
	seen(t, d, "everything", "run time", "1", "", "")
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	a = connect(t, d, append(append([]string{"run"}, lent...), "--from", hosts, "files")...)
	a.mustCall("Successfully", "write_file", in{"path": "/workspace/f", "content": "of a box"})
	a.mustCall("of a box", "read_text_file", in{"path": "/workspace/f"})
	a.fails("ENOENT", "read_text_file", in{"path": d.Config})
	a.fails("EROFS", "write_file", in{"path": "/opt/ref/f", "content": "x"})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	d.NothingLeft(before)
}
