// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/output"
)

// progress is what the next boxd must know about a process besides its Spec.
type progress struct {
	Starts   int
	First    time.Time // the first start
	Began    time.Time // the latest start
	From     [2]int64  // where its output begins
	Ready    bool      `json:",omitempty"`
	Input    int64     // bytes of standard input taken before this program
	Restarts restarts
	Stopping string    `json:",omitempty"` // the reason for a stop
	Ended    time.Time `json:",omitzero"`
	Reason   string    `json:",omitempty"` // for the end
}

// A private file is a memory file that PID 1 of the box keeps for the next boxd: the Spec, and then lines of progress, of which
// the last one counts. boxd and PID 1 share the file.

// newPrivate creates a private file. A Spec that starts only once no longer needs its script and input.
func newPrivate(spec *Spec, at *progress) (*os.File, error) {
	stored := *spec
	if stored.Restart.Policy == RestartNo {
		stored.Script, stored.Input = nil, nil
	}
	fd, err := unix.MemfdCreate("process", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "process")
	if err := errors.Join(appendLine(f, &stored), appendLine(f, at)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func appendLine(f *os.File, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(append(line, '\n'), info.Size())
	}
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	return nil
}

// maxPrivate bounds what is read: PID 1 may have written the file.
const maxPrivate = 256 << 20

// readPrivate reads what an earlier boxd has left with PID 1, which is not trusted.
func readPrivate(f *os.File) (*Spec, *progress, error) {
	if !output.IsMemory(int(f.Fd())) {
		return nil, nil, output.ErrNotMemory
	}
	info, err := f.Stat()
	if err != nil || info.Size() > maxPrivate {
		return nil, nil, fmt.Errorf("process: %d bytes: %w", info.Size(), err)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, nil, fmt.Errorf("process: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	spec, at := &Spec{}, &progress{}
	if err := d.Decode(spec); err != nil {
		return nil, nil, fmt.Errorf("process: %w", err)
	}
	for {
		next := &progress{}
		if d.Decode(next) != nil { // the end, or an incomplete line
			break
		}
		at = next
	}
	if at.Starts < 1 || at.Input < 0 || at.From[0] < 0 || at.From[1] < 0 {
		return nil, nil, errors.New("process: no progress")
	}
	return spec, at, spec.Resolve()
}

func sortedKeys(a, b map[string]string) []string {
	all := map[string]bool{}
	for _, m := range []map[string]string{a, b} {
		for k := range m {
			all[k] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
