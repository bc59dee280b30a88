// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"encoding/binary"
	"errors"
	"log"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// TestMain lets the test binary be its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == WorkerCommand {
		_ = serveWorker(serve)
		return
	}
	// The keeper does this too.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

// serve does the jobs that the tests ask for.
func serve(request []byte, files []int) ([]byte, []int) {
	switch word, rest, _ := strings.Cut(string(request), " "); word {
	case "wait": // until the other end of a pipe is closed, or for ever
		var b [1]byte
		_, _ = unix.Read(files[0], b[:])
		return []byte("waited"), nil
	case "die":
		os.Exit(3)
	case "pid":
		return []byte(strconv.Itoa(os.Getpid())), nil
	case "own": // the descriptors and the environment of the worker
		text := strings.Join(os.Environ(), " ") + "|"
		list, _ := os.ReadDir("/proc/self/fd")
		for _, f := range list {
			to, _ := os.Readlink("/proc/self/fd/" + f.Name())
			text += " " + to
		}
		return []byte(text + "|" + strings.Join(os.Args[1:], " ")), nil
	case "back":
		fd, _ := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 3)
		return []byte(rest), []int{fd}
	}
	return request, nil
}

func pool(t *testing.T, patience time.Duration) *WorkerPool {
	p := newWorkerPool(poolConfig{Args: []string{"a", "b"}, Patience: patience, Most: 6, Each: 3, Keep: 1, Log: log.New(t.Output(), "", 0)})
	t.Cleanup(p.Close)
	return p
}

func runJob(t *testing.T, p *WorkerPool, user uint32, what string) string {
	t.Helper()
	answer, files, err := p.Do(t.Context(), user, []byte(what))
	fdpass.CloseAll(files)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return string(answer)
}

// pipe returns a pipe whose writing end stays open until the test ends.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

const long, short = 20 * time.Second, 50 * time.Millisecond

func TestAWorkerIsUsedAgain(t *testing.T) {
	t.Parallel()
	p := pool(t, long)
	first := runJob(t, p, 1, "pid")
	if second := runJob(t, p, 2, "pid"); second != first {
		t.Errorf("%s after %s", second, first)
	}
	own := runJob(t, p, 1, "own")
	if !strings.HasPrefix(own, "|") || !strings.HasSuffix(own, "|"+WorkerCommand+" a b") || strings.Contains(own, "pipe:") || strings.Count(own, "socket:") != 1 {
		t.Errorf(`a worker has %s, want own starting with "|" and own ending with "|" + WorkerCommand + " a b" and own without "pipe:" and strings.Count(own, "socket:") == 1`,
			own)
	}
	r, _ := pipe(t)
	_, files, err := p.Do(t.Context(), 1, []byte("back x"), int(r.Fd()))
	defer fdpass.CloseAll(files)
	var is, want unix.Stat_t
	if err != nil || len(files) != 1 || unix.Fstat(files[0], &is) != nil || unix.Fstat(int(r.Fd()), &want) != nil || is.Ino != want.Ino {
		t.Errorf("a descriptor did not come back: files = %v, err = %v, want no error and len(files) == 1 and unix.Fstat(files[0], &is) == nil and unix.Fstat(int(r.Fd()), &want) == nil and is.Ino == want.Ino",
			files, err)
	}
}

