// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// certificateOf returns the certificate in a file.
func certificateOf(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACertificateIsAPrincipal(t *testing.T) {
	t.Parallel()
	secret, list := token("low", "low", "")
	h := build(t, list)
	h.config.Principals["ci"] = access.Rule{Role: access.Operator, Certificates: []string{"URI:spiffe://example.org/ci", "DNS:CI.example.org"}}
	h.config.Principals["low"] = access.Rule{Role: access.Viewer, Certificates: []string{"CN:low", "email:low@example.org"}}
	h.gate.Use(h.state(list))
	ca := boxtest.NewAuthority(t)
	peer := func(life time.Duration, names ...string) *access.Peer {
		file, _ := ca.Client(life, names...)
		return &access.Peer{TLS: true, Certificates: []*x509.Certificate{certificateOf(t, file), certificateOf(t, ca.File)}}
	}
	for _, tc := range []struct {
		names []string
		want  string // a principal, or a part of the error
	}{
		{[]string{"URI:spiffe://example.org/ci"}, "ci"},
		{[]string{"DNS:ci.EXAMPLE.org", "CN:whatever"}, "ci"},
		{[]string{"CN:low"}, "low"},
		{[]string{"email:low@example.org"}, "low"},
		{[]string{"DNS:low"}, "no principal has a name of the client certificate, \"DNS:low\""},
		{[]string{"CN:ci.example.org"}, "no principal has a name"},
		{[]string{"email:LOW@example.org"}, "no principal has a name"},
		{[]string{"DNS:ci.example.org", "CN:low"}, "matches two principals, ci and low"},
		{nil, "no principal has a name"},
	} {
		p, err := h.gate.Identify(peer(time.Hour, tc.names...), nil)
		if err == nil && p.Name != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: p = %+v, err = %v, want (an error or p.Name == %v) and (no error or err containing %q)",
				tc.names, p, err, tc.want, tc.want)
		}
		if err != nil && fault.KindOf(err) != fault.Unauthenticated {
			t.Errorf("%v: err = %v, want no error or a fault.Unauthenticated error", tc.names, err)
		}
	}
	if _, err := h.gate.Identify(peer(-time.Hour, "CN:low"), nil); err == nil || !strings.Contains(err.Error(), "is valid from") {
		t.Errorf(`an expired certificate: err = %v, want an error containing "is valid from"`, err)
	}
	low := peer(time.Hour, "CN:low")
	p, err := h.gate.Identify(low, bearer(secret))
	if err != nil || p.Token != "low" {
		t.Errorf(`with a token too: p = %+v, err = %v, want no error and p.Token == "low"`, p, err)
	}
	p, err = h.gate.Identify(low, nil)
	if err != nil || p.Token != "certificate:CN:low" || !p.Until.Equal(low.Certificates[0].NotAfter) || p.Role != access.Viewer {
		t.Fatalf(`p = %+v, err = %v, want no error and p.Token == "certificate:CN:low" and p.Until.Equal(low.Certificates[0].NotAfter) and p.Role == access.Viewer`,
			p, err)
	}
	if again := h.gate.Reauthenticate(&access.Peer{}, p.Token); again.Name != "low" {
		t.Errorf(`again = %+v, want again.Name == "low"`, again)
	}
	// When its name is removed from the configuration, a running call ends and the certificate is no longer accepted.
	ctx, release := h.gate.Watch(t.Context(), &p, func() (time.Time, error) {
		now, err := h.gate.Identify(low, nil)
		return now.Until, err
	})
	defer release()
	h.config.Principals["low"] = access.Rule{Role: access.Viewer}
	h.gate.Use(h.state(list))
	<-ctx.Done()
	if err := context.Cause(ctx); fault.KindOf(err) != fault.Unauthenticated {
		t.Errorf("err = %v, want a fault.Unauthenticated error", err)
	}
	if again := h.gate.Reauthenticate(&access.Peer{}, p.Token); !again.Anonymous() {
		t.Errorf("again = %+v, want again.Anonymous()", again)
	}
	// The loopback may be open to every user of the host, but not to other hosts.
	h.config.Open = true
	h.gate.Use(h.state(list))
	if p, err := h.gate.Identify(&access.Peer{TLS: true}, nil); err != nil || !p.Anonymous() {
		t.Errorf("without anything: p = %+v, err = %v, want no error and p.Anonymous()", p, err)
	}
	if p, err := h.gate.Identify(&access.Peer{}, nil); err != nil || p.Name != access.Guest {
		t.Errorf("on the loopback: p = %+v, err = %v, want no error and p.Name == access.Guest", p, err)
	}
}

