// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority signs certificates for a test.
type Authority struct {
	File string // its own certificate (PEM)

	t      testing.TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: TempDir(t)}
	a.File, _ = a.write(&x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}, time.Hour)
	return a
}

// Roots returns the CAs that a client trusts: this one.
func (a *Authority) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return roots
}

// Revoked returns a PEM list of certificates, by their files, that the CA has revoked; it is valid for a time.
func (a *Authority) Revoked(life time.Duration, certificates ...string) []byte {
	a.t.Helper()
	a.serial++
	list := &x509.RevocationList{Number: big.NewInt(a.serial), ThisUpdate: time.Now().Add(-2 * time.Hour), NextUpdate: time.Now().Add(life)}
	for _, file := range certificates {
		text, err := os.ReadFile(file)
		if err != nil {
			a.t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			a.t.Fatal(err)
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now().Add(-time.Minute)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// Server makes a certificate for servers on this host, or of other names, and the file of its key.
func (a *Authority) Server(names ...string) (certificate, key string) {
	a.t.Helper()
	return a.write(&x509.Certificate{
		DNSNames: append([]string{"localhost"}, names...), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Hour)
}

// Client makes a client certificate that is valid for a time, and the file of its key. Names are written as openssl prints them.
func (a *Authority) Client(life time.Duration, names ...string) (certificate, key string) {
	a.t.Helper()
	c := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, name := range names {
		kind, value, _ := strings.Cut(name, ":")
		switch kind {
		case "CN":
			c.Subject.CommonName = value
		case "DNS":
			c.DNSNames = append(c.DNSNames, value)
		case "email":
			c.EmailAddresses = append(c.EmailAddresses, value)
		case "URI":
			u, err := url.Parse(value)
			if err != nil {
				a.t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
	return a.write(c, life)
}

// write signs a certificate, and writes it and its key.
func (a *Authority) write(c *x509.Certificate, life time.Duration) (certificate, private string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.serial++
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.serial), time.Now().Add(-2*time.Hour), time.Now().Add(life)
	parent, signs := a.cert, a.key
	if parent == nil {
		parent, signs = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signs)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
		a.key = key
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	file := func(name, kind string, data []byte) string {
		path := filepath.Join(a.dir, big.NewInt(a.serial).String()+name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			a.t.Fatal(err)
		}
		return path
	}
	return file(".pem", "CERTIFICATE", der), file(".key", "PRIVATE KEY", pkcs)
}
