// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/client"
)

// An image that leads out of its tree, contradicts itself, or is too large is refused by name, and leaves nothing.
func TestHostileArchivesAreRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[images]\nmax_archive = \"64MiB\"\nmax_bytes = \"32MiB\"\nmax_entries = 200\n")
	d.Warm()
	before := d.Look()
	of := func(entries ...entry) []byte { return layer(t, entries...) }
	oci := func(change func(i *image)) []byte {
		plain := of(entry{name: "a", content: "a"})
		i := &image{name: "x:1", layers: [][]byte{packed(t, plain)}, plain: [][]byte{plain}}
		change(i)
		return i.layout(t)
	}
	big := bytes.Repeat([]byte{0}, 80<<20)
	many := make([]entry, 300)
	for i := range many {
		many[i] = entry{name: "d/" + strings.Repeat("x", i/26+1) + string(rune('a'+i%26))}
	}
	for _, tc := range []struct {
		name    string
		archive []byte
		message string
	}{
		{"nothing", nil, "empty"},
		{"no archive", bytes.Repeat([]byte("boxd"), 1000), "not a tar archive"},
		{"truncated", of(entry{name: "a", content: strings.Repeat("a", 5000)})[:2000], "truncated"},
		{"damaged gzip", packed(t, of(entry{name: "a"}))[:40], "damaged or truncated"},
		{"dots", of(entry{name: "a/../../x", content: "x"}), "a path with .."},
		{"an absolute path", of(entry{name: "/etc/x", content: "x"}), "an absolute path"},
		{"a hard link out", of(entry{name: "x", kind: tar.TypeLink, link: "../../etc/passwd"}), "which is not in the image"},
		{"a hard link to the host", of(entry{name: "x", kind: tar.TypeLink, link: "/etc/passwd"}), "which is not in the image"},
		{"a hard link to nothing", of(entry{name: "x", kind: tar.TypeLink, link: "y"}), "which is not in the image"},
		{"through a file", of(entry{name: "x"}, entry{name: "x/y"}), "not a directory"},
		{"a circle", of(entry{name: "x", kind: tar.TypeSymlink, link: "y"}, entry{name: "y", kind: tar.TypeSymlink, link: "x"}, entry{name: "x/z"}), "too many symbolic links"},
		{"whiteout of the parent", of(entry{name: "d/.wh..."}), "a whiteout without a name"},
		{"too deep", of(entry{name: strings.Repeat("d/", 300) + "x"}), "too deep"},
		{"too many", of(many...), "more than 200 entries"},
		{"too much", of(entry{name: "x", content: string(big[:32<<20+200<<10])}), "larger than images.max_bytes"},
		{"a bomb", packed(t, of(entry{name: "x", content: string(big)})), "images.max_bytes"},
		{"an unknown type", of(entry{name: "x", kind: 'z'}), "unknown type"},
		{"another architecture", oci(func(i *image) { i.arch = "vax" }), "linux/vax"},
		{"another content", oci(func(i *image) { i.plain[0] = []byte("other") }), "content of layer"},
		{"another layer", oci(func(i *image) {
			i.also = map[string]string{"blobs/sha256/" + strings.TrimPrefix(digest(i.layers[0]), "sha256:"): strings.Repeat("x", len(i.layers[0]))}
		}), "the layer \"sha256:"},
		{"no index", oci(func(i *image) { i.also = map[string]string{"index.json": "{"} }), "not the expected JSON"},
		{"itself in itself", oci(func(i *image) {
			text := `{"manifests":[]}`
			i.also = map[string]string{
				"index.json": `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"` + digest([]byte(text)) + `","size":16}]}`,
				"blobs/sha256/" + strings.TrimPrefix(digest([]byte(text)), "sha256:"): text,
			}
		}), "no image for linux"},
		{"a manifest of version 1", oci(func(i *image) {
			text := `{"schemaVersion":1}`
			i.also = map[string]string{
				"index.json": `{"manifests":[{"digest":"` + digest([]byte(text)) + `","size":19}]}`,
				"blobs/sha256/" + strings.TrimPrefix(digest([]byte(text)), "sha256:"): text,
			}
		}), "version 2"},
		{"a digest that is a path", oci(func(i *image) {
			i.also = map[string]string{"index.json": `{"manifests":[{"digest":"sha256:../../../../etc/passwd","size":1}]}`}
		}), "not a sha256 digest"},
	} {
		_, err := d.ImportImage(t.Context(), bytes.NewReader(tc.archive), "hostile:1", "")
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status != 400 || !strings.Contains(e.Error(), tc.message) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.message)
		}
	}
	list, err := d.Images(t.Context())
	if err != nil || len(list) != 0 || trees(t, d) != 0 {
		t.Errorf("there are %v, %v, and %d trees", list, err, trees(t, d))
	}
	d.NothingLeft(before)
}

// Files of an image at paths that a box provides itself are hidden, and links there are not followed.
func TestAnImageCannotReplaceWhatABoxHas(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	link := func(name, to string) entry { return entry{name: name, kind: tar.TypeSymlink, link: to} }
	i := simple(t, "evil:1", layer(t,
		link("proc", "/workspace"), link("dev", "/etc"), link("etc", "/workspace"), link("workspace", "/"), link("run", "../../.."), link("home", "/proc/self/root"),
		link("var", "/proc/1/root"), link("skills", "/"), link("opt", "/proc/self/fd"), link("mnt", ".."), entry{name: "tmp", content: "no directory"}, link("media", "/"),
		entry{name: "usr/bin/", kind: tar.TypeDir}, link("usr/self", "/proc/self/exe"),
	))
	imports(t, d, i.layout(t), "")
	got := runs(t, d, "evil:1", "ls=/workspace", "ls=/etc", "ls=/home", "ls=/run", "write=/tmp/x", "cat=/tmp/x", "ls=/opt", "ls=/mnt", "cat=/dev/null", "mode=/proc", "cat=/proc/self/comm", "ls=/var", "ls=/media")
	want := "\nhostname hosts mtab resolv.conf \nbox \nbox \nwritten\n\n40555\nprogram\nlib run tmp \n\n"
	if got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}
