// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// buildByTLS is like build, with NATS over TLS and with credentials, and a gateway over TLS that accepts client certificates.
func buildByTLS(t *testing.T, nodes int) *house {
	t.Helper()
	return (&house{t: t, dir: boxtest.TempDir(t)}).fillByTLS(nodes)
}

func (h *house) fillByTLS(nodes int) *house {
	h.t.Helper()
	h.ca, h.issuer = boxtest.NewAuthority(h.t), boxtest.NewNATSIssuer(h.t)
	certificate, key := h.ca.Server()
	h.nats = startNATS(h.t, filepath.Join(h.dir, "nats"), anyPort, h.issuer.Config+fmt.Sprintf("tls { cert_file: %q, key_file: %q }\n", certificate, key))
	return h.fill(nodes)
}

// Clients of E2B and of LangBot use a gateway by TLS as they do without, and get nothing without TLS or from a server that they do not know.
func TestClientsOfE2BAndLangBotComeByTLS(t *testing.T) {
	t.Parallel()
	h := (&house{t: t, dir: boxtest.TempDir(t), e2b: boxtest.FreeAddress(t, "127.0.0.1"), bot: boxtest.FreeAddress(t, "127.0.0.1")}).fillByTLS(1)

	sb := h.sandbox(h.token, "n1", `{"timeout":300}`)
	big := strings.Repeat("0123456789abcdef", 1<<14)
	if got := sb.runs("cd /tmp; head -c 262144 /dev/zero | tr '\\0' x > big; wc -c < big; echo by TLS"); got != "262144\nby TLS\n" {
		t.Errorf(`got = %q, want "262144\nby TLS\n"`, got)
	}
	if a := h.sends("GET", "/files?path=/tmp/big", "", sb.on("49983")...); a.code != http.StatusOK || a.text != strings.Repeat("x", 262144) {
		t.Errorf("a.code = %d, %d bytes, want a.code == 200 and 262144 bytes", a.code, len(a.text))
	}
	if a := h.sends("GET", sb.signed("/tmp/big", "read"), ""); a.code != http.StatusOK || len(a.text) != 262144 {
		t.Errorf("a signed address: a.code = %d, %d bytes, want a.code == 200 and 262144 bytes", a.code, len(a.text))
	}
	cert, private := h.ca.Client(time.Hour, "DNS:ci.example.org")
	pair, err := tls.LoadX509KeyPair(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	shown := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.ca.Roots(), Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true}}
	resp, err := shown.Get("https://" + h.e2b + "/v2/sandboxes")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("a certificate is no key: resp = %+v, err = %v, want no error and resp.StatusCode == 401", resp, err)
	}
	resp.Body.Close()

	b := dialsBy(t, h.http(), "wss://"+h.bot, "w1", 1)
	b.gets("box_init", `{"backend":"boxd"}`, nil)
	b.eventually("box_create_session", created)
	if got := b.runs("printf %s byTLS"); got != "byTLS" {
		t.Errorf(`got = %q, want "byTLS"`, got)
	}
	b.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"p","command":"sh","args":["-c","while read -r l; do echo \"got $l\"; done"]}}`, nil)
	ws, _, err := websocket.Dial(t.Context(), "wss://"+h.bot+"/v1/sessions/"+b.physical()+"/managed-process/p/ws", &websocket.DialOptions{ //nolint:bodyclose // the library has it
		HTTPClient: h.http(), HTTPHeader: botHeader(wire.HeaderWorkspace, "w1", wire.HeaderGeneration, "1"), Subprotocols: []string{"mcp"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(big)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(t.Context()); err != nil || string(got) != "got "+big+"\n" {
		t.Errorf("%d bytes, %v, want no error and %d bytes", len(got), err, len("got "+big+"\n"))
	}

	for _, address := range []string{h.e2b, h.bot} {
		if a := boxtest.Get(t, "http://"+address+"/", nil); a.Code != http.StatusBadRequest {
			t.Errorf("%s without TLS: a.Code = %d, want 400", address, a.Code)
		}
		if _, err := http.Get("https://" + address + "/"); !errors.As(err, new(x509.UnknownAuthorityError)) { //nolint:bodyclose // there is none
			t.Errorf("%s, whose authority is not known: err = %v, want an x509.UnknownAuthorityError", address, err)
		}
	}
}

// Everything over TLS: NATS with credentials, and callers with certificates, whose names map to principals.
func TestCallersComeByCertificates(t *testing.T) {
	t.Parallel()
	h := buildByTLS(t, 1)
	by := func(ca *boxtest.Authority, names ...string) *client.Client {
		c := client.New(h.base())
		c.TLS.CA = h.ca.File
		if ca != nil {
			c.TLS.Certificate, c.TLS.Key = ca.Client(time.Hour, names...)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := by(h.ca, "DNS:ci.example.org", "CN:anything")
	useByCertificate(t, c)
	if claim := h.where("s"); claim.Owner != "ci" || claim.Node != "n1" {
		t.Errorf(`claim = %+v, want claim.Owner == "ci" and claim.Node == "n1"`, claim)
	}
	cert, key := h.ca.Client(time.Hour, "DNS:ci.example.org")
	out, err := h.nodes[0].boxd.Boxctl(t, "--socket", h.base(), "--tls-ca", h.ca.File, "--tls-cert", cert, "--tls-key", key, "exec", "s", "--", "echo", "by", "boxctl").CombinedOutput()
	if err != nil || string(out) != "by boxctl\n" {
		t.Errorf(`out = %s, err = %v, want no error and out == "by boxctl\n"`, out, err)
	}
	refusedWithoutCertificate(t, h.ca, by)
	// A token works too, and takes precedence over the certificate.
	if code := h.get("GET", "/v1/sessions/s", nil, nil); code != http.StatusOK {
		t.Error(code)
	}
	wrong := by(h.ca, "DNS:ci.example.org")
	wrong.Token = "boxd_wrong"
	if _, err := wrong.Sessions(t.Context(), false); err == nil || !strings.Contains(err.Error(), "unknown, expired or revoked token") {
		t.Errorf(`err = %v, want an error containing "unknown, expired or revoked token"`, err)
	}
	// A web page of another origin may not use a browser's certificate.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.base()+"/v1/sessions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "https://example.org")
	req.Header.Set("Authorization", "Bearer "+h.token)
	resp, err := h.http().Do(req)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("resp = %+v, err = %v, want no error and resp.StatusCode == 403", resp, err)
	}
	resp.Body.Close()
}

// useByCertificate creates and uses a session, as ci by its certificate.
func useByCertificate(t *testing.T, c *client.Client) {
	t.Helper()
	s, _, err := c.CreateSession(t.Context(), &api.SessionRequest{ID: "s"})
	if err != nil || s.Owner != "ci" {
		t.Fatalf(`s = %+v, err = %v, want no error and s.Owner == "ci"`, s, err)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	var got strings.Builder
	r, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{Argv: []string{"cat"}}, client.Stdio{Stdin: strings.NewReader(big), Stdout: &got}, nil)
	if err != nil || got.String() != big || r.Status != "exited" {
		t.Errorf("%d bytes, %+v, %v", got.Len(), r, err)
	}
}

// toolsByCertificate has ci call an MCP tool: it calls boxd again in the name of the certificate's principal.
func toolsByCertificate(t *testing.T, address string, ca *boxtest.Authority) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(ca.Client(time.Hour, "DNS:ci.example.org"))
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Roots(), Certificates: []tls.Certificate{pair}}}}
	defer c.CloseIdleConnections()
	id := ""
	say := func(message string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/mcp?session=s", strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if id != "" {
			req.Header.Set("Mcp-Session-Id", id)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		id = cmp.Or(resp.Header.Get("Mcp-Session-Id"), id)
		return string(body)
	}
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if text := say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"echo $((6*7))"}}}`); !strings.Contains(text, "42") {
		t.Errorf(`text = %q, want text containing "42"`, text)
	}
}

