// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"
)

// entry returns one table of the token file.
func entry(name, hash, more string) string {
	return fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\nprincipal = \"ci\"\n%s\n", name, hash, more)
}

func TestATokenIsKnownByItsHashAlone(t *testing.T) {
	t.Parallel()
	one, h1 := access.NewToken()
	two, h2 := access.NewToken()
	set, err := access.ParseTokens(entry("one", h1, `role = "viewer"`) + entry("two", strings.ToUpper(h2), "expires = 2030-01-02T03:04:05Z"))
	if err != nil || set.Len() != 2 {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{
		one: "one", two: "two", "": "", one[:len(one)-1]: "", one + " ": "", strings.ToLower(one): "", h1: "", strings.TrimPrefix(one, access.TokenPrefix): "",
	} {
		got := set.Find(secret)
		if (got == nil) != (want == "") || got != nil && got.Name != want {
			t.Errorf("%q is %+v, want %q", secret, got, want)
		}
	}
	if tok := set.Find(one); tok.Role != access.Viewer || tok.Over(time.Now()) || tok.Principal != "ci" {
		t.Errorf("tok = %+v", tok)
	}
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	if tok := set.Find(two); tok.Over(end.Add(-1)) || !tok.Over(end) {
		t.Errorf("tok = %+v, want not tok.Over(end.Add(-1)) and tok.Over(end)", tok)
	}
	if one == two || !strings.HasPrefix(one, access.TokenPrefix) || len(one) < 50 {
		t.Errorf("one = %q, two = %q, want one != two and one starting with access.TokenPrefix and len(one) >= 50",
			one, two)
	}
}

func TestATokenIsForItsRoutes(t *testing.T) {
	t.Parallel()
	_, h := access.NewToken()
	for routes, want := range map[string]map[string]bool{
		"": {"GET /v1/status": true, "DELETE /v1/sessions/{id}": true},
		`"GET /v1/sessions", "* /v1/sessions/{id}/exec"`: {"GET /v1/sessions": true, "POST /v1/sessions": false, "POST /v1/sessions/{id}/exec": true, "GET /v1/sessions/{id}": false},
		`"GET /v1/*"`: {"GET /v1/status": true, "POST /v1/exec": false, "GET /healthz": false},
	} {
		set, err := access.ParseTokens(entry("x", h, "routes = ["+routes+"]"))
		if err != nil {
			t.Fatal(err)
		}
		set.Each(func(tok *access.Token) {
			for pattern, may := range want {
				if tok.Allows(pattern) != may {
					t.Errorf("%s and %s: !may = %v, want tok.Allows(pattern) == may", routes, pattern, !may)
				}
			}
		})
	}
}

func TestAMalformedTokenFileIsRefused(t *testing.T) {
	t.Parallel()
	_, h := access.NewToken()
	for name, text := range map[string]string{
		"syntax": "[[token", "unknown key": entry("x", h, "secret = 1"), "unknown table": "[x]\n", "hash": entry("x", h[1:], ""), "no digits": entry("x", strings.Repeat("z", 64), ""),
		"no name": entry("", h, ""), "spaces": entry("a b", h, ""), "nobody": "[[token]]\nname = \"x\"\nsha256 = \"" + h + "\"\n",
		"role": entry("x", h, `role = "root"`), "route": entry("x", h, `routes = ["/v1"]`), "star": entry("x", h, `routes = ["GET /*/x"]`),
		"date": entry("x", h, `expires = "soon"`), "one name": entry("x", h, "") + entry("x", strings.Repeat("0", 64), ""), "one hash": entry("x", h, "") + entry("y", h, ""),
	} {
		if set, err := access.ParseTokens(text); err == nil {
			t.Errorf("%s: set = %+v, want an error", name, set)
		}
	}
}

func TestTheFileIsRootsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, h := access.NewToken()
	path := filepath.Join(dir, "tokens")
	if set, err := access.ReadTokens(path, false); err != nil || set.Len() != 0 {
		t.Errorf("without a token file: set = %v, err = %v, want no error and set.Len() == 0", set, err)
	}
	if err := os.WriteFile(path, []byte(entry("x", h, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, wants := range map[os.FileMode][2]bool{0o600: {true, true}, 0o400: {true, true}, 0o440: {false, true}, 0o640: {false, true}, 0o660: {}, 0o604: {}, 0o644: {}} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		for i, lent := range []bool{false, true} {
			if _, err := access.ReadTokens(path, lent); (err == nil) != wants[i] {
				t.Errorf("mode %o, a credential %v: err = %v, want (err == nil) == wants[i]", mode, lent, err)
			}
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{link, dir, os.DevNull} {
		if _, err := access.ReadTokens(other, false); err == nil {
			t.Errorf("%s is read", other)
		}
	}
	set, err := access.ReadTokens(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := access.JoinTokens(set, set); err == nil {
		t.Error("no error for two tokens of the same name")
	}
	if both, err := access.JoinTokens(set, &access.Tokens{}); err != nil || both.Len() != 1 {
		t.Errorf("both = %v, err = %v, want no error and both.Len() == 1", both, err)
	}
}

// FuzzParse feeds arbitrary token files to the parser: it accepts or refuses, and what it accepts does not contain a token that
// was not in it.
func FuzzParse(f *testing.F) {
	_, h := access.NewToken()
	f.Add(entry("x", h, `routes = ["GET /v1/*"]`))
	f.Add("[[token]]\n[[token]]\n")
	f.Add("token = 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := access.ParseTokens(text)
		if err != nil {
			return
		}
		if set.Find("boxd_other") != nil {
			t.Fatalf(`an invalid token is accepted: text = %q, want set.Find("boxd_other") == nil`, text)
		}
		set.Each(func(tok *access.Token) { tok.Allows("GET /v1/sessions/{id}") })
	})
}