func TestNamesOfCertificatesThatAreWrong(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "ci", "CN:", "CN: ci", "cn:ci", "IP:127.0.0.1", "DNS:a\nb", "CN:" + strings.Repeat("x", 600)} {
		err := access.ValidateRules(access.DefaultConfig(), map[string]access.Rule{"ci": {Certificates: []string{name}}})
		if err == nil || !strings.Contains(err.Error(), "principals.ci.certificates") || !strings.Contains(err.Error(), "DNS:") {
			t.Errorf(`%q: err = %v, want an error containing "principals.ci.certificates" and err containing "DNS:"`,
				name, err)
		}
	}
	err := access.ValidateRules(access.DefaultConfig(), map[string]access.Rule{"a": {Certificates: []string{"DNS:X", "DNS:x"}}, "b": {Certificates: []string{"DNS:x"}}})
	if err == nil || !strings.Contains(err.Error(), "a has it") {
		t.Errorf(`err = %v, want an error containing "a has it"`, err)
	}
	if _, err := access.ParseTokens("[[token]]\nname = \"certificate:CN:x\"\nsha256 = \"" + strings.Repeat("0", 64) + "\"\nprincipal = \"ci\"\n"); err == nil || !strings.Contains(err.Error(), "certificate:") {
		t.Errorf(`err = %v, want an error containing "certificate:"`, err)
	}
}

// A browser sends the user's certificate for any page, so requests from pages of other origins are refused.
func TestPagesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	for origin, fine := range map[string]bool{"https://boxd.example.org:5411": true, "http://boxd.example.org:5411": false, "https://example.org": false, "null": false} {
		if err := access.SameOrigin([]string{origin}, "boxd.example.org:5411"); (err == nil) != fine {
			t.Errorf("%q: err = %v, want (err == nil) == fine", origin, err)
		}
	}
	if err := access.SameOrigin(nil, "boxd.example.org"); err != nil {
		t.Errorf("no browser: %v", err)
	}
}

// A renewed certificate is used from the next connection on, and one that cannot be used changes nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	ca := boxtest.NewAuthority(t)
	cert, key := ca.Server()
	var log bytes.Buffer
	config, err := access.TLSFiles{Certificate: cert, PrivateKey: key, ClientCA: ca.File}.Config(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificateOf(t, ca.File))
	serial := func() string {
		t.Helper()
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		done := make(chan error, 1)
		go func() { done <- tls.Server(far, config).Handshake() }()
		c := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "localhost"})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	replace := func(file, by string) {
		text, err := os.ReadFile(by)
		if err == nil {
			err = os.WriteFile(file+".new", text, 0o600)
		}
		if err == nil {
			err = os.Rename(file+".new", file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	newCert, newKey := ca.Server()
	replace(cert, newCert) // which does not match the key
	if got := serial(); got != first || strings.Count(log.String(), "keeping the old one") != 1 {
		t.Errorf(`%s after %s: log = %s, want got == first and strings.Count(log.String(), "keeping the old one") == 1`,
			got, first, log.String())
	}
	replace(key, newKey)
	if got := serial(); got == first {
		t.Errorf("%s: log = %s, want got != %v", got, log.String(), first)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, f := range []access.TLSFiles{
		{Certificate: cert, PrivateKey: key}, {Certificate: cert, PrivateKey: newKey + "x"}, {Certificate: cert, PrivateKey: newKey, ClientCA: newKey}, {Certificate: newKey, PrivateKey: newKey},
	} {
		if _, err := f.Config(slog.Default()); err == nil {
			t.Errorf("%+v: no error", f)
		}
	}
}
