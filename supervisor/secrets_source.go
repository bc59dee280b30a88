// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Limits of what is read, in bytes. A value that is too short would be found in responses by chance.
const (
	minValue      = 8
	maxValue      = 4 << 10
	maxAuthority  = 64 << 10
	maxCertifying = 4 << 20
)

// value reads a secret, without a trailing newline. No error contains any of it.
func (d *Secrets) value(s *policy.Secret) (string, error) {
	data, path, err := readSource(d.cfg.Credentials, s.Credential, s.File, maxValue+2)
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case len(text) < minValue || len(text) > maxValue:
		return "", fmt.Errorf("%s has %d bytes: must have %d to %d", path, len(text), minValue, maxValue)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) || strings.Trim(text, " ") != text:
		return "", fmt.Errorf("%s: must be one line of ASCII without spaces around it, because it goes into an HTTP header", path)
	case strings.Contains(text, placeholderPrefix):
		return "", fmt.Errorf("%s: it looks like a placeholder", path)
	}
	return text, nil
}

// readSource reads a secret of at most most bytes: a credential from the directory that systemd has passed, or a file.
func readSource(credentials, credential, file string, limit int64) (data []byte, path string, err error) {
	path = file
	if credential != "" {
		if credentials == "" {
			return nil, "", fmt.Errorf("credential %q: systemd passed none to boxd (LoadCredential=, systemd.exec(5))", credential)
		}
		path = filepath.Join(credentials, credential)
	}
	data, err = durable.ReadSecret(path, credential != "", limit)
	return data, path, err
}

// authorities reads the CA certificates configured for a secret; "": it has none.
func authorities(s *policy.Secret) (string, error) {
	if s.Authorities == "" {
		return "", nil
	}
	data, err := durable.ReadFile(s.Authorities, maxAuthority)
	if err != nil {
		return "", err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return "", fmt.Errorf("%s: no certificate in it", s.Authorities)
	}
	return string(data), nil
}

// bundles lists where systems keep the CA certificates that they trust, in one file.
func bundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
		"/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
	}
}

// bundle is the CA certificates that programs of a box should trust: those of the host, and own.
func bundle(own []byte) ([]byte, error) {
	for _, path := range bundles() {
		data, err := durable.ReadFile(path, maxCertifying)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			data = append(data, '\n')
		}
		return append(data, own...), nil
	}
	return own, nil
}
