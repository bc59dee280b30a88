// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation/egress"
)

const (
	mark, value   = "boxd-secret-aaaaaaaa", "tiger-value"
	mark2, value2 = "boxd-secret-bbbbbbbb", "lion-value"
	mark3, value3 = "boxd-secret-cccccccc", "other-value"
)

func secrets(t testing.TB) *egress.Secrets {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &egress.Secrets{Key: "box", Certificate: []byte("-"), PrivateKey: der, List: []egress.Secret{
		{Placeholder: mark, Value: value, Hosts: []egress.Name{"a.example", "b.example"}},
		{Placeholder: mark2, Value: value2, Hosts: []egress.Name{"a.example"}},
		{Placeholder: mark3, Value: value3, Hosts: []egress.Name{"c.example"}},
	}}
}

func host(t testing.TB, name egress.Name) *secretHost {
	t.Helper()
	s, err := newSecretSet(secrets(t))
	if err != nil {
		t.Fatal(err)
	}
	return s.For(name)
}

func basic(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }

func TestSecretPlaceholdersInHeadersAreReplaced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host                 egress.Name
		header, before, want string
	}{
		{"a.example", "Authorization", "Bearer " + mark, "Bearer " + value},
		{"a.example", "X-Api-Key", mark + mark2 + mark, value + value2 + value},
		{"a.example", "Cookie", "k=" + mark + "; b=" + mark3, "k=" + value + "; b=" + mark3},
		{"b.example", "Authorization", mark2, mark2},
		{"c.example", "Authorization", "Bearer " + mark, "Bearer " + mark},
		{"a.example", "Authorization", basic("me:" + mark), basic("me:" + value)},
		{"a.example", "Authorization", "bASIC " + basic(mark + ":" + mark2)[6:], "bASIC " + basic(value + ":" + value2)[6:]},
		{"a.example", "Authorization", basic("me:" + mark3), basic("me:" + mark3)},
		{"a.example", "Authorization", "Basic " + mark + "!", "Basic " + value + "!"},
		{"a.example", "X-Other", basic("me:" + mark), basic("me:" + mark)},
		{"a.example", mark, "x", "x"},
		{"a.example", "X-Almost", mark[:len(mark)-1], mark[:len(mark)-1]},
	} {
		h := map[string][]string{c.header: {"first", c.before}}
		if err := host(t, c.host).In(h); err != nil || h[c.header][1] != c.want || h[c.header][0] != "first" || len(h) != 1 {
			t.Errorf(`%s, %s: c.before = %q, h = %q, err = %v, want no error and h[c.header][1] == c.want and h[c.header][0] == "first" and len(h) == 1`,
				c.host, c.header, c.before, h, err)
		}
		host(t, c.host).Out(h)
		if strings.Contains(h[c.header][1], "value") {
			t.Errorf("%s, %s: the secret goes back in %q", c.host, c.header, h)
		}
	}
	for what, h := range map[string]map[string][]string{
		"placeholders": {"A": {strings.Repeat(mark, maxHeaders/len(mark)-10)}, "B": {mark}}, "text": {"A": {strings.Repeat("x", maxHeaders)}},
		"basic": {"Authorization": {basic(strings.Repeat(mark+" ", 40_000/len(mark)))}, "B": {strings.Repeat("x", maxHeaders-55_000)}},
	} {
		if err := host(t, "a.example").In(h); !errors.Is(err, errHeadersTooLong) {
			t.Errorf("%s: err = %v, want err is errHeadersTooLong", what, err)
		}
	}
	var none *secretSet
	if none.For("a.example") != nil || host(t, "d.example") != nil {
		t.Error("a host without secrets got one")
	}
	for what, change := range map[string]func(*egress.Secrets){
		"no key": func(m *egress.Secrets) { m.PrivateKey = nil }, "no value": func(m *egress.Secrets) { m.List[0].Value = "" },
		"no placeholder": func(m *egress.Secrets) { m.List[1].Placeholder = "" }, "no authorities": func(m *egress.Secrets) { m.List[2].Authorities = "x" },
	} {
		m := secrets(t)
		change(m)
		if _, err := newSecretSet(m); err == nil {
			t.Error(what)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	for _, text := range []string{"Bearer " + mark, basic("me:" + mark), basic(mark2 + mark), "Basic ===", "basic", mark + mark[1:] + mark3, value} {
		f.Add("Authorization", text)
		f.Add("X-Key", text)
	}
	h := host(f, "a.example")
	f.Fuzz(func(t *testing.T, name, text string) {
		header := map[string][]string{name: {text}}
		if h.In(header) != nil {
			return
		}
		got := header[name][0]
		if strings.Contains(got, mark) || strings.Contains(got, mark2) {
			t.Errorf("%q: a placeholder is left: got %q, want got without mark and got without mark2", text, got)
		}
		if strings.Contains(got, value3) && !strings.Contains(text, value3) {
			t.Errorf("%q: the secret of another host: got %q, want got without value3 or text containing value3",
				text, got)
		}
		if !strings.ContainsAny(text, "\r\n") && strings.ContainsAny(got, "\r\n") {
			t.Errorf(`%q: an end of line: got %q, want strings.ContainsAny(text, "\r\n") or not strings.ContainsAny(got, "\r\n")`,
				text, got)
		}
		h.Out(header)
		if got := header[name][0]; strings.Contains(got, value) || strings.Contains(got, value2) {
			t.Errorf("%q: a secret goes back: got %q, want got without value and got without value2", text, got)
		}
	})
}
