// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// follow runs the first block of commands below a heading of an installed page as root, and returns their output: nothing is left
// out or changed, and a failing command ends it.
func follow(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(section(t, page, heading), "\n\n    ")
	if !found {
		t.Fatalf("%s has no commands below %q", page, heading)
	}
	block, _, _ := strings.Cut(rest, "\n\n")
	return follows(t, strings.ReplaceAll(block, "\n    ", "\n"))
}

// prompts returns the command blocks with a root prompt below a heading of an installed page.
func prompts(t *testing.T, page, heading string) (blocks []string) {
	t.Helper()
	for block := range strings.SplitSeq(section(t, page, heading), "\n\n") {
		if commands, ok := strings.CutPrefix(block, "    # "); ok {
			blocks = append(blocks, strings.ReplaceAll(commands, "\n    # ", "\n"))
		}
	}
	return blocks
}

// section returns the text below a heading of an installed page.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/usr/share/doc", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## "+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

func follows(t *testing.T, commands string) string {
	t.Helper()
	return run(t, "bash", "-c", "set -e\ncd "+t.TempDir()+"\n"+commands+"\n")
}

// undone registers a clean-up of what a page has root do: enable a socket, create files and directories, and turn on forwarding.
func undone(t *testing.T, socket string, files ...string) {
	t.Helper()
	forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = try(t, "systemctl", "disable", "--now", socket)
		_ = os.WriteFile("/proc/sys/net/ipv4/ip_forward", forward, 0o644)
		for _, name := range append(files, "/etc/sysctl.d/60-boxd.conf") {
			_ = os.RemoveAll(name)
		}
		run(t, "systemctl", "daemon-reload")
		run(t, "systemctl", "stop", service)
	})
}

// e2bSocket is the socket unit for E2B clients.
const e2bSocket = "boxd-e2b.socket"

// The page is followed to the letter: the commands of root, how a program connects to the systemd socket, how root sees its
// sandbox, what else Scalebox needs, and how the key is revoked.
func TestThePageForE2BIsFollowed(t *testing.T) {
	installed(t, this)
	a := live(t)
	undone(t, e2bSocket, "/etc/boxd/box.toml.d/60-e2b.toml", "/etc/boxd/box.toml.d/61-scalebox.toml", "/etc/boxd/tokens", "/etc/boxd/e2b", "/etc/systemd/system/"+e2bSocket+".d")
	printed := follow(t, "boxd/guide/e2b.md", "Five minutes")
	c := &e2bClient{t: t, key: printed[strings.LastIndexByte(printed, '\n')+1:]}
	if !strings.HasPrefix(c.key, "boxd_") {
		t.Fatalf("the key is the last line of %q", printed)
	}
	if got := state(t, service); got != "inactive" {
		t.Errorf(`before the first connection boxd is %s, want "inactive"`, got)
	}

	// The first client starts boxd. A sandbox has a network, since the host forwards.
	c.create()
	if got := c.sh(`id -un; pwd; test "$(wc -l </proc/net/route)" -gt 1 && echo network`); got != "user\n/home/user\nnetwork\n" {
		t.Errorf(`a command prints %q, want "user\n/home/user\nnetwork\n"`, got)
	}
	if got := run(t, "boxctl", "ls", "--owner", "agents"); !strings.Contains(got, c.id) {
		t.Errorf("root sees %s", got)
	}
	if got := run(t, "boxctl", "--owner", "agents", "exec", c.id, "--", "sh", "-c", "echo hello >~/kept; id -un"); got != "user" {
		t.Errorf(`a command of root prints %q, want "user"`, got)
	}

	// When boxd restarts, the socket and the sandbox stay.
	run(t, "systemctl", "stop", service)
	if got := c.sh("cat kept"); got != "hello\n" {
		t.Errorf(`after a restart of boxd a command in the sandbox prints %q, want "hello\n"`, got)
	}

	// The same sandbox over TLS, for Scalebox programs.
	follow(t, "boxd/guide/e2b.md", "Refly, and other programs for Scalebox")
	authority, err := os.ReadFile("/etc/boxd/e2b/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	byTLS := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	defer byTLS.CloseIdleConnections()
	for address, client := range map[string]*http.Client{"https://127.0.0.2:5443": byTLS, "http://" + e2bAddress: http.DefaultClient} {
		if status, text := c.asks(client, "GET", address+"/sandboxes/"+c.id, ""); status != http.StatusOK || !strings.Contains(text, `"running"`) {
			t.Errorf("%s: status = %d, text = %s, want status == 200 and text containing `\"running\"`",
				address, status, text)
		}
	}

	if status, text := c.asks(http.DefaultClient, "DELETE", "http://"+e2bAddress+"/sandboxes/"+c.id, ""); status != http.StatusNoContent {
		t.Errorf("kill: status = %d, text = %s, want status == 204", status, text)
	}
	if got := run(t, "boxctl", "ls", "--owner", "agents"); strings.Contains(got, c.id) {
		t.Errorf("after its end root sees %s", got)
	}
	if err := os.Truncate("/etc/boxd/tokens", 0); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "reload", "boxd")
	boxtest.Eventually(t, "the removed key is refused", func() bool {
		status, _ := c.asks(http.DefaultClient, "GET", "http://"+e2bAddress+"/v2/sandboxes", "")
		return status == http.StatusUnauthorized
	})
	a.unharmed(t, "programs for E2B have come")
}

// e2bAddress is where boxd-e2b.socket listens, as the page says.
const e2bAddress = "127.0.0.1:5420"

// e2bClient is an E2B client with its one sandbox.
type e2bClient struct {
	t              *testing.T
	key, id, token string
}

// asks sends a request to the control plane, and returns status and body.
func (c *e2bClient) asks(by *http.Client, method, url, body string) (status int, answer string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", c.key)
	req.Close = true // boxd is restarted meanwhile
	r, err := by.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return r.StatusCode, string(data)
}

// create creates the sandbox.
func (c *e2bClient) create() {
	c.t.Helper()
	status, text := c.asks(http.DefaultClient, "POST", "http://"+e2bAddress+"/sandboxes", `{"templateID":"base"}`)
	if status != http.StatusCreated {
		c.t.Fatalf("create: status = %d, text = %s, want status == 201", status, text)
	}
	var made struct{ SandboxID, EnvdAccessToken string }
	decode(c.t, text, &made)
	c.id, c.token = made.SandboxID, made.EnvdAccessToken
}

// RoundTrip adds the headers with the sandbox and its token.
func (c *e2bClient) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Close = true
	r.Header.Set("E2b-Sandbox-Id", c.id)
	r.Header.Set("E2b-Sandbox-Port", "49983")
	r.Header.Set("X-Access-Token", c.token)
	return http.DefaultTransport.RoundTrip(r)
}

// sh runs a shell line in the sandbox as the SDKs do, and returns its output.
func (c *e2bClient) sh(line string) string {
	c.t.Helper()
	processes := protocol.NewProcessClient(&http.Client{Transport: c}, "http://"+e2bAddress)
	stream, err := processes.Start(c.t.Context(), &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", line}}})
	if err != nil {
		c.t.Fatal(err)
	}
	defer stream.Close()
	var out strings.Builder
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		out.Write(event.GetData().GetStdout())
		if end := event.GetEnd(); end != nil && end.GetExitCode() != 0 {
			c.t.Fatalf("%q: %v after %q", line, end, out.String())
		}
	}
	if err := stream.Err(); err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	return out.String()
}
