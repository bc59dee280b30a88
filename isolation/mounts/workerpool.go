// SPDX-License-Identifier: Apache-2.0

// System calls that may never return are made by worker processes that can be abandoned: a
// filesystem that belongs to a user, or to a server that is gone, may take for ever to answer,
// and a wait in the kernel occupies a whole thread.
//
// A worker is the keeper's own program; it has one socket and no other descriptor, and does one
// job at a time. A worker that is late is killed and its socket closed, so that its answer is
// never taken for that of another job.

package mounts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// Reasons why a job has no answer. Any other error means that no worker could be started.
var (
	errLate     = errors.New("it timed out")
	errBusy     = errors.New("too many mount requests of this user are unanswered")
	errGone     = errors.New("the worker died on this request")
	errCanceled = errors.New("the request was canceled")
)

// poolConfig configures a WorkerPool.
type poolConfig struct {
	Args     []string      // arguments of the worker, after WorkerCommand
	Patience time.Duration // time limit of one job, including the wait for its turn
	Most     int           // jobs at a time, including abandoned ones whose worker has not ended yet
	Each     int           // of these, for one user
	Keep     int           // idle workers that are kept
	Log      *log.Logger
}

// WorkerPool runs jobs in worker processes, which it starts when it needs them.
type WorkerPool struct {
	cfg     poolConfig
	starter starter
	work    sync.WaitGroup // background goroutines

	baseCtx context.Context //nolint:containedctx // of the pool itself
	cancel  context.CancelFunc

	mu    sync.Mutex // guards the fields below
	idle  []*worker
	all   int
	busy  map[uint32]int   // jobs, by user
	stuck map[uint32]int   // abandoned jobs among them, by user
	lost  map[*worker]bool // the workers of abandoned jobs
	turn  chan struct{}    // closed when a turn may have become free
	down  bool
}

// newWorkerPool returns a pool without workers. Close ends it.
func newWorkerPool(cfg poolConfig) *WorkerPool {
	p := &WorkerPool{cfg: cfg, busy: map[uint32]int{}, stuck: map[uint32]int{}, lost: map[*worker]bool{}, turn: make(chan struct{})}
	p.baseCtx, p.cancel = context.WithCancel(context.Background())
	p.starter.requests = make(chan chan<- started)
	p.work.Go(func() { p.starter.serve(p.baseCtx, cfg.Args) })
	return p
}

// timeout returns the time limit of one job.
func (p *WorkerPool) timeout() time.Duration { return p.cfg.Patience }

// Warm starts a worker in advance if none is idle.
func (p *WorkerPool) Warm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || len(p.idle) > 0 || p.cfg.Keep == 0 {
		return
	}
	p.work.Go(func() {
		w, err := p.starter.start(p.baseCtx)
		if err != nil {
			return // the job that needs a worker reports the error
		}
		p.putIdle(w)
	})
}

// Do has a worker do a job for a user. A user with too many unfinished jobs waits; other users do
// not. The answer and its descriptors are the caller's, and files stay the caller's.
func (p *WorkerPool) Do(ctx context.Context, user uint32, request []byte, files ...int) ([]byte, []int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Patience, errLate)
	defer cancel()
	defer context.AfterFunc(p.baseCtx, cancel)() //nolint:contextcheck // the end of the pool ends it as well
	if err := p.await(ctx, user); err != nil {
		return nil, nil, err
	}
	for {
		w, fresh, err := p.take(ctx)
		if err != nil {
			p.endTurn(user)
			return nil, nil, err
		}
		answer, got, err := w.do(ctx, request, files)
		switch {
		case err == nil, errors.Is(err, errNoRoom):
			p.putIdle(w)
			p.endTurn(user)
			return answer, got, err
		case errors.Is(err, errNotSent) && !fresh: // the worker has died since it was last used
			w.close()
			continue
		case ctx.Err() != nil, p.baseCtx.Err() != nil: // the end of the pool ends its workers too, maybe before it has ended ctx
			err = cancelReason(ctx)
		}
		p.giveUp(w, user)
		return nil, nil, err
	}
}

// cancelReason returns the reason for which a job is abandoned.
func cancelReason(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errLate) {
		return errLate
	}
	return errCanceled
}

// await waits for the turn of a user.
func (p *WorkerPool) await(ctx context.Context, user uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.down:
			return errCanceled
		case p.stuck[user] >= p.cfg.Each:
			return errBusy
		case p.busy[user] < p.cfg.Each && p.all < p.cfg.Most:
			p.busy[user]++
			p.all++
			return nil
		}
		turn := p.turn
		p.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if ctx.Err() != nil {
			if err := cancelReason(ctx); !errors.Is(err, errLate) {
				return err
			}
			return errBusy
		}
	}
}

