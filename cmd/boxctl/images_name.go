// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/boxd-dev/boxd/relay/render"
)

// maxNaming is the maximum size of a document that names images.
const maxNaming = 4 << 20

// errNameless says that an archive does not name its image, as boxd would after the whole upload.
var errNameless = errors.New("the archive has no image name")

// checkNamed looks for the name of an image in its source, so that a missing one is reported before the upload. What it
// cannot read it leaves to boxd: standard input, compressions other than gzip, a damaged archive.
func checkNamed(source, form string) error {
	if form == "rootfs" {
		return nameless(source)
	}
	info, err := os.Stat(source)
	if source == "-" || err != nil {
		return nil
	}
	if info.IsDir() {
		if data, err := readSome(filepath.Join(source, "index.json")); err == nil && !namesImage(data) {
			return nameless(source)
		}
		return nil
	}
	f, err := os.Open(source)
	if err != nil {
		return nil // opening it for boxd fails again
	}
	defer f.Close()
	if named, ok := namedTar(f); ok && !named {
		return nameless(source)
	}
	return nil
}

func nameless(source string) error {
	return &usageError{err: errNameless, hint: "boxctl images import " + render.ShellWord(source) + " --name NAME:TAG"}
}

func readSome(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxNaming))
}

// namedTar reports whether a tar archive names an image. ok is false if it is not a tar archive, or unreadable here.
func namedTar(f *os.File) (named, ok bool) {
	var r io.Reader = f // tar seeks in it
	start, err := bufio.NewReader(io.NewSectionReader(f, 0, 2)).Peek(2)
	if err != nil {
		return false, false
	}
	if start[0] == 0x1f && start[1] == 0x8b {
		z, err := gzip.NewReader(bufio.NewReader(f))
		if err != nil {
			return false, false
		}
		r = z
	}
	in := tar.NewReader(r)
	for entries := 0; ; entries++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return false, entries > 0
		}
		if err != nil {
			return false, false
		}
		if name := path.Clean(h.Name); name != "index.json" && name != "manifest.json" {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(in, maxNaming))
		if err != nil {
			return false, false
		}
		if namesImage(data) {
			return true, true
		}
	}
}

// namesImage reports whether a document may name an image: the index of an image layout, or the manifest of "docker
// save". Names in nested indexes are not seen.
func namesImage(document []byte) bool {
	var index struct {
		Manifests []struct {
			MediaType   string            `json:"mediaType"`
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if json.Unmarshal(document, &index) == nil {
		for _, m := range index.Manifests {
			if m.Annotations["org.opencontainers.image.ref.name"] != "" || m.Annotations["io.containerd.image.name"] != "" || path.Base(m.MediaType) != "vnd.oci.image.manifest.v1+json" {
				return true
			}
		}
		return false
	}
	var saved []struct{ RepoTags []string }
	if json.Unmarshal(document, &saved) != nil {
		return true // boxd reports what is wrong with it
	}
	for _, s := range saved {
		if len(s.RepoTags) > 0 {
			return true
		}
	}
	return false
}
