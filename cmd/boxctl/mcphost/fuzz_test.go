// SPDX-License-Identifier: Apache-2.0

package mcphost

import "testing"

// Whatever a client and its server write, watching it does not fail, and an answer leaves no request pending.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`), []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	f.Add([]byte(`{"id":"a","method":"tools/call","params":{"name":"x"}}`), []byte(`{"id":"a"`))
	f.Add([]byte(`[{"id":null}]`), []byte(`{"id":{"id":{}}}`))
	f.Fuzz(func(t *testing.T, asked, answered []byte) {
		w := newWatch(func() {})
		w.message(asked)
		w.message(answered)
		w.scanLong(answered)
		w.answered()
		w.phase()
	})
}
