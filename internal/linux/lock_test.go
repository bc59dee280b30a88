// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A lock waits for a holder that releases it, but not for ever for one that does not.
func TestALockWaitsForItsHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	first, second := int(files[0].Fd()), int(files[1].Fd())
	if err := Lock(first, 0); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second, 20*time.Millisecond); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("locked twice: err = %v, want err is unix.EWOULDBLOCK", err)
	}
	// A child between fork and exec has such a copy.
	child, err := unix.Dup(first)
	if err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	if err := Lock(second, 0); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("while a child holds it: err = %v, want err is unix.EWOULDBLOCK", err)
	}
	taken := make(chan error)
	go func() { taken <- Lock(second, time.Hour) }()
	select {
	case err := <-taken:
		t.Errorf("the lock did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := unix.Close(child); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}
