// SPDX-License-Identifier: Apache-2.0

package session

import (
	"strconv"
	"testing"
)

// A port is accepted only as a plain decimal number.
func FuzzPort(f *testing.F) {
	for _, text := range []string{"1", "65535", "65536", "0", "080", "+80", "8_0", "80 ", "0x50", "８０"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParsePort(text); err == nil && (n == 0 || strconv.Itoa(int(n)) != text) {
			t.Errorf("%q is %d", text, n)
		}
	})
}
