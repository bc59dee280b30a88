// SPDX-License-Identifier: Apache-2.0

package disk

import "testing"

// An id table of the host either decodes to entries that encode and decode unchanged, or is refused as damaged.
func FuzzIDTable(f *testing.F) {
	f.Add(head)
	f.Add(encode([]*entry{{state: bound, id: firstBound, dev: 1, ino: 2, limits: Limits{Bytes: 3, Inodes: 4}, path: "/srv/a b", users: []string{"k1", "k2"}}}))
	f.Add(head + "bound 1 2 3 4 5 \"/x\"")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := decode(text)
		if err != nil {
			return
		}
		again, err := decode(encode(list))
		if err != nil || encode(again) != encode(list) {
			t.Errorf("%q is read as %+v, and then as %+v, %v", text, list, again, err)
		}
	})
}
