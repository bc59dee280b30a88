// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/boxd-dev/boxd/internal/fault"
)

// written writes a tar archive of names and contents.
func written(t testing.TB, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[i+1]))})
		if err == nil {
			_, err = io.WriteString(w, files[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func opens(t testing.TB, data []byte, form, name string) (*Image, error) {
	t.Helper()
	var all [2]*os.File
	for i := range all {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		all[i] = f
	}
	if _, err := all[0].Write(data); err != nil {
		t.Fatal(err)
	}
	return Open(all[0], all[1], form, name, "amd64", Limits{Bytes: 1 << 20, Entries: 1000})
}

const layerID = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of nothing

func config(arch string) string {
	return `{"architecture":"` + arch + `","os":"linux","config":{"Env":["A=b"]},"rootfs":{"diff_ids":["` + layerID + `"]}}`
}

func TestWhatDockerHasSavedIsFound(t *testing.T) {
	t.Parallel()
	const hex, layer = "d29bda1b4ea4fe5a1de1a9e1b1c4a4bf9a0a9c4b1e0e2e7f2a4a4b7e7d7f7b01", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	list := func(tags string) string {
		return `[{"Config":"` + hex + `.json","RepoTags":[` + tags + `],"Layers":["` + layer + `/layer.tar"]}]`
	}
	_, err := opens(t, written(t, "manifest.json", list(`"a:1"`), hex+".json", config("amd64"), layer+"/layer.tar", ""), Auto, "")
	if err == nil || !strings.Contains(err.Error(), "has the digest sha256:") {
		t.Errorf("a configuration of another digest: %v", err)
	}
	_, err = opens(t, written(t, "manifest.json", `[{"Config":"x","RepoTags":["a:1"]},{"Config":"y","RepoTags":["b:1"]}]`), Auto, "c:1")
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "name" || f.Allowed != "a:1, b:1" {
		t.Errorf("two images: %v", err)
	}
	for _, text := range []string{`[]`, `{}`, `[{"Config":"../../etc/passwd"}]`} {
		if _, err := opens(t, written(t, "manifest.json", text), Auto, ""); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestLayersAreReadWhateverTheyAreCompressedWith(t *testing.T) {
	t.Parallel()
	plain := written(t, "a", strings.Repeat("a", 1000))
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	img, err := opens(t, b.Bytes(), Auto, "")
	if err != nil || img.Form != Rootfs {
		t.Fatalf("%+v, %v", img, err)
	}
	var got bytes.Buffer
	if err := img.Layers[0].Write(&got, 1<<20); err != nil || !bytes.Equal(got.Bytes(), plain) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if err := img.Layers[0].Write(io.Discard, 100); fault.KindOf(err) != fault.Invalid {
		t.Errorf("more than there may be: %v", err)
	}
	if _, err := opens(t, b.Bytes()[:b.Len()-8], Auto, ""); fault.KindOf(err) != fault.Invalid {
		t.Errorf("truncated: %v", err)
	}
	zeros := bytes.Repeat([]byte{0}, 100<<20)
	b.Reset()
	w.Reset(&b)
	_, err = w.Write(zeros)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	r, _, err := Decompress(&b)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil || !strings.Contains(err.Error(), "times as long") {
		t.Errorf("a bomb: %v", err)
	}
}

// FuzzOpen looks through archives that nobody vouches for.
func FuzzOpen(f *testing.F) {
	f.Add(written(f, "oci-layout", `{"imageLayoutVersion":"1.0.0"}`, "index.json", `{"manifests":[{"digest":"`+layerID+`","size":0}]}`, "blobs/sha256/"+layerID[7:], ""))
	f.Add(written(f, "manifest.json", `[{"Config":"`+layerID[7:]+`.json","Layers":[]}]`, layerID[7:]+".json", ""))
	f.Add(written(f, "etc/issue", "x"))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		img, err := opens(t, data, Auto, "")
		if err != nil {
			return
		}
		for i := range img.Layers {
			_ = img.Layers[i].Write(io.Discard, 1<<16) // it may be refused, and must come to an end
		}
	})
}
