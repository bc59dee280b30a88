// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"
	"strings"
	"testing"
)

// A read never holds more than MostBytes in memory, whatever is asked for and however long the records are.
func TestWhatIsReadIsBounded(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		n              int
		earlier, later []int64 // sizes of records in two files
		want           []uint64
		truncated      bool // of both files
	}{
		"few":                         {10, []int64{mib}, []int64{mib, mib}, []uint64{1, 2, 3}, false},
		"more than asked for":         {2, []int64{mib}, []int64{mib, mib}, []uint64{2, 3}, false},
		"long ones":                   {10, nil, []int64{9 * mib, 6 * mib, 6 * mib}, []uint64{2, 3}, true},
		"long ones before many":       {2, nil, []int64{9 * mib, 9 * mib, mib, mib}, []uint64{3, 4}, false},
		"long ones of an earlier one": {10, []int64{mib, 9 * mib, mib}, []int64{7 * mib}, []uint64{3, 4}, true},
		"exactly so many":             {10, []int64{8 * mib}, []int64{8 * mib}, []uint64{1, 2}, false},
	} {
		seq := uint64(0)
		read := func(n int, sizes []int64) *tail {
			f := &tail{n: n}
			for _, size := range sizes {
				seq++
				f.add(&Record{Seq: seq}, size)
				if f.bytes > MostBytes || len(f.list) > n {
					t.Errorf("%s: %d records of %d bytes", name, len(f.list), f.bytes)
				}
			}
			return f
		}
		earlier := read(tc.n, tc.earlier)
		later := read(tc.n, tc.later)
		if room := tc.n - len(later.list); len(earlier.list) > room { // Last asks for no more of an earlier file
			earlier.list = earlier.list[len(earlier.list)-room:]
		}
		later.prepend(earlier)
		var got []uint64
		for _, r := range later.list {
			got = append(got, r.Seq)
		}
		if truncated := later.truncated && len(got) < tc.n; !slices.Equal(got, tc.want) || truncated != tc.truncated || later.bytes > MostBytes {
			t.Errorf("%s: %v, cut %v, %d bytes; want %v, %v", name, got, truncated, later.bytes, tc.want, tc.truncated)
		}
	}
	dir := t.TempDir()
	l, _, _ := open(t, dir, DefaultConfig())
	defer l.Close()
	long := strings.Repeat("x", 900<<10)
	for range 20 {
		l.Append(&Record{Kind: KindCall, What: &What{Argv: []string{long}, Argc: 1}})
	}
	list, truncated, err := l.Last(t.Context(), 1000, func(r *Record) bool { return r.Kind == KindCall })
	if err != nil || len(list) == 0 || len(list) < 20 != truncated {
		t.Errorf("%d records, cut %v, %v", len(list), truncated, err)
	}
}
