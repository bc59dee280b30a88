// SPDX-License-Identifier: Apache-2.0

// Which secrets a session has: those that the operator has named, whether its owner may use them, and whether the session could
// use them at all. Values are not known here.

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// Secret is a table [secrets.NAME] of box.toml.
type Secret struct {
	Credential  string   `toml:"credential"`  // name of a systemd credential of boxd
	File        string   `toml:"file"`        // or the path of a file of mode 0600 owned by root
	Hosts       []string `toml:"hosts"`       // exact host names whose requests get it
	Env         string   `toml:"env"`         // the variable with the placeholder
	Authorities string   `toml:"authorities"` // CA file for the hosts; "": the host's CAs
}

// Bounds of secrets.
const (
	maxSecrets    = 8  // of one session
	maxHosts      = 16 // of one secret
	maxNames      = 256
	maxSecretName = 64
)

// FieldSecrets is their field in requests.
const FieldSecrets = "secrets"

// anySecret in a list of allowed secrets stands for all.
const anySecret = "*"

// ValidateSecrets reports every invalid key.
func ValidateSecrets(all map[string]Secret) (errs []error) {
	if len(all) > maxNames {
		errs = append(errs, fmt.Errorf("secrets: %d tables are too many, at most %d are allowed", len(all), maxNames))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		bad := func(key string, value any, allowed string) {
			errs = append(errs, fmt.Errorf("secrets.%s.%s = %q: must be %s", name, key, value, allowed))
		}
		if !plain(name, "-") || len(name) > maxSecretName {
			errs = append(errs, fmt.Errorf("secrets.%s: the name must be at most %d letters, digits, _ and -", name, maxSecretName))
		}
		errs = append(errs, validateSource("secrets."+name, s.Credential, s.File)...)
		if !absolute(s.Authorities) {
			bad("authorities", s.Authorities, "an absolute path")
		}
		if len(s.Hosts) == 0 || len(s.Hosts) > maxHosts {
			errs = append(errs, fmt.Errorf("secrets.%s.hosts = %d hosts: must be 1 to %d", name, len(s.Hosts), maxHosts))
		}
		for _, h := range s.Hosts {
			if _, err := egress.ParseName("hosts", h); err != nil {
				bad("hosts", h, "the exact name of a host, such as \"api.example.com\"")
			}
		}
		if !plain(s.Env, "") || s.Env[0] <= '9' || slices.Contains(Trusting(), s.Env) {
			bad("env", s.Env, "a variable name of letters, digits and _, other than those that name trusted certificates")
		}
	}
	return errs
}

// validateSource reports errors in the source of a secret: a systemd credential, or a file.
func validateSource(table, credential, file string) (errs []error) {
	if (credential == "") == (file == "") {
		errs = append(errs, fmt.Errorf("%s: must have either credential or file", table))
	}
	if strings.ContainsAny(credential, "/\x00") || credential == "." || credential == ".." {
		errs = append(errs, fmt.Errorf("%s.credential = %q: must be a file name without a directory", table, credential))
	}
	if !absolute(file) {
		errs = append(errs, fmt.Errorf("%s.file = %q: must be an absolute path", table, file))
	}
	return errs
}

// absolute reports whether a path is absolute or empty.
func absolute(path string) bool {
	return path == "" || strings.HasPrefix(path, "/") && !strings.Contains(path, "\x00")
}

// plain reports whether a text has only letters, digits, _ and the characters of more.
func plain(text, more string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(more, r)
	})
}

// Names returns the hosts in canonical form.
func (s *Secret) Names() (list []egress.Name) {
	for _, h := range s.Hosts {
		if n, err := egress.ParseName("hosts", h); err == nil { // ValidateSecrets has checked them
			list = append(list, n)
		}
	}
	return list
}

// Trusting lists the variables that tell programs which certificates to trust.
func Trusting() []string {
	return []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO"}
}

// secretAllowed reports whether a list of allowed secrets includes one.
func secretAllowed(list []string, name string) bool {
	return slices.Contains(list, name) || slices.Contains(list, anySecret)
}

// SecretRequest is the part of a session's request that matters here.
type SecretRequest struct {
	Secrets []string
	Egress  bool  // its network is egress
	Strict  *bool // nil: not given
	Locked  bool  // the profile decides whether it is strict
	Rules   []string
	Env     map[string]string
}

// resolveSecrets returns the secrets of a session, sorted and unique. It refuses secrets that the session could not use with its
// rules. strict is the setting of profile and request; a session with secrets always is.
func resolveSecrets(all map[string]Secret, w *SecretRequest, strict bool) (list []string, is bool, err error) {
	if len(w.Secrets) == 0 {
		return nil, strict, nil
	}
	if len(w.Secrets) > maxSecrets {
		return nil, strict, fault.Field(FieldSecrets, len(w.Secrets), fmt.Sprintf("at most %d", maxSecrets))
	}
	if !w.Egress {
		return nil, strict, fault.Field(FieldSecrets, len(w.Secrets), "left out without network = \"egress\"").WithText("secrets: the network must be egress")
	}
	if !strict && (w.Strict != nil || w.Locked) {
		return nil, strict, fault.Field("network_strict", false, "true for a session with secrets").WithText("network_strict: secrets need it; only checked connections get secrets").
			WithHint("leave network_strict out")
	}
	rules, err := egress.ReadRules("network_rules", slices.DeleteFunc(slices.Clone(w.Rules), func(r string) bool { return !egress.Written(r) }))
	if err != nil {
		return nil, strict, err
	}
	seen := map[string]string{}
	for i, name := range w.Secrets {
		field := FieldSecrets + "[" + strconv.Itoa(i) + "]"
		s, ok := all[name]
		if !ok {
			return nil, strict, fault.Field(field, name, "the name of a table [secrets.NAME] of box.toml")
		}
		if slices.Contains(list, name) {
			continue
		}
		if _, given := w.Env[s.Env]; given {
			return nil, strict, fault.Field("env", s.Env, "a variable other than that of secret "+name)
		}
		if other := seen[s.Env]; other != "" {
			return nil, strict, fault.Field(field, name, "the only secret with the variable "+s.Env).WithText("secrets %s and %s both set the variable %s", other, name, s.Env).WithHint("use one of them")
		}
		for _, host := range s.Names() {
			if !slices.Contains(egress.Openings(rules.Match(host)), egress.Opening{Protocol: egress.TCP, Port: 443}) {
				return nil, strict, fault.Field(field, name, "a secret whose hosts the network rules allow").WithText("secret %s: the network rules do not allow its host %s", name, host).
					WithHint("add the rule %q to network_rules", string(host)+" tcp 443")
			}
		}
		seen[s.Env] = name
		list = append(list, name)
	}
	slices.Sort(list)
	return list, true, nil
}
