// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzApply unpacks untrusted archives: whatever is in them stays below their directory and in
// their limits, and can be removed.
func FuzzApply(f *testing.F) {
	seed := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if h.Typeflag == tar.TypeReg {
				h.Size = 3
			}
			h.Mode = 0o6755
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("abc")) // cannot fail: it writes to memory
			}
		}
		_ = w.Close() // cannot fail either
		return b.Bytes()
	}
	f.Add(seed(tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/x", Typeflag: tar.TypeReg}, tar.Header{Name: "d/.wh.x", Typeflag: tar.TypeReg}))
	f.Add(seed(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../outside"}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg}))
	f.Add(seed(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"}, tar.Header{Name: "l/l/l/x", Typeflag: tar.TypeReg}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "l/x"}))
	f.Add(seed(tar.Header{Name: "d/.wh..wh..opq", Typeflag: tar.TypeReg}, tar.Header{Name: "n", Typeflag: tar.TypeChar}, tar.Header{Name: "s", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		if err := os.WriteFile(filepath.Join(top, "outside"), []byte("as it was"), 0o600); err != nil {
			t.Fatal(err)
		}
		inside := filepath.Join(top, "root")
		if err := os.Mkdir(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := unix.Open(inside, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(root)
		limits := layerLimits{Bytes: 1 << 16, Entries: 64}
		total, err := applyLayer(root, bytes.NewReader(data), limits)
		if err == nil {
			err = (&layerTree{root: root, limits: limits}).finish("/srv")
		}
		if err == nil && (total.Bytes > limits.Bytes || total.Entries > 2*limits.Entries+1) {
			t.Errorf("%+v", total)
		}
		if outside, err := os.ReadFile(filepath.Join(top, "outside")); err != nil || string(outside) != "as it was" {
			t.Errorf("outside is %q, %v", outside, err)
		}
		if list, err := os.ReadDir(top); err != nil || len(list) != 2 {
			t.Errorf("outside are %v, %v", list, err)
		}
		werr := filepath.WalkDir(inside, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && (info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe) != 0) {
				t.Errorf("%s is %v", path, info.Mode())
			}
			return err
		})
		if werr != nil {
			t.Error(werr)
		}
	})
}
