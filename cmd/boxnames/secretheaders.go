// SPDX-License-Identifier: Apache-2.0

// Secrets are inserted into the headers of requests, in place of the placeholders that programs
// of the box use, and removed again from the headers of responses. Each secret is for certain
// hosts only; all others get the placeholder.

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// maxHeaders bounds the headers of a request, in bytes, after secrets are inserted.
const maxHeaders = 128 << 10

// errHeadersTooLong means that the headers of a request would be longer than maxHeaders.
var errHeadersTooLong = errors.New("the headers would be too long")

// secretSet are the secrets of one box. They do not change. A nil *secretSet has none.
type secretSet struct {
	cert  tls.Certificate
	hosts map[egress.Name]*secretHost
}

// secretHost holds the secrets for one host.
type secretHost struct {
	in, out *strings.Replacer // in replaces placeholders by secrets, out the other way
	longest int               // length of the longest secret, in bytes
	marks   []string          // the placeholders
	roots   *x509.CertPool    // nil: those of the host
}

// newSecretSet decodes what boxd has sent.
func newSecretSet(m *egress.Secrets) (*secretSet, error) {
	key, err := x509.ParsePKCS8PrivateKey(m.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("the key of the certificate: %w", err)
	}
	s := &secretSet{cert: tls.Certificate{Certificate: [][]byte{m.Certificate}, PrivateKey: key}, hosts: map[egress.Name]*secretHost{}}
	in, out := map[egress.Name][]string{}, map[egress.Name][]string{}
	for i := range m.List {
		one := &m.List[i]
		if one.Placeholder == "" || one.Value == "" {
			return nil, fmt.Errorf("secret %d has no placeholder, or no value", i)
		}
		for _, name := range one.Hosts {
			if s.hosts[name] == nil {
				s.hosts[name] = &secretHost{}
			}
			h := s.hosts[name]
			h.marks, h.longest = append(h.marks, one.Placeholder), max(h.longest, len(one.Value))
			in[name] = append(in[name], one.Placeholder, one.Value)
			out[name] = append(out[name], one.Value, one.Placeholder)
			if one.Authorities == "" {
				continue
			}
			if h.roots == nil {
				h.roots = x509.NewCertPool()
			}
			if !h.roots.AppendCertsFromPEM([]byte(one.Authorities)) {
				return nil, fmt.Errorf("secret %d: no CA certificates", i)
			}
		}
	}
	for name, h := range s.hosts {
		h.in, h.out = strings.NewReplacer(in[name]...), strings.NewReplacer(out[name]...)
	}
	return s, nil
}

// For returns the secrets for a host, nil if there are none.
func (s *secretSet) For(name egress.Name) *secretHost {
	if s == nil {
		return nil
	}
	return s.hosts[name]
}

// Serve returns the TLS configuration towards the box, in place of its hosts: HTTP/1.1 only.
func (s *secretSet) Serve() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{http1}}
}

// http1 is the ALPN name of HTTP/1.1.
const http1 = "http/1.1"

// Dial returns the TLS configuration towards the real host, whose certificate must be for exactly
// this name.
func (h *secretHost) Dial(name egress.Name) *tls.Config {
	return &tls.Config{ServerName: string(name), RootCAs: h.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{http1}}
}

// In inserts secrets into the values of request headers, also inside the base64 of basic
// authorization.
func (h *secretHost) In(header map[string][]string) error {
	size := 0
	for name, values := range header {
		for i, v := range values {
			size += len(name) + len(v) + h.growth(v)
			if size > maxHeaders { // check before making it
				return errHeadersTooLong
			}
			values[i] = h.in.Replace(v)
			if name != "Authorization" {
				continue
			}
			basic, grown, ok := h.basic(v)
			if size += grown; size > maxHeaders {
				return errHeadersTooLong
			}
			if ok {
				values[i] = basic
			}
		}
	}
	return nil
}

// growth returns by how much a text may grow, in bytes.
func (h *secretHost) growth(text string) (n int) {
	for _, m := range h.marks {
		n += strings.Count(text, m) * h.longest
	}
	return n
}

// scheme is how basic authorization starts, in any case (RFC 7617).
const scheme = "basic "

// basic inserts secrets into the user and password of basic authorization; ok if there are
// placeholders in them.
func (h *secretHost) basic(value string) (text string, grown int, ok bool) {
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", 0, false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value[len(scheme):]))
	if err != nil {
		return "", 0, false
	}
	grown = 2 * h.growth(string(plain))
	if grown == 0 || grown > maxHeaders {
		return "", grown, false
	}
	return value[:len(scheme)] + base64.StdEncoding.EncodeToString([]byte(h.in.Replace(string(plain)))), grown, true
}

// Out puts placeholders into response headers in which the host has sent secrets back.
func (h *secretHost) Out(header map[string][]string) {
	for _, values := range header {
		for i, v := range values {
			values[i] = h.out.Replace(v)
		}
	}
}
