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

// Bounds of the result of Last.
const (
	MostRead  = 10000    // records
	MostBytes = 16 << 20 // as in the log; more in memory while they are sent
)

// tail has the last records that match.
type tail struct {
	list      []sized
	n         int
	bytes     int64 // of those in the list
	truncated bool  // one was left out because of its size
}

type sized struct {
	*Record
	size int64
}

// add appends a record, and drops the oldest that exceed the bounds.
func (t *tail) add(r *Record, size int64) {
	t.list, t.bytes = append(t.list, sized{r, size}), t.bytes+size
	dropped := 0
	for ; len(t.list)-dropped > t.n || t.bytes > MostBytes; dropped++ {
		t.truncated = t.truncated || len(t.list)-dropped <= t.n
		t.bytes -= t.list[dropped].size
		t.list[dropped].Record = nil // free it even though the slice still has its slot
	}
	t.list = t.list[dropped:]
}

// prepend prepends the records of an earlier file, as many as fit.
func (t *tail) prepend(earlier *tail) {
	from := len(earlier.list)
	for ; from > 0 && t.bytes+earlier.list[from-1].size <= MostBytes; from-- {
		t.bytes += earlier.list[from-1].size
	}
	t.truncated = t.truncated || earlier.truncated || from > 0
	t.list = append(slices.Clone(earlier.list[from:]), t.list...)
}

// Last returns the last n matching records, oldest first, or fewer if they exceed MostBytes: then truncated is true. Invalid lines are
// skipped: Verify finds them.
func (l *Log) Last(ctx context.Context, n int, match func(*Record) bool) (list []*Record, truncated bool, err error) {
	if l == nil || n <= 0 {
		return nil, false, nil
	}
	files, err := hashchain.Files(l.dir.FS())
	if err != nil {
		return nil, false, fmt.Errorf("audit log: %w", err)
	}
	var all tail
	for i := len(files) - 1; i >= 0 && len(all.list) < n && !all.truncated && ctx.Err() == nil; i-- {
		earlier, err := l.lastOf(ctx, files[i], n-len(all.list), match)
		if errors.Is(err, fs.ErrNotExist) {
			break // removed meanwhile, with the files before it
		}
		if err != nil {
			return nil, false, fmt.Errorf("audit log: %w", err)
		}
		all.prepend(earlier)
	}
	for _, r := range all.list {
		list = append(list, r.Record)
	}
	return list, all.truncated && len(list) < n, ctx.Err()
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
	t.truncated = t.truncated && len(t.list) < n
	return t, err
}
