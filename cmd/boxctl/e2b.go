// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// e2bCommand prepares boxd for programs written for E2B or Scalebox.
func (a *app) e2bCommand() *cobra.Command {
	return group("e2b", "Create what programs written for E2B or Scalebox need", "e2b prepares boxd to serve programs that were written for E2B or Scalebox, see [e2b] in box.toml(5).", a.e2bCertificateCommand())
}

// certificateLife is the default lifetime of a certificate: the maximum that today's clients accept.
const certificateLife = 397 * 24 * time.Hour

// Files of a certificate.
const (
	fileAuthority   = "ca.pem"
	fileCertificate = "certificate.pem"
	fileKey         = "key.pem"
)

func (a *app) e2bCertificateCommand() *cobra.Command {
	var out string
	var names []string
	cmd := &cobra.Command{
		Use:   "certificate [flags]",
		Short: "Create a TLS certificate for e2b.tls_listen",
		Long: `certificate creates three files: certificate.pem and key.pem for e2b.certificate and e2b.key in
box.toml, and ca.pem, which clients have to trust. It installs nothing: start a Node.js client with
NODE_EXTRA_CA_CERTS=ca.pem. The key of the authority is thrown away, so that it signs nothing else.`,
		Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			files, err := newCertificate(names, time.Now())
			if err != nil {
				return &usageError{err: err}
			}
			if err := writeCertificate(out, files); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"authority": filepath.Join(out, fileAuthority), "certificate": filepath.Join(out, fileCertificate), "key": filepath.Join(out, fileKey)})
			}
			_, err = fmt.Fprintf(a.stdout, "certificate = %q\nkey = %q\n# clients: NODE_EXTRA_CA_CERTS=%s\n", filepath.Join(out, fileCertificate), filepath.Join(out, fileKey), filepath.Join(out, fileAuthority))
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", ".", "`DIRECTORY` where the files are created")
	cmd.Flags().StringArrayVar(&names, "name", []string{"127.0.0.2", "localhost", "*.localhost"}, "`NAME` host name or IP address of e2b.tls_listen, for example 127.0.0.2")
	return cmd
}

// newCertificate makes a certificate for names and addresses, signed by an authority of its own.
func newCertificate(names []string, now time.Time) (map[string][]byte, error) {
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "boxd on this host"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: "boxd"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if name == "" {
			return nil, errors.New(`--name "": must be a host name or an IP address`)
		}
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	top, err := x509.CreateCertificate(rand.Reader, root, root, authority.Public(), authority)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), authority)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(crypto.PrivateKey(key))
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	block := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }
	return map[string][]byte{fileAuthority: block("CERTIFICATE", top), fileCertificate: block("CERTIFICATE", signed), fileKey: block("PRIVATE KEY", secret)}, nil
}

// writeCertificate writes the files, none of which may exist: a key in use must not be replaced by mistake.
func writeCertificate(dir string, files map[string][]byte) error {
	for _, name := range []string{fileKey, fileCertificate, fileAuthority} {
		mode := os.FileMode(0o644)
		if name == fileKey {
			mode = 0o600
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		_, err = f.Write(files[name])
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
