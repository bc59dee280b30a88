// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

func sumOf(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

func repository(t testing.TB, of string) name.Repository {
	t.Helper()
	r, err := name.NewRepository(of)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEntriesOfAFileOfCredentials(t *testing.T) {
	t.Parallel()
	const all = `{"auths":{
		"https://index.docker.io/v1/":{"auth":"aHViOmE6Yg=="},
		"docker.io/mine":{"username":"mine","password":"p"},
		"registry.example":{"auth":"cjpw"},
		"registry.example/team":{"identitytoken":"i"},
		"registry.example.evil":{"auth":"ZTpw"},
		"empty.example":{},
		"bad.example":{"auth":"!secret"},
		"half.example":{"auth":"aGFsZg=="}
	}}`
	for _, tc := range []struct{ of, user, password, message string }{
		{of: "python", user: "hub", password: "a:b"},
		{of: "docker.io/library/python", user: "hub", password: "a:b"},
		{of: "mine/tools", user: "mine", password: "p"},
		{of: "mineral/tools", user: "hub", password: "a:b"},
		{of: "registry.example/a", user: "r", password: "p"},
		{of: "registry.example/team/a"},
		{of: "registry.example/teams/a", user: "r", password: "p"},
		{of: "registry.example:5000/a", message: "no entry for registry.example:5000"},
		{of: "empty.example/a", message: "has no credentials"},
		{of: "bad.example/a", message: "base64"},
		{of: "half.example/a", message: "base64"},
	} {
		got, err := findCredentials([]byte(all), repository(t, tc.of))
		switch {
		case tc.message != "":
			if err == nil || !strings.Contains(err.Error(), tc.message) || strings.Contains(err.Error(), "secret") {
				t.Errorf(`%s: got %+v, err = %v, want an error containing %q and err without "secret"`,
					tc.of, got, err, tc.message)
			}
		case err != nil || got.Username != tc.user || got.Password != tc.password || tc.user == "" && got.IdentityToken != "i":
			t.Errorf(`%s: got %+v, err = %v, want no error and got.Username == %v and got.Password == %v and (tc.user != "" or got.IdentityToken == "i")`,
				tc.of, got, err, tc.user, tc.password)
		}
	}
	for _, text := range []string{"", "[]", `{"auths":7}`, `{"auths":{"a":"secret"}}`} {
		if _, err := findCredentials([]byte(text), repository(t, "a")); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf(`%s: err = %v, want an error and err without "secret"`, text, err)
		}
	}
}

func FuzzRegistryCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"docker.io":{"auth":"YTpi"}}}`), "python")
	f.Add([]byte(`{"auths":{"":{"auth":"YTpi"},"/":{}}}`), "a.example/b")
	f.Fuzz(func(t *testing.T, data []byte, of string) {
		r, err := name.NewRepository(of)
		if err != nil {
			return
		}
		got, err := findCredentials(data, r)
		if err == nil && got.Username == "" && got.IdentityToken == "" && got.RegistryToken == "" {
			t.Errorf("no credentials for %s", of)
		}
	})
}
