// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResolversOfTheHost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"nameserver 127.0.0.53\noptions edns0\n":                                 "[127.0.0.53:53]",
		"# nameserver 1.1.1.1\nnameserver\t9.9.9.9 x\nnameserver fe80::1%eth0\n": "[9.9.9.9:53 [fe80::1%eth0]:53]",
		"nameserver 1\nnameserver\nserver 1.1.1.1\n":                             "[]",
		strings.Repeat("nameserver 1.1.1.1\n", 5):                                "[1.1.1.1:53 1.1.1.1:53 1.1.1.1:53]",
		strings.Repeat("nameserver 1.1.1.1\n", 5000):                             "[]",
	} {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(readResolvConf(path)); got != want {
			t.Errorf("%.60q: %s, not %s", text, got, want)
		}
	}
	if got := readResolvConf("/nonexistent"); got != nil {
		t.Error(got)
	}
}
