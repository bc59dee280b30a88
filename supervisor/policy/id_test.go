// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

func TestIDsAreTextWithoutControlCharacters(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"s1", "/", "..", ".", "%2f", "%00", "a/../b", " ", " a b ", "日本", "😀", strings.Repeat("é", maxID/2), "a\\x2db", "-rf", "~", "*", `"`, "\u202e", "\ufffd",
	} {
		if err := ValidateID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{
		"", "\x00", "a\x00b", "a\nb", "\t", "\x1b[2J", "\x7f", "\u0085", "\xff", "a\xc3", strings.Repeat("a", maxID+1), strings.Repeat("é", maxID/2) + "a",
	} {
		if err := ValidateID(id); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: err = %v, want a fault.Invalid error", id, err)
		}
	}
}

func TestKeysAreOneForEachPrincipalAndID(t *testing.T) {
	t.Parallel()
	key := regexp.MustCompile(`^[0-9a-f]{32}$`)
	seen := map[string]string{}
	for _, who := range []string{"", "uid:0", "uid:1", "uid:10", "uid:1\x00"} {
		for _, id := range []string{"s1", "0s1", "/", "..", "", "\x00s1"} {
			k := Key(who, id)
			if !key.MatchString(k) || len(k) != isolation.KeyLen {
				t.Errorf("%q is no key", k)
			}
			if other, ok := seen[k]; ok && who != "uid:1\x00" && id != "\x00s1" { // neither contains a NUL
				t.Errorf("%q and %q have one key", who+" "+id, other)
			}
			seen[k] = who + " " + id
		}
	}
}

func TestHostnamesAreLabels(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"s1": "s1", "Group_42": "group-42", "a/../b": "a-..-b", "..": "box", "日本": "box", "-x-": "x", "telegram:42": "telegram-42",
		strings.Repeat("a", 100):       strings.Repeat("a", 63),
		strings.Repeat("a", 62) + "/b": strings.Repeat("a", 62),
	} {
		want = strings.ReplaceAll(want, ".", "-")
		if got := Hostname(id, isolation.MaxHostname); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}

// FuzzHostname checks that every id makes a hostname which isolation accepts.
func FuzzHostname(f *testing.F) {
	f.Add("s1")
	f.Add("-\x00é/")
	f.Fuzz(func(t *testing.T, id string) {
		spec := isolation.Spec{
			Key: Key("uid:0", id), Hostname: Hostname(id, isolation.MaxHostname), Scratch: isolation.Scratch{Bytes: isolation.MinScratch, Inodes: 64},
		}
		if err := spec.Validate(); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	})
}

func TestMadeUpIDsAreShortAndValid(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 12 || ValidateID(id) != nil || id != strings.ToLower(id) || seen[id] {
			t.Fatalf("id = %q", id)
		}
		seen[id] = true
	}
}
