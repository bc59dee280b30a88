// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// certificatePrefix begins what the pass of a caller with a certificate has for a token: no token of this host is called so.
const certificatePrefix = "certificate:"

// maxCertificateName is how long a name of a certificate may be, in bytes.
const maxCertificateName = 512

// certificateNameRule is what a name in certificates must be.
const certificateNameRule = "CN:, DNS:, email: or URI: and a name, such as DNS:ci.example.org"

// readCertificateName reads a name that box.toml gives, written as openssl-x509(1) prints it. Names of hosts have no capitals.
func readCertificateName(text string) (name string, ok bool) {
	kind, value, _ := strings.Cut(text, ":")
	if !slices.Contains([]string{"CN", "DNS", "email", "URI"}, kind) || value == "" || len(text) > maxCertificateName ||
		strings.TrimSpace(value) != value || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", false
	}
	if kind == "DNS" {
		return kind + ":" + strings.ToLower(value), true
	}
	return text, true
}

// certificateNames are those of a certificate, in the form of readCertificateName.
func certificateNames(c *x509.Certificate) []string {
	var list []string
	for _, u := range c.URIs {
		list = append(list, "URI:"+u.String())
	}
	for _, name := range c.DNSNames {
		list = append(list, "DNS:"+strings.ToLower(name))
	}
	for _, name := range c.EmailAddresses {
		list = append(list, "email:"+name)
	}
	if c.Subject.CommonName != "" {
		list = append(list, "CN:"+c.Subject.CommonName)
	}
	return list
}

// certified is who has shown a certificate that an authority of ours has signed. Its names are no secret to its bearer, who hears
// why they do not do.
func (s *State) certified(chain []*x509.Certificate, lists []*revocationList, now time.Time) (Pass, error) {
	c := chain[0]
	names := certificateNames(c)
	all := fault.Show(strings.Join(names, ", "))
	if now.Before(c.NotBefore) || !now.Before(c.NotAfter) {
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: the client certificate %s holds from %s to %s, and it is %s here", all,
			c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).
			WithHint("renew the certificate, or set the clock")
	}
	if err := revoked(lists, chain, now); err != nil {
		return Pass{}, err
	}
	var by, principal string
	for _, name := range names {
		switch other := s.rules.certificates[name]; {
		case other == "":
		case principal != "" && other != principal:
			return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: the client certificate %s is of two principals, %s and %s", all, principal, other).
				WithHint("the operator must leave one of its names out of certificates in [principals.NAME]")
		case principal == "":
			by, principal = name, other
		}
	}
	if principal == "" {
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: no principal has a name of the client certificate, %s", all).
			WithHint("the operator can add one of them to certificates in [principals.NAME]")
	}
	who, _ := s.rules.OfName(principal) // it has the table that named the certificate
	return Pass{Principal: who, Token: certificatePrefix + by, Until: c.NotAfter}, nil
}

// recertified is who had a certificate of that name, as its pass has it for a token.
func (s *State) recertified(name string) (Pass, bool) {
	name, ok := strings.CutPrefix(name, certificatePrefix)
	if !ok {
		return Pass{}, false
	}
	who, ok := s.rules.OfName(s.rules.certificates[name])
	return Pass{Principal: who, Token: certificatePrefix + name}, ok
}

// Via is how somebody was let in who has shown what a pass calls Token, for the audit log.
func Via(token string) string {
	if strings.HasPrefix(token, certificatePrefix) {
		return token
	}
	return "token:" + token
}

// SameOrigin refuses a request by TLS for a host that a page of another origin has a browser send: the browser shows the certificate
// of whoever sits before it. That the name of the host is ours the browser has made sure.
func SameOrigin(origins []string, host string) error {
	for _, origin := range origins {
		if !strings.EqualFold(origin, "https://"+host) {
			return fault.Field("Origin", origin, "left out, or the origin of boxd itself").Of(fault.Denied)
		}
	}
	return nil
}

// nameCertificates is the principal of each name that the rules give a certificate.
func nameCertificates(rules map[string]Rule) map[string]string {
	all := map[string]string{}
	for principal, r := range rules {
		for _, text := range r.Certificates {
			if name, ok := readCertificateName(text); ok {
				all[name] = principal
			}
		}
	}
	return all
}

// validateCertificates says what is wrong with the names of certificates of a rule; seen are those of others.
func validateCertificates(key, principal string, list []string, seen map[string]string, bad func(key string, value any, allowed string)) {
	for _, text := range list {
		name, ok := readCertificateName(text)
		switch {
		case !ok:
			bad(key+".certificates", fmt.Sprintf("%q", text), certificateNameRule)
		case seen[name] != "" && seen[name] != principal:
			bad(key+".certificates", fmt.Sprintf("%q", text), "a name that no other principal has ("+seen[name]+" has it)")
		}
		seen[name] = principal
	}
}
