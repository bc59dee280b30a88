// SPDX-License-Identifier: Apache-2.0

// Package e2b_test tests the E2B protocol on a real boxd with real boxes, with the published SDKs and without.
package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// host is a boxd that serves E2B clients.
type host struct {
	*boxtest.Daemon
	address string
	tokens  string            // the token file
	keys    map[string]string // API keys, by the names of their tokens
	entries map[string]string // of the file, by the same names
}

// newKey creates an API key, and its entry in the token file.
func newKey(name, principal, more string) (key, entry string) {
	key, hash := access.NewToken()
	return key, fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\nprincipal = %q\n%s\n", name, hash, principal, more)
}

// start starts a boxd with the principals agent and other, which have keys of their own, and viewer, which may only read. more is
// configuration that follows the table [e2b], and may begin with keys of that table. Whether this host has ipykernel only matters
// to tests that request it.
func start(t *testing.T, more ...string) *host {
	t.Helper()
	h := &host{address: boxtest.FreeAddress(t, "127.0.0.1"), tokens: filepath.Join(boxtest.TempDir(t), "tokens"), keys: map[string]string{}, entries: map[string]string{}}
	for _, who := range [][3]string{{"agent", "agent", ""}, {"second", "agent", ""}, {"other", "other", ""}, {"viewer", "agent", `role = "viewer"`}, {"listing", "agent", `routes = ["GET /v1/sessions*"]`}} {
		h.keys[who[0]], h.entries[who[0]] = newKey(who[0], who[1], who[2])
	}
	h.writeTokens(t)
	kernel := "python_kernel = \"own\"\n"
	if strings.Contains(strings.Join(more, "\n"), "python_kernel") {
		kernel = ""
	}
	h.Daemon = boxtest.Start(t, fmt.Sprintf("[access]\ntokens = %q\n[principals.agent]\nrole = \"user\"\n[principals.other]\nrole = \"user\"\n[profiles.e2b]\nnetwork = \"off\"\n[e2b]\nlisten = %q\n%s%s", h.tokens, h.address, kernel, strings.Join(more, "\n")))
	return h
}

func (h *host) writeTokens(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for _, entry := range h.entries {
		text.WriteString(entry)
	}
	if err := os.WriteFile(h.tokens, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// withoutKey removes a key.
func (h *host) withoutKey(t *testing.T, name string) {
	t.Helper()
	delete(h.entries, name)
	h.writeTokens(t)
	if err := syscall.Kill(h.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// sandbox is a sandbox that a test has created.
type sandbox struct {
	host    *host
	ID      string `json:"sandboxID"`
	Token   string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
}

// asks sends a request to the control plane, and returns status, body and header.
func (h *host) asks(t *testing.T, who, method, path, body string) (int, string, http.Header) {
	t.Helper()
	return h.sends(t, method, path, body, "X-Api-Key", h.keys[who])
}

// sends sends a request with headers.
func (h *host) sends(t *testing.T, method, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	status, text, head, err := h.tries(t, method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return status, text, head
}

// tries is like sends, for a request whose answer may be cut off, as its key is removed meanwhile.
func (h *host) tries(t *testing.T, method, path, body string, header ...string) (int, string, http.Header, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, "", nil, fmt.Errorf("%s %s: %w after %d bytes", method, path, err, len(data))
	}
	return r.StatusCode, string(data), r.Header, nil
}

// create creates a sandbox.
func (h *host) create(t *testing.T, who, body string) *sandbox {
	t.Helper()
	status, text, _ := h.asks(t, who, "POST", "/v2/sandboxes", body)
	sb := &sandbox{host: h}
	if status != http.StatusCreated || json.Unmarshal([]byte(text), sb) != nil || sb.ID == "" || sb.Token == "" || sb.Traffic == "" {
		t.Fatalf(`create %s: status = %d, text = %s, want status == 201 and json.Unmarshal([]byte(text), sb) == nil and sb.ID != "" and sb.Token != "" and sb.Traffic != ""`,
			body, status, text)
	}
	return sb
}

// of returns the headers of a request for a port of the sandbox, with its access token.
func (sb *sandbox) of(port string) []string {
	return []string{"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", port, "X-Access-Token", sb.Token}
}

// RoundTrip adds these headers.
func (sb *sandbox) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for list := sb.of("49983"); len(list) > 0; list = list[2:] {
		r.Header.Set(list[0], list[1])
	}
	return http.DefaultTransport.RoundTrip(r)
}

// processes returns a client for the sandbox's processes.
func (sb *sandbox) processes(options ...connect.ClientOption) protocol.ProcessClient {
	return protocol.NewProcessClient(&http.Client{Transport: sb}, "http://"+sb.host.address, options...)
}

// filesystem returns a client for the sandbox's files.
func (sb *sandbox) filesystem(options ...connect.ClientOption) protocol.FilesystemClient {
	return protocol.NewFilesystemClient(&http.Client{Transport: sb}, "http://"+sb.host.address, options...)
}

// ending is the outcome of a process.
type ending struct {
	pid            uint32
	stdout, stderr bytes.Buffer
	end            *protocol.ProcessEvent_EndEvent
}

// start starts a process and reads its events until it ends.
func (sb *sandbox) start(ctx context.Context, req *protocol.StartRequest, options ...connect.ClientOption) (*ending, error) {
	stream, err := sb.processes(options...).Start(ctx, req)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	o := &ending{}
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().GetEvent().(type) {
		case *protocol.ProcessEvent_Start:
			o.pid = e.Start.Pid
		case *protocol.ProcessEvent_Data:
			o.stdout.Write(e.Data.GetStdout())
			o.stdout.Write(e.Data.GetPty())
			o.stderr.Write(e.Data.GetStderr())
		case *protocol.ProcessEvent_End:
			o.end = e.End
		}
	}
	return o, stream.Err()
}

// sh runs a shell line as the SDKs do.
func (sb *sandbox) sh(t *testing.T, line string) *ending {
	t.Helper()
	o, err := sb.start(t.Context(), shell(line))
	if err != nil || o.end == nil {
		t.Fatalf("%s: err = %v, o = %+v, want no error and o.end != nil", line, err, o)
	}
	return o
}

func shell(line string) *protocol.StartRequest {
	no := false
	return &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", line}}, Stdin: &no}
}
