// SPDX-License-Identifier: Apache-2.0

package skills_test

import (
	"net"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/skills"
)

func hosts(t testing.TB, list ...string) (out skills.Hosts) {
	t.Helper()
	for _, text := range list {
		h, err := skills.ParseHost(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h)
	}
	return out
}

func defaultHosts(t testing.TB) skills.Hosts {
	return hosts(t, "github.com", "gitlab.com", "codeberg.org", "git.example.org:8443=gitlab", "http://127.0.0.1:3000=gitea", "files.example.org")
}

func TestAddressesBecomeArchives(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		url, below string
	}{
		"https://github.com/o/r":                                  {"https://github.com/o/r/archive/HEAD.tar.gz", ""},
		"https://github.com/o/r.git":                              {"https://github.com/o/r/archive/HEAD.tar.gz", ""},
		"https://GitHub.com/o/r/#readme":                          {"https://GitHub.com/o/r/archive/HEAD.tar.gz", ""},
		"https://github.com/o/r/tree/main":                        {"https://github.com/o/r/archive/main.tar.gz", ""},
		"https://github.com/o/r/tree/v1/skills/a":                 {"https://github.com/o/r/archive/v1.tar.gz", "skills/a"},
		"https://github.com/o/r/blob/main/skills/a/SKILL.md":      {"https://github.com/o/r/archive/main.tar.gz", "skills/a"},
		"https://github.com/o/r/blob/main/SKILL.md":               {"https://github.com/o/r/archive/main.tar.gz", ""},
		"https://github.com/o/r/releases/tag/v1.2":                {"https://github.com/o/r/archive/refs/tags/v1.2.tar.gz", ""},
		"https://github.com/o/r/releases/download/v1.2/skill.zip": {"https://github.com/o/r/releases/download/v1.2/skill.zip", ""},
		"https://codeload.github.com/o/r/x.zip":                   {"https://codeload.github.com/o/r/x.zip", ""},
		"https://gitlab.com/g/r":                                  {"https://gitlab.com/g/r/-/archive/HEAD/r-HEAD.tar.gz", ""},
		"https://gitlab.com/g/s/r/-/tree/main/a/b":                {"https://gitlab.com/g/s/r/-/archive/main/r-main.tar.gz", "a/b"},
		"https://gitlab.com/g/r/-/blob/main/a/SKILL.md":           {"https://gitlab.com/g/r/-/archive/main/r-main.tar.gz", "a"},
		"https://gitlab.com/g/r/-/releases/v1":                    {"https://gitlab.com/g/r/-/archive/v1/r-v1.tar.gz", ""},
		"https://git.example.org:8443/g/r/-/tags/v1":              {"https://git.example.org:8443/g/r/-/archive/v1/r-v1.tar.gz", ""},
		"https://codeberg.org/o/r":                                {"https://codeberg.org/o/r/archive/HEAD.tar.gz", ""},
		"https://codeberg.org/o/r/src/branch/main/skills/a":       {"https://codeberg.org/o/r/archive/main.tar.gz", "skills/a"},
		"https://codeberg.org/o/r/src/commit/abc/a/SKILL.md":      {"https://codeberg.org/o/r/archive/abc.tar.gz", "a"},
		"http://127.0.0.1:3000/o/r/releases/tag/v1":               {"http://127.0.0.1:3000/o/r/archive/v1.tar.gz", ""},
		"https://files.example.org/a/b.tgz":                       {"https://files.example.org/a/b.tgz", ""},
	} {
		got, err := skills.FindArchive(defaultHosts(t), text)
		if err != nil || got.URL.String() != want.url || got.Below != want.below {
			t.Errorf("%s: got %+v, err = %v, want no error and got.URL.String() == %v and got.Below == %v",
				text, got, err, want.url, want.below)
		}
	}
}

func TestOtherAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]fault.Kind{
		"https://evil.example.org/a.zip":                   fault.Denied,
		"https://github.com.evil.org/o/r":                  fault.Denied,
		"https://github.com:444/o/r":                       fault.Denied,
		"http://github.com/o/r":                            fault.Denied,
		"https://127.0.0.1:3000/o/r":                       fault.Denied,
		"http://127.0.0.1/o/r":                             fault.Denied,
		"http://169.254.169.254/latest/a.zip":              fault.Denied,
		"http://codeload.github.com/a.zip":                 fault.Denied,
		"file:///etc/passwd":                               fault.Invalid,
		"ftp://github.com/a.zip":                           fault.Invalid,
		"git@github.com:o/r":                               fault.Invalid,
		"https://user:secret@github.com/o/r":               fault.Invalid,
		"https://github.com@evil.org/a.zip":                fault.Invalid,
		"github.com/o/r":                                   fault.Invalid,
		"":                                                 fault.Invalid,
		"https://github.com/":                              fault.Invalid,
		"https://github.com/o":                             fault.Invalid,
		"https://github.com/o/r/issues/1":                  fault.Invalid,
		"https://github.com/o/r/tree/main/../../x":         fault.Invalid,
		"https://github.com/o/r/tree/a%2Fb/c":              fault.Invalid,
		"https://github.com/o/r/tree/main?x=y":             fault.Invalid,
		"https://github.com/o/r/tree/main/a%0Ab":           fault.Invalid,
		"https://files.example.org/o/r":                    fault.Invalid,
		"https://gitlab.com/g/r/-/issues":                  fault.Invalid,
		"https://github.com/" + strings.Repeat("a/", 2000): fault.Invalid,
	} {
		if got, err := skills.FindArchive(defaultHosts(t), text); fault.KindOf(err) != kind {
			t.Errorf("%s: got %+v, err = %v, want an error of kind %v", text, got, err, kind)
		}
	}
	if _, err := skills.FindArchive(nil, "https://github.com/o/r"); fault.KindOf(err) != fault.Denied || fault.DenialOf(err) == nil {
		t.Errorf("without hosts: err = %v, want a fault.Denied error and fault.DenialOf(err) != nil", err)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "http://", "https://github.com", "a/b", "a b", "*.example.org", "user@host", "host=svn", "host=", "host:x", "host:99999", "host?x", "[::1"} {
		if h, err := skills.ParseHost(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, h)
		}
	}
	for ip, want := range map[string][2]bool{ // by name, by address
		"127.0.0.1": {false, true}, "169.254.169.254": {false, true}, "::1": {false, true}, "0.0.0.0": {false, true}, "fe80::1": {false, true},
		"10.1.2.3": {true, true}, "140.82.121.4": {true, true},
	} {
		list := hosts(t, "git.example.org", "http://127.0.0.1:3000")
		for i, h := range list {
			if h.Within(net.ParseIP(ip)) != want[i] {
				t.Errorf("%s for %s: !want[i] = %v, want h.Within(net.ParseIP(ip)) == want[i]", ip, h.Name, !want[i])
			}
		}
	}
}

// Whatever is asked for, the archive is on an allowed host, and its path does not lead out of it.
func FuzzFind(f *testing.F) {
	for _, seed := range []string{"https://github.com/o/r/tree/main/a", "https://gitlab.com/g/r/-/blob/x/SKILL.md", "http://127.0.0.1:3000/o/r/src/tag/v/x", "https://github.com@e/x.zip"} {
		f.Add(seed)
	}
	list := defaultHosts(f)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := skills.FindArchive(list, text)
		if err != nil {
			return
		}
		if _, ok := list.Allows(a.URL); !ok || a.URL.User != nil || strings.Contains("/"+a.Below+"/", "/../") {
			t.Errorf(`%q: a = %+v, want ok == true and a.URL.User == nil and "/" + a.Below + "/" without "/../"`,
				text, a)
		}
	})
}
