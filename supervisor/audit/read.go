// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/boxd-dev/boxd/internal/chain"
)

// MostRead is how many records Last returns at most.
const MostRead = 10000

// Last returns the last n records that match, the oldest first. Lines that are no records are passed over: Verify
// finds them.
func (l *Log) Last(ctx context.Context, n int, match func(*Record) bool) ([]*Record, error) {
	if l == nil || n <= 0 {
		return nil, nil
	}
	files, err := chain.Files(l.dir.FS())
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	var list []*Record
	for i := len(files) - 1; i >= 0 && len(list) < n && ctx.Err() == nil; i-- {
		more, err := l.lastOf(ctx, files[i], n-len(list), match)
		if errors.Is(err, fs.ErrNotExist) {
			break // it was removed meanwhile, and those before it too
		}
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		list = append(more, list...)
	}
	return list, ctx.Err()
}

// lastOf reads one file.
func (l *Log) lastOf(ctx context.Context, name string, n int, match func(*Record) bool) (list []*Record, err error) {
	f, err := l.dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	err = chain.Lines(f, func(line *chain.Line) error {
		if line.Err != nil {
			return ctx.Err()
		}
		r, err := parse(line)
		if err != nil || !match(r) {
			return ctx.Err()
		}
		if list = append(list, r); len(list) >= 2*n { // keep the last n, and do not move them each time
			list = slices.Delete(list, 0, len(list)-n)
		}
		return ctx.Err()
	})
	return list[max(0, len(list)-n):], err
}
