// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"slices"
	"testing"
)

func TestMountsOnEachOtherComeInOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		list []entry
		want []uint64
	}{
		{nil, nil},
		{[]entry{{id: 7, parent: 1}}, []uint64{7}},
		{[]entry{{id: 7, parent: 1}, {id: 9, parent: 7}, {id: 8, parent: 9}}, []uint64{8, 9, 7}},
		{[]entry{{id: 8, parent: 9}, {id: 9, parent: 7}, {id: 7, parent: 1}}, []uint64{8, 9, 7}},
		{[]entry{{id: 7, parent: 8}, {id: 8, parent: 7}}, nil}, // a cycle, which no kernel reports
		{[]entry{{id: 7, parent: 7}}, nil},
	} {
		if got := inOrder(tc.list); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.list, got, tc.want)
		}
	}
}
