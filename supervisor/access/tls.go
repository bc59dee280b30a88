// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
)

// maxPEM bounds each of the files of a listener by TLS, in bytes.
const maxPEM = 1 << 20

// TLSFiles are what a listener by TLS needs (PEM).
type TLSFiles struct {
	Certificate string // with those of the authorities between it and the root
	PrivateKey  string // which only root may read
	KeyName     string // of PrivateKey in box.toml, for errors; "": private_key
	ClientCA    string // of the authorities that sign certificates of callers; "": callers show none
}

// Config reads the files. Later they are read again whenever they have changed; what cannot be read then is logged, and those of
// before hold.
func (f TLSFiles) Config(log *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: f, log: log}
	c.stamp = c.stat()
	var err error
	if c.current, err = f.read(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now(), nil }}, nil
}

// certificates is a configuration and the files it is from.
type certificates struct {
	files TLSFiles
	log   *slog.Logger

	mu      sync.Mutex
	stamp   [3]fileStamp
	current *tls.Config
}

// fileStamp tells a file from what was there before. Its times are as coarse as the kernel's clock ticks (inode(7)), within which a file
// may be replaced.
type fileStamp struct {
	device, inode    uint64
	size             int64
	written, changed unix.Timespec
}

func (c *certificates) stat() (stamp [3]fileStamp) {
	for i, path := range []string{c.files.Certificate, c.files.PrivateKey, c.files.ClientCA} {
		stamp[i] = stampOf(path)
	}
	return stamp
}

// stampOf is that of a file as it is now; that of one that is missing is zero.
func stampOf(path string) fileStamp {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileStamp{}
	}
	return fileStamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// now is the configuration for the next connection.
func (c *certificates) now() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp := c.stat()
	if stamp == c.stamp {
		return c.current
	}
	c.stamp = stamp // what is wrong is said once
	next, err := c.files.read()
	if err != nil {
		c.log.Error("a certificate has changed and cannot be used; the one of before holds", "error", err)
		return c.current
	}
	c.log.Info("a certificate has changed", "certificate", c.files.Certificate)
	c.current = next
	return next
}

// read reads the files. Nothing of a connection is taken up in another: what a client has shown is looked at each time.
func (f *TLSFiles) read() (*tls.Config, error) {
	certificate, err := os.ReadFile(f.Certificate)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	key, err := durable.ReadSecret(f.PrivateKey, false, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(f.KeyName, "private_key"), err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s, %s %s: %w", f.Certificate, cmp.Or(f.KeyName, "private_key"), f.PrivateKey, err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true}
	if f.ClientCA == "" {
		return c, nil
	}
	authorities, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(bytes.TrimSpace(authorities)) {
		return nil, fmt.Errorf("client_ca %s: must have certificates of authorities (PEM)", f.ClientCA)
	}
	return c, nil
}

// Shown is the certificate that the other end of a connection has proved to have, and those that have signed it, up to an authority
// of ours; nil: it has shown none.
func Shown(state *tls.ConnectionState) []*x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.VerifiedChains[0]
}
