// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// pushes pushes an image to a registry.
func pushes(t *testing.T, to string, is v1.Config, layers ...[]byte) {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: is})
	for _, plain := range layers {
		var l v1.Layer
		if err == nil {
			l, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain)), nil }, tarball.WithCompressionLevel(gzip.BestSpeed))
		}
		if err == nil {
			img, err = mutate.AppendLayers(img, l)
		}
	}
	ref, bad := name.ParseReference(to, name.Insecure)
	if err = errors.Join(err, bad); err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// withProgram returns the configuration of an image with the program.
func withProgram() v1.Config {
	return v1.Config{Env: []string{programVariable + "=1", "COLOR=green"}, Entrypoint: []string{"/bin/program"}, Cmd: []string{"env=COLOR"}}
}

// pulls runs boxctl images pull. The error has boxctl's message.
func pulls(t *testing.T, d *boxtest.Daemon, args ...string) (string, error) {
	t.Helper()
	var said bytes.Buffer
	cmd := d.Boxctl(t, append([]string{"images", "pull"}, args...)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = errors.New(strings.TrimPrefix(said.String(), "boxctl: "))
	}
	return string(out), err
}

// An image is pulled from a registry, once, and boxes start from it; an incomplete pull leaves nothing.
func TestABoxIsMadeOfWhatARegistryHas(t *testing.T) {
	t.Parallel()
	var blobs atomic.Int64 // requests for blobs
	var broken atomic.Bool
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && blobs.Add(1) > 1 && broken.Load() {
			w.Header().Set("Content-Length", "1000000")
			return // closes the connection
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	ref := strings.TrimPrefix(server.URL, "http://") + "/team/tools:1"
	pushes(t, ref, withProgram(), layer(t, program(t)), layer(t, entry{name: "version", content: "old"}))
	if _, err := pulls(t, d, ref); err == nil { // it has no TLS
		t.Error("pulled without TLS, which nobody has allowed")
	}
	out, err := pulls(t, d, "--insecure", ref)
	if err != nil || !strings.HasPrefix(out, ref+" sha256:") {
		t.Fatalf(`out = %q, err = %v, want no error and out starting with ref + " sha256:"`, out, err)
	}
	if got := runs(t, d, ref, "cat=/version", "env=COLOR"); got != "oldgreen\n" {
		t.Errorf(`in the box: got %q, want "oldgreen\n"`, got)
	}
	blobs.Store(0)
	if again, err := pulls(t, d, "--insecure", ref); again != out || err != nil || blobs.Load() > 1 { // only the configuration is fetched
		t.Errorf("again: %q, %v, %d blobs", again, err, blobs.Load())
	}
	pushes(t, ref, withProgram(), layer(t, program(t)), layer(t, entry{name: "version", content: "young"}))
	blobs.Store(0)
	broken.Store(true)
	if out, err := pulls(t, d, "--insecure", ref); err == nil || !strings.HasPrefix(err.Error(), "pull "+ref+": ") {
		t.Errorf(`a registry that breaks off: out = %q, err = %v, want an error and err starting with "pull " + ref + ": "`,
			out, err)
	}
	broken.Store(false)
	if got := runs(t, d, ref, "cat=/version"); got != "old" || trees(t, d) != 1 {
		t.Errorf("after a pull that has failed: %q, %d trees", got, trees(t, d))
	}
	if out, err := pulls(t, d, "--insecure", ref, "--name", "tools:young"); err != nil || !strings.HasPrefix(out, "tools:young sha256:") {
		t.Errorf(`out = %q, err = %v, want no error and out starting with "tools:young sha256:"`, out, err)
	}
	if got := runs(t, d, "tools:young", "cat=/version"); got != "young" {
		t.Errorf(`in the box: got %q, want "young"`, got)
	}
	c := d.Client
	if err := errors.Join(c.DeleteImage(t.Context(), ref), c.DeleteImage(t.Context(), "tools:young")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}
