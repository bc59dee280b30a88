// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A missing name is reported before anything is sent; boxd reports any other fault of an archive.
func TestAMissingNameIsAskedForBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	const (
		named    = `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","annotations":{"org.opencontainers.image.ref.name":"tools:1"}}]}`
		nameless = `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","annotations":{"org.opencontainers.image.created":"x"}}]}`
		nested   = `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json"}]}`
	)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	packed := func(files ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			_ = w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1])), Typeflag: tar.TypeReg})
			_, _ = w.Write([]byte(files[i+1]))
		}
		_ = w.Close()
		return b.Bytes()
	}
	zipped := func(data []byte) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(data)
		_ = w.Close()
		return b.Bytes()
	}
	for _, tc := range []struct {
		source, form string
		missing      bool
	}{
		{write("rootfs.tar", packed("./bin/sh", "x", "./etc/passwd", "x")), "", true},
		{write("rootfs.tar.gz", zipped(packed("bin/sh", "x"))), "", true},
		{write("layout.tar", packed("oci-layout", "{}", "./index.json", named)), "", false},
		{write("layout2.tar", packed("blobs/sha256/a", "x", "index.json", nameless)), "", true},
		{write("nested.tar", packed("index.json", nested)), "", false},
		{write("saved.tar.gz", zipped(packed("manifest.json", `[{"RepoTags":["a:1"]}]`))), "", false},
		{write("saved.tar", packed("manifest.json", `[{"RepoTags":null}]`)), "", true},
		{write("both.tar", packed("index.json", nameless, "manifest.json", `[{"RepoTags":["a:1"]}]`)), "", false},
		{write("cut.tar", packed("bin/sh", "x")[:300]), "", false},
		{write("other", []byte("not an archive")), "", false},
		{write("empty", nil), "", false},
		{filepath.Dir(write("layout/index.json", []byte(nameless))), "", true},
		{filepath.Dir(write("layout2/index.json", []byte(named))), "", false},
		{"-", "", false},
		{"-", "rootfs", true},
		{filepath.Join(dir, "none"), "", false},
	} {
		err := checkNamed(tc.source, tc.form)
		if errors.Is(err, errNameless) != tc.missing || err != nil && !tc.missing {
			t.Errorf("%s %s: %v, want missing %v", filepath.Base(tc.source), tc.form, err, tc.missing)
		}
	}
}
