// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// largeAnswer is the size of /large, in bytes.
const largeAnswer = 16 << 20

// webCertificate is the servers' certificate, for names below example.
var webCertificate = sync.OnceValue(func() tls.Certificate { //nolint:gochecknoglobals // of all worlds
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	own := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"*.example"}}
	cert, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}
})

// webs serve connections to web4, web6 and webOther4, by port.
var webs = sync.OnceValue(func() map[string]chan net.Conn { //nolint:gochecknoglobals // of all worlds
	queues := map[string]chan net.Conn{"80": make(chan net.Conn), "443": make(chan net.Conn)}
	cfg := &tls.Config{Certificates: []tls.Certificate{webCertificate()}}
	for port, queue := range queues {
		var l net.Listener = &queued{queue}
		if port == "443" {
			l = tls.NewListener(l, cfg)
		}
		go func() { _ = http.Serve(l, http.HandlerFunc(answerWeb)) }() // until the end of the tests
	}
	return queues
})

// answerWeb answers with the name that a request was for, and the connection by which it came.
func answerWeb(w http.ResponseWriter, r *http.Request) {
	name := "-"
	if r.TLS != nil {
		name = r.TLS.ServerName
	}
	if answerIndex(w, r) {
		return
	}
	switch r.URL.Path {
	case "/large":
		_, _ = io.CopyN(w, zeros{}, largeAnswer)
	case "/s", "/swap":
		answerSecret(w, r)
	case "/count":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "got %d\n", n)
	default:
		fmt.Fprintf(w, "web %s %s %s\n", r.Host, name, r.URL)
	}
}

type queued struct{ conns chan net.Conn }

func (q *queued) Accept() (net.Conn, error) { return <-q.conns, nil }
func (q *queued) Close() error              { return nil }
func (q *queued) Addr() net.Addr            { return &net.TCPAddr{} }

// isWeb passes a connection to one of these servers.
func isWeb(c net.Conn, port string) bool {
	host, _, _ := net.SplitHostPort(c.LocalAddr().String())
	if !strings.HasPrefix(host, web4[:len(web4)-1]) && host != web6 {
		return false
	}
	queue, ok := webs()[port]
	if ok {
		queue <- c
	}
	return ok
}

// answerSecret answers with a digest of the request's secret header, sends that header back in another, and reports placeholders
// in places where they are not replaced.
func answerSecret(w http.ResponseWriter, r *http.Request) {
	said := ""
	for name, values := range r.Header {
		if name == "Authorization" || strings.HasPrefix(name, "X-") {
			said = values[0]
		}
	}
	if r.URL.Path == "/swap" {
		c, b, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n%s\n", sum(said))
			line, _ := b.ReadString('\n')
			_, _ = io.WriteString(c, line)
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	where := "-"
	if strings.Contains(r.URL.String(), "boxd-secret-") {
		where = "url"
	}
	if strings.Contains(string(body), "boxd-secret-") {
		where = "body"
	}
	w.Header().Set("X-Echo", said)
	fmt.Fprintf(w, "%s %s\n", sum(said), where)
}
