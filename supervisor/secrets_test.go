// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestTheAuthorityIsTheSameForTheNextBoxd(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	now := time.Unix(1e9, 0)
	one, err := openAuthority(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := dir.Stat(secretsRecord); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("its file: st = %v, err = %v, want no error and st.Mode().Perm() == 0o600", st, err)
	}
	two, err := openAuthority(dir, now.Add(time.Hour))
	if err != nil || !bytes.Equal(one.pem(), two.pem()) || one.placeholder("s", now, "a") != two.placeholder("s", now, "a") {
		t.Fatalf(`another: err = %v, want no error and one.pem() equal to two.pem() and one.placeholder("s", now, "a") == two.placeholder("s", now, "a")`,
			err)
	}
	old := one.placeholder("s", now, "a")
	for what, other := range map[string]string{"session": one.placeholder("t", now, "a"), "time": one.placeholder("s", now.Add(1), "a"), "secret": one.placeholder("s", now, "b")} {
		if other == old || !strings.HasPrefix(other, placeholderPrefix) || len(other) != len(old) {
			t.Errorf("placeholders: %q and %q of another %s", old, other, what)
		}
	}
	cert, _, err := one.leaf([]egress.Name{"a.example", "b.example"}, now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(two.pem())
	for host, want := range map[string]bool{"a.example": true, "b.example": true, "c.example": false, "x.a.example": false} {
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now.Add(time.Hour)})
		if (err == nil) != want {
			t.Errorf("%s: err = %v, want (err == nil) == %v", host, err, want)
		}
	}
	if leaf.IsCA {
		t.Error("the certificate for boxnames is a CA")
	}
	late, err := openAuthority(dir, now.Add(authorityLife-leafLife+time.Hour))
	if err != nil || bytes.Equal(late.pem(), one.pem()) || late.placeholder("s", now, "a") != old {
		t.Errorf(`at the end of its time: err = %v, want no error and late.pem() not equal to one.pem() and late.placeholder("s", now, "a") == old`,
			err)
	}
	if err := os.WriteFile(filepath.Join(path, secretsRecord), []byte(`{"key":"AAAA"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAuthority(dir, now); err == nil {
		t.Error("no error for a damaged record of the CA")
	}
}

func TestInvalidSecretValuesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := OpenSecrets(SecretsConfig{Credentials: dir})
	for _, c := range []struct {
		what, text string
		mode       os.FileMode
		want       string // "": it is refused
	}{
		{"plain", "12345678", 0o400, "12345678"},
		{"with an end of line", "key with spaces\r\n", 0o440, "key with spaces"},
		{"two lines", "12345678\n12345678\n", 0o400, ""},
		{"short", "1234567\n", 0o400, ""},
		{"long", strings.Repeat("x", maxValue+1), 0o400, ""},
		{"as long as may be", strings.Repeat("x", maxValue) + "\r\n", 0o400, strings.Repeat("x", maxValue)},
		{"control", "12345678\x00", 0o400, ""},
		{"other letters", "schlüssel", 0o400, ""},
		{"space in front", " 12345678", 0o400, ""},
		{"a placeholder", placeholderPrefix + "x", 0o400, ""},
		{"readable", "12345678", 0o444, ""},
		{"writable", "12345678", 0o620, ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, "k"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "k"), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := d.value(&policy.Secret{Credential: "k"})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf(`%s: got %q, err = %v, want got == %q and (err == nil) == (c.want != "")`,
				c.what, got, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), strings.TrimSpace(c.text)) {
			t.Errorf("%s: the error has the value: err = %v, want no error or err without strings.TrimSpace(c.text)",
				c.what, err)
		}
		if _, err := d.value(&policy.Secret{File: filepath.Join(dir, "k")}); c.mode == 0o440 && err == nil {
			t.Errorf("%s: a file that a group can read", c.what)
		}
		if err := os.Remove(filepath.Join(dir, "k")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenSecrets(SecretsConfig{}).value(&policy.Secret{Credential: "k"}); err == nil || !strings.Contains(err.Error(), "LoadCredential") {
		t.Errorf(`without credentials: err = %v, want an error containing "LoadCredential"`, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.value(&policy.Secret{Credential: "l"}); err == nil {
		t.Error("no error for a secret that is a symbolic link")
	}
}
