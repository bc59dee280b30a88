// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// hosted is boxctl mcp run with its client's end of standard input.
type hosted struct {
	*exec.Cmd

	in       io.WriteCloser
	out, err strings.Builder
}

func runHosted(t *testing.T, d *boxtest.Daemon, args ...string) *hosted {
	t.Helper()
	h := &hosted{Cmd: d.Boxctl(t, append([]string{"mcp", "run"}, args...)...)}
	in, err := h.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.in, h.Stdout, h.Stderr = in, &h.out, &h.err
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = h.Wait() }) // most have ended
	return h
}

// seen waits until boxctl mcp status shows a server with these values, of which "" matches any, and returns its session.
func seen(t *testing.T, d *boxtest.Daemon, name, phase, attempt, health, stderr string) (session string) {
	t.Helper()
	var answer struct {
		Servers []struct{ Name, Session, Phase, Attempt, Health, Stderr, Since string }
	}
	like := func(want, got string) bool { return want == "" || want == got }
	boxtest.Eventually(t, fmt.Sprintf("%s is in %s, attempt %s, health %q, with %q", name, phase, attempt, health, stderr), func() bool {
		out, err := d.Boxctl(t, "mcp", "status", "--json").Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		for _, s := range answer.Servers {
			if s.Name == name && s.Phase == phase && s.Attempt == attempt && like(health, s.Health) && like(stderr, s.Stderr) && s.Since != "" {
				session = s.Session
				return true
			}
		}
		return false
	})
	return session
}

const greeting = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n"

// The progress of a server is in its session, also for other clients: what is being installed, how often that was tried, the last
// output; and whether it answers pings, of which its client sees nothing.
func TestHowFarAServerHasComeIsSeen(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	home := boxtest.TempDir(t)
	for path, text := range map[string]string{
		"proj/package.json": `{"dependencies": {"a": "1"}}`,
		"proj/bin/npm":      "#!/bin/sh\nif mkdir ../tried; then echo the registry is away >&2; exit 1; fi\nuntil [ -e ../go ]; do sleep 0.05; done\n",
		"proj/server.sh": `echo listening >&2
while read -r l; do case $l in
*'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{}}';;
*'"ping"'*) id=${l#*'"id":"'}; echo '{"jsonrpc":"2.0","id":"'${id%%'"'*}'","error":{"code":-32601,"message":"no"}}'; echo pinged >&2;;
esac; done`,
		"mcp.json": `{"mcpServers": {"shell": {"command": "sh", "args": ["` + home + `/proj/server.sh"], "env": {"PATH": "/workspace/project/bin:/usr/bin:/bin"}}}}`,
	} {
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := runHosted(t, d, "--label", "mine=kept", "--health", "5s", "--from", filepath.Join(home, "mcp.json"), "shell")
	id := seen(t, d, "shell", "dependencies", "2", "", "the registry is away")
	if _, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"touch", "/workspace/go"}}); err != nil {
		t.Fatal(err)
	}
	seen(t, d, "shell", "handshake", "1", "", "listening")
	if _, err := io.WriteString(h.in, greeting); err != nil {
		t.Fatal(err)
	}
	seen(t, d, "shell", "run time", "1", "ok", "pinged")
	s, err := d.Session(t.Context(), id)
	if err != nil || s.Labels["mcp.server"] != "shell" || s.Labels["mcp.phase"] != "run time" || s.Labels["mcp.stderr"] != "" || s.Labels["mine"] != "kept" {
		t.Errorf(`the session has %q, %v, want no error and s.Labels["mcp.server"] == "shell" and s.Labels["mcp.phase"] == "run time" and s.Labels["mcp.stderr"] == "" and s.Labels["mine"] == "kept"`,
			s.Labels, err)
	}
	if out, err := d.Boxctl(t, "mcp", "status").Output(); err != nil || !strings.Contains(string(out), "SERVER") || !strings.Contains(string(out), "run time") {
		t.Errorf(`for people: out = %s, err = %v, want no error and out containing "SERVER" and out containing "run time"`,
			out, err)
	}
	h.in.Close()
	if err := h.Wait(); err != nil || h.out.String() != `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n" {
		t.Errorf("the client received %q, %v, %s", h.out.String(), err, h.err.String())
	}

	// A server that does not answer is ended, which is reported.
	h = runHosted(t, d, "--health", "100ms", "deaf", "--", "sh", "-c", `read -r l; echo '{"jsonrpc":"2.0","id":1,"result":{}}'; exec sleep 1000`)
	if _, err := io.WriteString(h.in, greeting); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(); err == nil || !strings.Contains(h.err.String(), "boxctl: run time: the server did not answer 3 pings") {
		t.Errorf(`a server that is silent: err = %v, h.err = %s, want an error and h.err.String() containing "boxctl: run time: the server did not answer 3 pings"`,
			err, h.err.String())
	}
	if gone := seen(t, d, "deaf", "run time", "1", "", ""); gone == "" {
		t.Error("the phase of the ended server is no longer listed")
	}
	d.NothingLeft(before)
}
