// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// installed returns the entries of programs of the host's distribution and the libraries that they are linked with, at their own
// paths: through /bin, /lib and /lib64, which are links on most distributions.
func installed(t *testing.T, programs ...string) (entries []entry) {
	t.Helper()
	boxtest.RequireProgram(t, "ldd")
	entries = append(entries, entry{name: "usr/", kind: tar.TypeDir})
	for _, name := range []string{"bin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + name); err == nil {
			entries = append(entries, entry{name: strings.TrimPrefix(to, "/") + "/", kind: tar.TypeDir}, entry{name: name, kind: tar.TypeSymlink, link: to})
		}
	}
	seen := map[string]bool{}
	add := func(path string) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[path] {
			seen[path] = true
			entries = append(entries, entry{name: path[1:], content: string(data), mode: 0o755})
		}
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "ldd", path).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", path, err)
		}
		add(path)
		for word := range strings.FieldsSeq(string(out)) {
			if filepath.IsAbs(word) {
				add(word)
			}
		}
	}
	return entries
}

// Programs of a distribution find their loader and libraries in an image of several layers.
func TestProgramsOfADistributionRunInAnImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	i := &image{name: "distribution:1", config: map[string]any{"Cmd": []string{"/bin/sh", "-c", "echo by itself"}}}
	for _, plain := range [][]byte{
		layer(t, installed(t, "sh", "cat")...),
		layer(t, append(installed(t, "ls"), entry{name: "etc/", kind: tar.TypeDir}, entry{name: "etc/os-release", content: "ID=image\n"})...),
	} {
		i.plain, i.layers = append(i.plain, plain), append(i.layers, packed(t, plain))
	}
	imports(t, d, i.layout(t), "")
	if got := runs(t, d, "distribution:1"); got != "by itself\n" {
		t.Errorf(`without a command: got %q, want "by itself\n"`, got)
	}
	r, err := d.Run(t.Context(), &api.OneShotRequest{
		Session: api.SessionRequest{Image: new("distribution:1")},
		Exec:    api.ExecRequest{Argv: []string{"sh", "-c", "cat /etc/os-release; ls /etc/os-release; cat < /dev/null; ls /root /usr/bin/python3; echo x > /bin/x; echo kept > /workspace/y && cat /workspace/y"}},
	})
	if err != nil || r.Stdout != "ID=image\n/etc/os-release\nkept\n" || strings.Count(r.Stderr, "No such file") != 2 || !strings.Contains(r.Stderr, "Read-only file system") {
		t.Errorf("r = %+v, err = %v", r, err)
	}
}

// split splits an archive in two: the second has the listed entries.
func split(t *testing.T, all io.Reader, listed func(name string) bool) (base, above []byte) {
	t.Helper()
	var out [2]bytes.Buffer
	to := [2]*tar.Writer{tar.NewWriter(&out[0]), tar.NewWriter(&out[1])}
	for r := tar.NewReader(all); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w := to[0]
		if err == nil && listed(path.Clean("/"+h.Name)) {
			w = to[1]
		}
		if err == nil {
			err = w.WriteHeader(h)
		}
		if err == nil {
			_, err = io.Copy(w, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(to[0].Close(), to[1].Close()); err != nil {
		t.Fatal(err)
	}
	return out[0].Bytes(), out[1].Bytes()
}

// A distribution built by mmdebstrap, in two layers, is pulled from a registry and works. The virtual machine has no mmdebstrap,
// and no network for it.
func TestADistributionIsPulledAndRuns(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "mmdebstrap")
	const suite, pkg = "bookworm", "hello"
	made := filepath.Join(t.TempDir(), "debian.tar")
	// Packages are unpacked but not configured, which would take a minute and makes no difference in a box.
	const base = "base-files,base-passwd,bash,coreutils,dash,findutils,grep,sed,libc-bin,perl-base"
	build := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--format=tar", "--variant=extract", "--include="+base+","+pkg, suite, made)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	all, err := os.Open(made)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	below, above := split(t, all, func(name string) bool { return strings.Contains(name, pkg) })
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	d := boxtest.Start(t)
	ref := strings.TrimPrefix(server.URL, "http://") + "/debian:" + suite
	pushes(t, ref, v1.Config{Env: []string{"LANG=C.UTF-8"}, Cmd: []string{"bash", "-c", "echo $LANG; hello"}}, below, above)
	if out, err := pulls(t, d, "--insecure", ref); err != nil {
		t.Fatalf("%q, %v\n%s", out, err, d.Log())
	}
	if got := runs(t, d, ref); got != "C.UTF-8\nHello, world!\n" {
		t.Errorf(`without a command: got %q, want "C.UTF-8\nHello, world!\n"`, got)
	}
	r, err := d.Run(t.Context(), &api.OneShotRequest{
		Session: api.SessionRequest{Image: &ref, ReadOnlyRoot: new(false)},
		Exec: api.ExecRequest{Command: new(`. /etc/os-release && echo $ID $VERSION_CODENAME && perl -e 'print 6*7, "\n"' &&
			seq 3 | sort -r | tr '\n' ' ' && find /usr/bin/hello -perm 755 && rm -r /usr/share/doc && echo x > /usr/bin/x && ls /usr/bin/x && getent passwd box | cut -d: -f1,3`)},
	})
	if want := "debian " + suite + "\n42\n3 2 1 /usr/bin/hello\n/usr/bin/x\nbox:1000\n"; err != nil || r.Stdout != want {
		t.Errorf("%v, %+v, want %q", err, r, want)
	}
	img, err := d.Image(t.Context(), ref)
	if err != nil || img.Layers != 2 || img.Entries < 1000 {
		t.Errorf("img = %+v, err = %v, want no error and img.Layers == 2 and img.Entries >= 1000", img, err)
	}
}
