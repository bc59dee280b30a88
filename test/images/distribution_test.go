// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// installed are the entries of programs of the host's distribution, with the libraries that they are linked with, at
// their own places: through /bin, /lib and /lib64, which are links on most distributions.
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

// Programs of a distribution find their loader and their libraries in an image of several layers.
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
		t.Errorf("without a command: %q", got)
	}
	r, err := d.Run(t.Context(), &api.OneShotRequest{
		Session: api.SessionRequest{Image: new("distribution:1")},
		Exec:    api.ExecRequest{Argv: []string{"sh", "-c", "cat /etc/os-release; ls /etc/os-release; cat < /dev/null; ls /root /usr/bin/python3; echo x > /bin/x; echo kept > /workspace/y && cat /workspace/y"}},
	})
	if err != nil || r.Stdout != "ID=image\n/etc/os-release\nkept\n" || strings.Count(r.Stderr, "No such file") != 2 || !strings.Contains(r.Stderr, "Read-only file system") {
		t.Errorf("%+v, %v", r, err)
	}
}
