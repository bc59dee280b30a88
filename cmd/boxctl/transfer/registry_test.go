// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// served is a registry over TLS, behind a handler that can interfere.
type served struct {
	host    string
	roots   *x509.CertPool
	between func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

func serveRegistry(t *testing.T) *served {
	t.Helper()
	s := &served{roots: x509.NewCertPool()}
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.between != nil && r.Method == http.MethodGet {
			s.between(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "https://")
	s.roots.AddCert(server.Certificate())
	return s
}

func imageOf(t *testing.T, arch string, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, static.NewLayer(l, types.OCIUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	is, err := img.ConfigFile()
	if err == nil {
		is = is.DeepCopy()
		is.OS, is.Architecture = "linux", arch
		img, err = mutate.ConfigFile(img, is)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// push puts an image or an index into the registry.
func (s *served) push(t *testing.T, to string, what remote.Taggable) {
	t.Helper()
	ref, err := name.ParseReference(s.host + "/" + to)
	if err != nil {
		t.Fatal(err)
	}
	options := []remote.Option{remote.WithTransport(newRegistryTransport(s.host, false, time.Minute, s.roots)), remote.WithContext(t.Context())}
	switch what := what.(type) {
	case v1.Image:
		err = remote.Write(ref, what, options...)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, what, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pull fetches an image, and returns the files of the archive.
func (s *served) pull(ctx context.Context, from string, change func(o *PullOptions)) (*Image, map[string]string, error) {
	o := &PullOptions{Ref: s.host + "/" + from, Platform: "linux/amd64", roots: s.roots}
	if change != nil {
		change(o)
	}
	i, err := FindImage(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	defer i.Close()
	var b bytes.Buffer
	if err := i.Write(&b); err != nil {
		return i, nil, err
	}
	files := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return i, files, nil
		}
		if err != nil {
			return i, nil, err
		}
		data, err := io.ReadAll(r)
		if _, dup := files[h.Name]; dup || err != nil {
			return i, nil, fmt.Errorf("%s: twice or %w", h.Name, err)
		}
		files[h.Name] = string(data)
	}
}

func TestAnImageBecomesALayout(t *testing.T) {
	t.Parallel()
	s := serveRegistry(t)
	one, two := imageOf(t, "amd64", []byte("first"), []byte("second"), []byte("first")), imageOf(t, "arm64", []byte("other"))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: two, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	s.push(t, "team/tools:1", index)
	s.push(t, "team/one", one)
	digest, err := one.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"team/tools:1", "team/one", "team/one@" + digest.String()} {
		i, files, err := s.pull(t.Context(), from, nil)
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		want := s.host + "/" + from
		if from == "team/one" {
			want += ":latest"
		}
		var top struct {
			Manifests []struct {
				Digest      string
				Annotations map[string]string
			}
		}
		if err := json.Unmarshal([]byte(files["index.json"]), &top); err != nil || len(top.Manifests) != 1 || top.Manifests[0].Digest != digest.String() || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != want {
			t.Errorf("%s: index %s, %v", from, files["index.json"], err)
		}
		content := 0
		for _, text := range files {
			if text == "first" || text == "second" {
				content++
			}
		}
		if i.Name != want || i.Digest != digest.String() || len(files) != 6 || content != 2 || files[blob(i.Digest)] == "" {
			t.Errorf("%s: %+v with %d files, %d layers", from, i, len(files), content)
		}
	}
	i, files, err := s.pull(t.Context(), "team/tools:1", func(o *PullOptions) { o.Platform = "linux/arm64" })
	if err != nil || len(files) != 5 || i.Digest == digest.String() {
		t.Errorf("of another platform: i = %+v, err = %v, want no error and len(files) == 5 and i.Digest != digest.String()",
			i, err)
	}
}

func TestWhatCannotBePulledIsNamed(t *testing.T) {
	t.Parallel()
	s := serveRegistry(t)
	s.push(t, "a:1", imageOf(t, "amd64", []byte("x")))
	s.push(t, "arm:1", imageOf(t, "arm64", []byte("x")))
	s.push(t, "index:1", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: imageOf(t, "arm64", []byte("x")), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}}))
	s.push(t, "empty:1", imageOf(t, "amd64"))
	sparse, err := random.Index(10, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.push(t, "nothing:1", sparse)
	wrong := "a@sha256:" + strings.Repeat("0", 64)
	for _, tc := range []struct {
		from, message string
		change        func(o *PullOptions)
	}{
		{from: "A:1", message: "want a name such as"},
		{from: "a:1 ", message: "want a name such as"},
		{from: "a@sha512:" + strings.Repeat("0", 128), message: "sha256"},
		{from: "a:2", message: "MANIFEST_UNKNOWN"},
		{from: "b:1", message: "NAME_UNKNOWN"},
		{from: wrong, message: "MANIFEST_UNKNOWN"},
		{from: "arm:1", message: "it is for linux/arm64, not for linux/amd64"},
		{from: "index:1", message: "there is linux/arm64"},
		{from: "nothing:1", message: "linux/amd64"},
		{from: "empty:1", message: "0 layers"},
		{from: "a:1", message: "want one such as", change: func(o *PullOptions) { o.Platform = "linux" }},
		{from: "a:1", message: "want one such as", change: func(o *PullOptions) { o.Platform = "a/b/c/d" }},
		{from: "a:1", message: "no such file", change: func(o *PullOptions) { o.Credentials.File = "/nonexistent" }},
		{from: "a:1", message: "certificate", change: func(o *PullOptions) { o.roots = nil }},
	} {
		if _, _, err := s.pull(t.Context(), tc.from, tc.change); err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %v, want %q", tc.from, err, tc.message)
		}
	}
}

// Whatever a registry does, its effect is limited, and the error names it.
func TestRegistriesThatMisbehave(t *testing.T) {
	t.Parallel()
	blobs := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }
	for what, tc := range map[string]struct {
		does    func(w http.ResponseWriter, r *http.Request, next http.Handler)
		message string
	}{
		"it is silent": {func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }, "is silent for 300ms"},
		"it falls silent in a layer": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !blobs(r) {
				next.ServeHTTP(w, r)
				return
			}
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
			_, _ = w.Write(answer.Body.Bytes()[:1])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "is silent for 300ms"},
		"it sends us round and round": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/v2/" {
				next.ServeHTTP(w, r)
				return
			}
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, "redirects more than 10 times"},
		"it sends us where there is no TLS": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !blobs(r) {
				next.ServeHTTP(w, r)
				return
			}
			http.Redirect(w, r, "http://localhost:9/x", http.StatusTemporaryRedirect)
		}, "without TLS"},
		"it sends us into the private network": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !blobs(r) {
				next.ServeHTTP(w, r)
				return
			}
			http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}, "169.254.169.254"},
		"it has other content": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			if blobs(r) {
				body = bytes.ReplaceAll(body, []byte("linux"), []byte("LINUX"))
			}
			w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		}, "sha256"},
		"its answers have no end": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "more than 8388608 bytes"},
		"its words move the cursor": {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "a\x1b[2Jb\u202ec\n"+strings.Repeat("d", 5000))
		}, "a[2Jbc ddd"},
		"it has a manifest of version 1": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/v2/" {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")
			_, _ = io.WriteString(w, "{}")
		}, "unsupported MediaType"},
		"its layers are elsewhere":   {does: changeManifest(func(m *v1.Manifest) { m.Layers[0].URLs = []string{"https://169.254.169.254/"} }), message: "is foreign"},
		"its configuration is huge":  {does: changeManifest(func(m *v1.Manifest) { m.Config.Size = 1 << 40 }), message: "its configuration has"},
		"its layer is below nothing": {does: changeManifest(func(m *v1.Manifest) { m.Layers[0].Size = -1 }), message: "too large"},
	} {
		s := serveRegistry(t)
		s.push(t, "a:1", imageOf(t, "amd64", []byte("linux")))
		s.between = tc.does
		_, _, err := s.pull(t.Context(), "a:1", func(o *PullOptions) {
			if strings.HasPrefix(tc.message, "is silent") {
				o.Patience = 300 * time.Millisecond
			}
		})
		if err == nil || !strings.Contains(err.Error(), tc.message) || !strings.HasPrefix(err.Error(), "pull "+s.host+"/a:1: ") || len(err.Error()) > 800 || strings.ContainsAny(err.Error(), "\x1b\n\u202e") {
			t.Errorf("%s: %v, want %q", what, err, tc.message)
		}
	}
}

