// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of the file of revocation lists.
const (
	maxRevocationFile  = 64 << 20 // bytes
	maxRevocationLists = 64
)

// revocations are the revocation lists (RFC 5280) of a file, which is read again when it has changed.
type revocations struct {
	path string // "": there is none

	mu     sync.Mutex
	stamp  fileStamp
	lists  []*revocationList
	handed time.Time // see certificates
}

// revocationList is the list of one CA.
type revocationList struct {
	*x509.RevocationList
	since map[string]time.Time // by serial number

	mu     sync.Mutex
	signed *x509.Certificate // the CA known to have signed it; nil: not checked yet
}

// readRevocations reads a file; path "" has no lists.
func readRevocations(path string) (*revocations, error) {
	r := &revocations{path: path}
	if path == "" {
		return r, nil
	}
	r.stamp, _ = stampOf(path)
	var err error
	if r.lists, err = readRevocationLists(path); err != nil {
		return nil, err
	}
	return r, nil
}

// now returns the current lists of the file; changed: they differ from the last ones. An unreadable file is logged once, and the
// previous lists stay in force.
func (r *revocations) now(log *slog.Logger) (lists []*revocationList, changed bool) {
	if r.path == "" {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.handed) < handedPause {
		return r.lists, false
	}
	stamp, handed := stampOf(r.path)
	if handed {
		r.handed = time.Now()
	}
	if stamp == r.stamp {
		return r.lists, false
	}
	before := r.stamp
	r.stamp = stamp
	next, err := readRevocationLists(r.path)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		r.stamp = before // the next caller may have a descriptor left
	}
	if err != nil {
		log.Error("the lists of revoked certificates have changed and cannot be used; keeping the old ones", "error", err)
		return r.lists, false
	}
	log.Info("the lists of revoked certificates have changed", "file", r.path)
	r.lists = next
	return next, true
}

// readRevocationLists reads a PEM file of lists.
func readRevocationLists(path string) ([]*revocationList, error) {
	f, err := durable.Open(path)
	if err != nil {
		return nil, fmt.Errorf("client_crl: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRevocationFile+1))
	if err == nil && len(data) > maxRevocationFile {
		err = fmt.Errorf("it has more than %d bytes, the limit", maxRevocationFile)
	}
	var lists []*revocationList
	if err == nil {
		lists, err = parseRevocationLists(data)
	}
	if err != nil {
		return nil, fmt.Errorf("client_crl %s: %w", path, err)
	}
	return lists, nil
}

func parseRevocationLists(data []byte) ([]*revocationList, error) {
	var lists []*revocationList
	for data = bytes.TrimSpace(data); len(data) > 0; data = bytes.TrimSpace(data) {
		block, rest := pem.Decode(data)
		if block == nil || block.Type != "X509 CRL" {
			return nil, errors.New("must have lists of revoked certificates (PEM, BEGIN X509 CRL) and nothing else")
		}
		if len(lists) == maxRevocationLists {
			return nil, fmt.Errorf("it has more than %d lists, the limit", maxRevocationLists)
		}
		l, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		for _, e := range l.Extensions { // such as those of a delta CRL
			if e.Critical {
				return nil, fmt.Errorf("the list of %s has the critical extension %v: must be a complete list", l.Issuer, e.Id)
			}
		}
		since := make(map[string]time.Time, len(l.RevokedCertificateEntries))
		for _, e := range l.RevokedCertificateEntries {
			since[e.SerialNumber.String()] = e.RevocationTime
		}
		l.RevokedCertificateEntries = nil // they are in since
		lists, data = append(lists, &revocationList{RevocationList: l, since: since}), rest
	}
	if len(lists) == 0 {
		return nil, errors.New("must have at least one list of revoked certificates (PEM)")
	}
	return lists, nil
}

// of reports whether the list is from a CA, by name and key.
func (l *revocationList) of(authority *x509.Certificate) bool {
	return bytes.Equal(l.RawIssuer, authority.RawSubject) &&
		(len(l.AuthorityKeyId) == 0 || len(authority.SubjectKeyId) == 0 || bytes.Equal(l.AuthorityKeyId, authority.SubjectKeyId))
}

// signedBy verifies that a CA has signed the list.
func (l *revocationList) signedBy(authority *x509.Certificate) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.signed != nil && l.signed.Equal(authority) {
		return nil
	}
	if err := l.CheckSignatureFrom(authority); err != nil {
		return err
	}
	l.signed = authority
	return nil
}

// revoked refuses a certificate chain if its CA has revoked one of the certificates, or if that is unknown: if the list is too
// old, or not signed by its CA. A CA without a list has revoked none.
func revoked(lists []*revocationList, chain []*x509.Certificate, now time.Time) error {
	for i := range len(chain) - 1 {
		c, authority := chain[i], chain[i+1]
		for _, l := range lists {
			if !l.of(authority) {
				continue
			}
			if err := l.refuses(c, authority, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *revocationList) refuses(c, authority *x509.Certificate, now time.Time) error {
	names, by := fault.Show(strings.Join(certificateNames(c), ", ")), fault.Show(authority.Subject.String())
	if err := l.signedBy(authority); err != nil {
		return fault.Errorf(fault.Unauthenticated, "authentication failed: cannot check whether the client certificate %s is revoked: the list in client_crl was not signed by %s: %w", names, by, err).
			WithHint("the operator must replace the list")
	}
	if !l.NextUpdate.IsZero() && now.After(l.NextUpdate) {
		return fault.Errorf(fault.Unauthenticated, "authentication failed: cannot check whether the client certificate %s is revoked: the list of %s in client_crl expired at %s, now it is %s", names, by,
			l.NextUpdate.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).WithHint("the operator must replace the list")
	}
	if since, ok := l.since[c.SerialNumber.String()]; ok {
		return fault.Errorf(fault.Unauthenticated, "authentication failed: %s has revoked the client certificate %s (number %x, %s)", by, names, c.SerialNumber, since.UTC().Format(time.RFC3339)).
			WithHint("use another certificate")
	}
	return nil
}
