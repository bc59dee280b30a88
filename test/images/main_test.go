// SPDX-License-Identifier: Apache-2.0

// Package images_test imports images into a real boxd, then starts real boxes from them.
package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// programVariable makes the static test binary act as the one program of the images created here.
const programVariable = "BOXD_TEST_IMAGE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) == "" {
		os.Exit(m.Run())
	}
	for _, arg := range os.Args[1:] {
		if err := verb(arg); err != nil {
			fmt.Println(arg, err)
		}
	}
}

// verb does one thing in a box, and prints the result.
func verb(arg string) error {
	what, rest, _ := strings.Cut(arg, "=")
	switch what {
	case "cat":
		data, err := os.ReadFile(rest)
		fmt.Print(string(data))
		return err
	case "ls":
		entries, err := os.ReadDir(rest)
		for _, e := range entries {
			fmt.Print(e.Name(), " ")
		}
		fmt.Println()
		return err
	case "mode":
		var st unix.Stat_t
		err := unix.Lstat(rest, &st)
		fmt.Printf("%o\n", st.Mode)
		return err
	case "write":
		return os.WriteFile(rest, []byte("written"), 0o600)
	case "remove":
		return os.Remove(rest)
	case "env":
		fmt.Println(os.Getenv(rest))
	case "cwd":
		dir, err := os.Getwd()
		fmt.Println(dir)
		return err
	case "id":
		fmt.Println(os.Getuid(), os.Geteuid())
	case "mknod":
		return unix.Mknod(rest, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	case "wait":
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	default:
		return more(what, rest)
	}
	return nil
}

// entry is an entry of a layer.
type entry struct {
	name, content, link string
	kind                byte // 0: a file
	mode                int64
	uid                 int
}

// layer returns a tar archive of entries.
func layer(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Uid: e.uid, Size: int64(len(e.content)), Format: tar.FormatPAX}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// program returns the entry of an image's program.
func program(t testing.TB) entry {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return entry{name: "bin/program", content: string(data), mode: 0o755}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func packed(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// image is an image to be written as an OCI image layout. Tests set what is wrong in it.
type image struct {
	name   string
	arch   string // "": this one
	config map[string]any
	layers [][]byte          // as stored in the archive
	plain  [][]byte          // uncompressed
	also   map[string]string // additional files of the archive, or replacements
}

// layout writes an image.
func (i *image) layout(t testing.TB) []byte {
	t.Helper()
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	arch := i.arch
	if arch == "" {
		arch = runtime.GOARCH
	}
	blobs := map[string][]byte{}
	put := func(data []byte, kind string) map[string]any {
		d := digest(data)
		blobs["blobs/sha256/"+strings.TrimPrefix(d, "sha256:")] = data
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": d, "size": len(data)}
	}
	var ids []string
	var layers []any
	for n := range i.layers {
		ids = append(ids, digest(i.plain[n]))
		layers = append(layers, put(i.layers[n], "layer.v1.tar+gzip"))
	}
	config := put(encode(map[string]any{
		"architecture": arch, "os": "linux", "config": i.config, "rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	}), "config.v1+json")
	manifest := put(encode(map[string]any{"schemaVersion": 2, "config": config, "layers": layers}), "manifest.v1+json")
	if i.name != "" {
		manifest["annotations"] = map[string]string{"org.opencontainers.image.ref.name": i.name}
	}
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	blobs["index.json"] = encode(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	for name, text := range i.also {
		blobs[name] = []byte(text)
	}
	var all []entry
	for name, data := range blobs {
		all = append(all, entry{name: name, content: string(data)})
	}
	return layer(t, all...)
}

// simple returns an image with the program, and further layers on top.
func simple(t testing.TB, name string, layers ...[]byte) *image {
	t.Helper()
	i := &image{name: name, config: map[string]any{
		"Env": []string{programVariable + "=1", "COLOR=green", "HOME=/root"}, "Entrypoint": []string{"/bin/program"}, "Cmd": []string{"env=COLOR", "cwd"}, "WorkingDir": "/srv/app", "User": "nobody",
	}}
	for _, plain := range append([][]byte{layer(t, program(t))}, layers...) {
		i.plain = append(i.plain, plain)
		i.layers = append(i.layers, packed(t, plain))
	}
	return i
}

// imports imports an image.
func imports(t *testing.T, d *boxtest.Daemon, archive []byte, name string) api.Image {
	t.Helper()
	img, err := d.ImportImage(t.Context(), bytes.NewReader(archive), name, "")
	if err != nil {
		t.Fatalf("import %s: %v\n%s", name, err, d.Log())
	}
	return img
}

// runs runs the image's program in a new session, and returns its output.
func runs(t *testing.T, d *boxtest.Daemon, image string, args ...string) string {
	t.Helper()
	out, err := tries(t.Context(), d.Client, image, args...)
	if err != nil {
		t.Fatalf("run %q in %s: %v\n%s", args, image, err, d.Log())
	}
	return out
}

func tries(ctx context.Context, c *client.Client, image string, args ...string) (string, error) {
	req := &api.OneShotRequest{Session: api.SessionRequest{Image: &image}}
	if args != nil {
		req.Exec.Argv = append([]string{"/bin/program"}, args...)
	}
	r, err := c.Run(ctx, req)
	if err != nil {
		return "", err
	}
	if r.Status != "exited" || r.ExitCode == nil || *r.ExitCode != 0 {
		return "", fmt.Errorf("%s: %s%s", r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout, nil
}

// trees returns the number of image trees on disk.
func trees(t *testing.T, d *boxtest.Daemon) int {
	t.Helper()
	entries, _ := os.ReadDir(treesDir(t, d)) // none before the first image
	return len(entries)
}

// treesDir returns the directory of image trees, which depends on the host.
func treesDir(t *testing.T, d *boxtest.Daemon) string {
	t.Helper()
	if _, err := os.Stat(d.State + "/store/image-trees"); err == nil {
		return d.State + "/store/image-trees"
	}
	return d.State + "/image-trees"
}

// saved writes an image like a docker save without OCI support: directories with layer.tar, duplicates as links.
func (i *image) saved(t testing.TB) []byte {
	t.Helper()
	var ids, layers []string
	var all []entry
	for n, plain := range i.plain {
		id := digest(plain)
		dir, other := strings.TrimPrefix(digest([]byte{byte(n)}), "sha256:"), strings.TrimPrefix(digest([]byte{byte(n), 0}), "sha256:")
		all = append(all, entry{name: other + "/layer.tar", content: string(plain)}, entry{name: dir + "/layer.tar", kind: tar.TypeSymlink, link: "../" + other + "/layer.tar"})
		ids, layers = append(ids, id), append(layers, dir+"/layer.tar")
	}
	encode := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	config := encode(map[string]any{"architecture": runtime.GOARCH, "os": "linux", "config": i.config, "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	name := strings.TrimPrefix(digest([]byte(config)), "sha256:") + ".json"
	list := []any{map[string]any{"Config": name, "RepoTags": []string{i.name}, "Layers": layers}}
	return layer(t, append(all, entry{name: name, content: config}, entry{name: "manifest.json", content: encode(list)})...)
}