// changeManifest changes the manifest that a registry serves.
func changeManifest(change func(m *v1.Manifest)) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		if m, err := v1.ParseManifest(bytes.NewReader(body)); err == nil && strings.Contains(r.URL.Path, "/manifests/") {
			change(m)
			body, _ = json.Marshal(m)
		}
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body)
	}
}

// Credentials are only sent to the registry that they were given for.
func TestCredentialsGoOnlyToTheirRegistry(t *testing.T) {
	t.Parallel()
	s := serveRegistry(t)
	s.push(t, "team/a:1", imageOf(t, "amd64", []byte("x")))
	elsewhere := ""
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere += r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "x")
	}))
	t.Cleanup(other.Close)
	s.roots.AddCert(other.Certificate())
	token := false
	s.between = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		user, password, _ := r.BasicAuth()
		known := user == "me" && password == "secret"
		switch {
		case token && r.URL.Path == "/token" && known:
			_, _ = io.WriteString(w, `{"token":"t0ken"}`)
		case token && r.Header.Get("Authorization") == "Bearer t0ken", !token && known:
			if strings.Contains(r.URL.Path, "/blobs/") && strings.HasSuffix(r.URL.Path, fmt.Sprintf("%x", sumOf("x"))) {
				http.Redirect(w, r, other.URL+"/x", http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			if token {
				w.Header().Set("WWW-Authenticate", `Bearer realm="https://`+s.host+`/token",service="r"`)
			}
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	file := filepath.Join(t.TempDir(), "auth.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, token = range []bool{false, true} {
		if _, _, err := s.pull(t.Context(), "team/a:1", nil); err == nil || !strings.Contains(err.Error(), "--authfile") {
			t.Errorf(`without credentials, token %v: err = %v, want an error containing "--authfile"`, token, err)
		}
		for password, ok := range map[string]bool{"secret": true, "other": false} {
			_, _, err := s.pull(t.Context(), "team/a:1", func(o *PullOptions) { o.Credentials = RegistryCredentials{Username: "me", Password: password} })
			if (err == nil) != ok || err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("user me with password %s, token %v: err = %v, want (err == nil) == ok and (no error or err without password)",
					password, token, err)
			}
		}
		write(`{"auths":{"other.example":{"auth":"eDp5"},"` + s.host + `":{"auth":"bWU6c2VjcmV0"}},"credsStore":"evil"}`)
		if _, _, err := s.pull(t.Context(), "team/a:1", func(o *PullOptions) { o.Credentials.File = file }); err != nil {
			t.Errorf("credentials of a file, token %v: %v", token, err)
		}
	}
	if elsewhere != "" {
		t.Errorf("another host has got %q", elsewhere)
	}
	write(`{"auths":{"other.example":{"auth":"eDp5"}},"credHelpers":{"` + s.host + `":"evil"}}`)
	if _, _, err := s.pull(t.Context(), "team/a:1", func(o *PullOptions) { o.Credentials.File = file }); err == nil || !strings.Contains(err.Error(), "no entry for") {
		t.Errorf(`of another registry: err = %v, want an error containing "no entry for"`, err)
	}
}
