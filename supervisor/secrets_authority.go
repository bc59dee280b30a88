// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// secretsRecord is the file of the authority in boxd's state directory.
const secretsRecord = "secrets.json"

// Lifetimes of certificates. Boxes trust the authority for as long as they live.
const (
	authorityLife = 30 * year
	leafLife      = 10 * year
	clocksDiffer  = 24 * time.Hour
	year          = 365 * 24 * time.Hour
)

// authority issues the certificates that boxes with secrets trust, and placeholders. Its key never leaves boxd: boxnames gets
// the keys of certificates for the hosts of a box.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	mark []byte // HMAC key of placeholders
}

// openAuthority reads the authority, and creates one (0600) if there is none or it is about to expire.
func openAuthority(dir *os.Root, now time.Time) (*authority, error) {
	var stored struct {
		Key         []byte `json:"key"`         // PKCS 8
		Certificate []byte `json:"certificate"` // DER
		Mark        []byte `json:"mark"`
	}
	err := durable.ReadJSON(dir, secretsRecord, &stored)
	if err == nil {
		a, err := parseAuthority(stored.Key, stored.Certificate, stored.Mark)
		if err != nil || now.Add(leafLife).Before(a.cert.NotAfter) {
			return a, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	own := certificateTemplate(now, authorityLife)
	own.Subject = pkix.Name{CommonName: "boxd, for hosts that secrets of boxes are for"}
	own.IsCA, own.BasicConstraintsValid, own.MaxPathLenZero, own.KeyUsage = true, true, true, x509.KeyUsageCertSign
	if stored.Certificate, err = x509.CreateCertificate(rand.Reader, own, own, key.Public(), key); err != nil {
		return nil, err
	}
	if stored.Key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, err
	}
	if len(stored.Mark) == 0 {
		stored.Mark = make([]byte, sha256.Size)
		_, _ = rand.Read(stored.Mark) // cannot fail
	}
	if err := durable.SyncJSON(dir, secretsRecord, &stored); err != nil {
		return nil, err
	}
	return parseAuthority(stored.Key, stored.Certificate, stored.Mark)
}

func parseAuthority(der, cert, mark []byte) (*authority, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("record %s: %w", secretsRecord, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || len(mark) != sha256.Size {
		return nil, fmt.Errorf("record %s: not written by boxd", secretsRecord)
	}
	own, err := x509.ParseCertificate(cert)
	if err != nil {
		return nil, fmt.Errorf("record %s: %w", secretsRecord, err)
	}
	return &authority{key, own, mark}, nil
}

// certificateTemplate has what all certificates have in common.
func certificateTemplate(now time.Time, life time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // cannot fail
	serial[0] &= 0x7f
	return &x509.Certificate{SerialNumber: new(big.Int).SetBytes(serial), NotBefore: now.Add(-clocksDiffer), NotAfter: now.Add(life)}
}

// leaf issues a certificate for hosts, in DER, and its key in PKCS 8.
func (a *authority) leaf(hosts []egress.Name, now time.Time) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := certificateTemplate(now, leafLife)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		t.DNSNames = append(t.DNSNames, string(h))
	}
	if cert, err = x509.CreateCertificate(rand.Reader, t, a.cert, own.Public(), a.key); err != nil {
		return nil, nil, err
	}
	key, err = x509.MarshalPKCS8PrivateKey(own)
	return cert, key, err
}

// pem is the certificate of the authority in PEM.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// placeholderPrefix begins every placeholder, so that one is recognized where it should not be.
const placeholderPrefix = "boxd-secret-"

// placeholder stands for a secret in a session: it is the same for every boxd, and differs for every session.
func (a *authority) placeholder(session string, created time.Time, name string) string {
	h := hmac.New(sha256.New, a.mark)
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(created.UnixNano())))
	h.Write([]byte(session + "\x00" + name))
	return placeholderPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:20]))
}
