// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"
)

func key(tb testing.TB, dir string) *access.PreviewKey {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer root.Close()
	k, err := access.OpenPreviewKey(root)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func previewText() *access.PreviewToken {
	return &access.PreviewToken{
		Owner: "uid:7", Session: "a/b", Made: 1234567890123, Port: 8000, Expires: 1000,
		By: access.PreviewMaker{Name: "uid:7", Token: "ci", UID: 7, GID: 8, Groups: []uint32{1, 1 << 31}},
	}
}

func TestAPreviewTokenIsValidForTheNextBoxd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := key(t, dir)
	text, err := k.Sign(previewText())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "previews.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode().Perm() == 0o600", info, err)
	}
	before := time.Unix(999, 0)
	if got, err := key(t, dir).Read(text, before); err != nil || !reflect.DeepEqual(got, previewText()) { // as the next boxd does
		t.Errorf("got %+v, err = %v, want no error and got == previewText()", got, err)
	}
	if _, err := k.Read(text, time.Unix(1000, 0)); !errors.Is(err, access.ErrPreviewOver) {
		t.Errorf("over: err = %v, want err is access.ErrPreviewOver", err)
	}
	for i := range text { // no character of it can be changed
		other := byte('A')
		if text[i] == other {
			other = 'B'
		}
		if _, err := k.Read(text[:i]+string(other)+text[i+1:], before); err == nil {
			t.Fatalf("another character at %d is not noticed", i)
		}
	}
	for _, bad := range []string{"", "x", text + "A", text[1:], text + "=", text + "\n", strings.Repeat("A", 8<<10), strings.Repeat("A", 100)} {
		if _, err := k.Read(bad, before); err == nil {
			t.Errorf("%.20q is a token", bad)
		}
	}
	if _, err := key(t, t.TempDir()).Read(text, before); err == nil {
		t.Error("the token is valid for another boxd")
	}
}

// Every port of every session, past ones included, has a host name of its own, and none is the API's.
func TestEveryPreviewHasItsHost(t *testing.T) {
	t.Parallel()
	k := key(t, t.TempDir())
	seen := map[string]bool{}
	for _, change := range []func(*access.PreviewToken){
		func(*access.PreviewToken) {}, func(c *access.PreviewToken) { c.Port++ }, func(c *access.PreviewToken) { c.Made++ }, func(c *access.PreviewToken) { c.Session = "b" },
		func(c *access.PreviewToken) { c.Owner, c.Session = "uid:7a", "/b" },
	} {
		c := previewText()
		change(c)
		host := k.Host(c)
		if seen[host] || !access.IsPreviewHost(host) || !access.IsPreviewHost(host+":5410") || len(strings.Split(host, ".")[0]) > 63 {
			t.Errorf("%+v has %s", c, host)
		}
		seen[host] = true
	}
	for _, host := range []string{"", "boxd", "localhost", "localhost:5410", "127.0.0.1", "x.localhost", "bx-a.example", "bx-a.localhost.example", "bx-a.localhost:", "bx-a.localhost:x", "bx-a.localhost:80/x", "x@bx-a.localhost", "bx-a.b.localhost", "bx-a/.localhost"} {
		if access.IsPreviewHost(host) {
			t.Errorf("%q is one", host)
		}
	}
}

func TestAnInvalidPreviewKeyFileIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{}", `{"key":"AAAA"}`, "x"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "previews.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if _, err := access.OpenPreviewKey(root); err == nil {
			t.Errorf("%q is a key", text)
		}
	}
}

func FuzzRead(f *testing.F) {
	k := key(f, f.TempDir())
	text, err := k.Sign(previewText())
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{text, "", "AAAA", text[:20]} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, other string) {
		if got, err := k.Read(other, time.Unix(0, 0)); err == nil && (other != text || !reflect.DeepEqual(got, previewText())) {
			t.Errorf("%q is %+v, want an error or other == %q and got == previewText()", other, got, text)
		}
	})
}
