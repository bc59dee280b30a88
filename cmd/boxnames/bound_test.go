// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
)

const secretMark, secretValue = "boxd-secret-placeholder", "tiger-value"

// signed returns a self-signed certificate for a name, with its key in PKCS 8.
func signed(t *testing.T, name string) (cert tls.Certificate, key []byte, text string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, own, own, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// boundBench proxies connections to a host that has a secret and shows a certificate for shown.
func boundBench(t *testing.T, shown string, requests *atomic.Int32) (b *proxyBench, trusts *x509.CertPool) {
	t.Helper()
	theirs, _, text := signed(t, shown)
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Upgrade") != "" {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err == nil {
				defer c.Close()
				fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\nX-Echo: %s\r\n\r\n", r.Header.Get("Authorization"))
				_, _ = io.Copy(c, buf)
			}
			return
		}
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Late")
		fmt.Fprintf(w, "%s %s %s %s %t\n", r.Method, r.URL, r.Host, body, r.Header.Get("Authorization") == "Bearer "+secretValue)
		w.Header().Set("X-Late", r.Header.Get("Authorization"))
	}))
	up.TLS = &tls.Config{Certificates: []tls.Certificate{theirs}}
	up.Config.ErrorLog = log.New(io.Discard, "", 0)
	up.StartTLS()
	t.Cleanup(up.Close)
	ours, key, _ := signed(t, allowed)
	set, err := newSecretSet(&egress.Secrets{Key: "box", Certificate: ours.Certificate[0], PrivateKey: key, List: []egress.Secret{
		{Placeholder: secretMark, Value: secretValue, Hosts: []egress.Name{allowed}, Authorities: text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	trusts = x509.NewCertPool()
	leaf, err := x509.ParseCertificate(ours.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	trusts.AddCert(leaf)
	return openProxyWith(t, 443, proxyConfig{}, up.Listener.Addr().String(), func() *secretSet { return set }), trusts
}

func TestSecretsArePutIntoRequests(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	b, trusts := boundBench(t, allowed, &requests)
	say := func(text string, protocols ...string) string {
		t.Helper()
		c := tls.Client(b.dial(), &tls.Config{ServerName: allowed, RootCAs: trusts, NextProtos: protocols})
		defer c.Close()
		if _, err := io.WriteString(c, text); err != nil {
			return err.Error()
		}
		all, _ := io.ReadAll(c)
		return string(all)
	}
	const head, bearer = "Host: " + allowed + "\r\nConnection: close\r\n", "Authorization: Bearer " + secretMark + "\r\n"
	for _, c := range []struct{ text, want string }{
		{"GET /a?k=" + secretMark + " HTTP/1.1\r\n" + head + bearer + "\r\n", "GET /a?k=" + secretMark + " " + allowed + "  true"},
		{"POST / HTTP/1.1\r\n" + head + bearer + "Content-Length: 23\r\n\r\n" + secretMark, "POST / " + allowed + " " + secretMark + " true"},
		{"GET / HTTP/1.1\r\nHost: WWW.Allowed.example:443\r\nConnection: close\r\n\r\n", "GET / " + allowed + "  false"},
		{"GET / HTTP/1.1\r\nHost: other.example\r\n" + bearer + "\r\n", "421 Misdirected"},
		{"GET https://other.example/ HTTP/1.1\r\n" + head + bearer + "\r\n", "421 Misdirected"},
		{"GET / HTTP/1.1\r\nHost: " + allowed + ":80\r\n" + bearer + "\r\n", "421 Misdirected"},
		{"GET / HTTP/1.1\r\nHost: " + allowed + "\r\nHost: other.example\r\n" + bearer + "\r\n", "400 Bad"},
		{"CONNECT " + allowed + ":443 HTTP/1.1\r\nHost: " + allowed + "\r\n" + bearer + "\r\n", "421 Misdirected"},
		{"POST / HTTP/1.1\r\nHost: " + allowed + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400 Bad"},
		{"POST / HTTP/1.1\r\nHost: " + allowed + "\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", "501 "},
		{"GET / HTTP/1.1\r\n" + head + "X: " + strings.Repeat("y", 60_000) + "\r\nAuthorization: Bearer " + strings.Repeat(secretMark, 2900) + "\r\n\r\n", "431 "},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "421 "},
	} {
		got := say(c.text)
		if !strings.Contains(got, c.want) {
			t.Errorf("%.80q: %q, want %q", c.text, got, c.want)
		}
		if strings.Contains(got, secretValue) || strings.Contains(got, "103 Early") || strings.Contains(strings.ToLower(got), "x-late: ") {
			t.Errorf("%.80q: %q has a header that must be removed", c.text, got)
		}
		if strings.Contains(c.text, bearer) && strings.HasPrefix(got, "HTTP/1.1 200") && !strings.Contains(got, "X-Echo: Bearer "+secretMark) {
			t.Errorf("%.80q: %q, want its header back", c.text, got)
		}
	}
	if got := say("GET / HTTP/1.1\r\n"+head+"\r\n", "h2"); !strings.Contains(got, "no application protocol") {
		t.Errorf(`HTTP/2 alone: got %q, want got containing "no application protocol"`, got)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests reached the host", n)
	}
}

// A client that insists on HTTP/2, by its hello or by its first bytes, is refused, and the denial
// names the host.
func TestHTTP2IsRefusedAndReported(t *testing.T) {
	t.Parallel()
	for name, protocols := range map[string][]string{"hello": {"h2"}, "preface": nil, "both": {"h2", "http/1.1"}} {
		var requests atomic.Int32
		b, trusts := boundBench(t, allowed, &requests)
		c := tls.Client(b.dial(), &tls.Config{ServerName: allowed, RootCAs: trusts, NextProtos: protocols})
		text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
		if name == "both" {
			text = "GET / HTTP/1.1\r\nHost: " + allowed + "\r\nConnection: close\r\n\r\n"
		}
		_, _ = io.WriteString(c, text)
		_, _ = io.ReadAll(c)
		c.Close()
		b.mu.Lock()
		told := b.denied
		b.mu.Unlock()
		if name == "both" {
			if len(told) > 0 || requests.Load() != 1 {
				t.Errorf("%s: %+v, %d requests", name, told, requests.Load())
			}
			continue
		}
		if len(told) != 1 || told[0].Reason != egress.Unspoken || told[0].Asked != allowed || requests.Load() > 0 {
			t.Errorf("%s: %+v, %d requests", name, told, requests.Load())
		}
	}
}

func TestSecretsWorkWithAProtocolUpgrade(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	b, trusts := boundBench(t, allowed, &requests)
	c := tls.Client(b.dial(), &tls.Config{ServerName: allowed, RootCAs: trusts})
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: upgrade\r\nUpgrade: x\r\nAuthorization: Bearer %s\r\n\r\n", allowed, secretMark)
	r := bufio.NewReader(c)
	got, err := http.ReadResponse(r, nil) //nolint:bodyclose // there is none
	if err != nil || got.StatusCode != http.StatusSwitchingProtocols || got.Header.Get("X-Echo") != "Bearer "+secretMark {
		t.Fatalf(`got %+v, err = %v, want no error and got.StatusCode == 101 and got.Header.Get("X-Echo") == "Bearer " + secretMark`,
			got, err)
	}
	fmt.Fprintln(c, "hello")
	if line, err := r.ReadString('\n'); line != "hello\n" {
		t.Errorf(`line = %q, err = %v, want line == "hello\n"`, line, err)
	}
	b.server.closeConns() // as when a secret is removed
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("the connection was not closed")
	}
}

func TestAHostWithAnotherCertificateGetsNoSecret(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	b, trusts := boundBench(t, "other.example", &requests)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusts}, DialContext: func(context.Context, string, string) (net.Conn, error) { return b.dial(), nil }}}
	got, err := client.Get("https://" + allowed + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	if got.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), "certificate") || requests.Load() != 0 {
		t.Errorf("%d %q, and %d requests", got.StatusCode, text, requests.Load())
	}
}