// refusedWithoutCertificate tries clients that must all be refused.
func refusedWithoutCertificate(t *testing.T, stand *boxtest.Authority, by func(*boxtest.Authority, ...string) *client.Client) {
	t.Helper()
	stranger := boxtest.NewAuthority(t)
	trusting := by(nil)
	trusting.TLS.CA = stranger.File
	missing := by(nil)
	missing.TLS.Certificate = filepath.Join(t.TempDir(), "none.pem")
	for _, tc := range []struct {
		name    string
		c       *client.Client
		message string
	}{
		{"nothing", by(nil), "missing, unknown, expired or revoked token"},
		{"another name", by(stand, "DNS:other.example.org"), `no principal has a name of the client certificate, "DNS:other.example.org"`},
		{"of a stranger", by(stranger, "DNS:ci.example.org"), "does not accept the client certificate"},
		{"a server that a stranger should have signed", trusting, "is not signed by an authority in " + stranger.File},
		{"a file that is missing", missing, "none.pem"},
	} {
		_, err := tc.c.Sessions(t.Context(), false)
		if err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: err = %v, want an error containing %q", tc.name, err, tc.message)
		}
	}
}

// A single boxd serves callers from other hosts too, with the same certificates.
func TestOneBoxdByTLS(t *testing.T) {
	t.Parallel()
	ca := boxtest.NewAuthority(t)
	certificate, key := ca.Server()
	address := boxtest.FreeAddress(t, "127.0.0.1")
	d := boxtest.StartWith(t, fmt.Sprintf("https = %q\ncertificate = %q\nprivate_key = %q\nclient_ca = %q\nhttp_insecure = true\n", address, certificate, key, ca.File), boxtest.BestEffort, `
[principals.ci]
role = "user"
certificates = ["DNS:ci.example.org"]
`)
	by := func(signs *boxtest.Authority, names ...string) *client.Client {
		c := client.New("https://" + address)
		c.TLS.CA = ca.File
		if signs != nil {
			c.TLS.Certificate, c.TLS.Key = signs.Client(time.Hour, names...)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := by(ca, "DNS:ci.example.org")
	useByCertificate(t, c)
	refusedWithoutCertificate(t, ca, by)
	toolsByCertificate(t, "https://"+address, ca)
	insecure := client.New("http://" + address)
	defer insecure.Close()
	if _, err := insecure.Sessions(t.Context(), false); err == nil || !strings.Contains(err.Error(), "must begin with https://") {
		t.Errorf(`err = %v, want an error containing "must begin with https://"`, err)
	}
	// If the principal loses the certificate's name, the client's running requests are ended, and it is refused.
	text, err := os.ReadFile(d.Config)
	if err == nil {
		err = os.WriteFile(d.Config, []byte(strings.Replace(string(text), "DNS:ci.example.org", "DNS:next.example.org", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{Argv: []string{"sh", "-c", "echo; sleep 1000"}}, client.Stdio{Stdout: closing{started}}, nil)
		ended <- err
	}()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the stream of the removed principal was not ended")
	}
	if _, err := c.Sessions(t.Context(), false); err == nil || !strings.Contains(err.Error(), "no principal has a name") {
		t.Errorf(`err = %v, want an error containing "no principal has a name"`, err)
	}
	if s, err := by(ca, "DNS:next.example.org").Session(t.Context(), "s"); err != nil || s.Owner != "ci" {
		t.Errorf(`s = %+v, err = %v, want no error and s.Owner == "ci"`, s, err)
	}
}

// A revoked certificate is refused, by a boxd and by a gateway, and the requests running under it are ended.
func TestRevokedCertificatesEndWhatGoesOn(t *testing.T) {
	t.Parallel()
	h := buildByTLS(t, 1)
	revokedAt(t, h.ca, h.base(), filepath.Join(h.dir, "gateway.crl"), h.gate.reload)
}

func TestOneBoxdEndsWhatIsRevoked(t *testing.T) {
	t.Parallel()
	ca := boxtest.NewAuthority(t)
	certificate, key := ca.Server()
	address, list := boxtest.FreeAddress(t, "127.0.0.1"), filepath.Join(boxtest.TempDir(t), "crl")
	replaceFile(t, list, ca.Revoked(time.Hour))
	d := boxtest.StartWith(t, fmt.Sprintf("https = %q\ncertificate = %q\nprivate_key = %q\nclient_ca = %q\nclient_crl = %q\n", address, certificate, key, ca.File, list), boxtest.BestEffort, `
[principals.ci]
role = "user"
certificates = ["DNS:ci.example.org"]
`)
	revokedAt(t, ca, "https://"+address, list, func() {
		if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	})
}

// replaceFile replaces a file atomically.
func replaceFile(t testing.TB, file string, text []byte) {
	t.Helper()
	err := os.WriteFile(file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// revokedAt has an authority revoke a client's certificate while that client runs a program, and the listener reload the list.
func revokedAt(t *testing.T, ca *boxtest.Authority, address, list string, reload func()) {
	t.Helper()
	by := func() (*client.Client, string) {
		c := client.New(address)
		c.TLS.CA = ca.File
		c.TLS.Certificate, c.TLS.Key = ca.Client(time.Hour, "DNS:ci.example.org")
		t.Cleanup(c.Close)
		return c, c.TLS.Certificate
	}
	c, file := by()
	useByCertificate(t, c)
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{Argv: []string{"sh", "-c", "echo; sleep 1000"}}, client.Stdio{Stdout: closing{started}}, nil)
		ended <- err
	}()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	replaceFile(t, list, ca.Revoked(time.Hour, file))
	reload()
	if err := <-ended; err == nil {
		t.Error("the stream with the revoked certificate was not ended")
	}
	if _, err := c.Sessions(t.Context(), false); err == nil || !strings.Contains(err.Error(), "has revoked the client certificate") {
		t.Errorf(`err = %v, want an error containing "has revoked the client certificate"`, err)
	}
	next, _ := by()
	if s, err := next.Session(t.Context(), "s"); err != nil || s.Owner != "ci" {
		t.Errorf(`s = %+v, err = %v, want no error and s.Owner == "ci"`, s, err)
	}
}

// closing closes a channel on the first write.
type closing struct{ c chan struct{} }

func (c closing) Write(p []byte) (int, error) {
	close(c.c)
	return len(p), nil
}

// Invalid credentials, or a wrong server, are logged; boxd goes on without its fleet, and the agent reconnects once the files are
// right.
func TestCredentialsThatAreWrong(t *testing.T) {
	t.Parallel()
	h := buildByTLS(t, 1)
	n := h.nodes[0]
	right, err := os.ReadFile(h.ca.File)
	if err != nil {
		t.Fatal(err)
	}
	strange, err := os.ReadFile(boxtest.NewAuthority(t).File)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, file     string
		wrong          func() string
		right, message string
	}{
		{"of another operator", "n1.creds", func() string { return boxtest.NewNATSIssuer(t).Credentials(time.Hour, nil, nil) }, h.issuer.Credentials(time.Hour, nil, nil), "do not accept the credentials in " + filepath.Join(h.dir, "n1.creds")},
		{"expired", "n1.creds", func() string { return h.issuer.Credentials(-time.Hour, nil, nil) }, h.issuer.Credentials(time.Hour, nil, nil), "do not accept the credentials"},
		{"that expire", "n1.creds", func() string { return h.issuer.Credentials(4*time.Second, nil, nil) }, h.issuer.Credentials(time.Hour, nil, nil), "do not accept the credentials"},
		{"no file", "n1.creds", func() string { return "" }, h.issuer.Credentials(time.Hour, nil, nil), "n1.creds"},
		{"another server", "n1.ca", func() string { return string(strange) }, string(right), "the certificate of the server is not signed by a CA in " + filepath.Join(h.dir, "n1.ca")},
	} {
		n.agent.kill()
		h.write("n1.log", "")
		h.write(tc.file, tc.wrong())
		n.agent.start()
		boxtest.Eventually(t, tc.name+": the log of the agent says what is wrong with its credentials", func() bool {
			text, err := os.ReadFile(filepath.Join(h.dir, "n1.log"))
			return err == nil && strings.Contains(string(text), tc.message)
		})
		id := strings.ReplaceAll(tc.name, " ", "-")
		if _, _, err := n.boxd.CreateSession(t.Context(), &api.SessionRequest{ID: id}); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if r, err := n.boxd.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"echo", "alone"}}); err != nil || r.Stdout != "alone\n" {
			t.Errorf(`%s: r = %+v, err = %v, want no error and r.Stdout == "alone\n"`, tc.name, r, err)
		}
		h.write(tc.file, tc.right)
		boxtest.Eventually(t, tc.name+": the node is back", func() bool {
			var s struct{ ID string }
			code := h.get("POST", "/v1/sessions", map[string]any{"wait": "0s"}, &s)
			return code == http.StatusCreated
		})
	}
}