// A late job is abandoned together with its worker, and its answer is never taken for that of
// another job.
func TestALateJobIsAbandonedWithItsWorker(t *testing.T) {
	t.Parallel()
	p := pool(t, short)
	r, w := pipe(t)
	before := time.Now()
	if _, _, err := p.Do(t.Context(), 1, []byte("wait"), int(r.Fd())); !errors.Is(err, errLate) {
		t.Fatalf("err = %v, want err is errLate", err)
	}
	if elapsed := time.Since(before); elapsed > long {
		t.Errorf("it was given up after %s", elapsed)
	}
	w.Close()
	p.cfg.Patience = long
	for i := range 20 {
		if word := "echo" + strconv.Itoa(i); runJob(t, p, 1, word) != word {
			t.Fatal("a request got the answer of another one")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer context.AfterFunc(t.Context(), cancel)()
	r, _ = pipe(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := p.Do(ctx, 1, []byte("wait"), int(r.Fd()))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, errCanceled) {
		t.Errorf("a canceled job: %v", err)
	}
}

func TestAWorkersAnswerToAnotherJobIsRejected(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]byte{
		"an earlier one": append(binary.LittleEndian.AppendUint64(nil, 1), 'x'),
		"no number":      {2, 0, 0},
		"nothing":        {},
	} {
		conn, peer, err := fdpass.Pair(64)
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{conn: conn, last: 1}
		if err := fdpass.Send(peer, answer); err != nil {
			t.Fatal(err)
		}
		if got, _, err := w.do(t.Context(), []byte("y"), nil); !errors.Is(err, errGone) {
			t.Errorf("%s: got %q, err = %v, want err is errGone", name, got, err)
		}
		conn.Close()
		unix.Close(peer)
	}
}

func TestAWorkerThatEndsIsReplaced(t *testing.T) {
	t.Parallel()
	p := pool(t, long)
	if _, _, err := p.Do(t.Context(), 1, []byte("die")); !errors.Is(err, errGone) {
		t.Errorf("the worker died during its job: err = %v, want err is errGone", err)
	}
	runJob(t, p, 1, "x")
	p.mu.Lock()
	w := p.idle[len(p.idle)-1]
	p.mu.Unlock()
	w.kill()
	w.dies(0)
	for range 3 {
		if runJob(t, p, 1, "x") != "x" {
			t.Error("the replaced worker did not answer")
		}
	}
}

// A user with as many unfinished jobs as one user may have waits for those; no other user does.
func TestAUserAtTheJobLimitDelaysNoOtherUser(t *testing.T) {
	t.Parallel()
	p := pool(t, long)
	r, w := pipe(t)
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if _, _, err := p.Do(t.Context(), 1, []byte("wait"), int(r.Fd())); err != nil {
				t.Error(err)
			}
		})
	}
	for p.count(1) < 3 {
		runJob(t, p, 2, "x")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), short, errLate)
	defer cancel()
	if _, _, err := p.Do(ctx, 1, []byte("x")); !errors.Is(err, errBusy) {
		t.Errorf("a fourth: err = %v, want err is errBusy", err)
	}
	runJob(t, p, 2, "x")
	w.Close()
	waiting.Wait()
	runJob(t, p, 1, "x")
	if n := p.count(1); n != 0 {
		t.Errorf("%d jobs still run", n)
	}
	// A job counts for its user until the worker that cannot be killed has ended.
	p.mu.Lock()
	p.stuck[3] = 3
	p.mu.Unlock()
	if _, _, err := p.Do(t.Context(), 3, []byte("x")); !errors.Is(err, errBusy) {
		t.Errorf("a caller whose workers are stuck: err = %v, want err is errBusy", err)
	}
}

func (p *WorkerPool) count(user uint32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy[user]
}

func TestCloseEndsWhatIsBeingDone(t *testing.T) {
	t.Parallel()
	p := pool(t, long)
	r, _ := pipe(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := p.Do(t.Context(), 1, []byte("wait"), int(r.Fd()))
		done <- err
	}()
	for p.count(1) == 0 {
		runJob(t, p, 2, "x")
	}
	p.Close()
	if err := <-done; !errors.Is(err, errCanceled) {
		t.Errorf("err = %v, want err is errCanceled", err)
	}
	if _, _, err := p.Do(t.Context(), 1, []byte("x")); !errors.Is(err, errCanceled) {
		t.Errorf("afterwards: err = %v, want err is errCanceled", err)
	}
}

func BenchmarkWorkerJob(b *testing.B) {
	p := newWorkerPool(poolConfig{Patience: long, Most: 6, Each: 3, Keep: 1, Log: log.Default()})
	defer p.Close()
	for b.Loop() {
		if _, _, err := p.Do(b.Context(), 1, []byte("x")); err != nil {
			b.Fatal(err)
		}
	}
}
