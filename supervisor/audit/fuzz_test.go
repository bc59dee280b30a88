// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/hashchain"
)

// Any line of the log is read as a record or refused with an error.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"n":1,"time":"2026-01-02T03:04:05Z","kind":"call","request":"r","route":"POST /v1/exec","status":200,"what":{"argv":["true"]}}`))
	f.Add([]byte(`{"n":1e400}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parse(&hashchain.Line{Text: text})
		if (r == nil) == (err == nil) {
			t.Errorf("%q: a record and an error, or neither: %v, %v", text, r, err)
		}
	})
}
