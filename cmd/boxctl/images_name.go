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

// maxNaming bounds a document that names images.
const maxNaming = 4 << 20

// errNameless says that an archive gives its image no name, as boxd would when all of it was sent.
var errNameless = errors.New("the archive has no image name")

// checkNamed looks into the source of an image for its name, so that a missing one is asked for before anything is sent. What it
// cannot read it leaves to boxd: standard input, other compressions than gzip, a damaged archive.
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
		return nil // which opening it for boxd says again
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

// namedTar reports whether a tar archive names an image. ok is false of what is none, or none that can be read here.
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

// namesImage reports whether a document may name an image: the index of an image layout, or the manifest of "docker save". An index of
// indexes may have names that this does not see.
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
		return true // boxd says what is wrong with it
	}
	for _, s := range saved {
		if len(s.RepoTags) > 0 {
			return true
		}
	}
	return false
}
