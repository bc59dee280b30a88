// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Running is a program with a stream that has printed "ready".
type Running struct {
	t      testing.TB
	stdin  *io.PipeWriter
	out    *Buffer
	result chan api.ExecResult
}

// Buffer collects what a program writes, and may be read meanwhile.
type Buffer struct {
	mu   sync.Mutex // guards the field below
	text bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Hold runs a program that prints "ready" and then waits for the end of its input, for Longest at
// most where the request has no time of its own.
func (d *Daemon) Hold(t testing.TB, session string, req api.ExecRequest) *Running {
	t.Helper()
	in, stdin := io.Pipe()
	r := &Running{t: t, stdin: stdin, out: &Buffer{}, result: make(chan api.ExecResult, 1)}
	if req.Timeout == nil {
		req.Timeout = new(quantity.Duration(Longest))
	}
	go func() { // until the program or the test has ended
		defer close(r.result)
		defer func() { _ = in.Close() }()
		result, err := d.ExecStream(t.Context(), session, &req, client.Stdio{Stdin: in, Stdout: r.out, Stderr: r.out}, nil)
		if err != nil {
			t.Errorf("in %q: %v", session, err)
			return
		}
		r.result <- *result
	}()
	Eventually(t, fmt.Sprintf("the program in %q is ready", session), func() bool { return strings.Contains(r.out.String(), "ready\n") })
	return r
}

// Release ends the program's input and returns what it has written to both outputs after "ready",
// and its result.
func (r *Running) Release() (string, api.ExecResult) {
	r.t.Helper()
	_ = r.stdin.Close()
	result, ok := <-r.result
	if !ok {
		r.t.FailNow()
	}
	_, rest, _ := strings.Cut(r.out.String(), "ready\n")
	return rest, result
}
