// SPDX-License-Identifier: Apache-2.0

package skills_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/skills"
)

func host(t *testing.T, text string) skills.SourceHost {
	t.Helper()
	h, err := skills.ParseHost(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestArchivesComeFromAllowedHostsAlone(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "other's") }))
	defer other.Close()
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/o/r/archive/HEAD.tar.gz":
			http.Redirect(w, r, "/codeload", http.StatusFound)
		case "/codeload":
			io.WriteString(w, "the archive")
		case "/away.zip":
			http.Redirect(w, r, other.URL+"/x", http.StatusFound)
		case "/file.zip":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/round.zip":
			http.Redirect(w, r, "/round.zip", http.StatusFound)
		case "/cut.zip":
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "half")
		default:
			http.NotFound(w, r)
		}
	}))
	defer local.Close()
	at := strings.TrimPrefix(local.URL, "http://")
	hosts := skills.Hosts{host(t, "http://"+at+"=github")}
	fetch := func(ctx context.Context, path string) (string, error) {
		a, err := skills.FindArchive(hosts, local.URL+path)
		if err != nil {
			return "", err
		}
		var text []byte
		err = skills.Fetch(ctx, hosts, a, func(r io.Reader) (err error) {
			text, err = io.ReadAll(r)
			return err
		})
		return string(text), err
	}
	if text, err := fetch(t.Context(), "/o/r"); err != nil || text != "the archive" {
		t.Errorf(`text = %q, err = %v, want no error and text == "the archive"`, text, err)
	}
	for path, kind := range map[string]fault.Kind{
		"/away.zip": fault.Denied, "/file.zip": fault.Denied, "/round.zip": fault.Unavailable, "/none.zip": fault.NotFound, "/cut.zip": fault.Unavailable,
	} {
		if text, err := fetch(t.Context(), path); fault.KindOf(err) != kind || text == "other's" {
			t.Errorf(`%s: text = %q, err = %v, want an error of kind %v and text != "other's"`, path, text, err, kind)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fetch(gone, "/o/r"); err == nil {
		t.Error("no error for a download whose context is canceled")
	}
	// A name that resolves to this host.
	_, port, _ := strings.Cut(at, ":")
	named := skills.Hosts{host(t, "http://ip6-localhost:"+port), host(t, "http://localhost.localdomain:"+port)}
	for _, h := range named {
		a, err := skills.FindArchive(named, "http://"+h.Name+"/x.zip")
		if err != nil {
			t.Fatal(err)
		}
		if err := skills.Fetch(t.Context(), named, a, func(io.Reader) error { return nil }); err == nil {
			t.Errorf("%s was reached", h.Name)
		}
	}
}
