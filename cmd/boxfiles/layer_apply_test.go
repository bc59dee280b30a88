// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
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
			t.Errorf("total = %+v, want an error or total.Bytes <= %v and total.Entries <= 2*limits.Entries + 1",
				total, limits.Bytes)
		}
		if outside, err := os.ReadFile(filepath.Join(top, "outside")); err != nil || string(outside) != "as it was" {
			t.Errorf(`outside is %q, %v, want no error and outside == "as it was"`, outside, err)
		}
		if list, err := os.ReadDir(top); err != nil || len(list) != 2 {
			t.Errorf("outside are %v, %v, want no error and len(list) == 2", list, err)
		}
		werr := filepath.WalkDir(inside, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && (info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe) != 0) {
				t.Errorf("%s is %v, want an error or info.Mode() & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeDevice | fs.ModeNamedPipe) == 0",
					path, info.Mode())
			}
			return err
		})
		if werr != nil {
			t.Error(werr)
		}
	})
}

// An image has a user and a group with the box user's number, and root is in that group: else a program of root loses what the group may do in its
// box as soon as su or cron gives it the groups of /etc/group.
func TestAnImageKnowsTheUsersOfItsBox(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ passwd, group, wantPasswd, wantGroup string }{
		{"", "", rootUser + boxUser, rootGroup + boxGroup},
		{"root:x:0:0::/:", "root:x:0:\nx:x:7:", "root:x:0:0::/:\n" + boxUser, "root:x:0:\nx:x:7:\n" + boxGroup},
		{"node:x:1000:1000::/:\nx:x:7:7::/:", "node:x:1000:\nx:x:7:a\n", "node:x:1000:1000::/:\nx:x:7:7::/:", "node:x:1000:root\nx:x:7:a\n"},
		{"node:x:1000:7::/:\n", "x:x:7:\nnode:x:1000:node,x", "node:x:1000:7::/:\n", "x:x:7:\nnode:x:1000:node,x,root\n"},
		{boxUser, "node:x:1000:a,root,b\n", boxUser, "node:x:1000:a,root,b\n"},
		{boxUser, "node:x:1000\n", boxUser, "node:x:1000\n"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"passwd": tc.passwd, "group": tc.group} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			if text == "" {
				if err := os.Remove(filepath.Join(dir, "etc", name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = (&layerTree{root: root, limits: layerLimits{Entries: 64}}).finish("/srv")
		unix.Close(root)
		passwd, perr := os.ReadFile(filepath.Join(dir, "etc/passwd"))
		group, gerr := os.ReadFile(filepath.Join(dir, "etc/group"))
		if err := errors.Join(err, perr, gerr); err != nil || string(passwd) != tc.wantPasswd || string(group) != tc.wantGroup {
			t.Errorf("of %q and %q: err = %v, want no error and passwd == tc.wantPasswd and group == tc.wantGroup:\n%q\n%q",
				tc.passwd, tc.group, err, passwd, group)
		}
	}
}
