// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestInvalidSecretTablesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		name   string
		change func(*policy.Secret)
		want   string // "": it is good
	}{
		{"a good one", "api-key_1", func(*policy.Secret) {}, ""},
		{"one with authorities", "a", func(s *policy.Secret) { s.Authorities = "/etc/x.pem" }, ""},
		{"a name with a dot", "a.b", func(*policy.Secret) {}, "secrets.a.b: "},
		{"a long name", strings.Repeat("a", 65), func(*policy.Secret) {}, "at most 64"},
		{"no source", "a", func(s *policy.Secret) { s.Credential = "" }, "either credential or file"},
		{"two sources", "a", func(s *policy.Secret) { s.File = "/x" }, "either credential or file"},
		{"a path of a credential", "a", func(s *policy.Secret) { s.Credential = "../x" }, "secrets.a.credential"},
		{"the directory itself", "a", func(s *policy.Secret) { s.Credential = ".." }, "secrets.a.credential"},
		{"a relative file", "a", func(s *policy.Secret) { s.Credential, s.File = "", "x" }, "secrets.a.file"},
		{"relative authorities", "a", func(s *policy.Secret) { s.Authorities = "x" }, "secrets.a.authorities"},
		{"no hosts", "a", func(s *policy.Secret) { s.Hosts = nil }, "secrets.a.hosts"},
		{"many hosts", "a", func(s *policy.Secret) { s.Hosts = strings.Fields(strings.Repeat("a.example ", 17)) }, "secrets.a.hosts"},
		{"a wildcard", "a", func(s *policy.Secret) { s.Hosts = []string{"*.example"} }, "secrets.a.hosts"},
		{"an address", "a", func(s *policy.Secret) { s.Hosts = []string{"10.0.0.1"} }, "secrets.a.hosts"},
		{"a port", "a", func(s *policy.Secret) { s.Hosts = []string{"a.example:443"} }, "secrets.a.hosts"},
		{"no variable", "a", func(s *policy.Secret) { s.Env = "" }, "secrets.a.env"},
		{"a variable with =", "a", func(s *policy.Secret) { s.Env = "A=B" }, "secrets.a.env"},
		{"a digit in front", "a", func(s *policy.Secret) { s.Env = "1A" }, "secrets.a.env"},
		{"a variable of ours", "a", func(s *policy.Secret) { s.Env = "SSL_CERT_FILE" }, "secrets.a.env"},
	} {
		s := policy.Secret{Credential: "x", Hosts: []string{"A.example", "b.example"}, Env: "KEY_1"}
		c.change(&s)
		err := errors.Join(policy.ValidateSecrets(map[string]policy.Secret{c.name: s})...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf(`%s: err = %v, want (err == nil) == (c.want == "") and (no error or err containing %q)`,
				c.what, err, c.want)
		}
	}
}
