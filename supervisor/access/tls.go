// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
)

// maxPEM is the largest size of each file of a TLS listener, in bytes.
const maxPEM = 1 << 20

// TLSFiles are the files of a TLS listener (PEM).
type TLSFiles struct {
	Certificate string // with the intermediate CAs
	PrivateKey  string // readable by root only, or by boxd
	KeyName     string // PrivateKey's key in box.toml, for errors; "": private_key
	ClientCA    string // CAs that sign callers' certificates; "": callers present none
}

// Config reads the files. They are read again whenever they have changed; if that fails, the error is logged and the previous
// configuration stays in force.
func (f TLSFiles) Config(log *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: f, log: log}
	c.stamp, c.handed = c.stat()
	var err error
	if c.current, err = f.read(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now(), nil }}, nil
}

// certificates is a TLS configuration with the files it was read from.
type certificates struct {
	files TLSFiles
	log   *slog.Logger

	mu      sync.Mutex
	stamp   [3]fileStamp
	handed  time.Time // when files that another process opens were last looked at; zero: there are none
	current *tls.Config
}

// handedPause is how long files that another process opens are not looked at again: every connection asks.
const handedPause = time.Second

// fileStamp detects that a file was replaced or changed. Its times are only as fine as the kernel's clock tick (inode(7)), and a
// file may be replaced within one.
type fileStamp struct {
	device, inode    uint64
	size             int64
	written, changed unix.Timespec
}

func (c *certificates) stat() (stamp [3]fileStamp, handed time.Time) {
	for i, path := range []string{c.files.Certificate, c.files.PrivateKey, c.files.ClientCA} {
		var other bool
		if stamp[i], other = stampOf(path); other {
			handed = time.Now()
		}
	}
	return stamp, handed
}

// stampOf returns the stamp of a file as it is now; that of a missing file is zero. A file in a directory that only root may enter is opened for
// that, by another process, which handed tells.
func stampOf(path string) (stamp fileStamp, handed bool) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if handed = errors.Is(err, fs.ErrPermission); handed {
		var f *os.File
		if f, err = durable.Open(path); err == nil {
			defer f.Close()
			err = unix.Fstat(int(f.Fd()), &st)
		}
	}
	if err != nil {
		return fileStamp{}, handed
	}
	return fileStamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, handed
}

// now returns the configuration for the next connection.
func (c *certificates) now() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.handed) < handedPause {
		return c.current
	}
	var stamp [3]fileStamp
	if stamp, c.handed = c.stat(); stamp == c.stamp {
		return c.current
	}
	c.stamp = stamp // errors are logged once
	next, err := c.files.read()
	if err != nil {
		c.log.Error("a certificate has changed and cannot be used; keeping the old one", "error", err)
		return c.current
	}
	c.log.Info("a certificate has changed", "certificate", c.files.Certificate)
	c.current = next
	return next
}

// read reads the files. It disables session resumption, so that each connection's certificate is checked.
func (f *TLSFiles) read() (*tls.Config, error) {
	certificate, err := durable.ReadFile(f.Certificate, maxPEM)
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
	authorities, err := durable.ReadFile(f.ClientCA, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(bytes.TrimSpace(authorities)) {
		return nil, fmt.Errorf("client_ca %s: must have CA certificates (PEM)", f.ClientCA)
	}
	return c, nil
}

// Shown returns the verified certificate chain that a peer presented, up to one of our CAs; nil: it presented none.
func Shown(state *tls.ConnectionState) []*x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.VerifiedChains[0]
}
