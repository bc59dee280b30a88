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

// certificatePrefix begins Pass.Token for a caller with a certificate. No token of this host has such a name.
const certificatePrefix = "certificate:"

// maxCertificateName is the longest name of a certificate, in bytes.
const maxCertificateName = 512

// certificateNameRule describes a valid name in certificates.
const certificateNameRule = "CN:, DNS:, email: or URI: and a name, such as DNS:ci.example.org"

// readCertificateName reads a name from box.toml, written as openssl-x509(1) prints it. Host names become lower case.
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

// certificateNames returns the names of a certificate, in the form of readCertificateName.
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

// certified authenticates the bearer of a certificate that one of our CAs signed. The names are no secret to the bearer, so
// errors say why they are not accepted.
func (s *State) certified(chain []*x509.Certificate, lists []*revocationList, now time.Time) (Pass, error) {
	c := chain[0]
	names := certificateNames(c)
	all := fault.Show(strings.Join(names, ", "))
	if now.Before(c.NotBefore) || !now.Before(c.NotAfter) {
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: the client certificate %s is valid from %s to %s, now it is %s", all,
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
			return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: client certificate %s matches two principals, %s and %s", all, principal, other).
				WithHint("the operator must leave one of its names out of certificates in [principals.NAME]")
		case principal == "":
			by, principal = name, other
		}
	}
	if principal == "" {
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: no principal has a name of the client certificate, %s", all).
			WithHint("the operator can add one of them to certificates in [principals.NAME]")
	}
	owner, _ := s.rules.OfName(principal) // it has the table that lists the certificate
	return Pass{Principal: owner, Token: certificatePrefix + by, Until: c.NotAfter}, nil
}

// recertified authenticates again a caller that had a certificate of that name, given as Pass.Token has it.
func (s *State) recertified(name string) (Pass, bool) {
	name, ok := strings.CutPrefix(name, certificatePrefix)
	if !ok {
		return Pass{}, false
	}
	principal, ok := s.rules.OfName(s.rules.certificates[name])
	return Pass{Principal: principal, Token: certificatePrefix + name}, ok
}

// Via returns how a caller with this Pass.Token was authenticated, for the audit log.
func Via(token string) string {
	if strings.HasPrefix(token, certificatePrefix) {
		return token
	}
	return "token:" + token
}

// SameOrigin refuses a TLS request for a host when a page of another origin made the browser send it, since the browser presents
// its user's certificate. The browser has verified that the host name is ours.
func SameOrigin(origins []string, host string) error {
	for _, origin := range origins {
		if !strings.EqualFold(origin, "https://"+host) {
			return fault.Field("Origin", origin, "left out, or the origin of boxd itself").Of(fault.Denied)
		}
	}
	return nil
}

// nameCertificates maps each certificate name in the rules to its principal.
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

// validateCertificates reports invalid certificate names of a rule; seen has the names of other rules.
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
