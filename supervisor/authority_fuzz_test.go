// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/sha256"
	"testing"
)

// Arbitrary bytes in the record of the authority that signs for secrets cause no crash.
func FuzzAuthority(f *testing.F) {
	f.Add([]byte("0"), []byte("0"), make([]byte, sha256.Size))
	f.Add([]byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff}, []byte{0x30, 0x03, 0x02, 0x01, 0x00}, make([]byte, sha256.Size))
	f.Fuzz(func(t *testing.T, key, cert, mark []byte) {
		if a, err := parseAuthority(key, cert, mark); err == nil && (a.key == nil || a.cert == nil || len(a.mark) != sha256.Size) {
			t.Errorf("a = %+v, want an error or a.key != nil and a.cert != nil and len(a.mark) == sha256.Size", a)
		}
	})
}
