// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/boxd-dev/boxd/internal/hashchain"
)

// Bounds of what Last returns.
const (
	MostRead  = 10000    // records
	MostBytes = 16 << 20 // of them in the log; more of memory while they are sent
)

// tail is the last records that match.
type tail struct {
	list  []sized
	n     int
	bytes int64 // of those in the list
	cut   bool  // one was left out for its size
}

type sized struct {
	*Record
	size int64
}

// add adds a record that comes after those that are there, and lets go of what is too much.
func (t *tail) add(r *Record, size int64) {
	t.list, t.bytes = append(t.list, sized{r, size}), t.bytes+size
	drop := 0
	for ; len(t.list)-drop > t.n || t.bytes > MostBytes; drop++ {
		t.cut = t.cut || len(t.list)-drop <= t.n
		t.bytes -= t.list[drop].size
		t.list[drop].Record = nil // or it stays until the list moves
	}
	t.list = t.list[drop:]
}

// before puts those of an earlier file before, as far as they fit.
func (t *tail) before(earlier *tail) {
	from := len(earlier.list)
	for ; from > 0 && t.bytes+earlier.list[from-1].size <= MostBytes; from-- {
		t.bytes += earlier.list[from-1].size
	}
	t.cut = t.cut || earlier.cut || from > 0
	t.list = append(slices.Clone(earlier.list[from:]), t.list...)
}

// Last returns the last n records that match, the oldest first, or less if they are more than MostBytes: then cut is
// true. Lines that are no records are passed over: Verify finds them.
func (l *Log) Last(ctx context.Context, n int, match func(*Record) bool) (list []*Record, cut bool, err error) {
	if l == nil || n <= 0 {
		return nil, false, nil
	}
	files, err := hashchain.Files(l.dir.FS())
	if err != nil {
		return nil, false, fmt.Errorf("audit log: %w", err)
	}
	var all tail
	for i := len(files) - 1; i >= 0 && len(all.list) < n && !all.cut && ctx.Err() == nil; i-- {
		earlier, err := l.lastOf(ctx, files[i], n-len(all.list), match)
		if errors.Is(err, fs.ErrNotExist) {
			break // it was removed meanwhile, and those before it too
		}
		if err != nil {
			return nil, false, fmt.Errorf("audit log: %w", err)
		}
		all.before(earlier)
	}
	for _, r := range all.list {
		list = append(list, r.Record)
	}
	return list, all.cut && len(list) < n, ctx.Err()
}

// lastOf reads one file.
func (l *Log) lastOf(ctx context.Context, name string, n int, match func(*Record) bool) (*tail, error) {
	f, err := l.dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &tail{n: n}
	err = hashchain.Lines(f, func(line *hashchain.Line) error {
		if line.Err != nil {
			return ctx.Err()
		}
		if r, err := parse(line); err == nil && match(r) {
			t.add(r, line.Size)
		}
		return ctx.Err()
	})
	t.cut = t.cut && len(t.list) < n
	return t, err
}