// endTurn ends the turn of a user, so that another can begin.
func (p *WorkerPool) endTurn(user uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endTurnLocked(user)
}

func (p *WorkerPool) endTurnLocked(user uint32) {
	p.all--
	if p.busy[user]--; p.busy[user] == 0 {
		delete(p.busy, user)
	}
	close(p.turn)
	p.turn = make(chan struct{})
}

// take returns an idle worker, or starts a fresh one.
func (p *WorkerPool) take(ctx context.Context) (w *worker, fresh bool, err error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		w, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if w != nil {
		return w, false, nil
	}
	w, err = p.starter.start(ctx)
	if err != nil && (ctx.Err() != nil || p.baseCtx.Err() != nil) {
		err = cancelReason(ctx)
	}
	return w, true, err
}

// putIdle adds a worker to the idle ones, or closes it if there are enough.
func (p *WorkerPool) putIdle(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || len(p.idle) >= p.cfg.Keep {
		w.close()
		return
	}
	p.idle = append(p.idle, w)
}

// killTimeout is how long a killed worker may take to end before that is logged.
const killTimeout = 2 * time.Second

// giveUp kills the worker of a late job. The user's turn ends only when the worker is dead: one
// that waits uninterruptibly in the kernel lives until the filesystem answers or is aborted.
func (p *WorkerPool) giveUp(w *worker, user uint32) {
	w.conn.Close()
	w.kill()
	p.mu.Lock()
	p.stuck[user]++
	p.lost[w] = true
	if p.down {
		w.pidfd.Close()
	} else {
		p.work.Go(func() { p.awaitDeath(w, user) })
	}
	p.mu.Unlock()
	p.Warm()
}

func (p *WorkerPool) awaitDeath(w *worker, user uint32) {
	if !w.dies(killTimeout) {
		p.mu.Lock()
		n := len(p.lost)
		p.mu.Unlock()
		p.cfg.Log.Printf("cannot kill a worker that waits for a filesystem named by uid %d (%d such workers): end a FUSE filesystem with /sys/fs/fuse/connections/*/abort", user, n)
		w.dies(0)
	}
	w.pidfd.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lost, w)
	if p.stuck[user]--; p.stuck[user] == 0 {
		delete(p.stuck, user)
	}
	p.endTurnLocked(user)
}

// Close ends all workers; jobs in progress end with errCanceled.
func (p *WorkerPool) Close() {
	p.mu.Lock()
	p.down = true
	p.cancel()
	for _, w := range p.idle {
		w.close()
	}
	p.idle = nil
	for w := range p.lost {
		w.pidfd.Close() // stop waiting for those to die
	}
	p.mu.Unlock()
	p.work.Wait()
}

// worker is the pool's handle on a worker process.
type worker struct {
	conn  *fdpass.Conn
	pidfd *os.File // pidfd
	last  uint64   // number of its last job
}

// errNotSent means that the job has not reached the worker.
var errNotSent = errors.New("it was not sent")

// errNoRoom means that a worker has answered, but this process has no descriptor left for what it
// has opened.
var errNoRoom = fmt.Errorf("%w: %w", fdpass.ErrNoRoom, unix.EMFILE)

func (w *worker) do(ctx context.Context, request []byte, files []int) ([]byte, []int, error) {
	w.last++
	message := append(binary.LittleEndian.AppendUint64(make([]byte, 0, numberLen+len(request)), w.last), request...)
	if err := w.conn.Send(message, files...); err != nil {
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
			return nil, nil, fmt.Errorf("%w: %w", errNotSent, err)
		}
		return nil, nil, fmt.Errorf("send a job: %w", err)
	}
	body, got, err := w.conn.RecvContext(ctx, false)
	if errors.Is(err, fdpass.ErrNoRoom) && len(body) >= numberLen && binary.LittleEndian.Uint64(body) == w.last {
		return nil, nil, errNoRoom
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if len(body) < numberLen || binary.LittleEndian.Uint64(body) != w.last {
		fdpass.CloseAll(got)
		return nil, nil, fmt.Errorf("%w: it answered another job", errGone)
	}
	return append([]byte(nil), body[numberLen:]...), got, nil
}

func (w *worker) kill() {
	if raw, err := w.pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}

// dies waits until a worker has ended, or until the wait is cancelled. A timeout of 0 is without limit.
func (w *worker) dies(timeout time.Duration) bool {
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	_ = w.pidfd.SetReadDeadline(deadline)
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(min(fd, math.MaxInt32)), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// close ends an idle worker.
func (w *worker) close() {
	w.conn.Close()
	w.kill()
	w.pidfd.Close()
}
