// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// replaceFile replaces a file atomically.
func replaceFile(t *testing.T, file, text string) {
	t.Helper()
	err := os.WriteFile(file+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A certificate revoked by its authority is refused, and running calls that use it end. A list that is out of date refuses its
// authority's other certificates too.
func TestRevokedCertificatesLetNobodyIn(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	ca := boxtest.NewAuthority(t)
	h.config.Principals["ci"] = access.Rule{Role: access.Operator, Certificates: []string{"DNS:ci", "DNS:next"}}
	h.config.Revoked = filepath.Join(h.dir, "crl")
	shown := func(signs *boxtest.Authority, name string) (string, *access.Peer) {
		file, _ := signs.Client(time.Hour, name)
		return file, &access.Peer{TLS: true, Certificates: []*x509.Certificate{certificateOf(t, file), certificateOf(t, signs.File)}}
	}
	file, ci := shown(ca, "DNS:ci")
	_, next := shown(ca, "DNS:next")
	_, foreign := shown(boxtest.NewAuthority(t), "DNS:ci") // its authority has the same name, and another key
	replaceFile(t, h.config.Revoked, string(ca.Revoked(time.Hour)))
	h.gate.Use(h.state(""))
	p, err := h.gate.Identify(ci, nil)
	if err != nil || p.Name != "ci" {
		t.Fatalf(`p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	ctx, release := h.gate.Watch(t.Context(), &p, func() (time.Time, error) {
		now, err := h.gate.Identify(ci, nil)
		return now.Until, err
	})
	defer release()
	replaceFile(t, h.config.Revoked, string(ca.Revoked(time.Hour, file)))
	if p, err := h.gate.Identify(next, nil); err != nil || p.Name != "ci" { // whose call makes the gate read the file again
		t.Errorf(`another of the authority: p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !strings.Contains(err.Error(), `has revoked the client certificate "DNS:ci"`) {
		t.Errorf("err = %v, want err containing `has revoked the client certificate \"DNS:ci\"`", err)
	}
	if _, err := h.gate.Identify(ci, nil); fault.KindOf(err) != fault.Unauthenticated || !strings.Contains(err.Error(), "has revoked") {
		t.Errorf(`err = %v, want a fault.Unauthenticated error and err containing "has revoked"`, err)
	}
	if p, err := h.gate.Identify(foreign, nil); err != nil || p.Name != "ci" {
		t.Errorf(`of an authority without a list: p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	replaceFile(t, h.config.Revoked, "-----BEGIN X509 CRL-----\n")
	if _, err := h.gate.Identify(ci, nil); err == nil || !strings.Contains(h.log.String(), "keeping the old ones") {
		t.Errorf(`a file that cannot be read: err = %v, h.log = %s, want an error and h.log.String() containing "keeping the old ones"`,
			err, h.log)
	}
	replaceFile(t, h.config.Revoked, string(ca.Revoked(-time.Minute)))
	if _, err := h.gate.Identify(next, nil); err == nil || !strings.Contains(err.Error(), "cannot check whether the client certificate") {
		t.Errorf(`an outdated list: err = %v, want an error containing "cannot check whether the client certificate"`,
			err)
	}
}

// A list in the authority's name that it has not signed counts as no answer, so the certificate is refused.
func TestARevocationListThatItsIssuerHasNotSignedRefuses(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	ca, other := boxtest.NewAuthority(t), boxtest.NewAuthority(t)
	h.config.Principals["ci"] = access.Rule{Role: access.Operator, Certificates: []string{"DNS:ci"}}
	h.config.Revoked = filepath.Join(h.dir, "crl")
	file, _ := ca.Client(time.Hour, "DNS:ci")
	authority := *certificateOf(t, ca.File)
	authority.SubjectKeyId = nil // only the name says whose list it is
	peer := &access.Peer{TLS: true, Certificates: []*x509.Certificate{certificateOf(t, file), &authority}}
	replaceFile(t, h.config.Revoked, string(other.Revoked(time.Hour)))
	h.gate.Use(h.state(""))
	if _, err := h.gate.Identify(peer, nil); err == nil || !strings.Contains(err.Error(), "was not signed by") {
		t.Errorf(`err = %v, want an error containing "was not signed by"`, err)
	}
	replaceFile(t, h.config.Revoked, string(other.Revoked(time.Hour))+string(ca.Revoked(time.Hour)))
	if _, err := h.gate.Identify(peer, nil); err == nil {
		t.Error("no error: the list of another CA is ignored beside that of the right one")
	}
}

func TestFilesOfRevokedCertificatesThatAreWrong(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	ca := boxtest.NewAuthority(t)
	authority, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	list := string(ca.Revoked(time.Hour))
	for name, text := range map[string]string{
		"empty": "", "a certificate": string(authority), "half": list[:len(list)/2], "more": list + "more", "no list": "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
		"too many": strings.Repeat(list, 65),
	} {
		h.config.Revoked = filepath.Join(h.dir, "crl")
		replaceFile(t, h.config.Revoked, text)
		if _, err := access.Prepare(&h.config, access.LookupHost(), ""); err == nil || !strings.Contains(err.Error(), "client_crl") {
			t.Errorf(`%s: err = %v, want an error containing "client_crl"`, name, err)
		}
	}
	h.config.Revoked = filepath.Join(h.dir, "missing")
	if _, err := access.Prepare(&h.config, access.LookupHost(), ""); err == nil || !strings.Contains(err.Error(), "client_crl") {
		t.Errorf(`missing: err = %v, want an error containing "client_crl"`, err)
	}
}
