// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/boxd-dev/boxd/internal/fault"
)

// written returns a tar archive of names and contents; the content of a symbolic link is "-> " and its target.
func written(t testing.TB, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[i+1]))}
		to, link := strings.CutPrefix(files[i+1], "-> ")
		if link {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		}
		err := w.WriteHeader(h)
		if err == nil && !link {
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

func opens(t testing.TB, data []byte, form, name string) (*ArchiveImage, error) {
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
	return openArchive(t.Context(), all[0], all[1], form, name, "amd64", archiveLimits{Bytes: 1 << 20, Entries: 1000})
}

const layerID = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of nothing

func config(arch string) string {
	return `{"architecture":"` + arch + `","os":"linux","config":{"Env":["A=b"]},"rootfs":{"diff_ids":["` + layerID + `"]}}`
}

func TestDockerSaveArchivesAreRead(t *testing.T) {
	t.Parallel()
	const sum, layer = "d29bda1b4ea4fe5a1de1a9e1b1c4a4bf9a0a9c4b1e0e2e7f2a4a4b7e7d7f7b01", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	list := func(tags string) string {
		return `[{"Config":"` + sum + `.json","RepoTags":[` + tags + `],"Layers":["` + layer + `/layer.tar"]}]`
	}
	_, err := opens(t, written(t, "manifest.json", list(`"a:1"`), sum+".json", config("amd64"), layer+"/layer.tar", ""), auto, "")
	if err == nil || !strings.Contains(err.Error(), "has the digest sha256:") {
		t.Errorf(`a configuration of another digest: err = %v, want an error containing "has the digest sha256:"`, err)
	}
	_, err = opens(t, written(t, "manifest.json", `[{"Config":"x","RepoTags":["a:1"]},{"Config":"y","RepoTags":["b:1"]}]`), auto, "c:1")
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "name" || f.Allowed != "a:1, b:1" {
		t.Errorf(`two images: err = %v, want ok == true and f.Field == "name" and f.Allowed == "a:1, b:1"`, err)
	}
	for _, text := range []string{`[]`, `{}`, `[{"Config":"../../etc/passwd"}]`} {
		if _, err := opens(t, written(t, "manifest.json", text), auto, ""); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: err = %v, want a fault.Invalid error", text, err)
		}
	}
	const other, content = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "what the layer has"
	text := strings.Replace(config("amd64"), layerID, digestOf(content), 1)
	name := strings.TrimPrefix(digestOf(text), "sha256:")
	saved := strings.NewReplacer(sum, name).Replace(list(`"a:1","b.example/a:1"`))
	for what, files := range map[string][]string{
		"a file": {"manifest.json", saved, name + ".json", text, layer + "/layer.tar", content},
		"a link": {"manifest.json", saved, name + ".json", text, layer + "/layer.tar", "-> ../" + other + "/layer.tar", other + "/layer.tar", content},
	} {
		img, err := opens(t, written(t, files...), auto, "")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		var got bytes.Buffer
		err = img.Layers[0].Write(t.Context(), &got, 1<<20)
		if err != nil || got.String() != content || img.Form != Docker || img.Digest != "sha256:"+name || !slices.Equal(img.Names, []string{"a:1", "b.example/a:1"}) || !slices.Equal(img.Config.Env, []string{"A=b"}) {
			t.Errorf("%s: img = %+v, got %q, err = %v", what, img, got.String(), err)
		}
	}
	for _, to := range []string{"../" + layer + "/layer.tar", "../../../etc/passwd", "/etc/passwd", "../" + other + "/layer.tar"} {
		if _, err := opens(t, written(t, "manifest.json", saved, name+".json", text, layer+"/layer.tar", "-> "+to), auto, ""); err == nil || !strings.Contains(err.Error(), "is not in it") {
			t.Errorf(`a link to %s: err = %v, want an error containing "is not in it"`, to, err)
		}
	}
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Nested indexes that list each other many times are refused after a limited number of documents, however many paths there are.
func TestIndexesThatFanOutAreRefused(t *testing.T) {
	t.Parallel()
	files := []string{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}
	text := `{"manifests":[]}`
	for range maxNesting - 1 {
		files = append(files, "blobs/sha256/"+strings.TrimPrefix(digestOf(text), "sha256:"), text)
		one := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"%s","size":%d}`, digestOf(text), len(text))
		text = `{"manifests":[` + strings.Repeat(one+",", 1999) + one + `]}`
	}
	archive := written(t, append(files, "index.json", text)...)
	if _, err := opens(t, archive, auto, ""); err == nil || !strings.Contains(err.Error(), "documents") {
		t.Errorf(`8 billion ways: err = %v, want an error containing "documents"`, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err = f.Write(archive); err == nil {
		_, err = openArchive(ctx, f, f, OCI, "", "amd64", archiveLimits{Bytes: 1 << 20, Entries: 1000})
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: err = %v, want err is context.Canceled", err)
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
	img, err := opens(t, b.Bytes(), auto, "")
	if err != nil || img.Form != Rootfs {
		t.Fatalf("img = %+v, err = %v, want no error and img.Form == Rootfs", img, err)
	}
	var got bytes.Buffer
	if err := img.Layers[0].Write(t.Context(), &got, 1<<20); err != nil || !bytes.Equal(got.Bytes(), plain) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if err := img.Layers[0].Write(t.Context(), io.Discard, 100); fault.KindOf(err) != fault.Invalid {
		t.Errorf("more than there may be: %v", err)
	}
	if _, err := opens(t, b.Bytes()[:b.Len()-8], auto, ""); fault.KindOf(err) != fault.Invalid {
		t.Errorf("truncated: err = %v, want a fault.Invalid error", err)
	}
	zeros := bytes.Repeat([]byte{0}, 100<<20)
	b.Reset()
	w.Reset(&b)
	_, err = w.Write(zeros)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	r, _, err := decompress(&b)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil || !strings.Contains(err.Error(), "times when it is decompressed") {
		t.Errorf(`a bomb: err = %v, want an error containing "times when it is decompressed"`, err)
	}
}

// FuzzOpen opens and reads untrusted archives.
func FuzzOpen(f *testing.F) {
	f.Add(written(f, "oci-layout", `{"imageLayoutVersion":"1.0.0"}`, "index.json", `{"manifests":[{"digest":"`+layerID+`","size":0}]}`, "blobs/sha256/"+layerID[7:], ""))
	f.Add(written(f, "manifest.json", `[{"Config":"`+layerID[7:]+`.json","Layers":[]}]`, layerID[7:]+".json", ""))
	f.Add(written(f, "etc/issue", "x"))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		img, err := opens(t, data, auto, "")
		if err != nil {
			return
		}
		for i := range img.Layers {
			_ = img.Layers[i].Write(t.Context(), io.Discard, 1<<16) // it may be refused, and must end
		}
	})
}
