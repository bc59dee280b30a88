// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"io"
	"maps"
	"slices"
)

// Tar returns an archive of regular files with these contents and this mode.
func Tar(mode int64, files map[string]string) []byte {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(files[name]))})
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			panic(err) // cannot fail: it writes to memory
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return archive.Bytes()
}

// Zip returns an archive of files with these contents.
func Zip(files map[string]string) []byte {
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			panic(err) // cannot fail: it writes to memory
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return archive.Bytes()
}
