// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Errors in TLS files are reported with their keys in box.toml.
func TestFilesOfTLSAreRefusedByTheirKeys(t *testing.T) {
	t.Parallel()
	certificate := filepath.Join(t.TempDir(), "certificate.pem")
	if err := os.WriteFile(certificate, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(open, []byte("x"), 0o644); err != nil { //nolint:gosec // it is to be refused
		t.Fatal(err)
	}
	for _, tc := range []struct{ certificate, key, want string }{
		{"/missing", open, "e2b.certificate: open /missing"},
		{certificate, "/missing", "e2b.key: open /missing"},
		{certificate, open, "e2b.key: " + open + ": mode 0644"},
		{certificate, certificate, "e2b.certificate " + certificate + ", key " + certificate},
	} {
		c := &Settings{TLSListen: "127.0.0.2:5443", Certificate: tc.certificate, Key: tc.key}
		if config, err := c.TLS(slog.New(slog.DiscardHandler)); config != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v does not say %q", err, tc.want)
		}
	}
	if config, err := new(Settings).TLS(slog.New(slog.DiscardHandler)); config != nil || err != nil {
		t.Errorf("without TLS: config = %v, err = %v, want config == nil and no error", config, err)
	}
}
