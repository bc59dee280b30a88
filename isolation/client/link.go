// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// link is a connection to a keeper whose greeting was accepted.
type link struct {
	conn *fdpass.Conn
	done chan struct{} // closed when the connection is lost and the Keeper knows

	mu      sync.Mutex // guards the fields below
	next    uint32
	pending map[uint32]*call
	closed  bool
}

// call is one request in progress. The reply to an abandoned one is undone instead of delivered.
type call struct {
	reply     chan answer
	key       string // of the box that it launches; "": none
	resume    bool   // that box has files of before, which stay
	abandoned bool
}

type answer struct {
	msg   isolation.KeeperReply
	files []int
}

// keeperTimeout is how long a request may wait for a keeper that does not receive.
const keeperTimeout = 30 * time.Second

// child is a keeper that this process has started.
type child struct {
	cmd       *exec.Cmd
	exited    chan struct{} // closed when it has ended
	connected bool          // there has been a connection to it
}

// errRetry marks failures that another attempt may not meet.
var errRetry = errors.New("the keeper does not answer yet")

// Pauses between attempts to connect, which double.
const (
	firstPause = time.Millisecond
	maxPause   = 100 * time.Millisecond
)

// warnAfter is after how long a wait for a keeper is logged.
const warnAfter = 10 * time.Second

// connect connects to the running keeper, or else starts one. A running keeper of another version
// or configuration is asked to leave; its boxes keep running.
func (k *Keeper) connect(ctx context.Context) (*link, error) {
	warnAt := time.Now().Add(warnAfter)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		l, err := k.attempt(ctx)
		if err == nil || !errors.Is(err, errRetry) {
			return l, err
		}
		if !warnAt.IsZero() && time.Now().After(warnAt) {
			k.cfg.Log.Warn("boxd waits for the keeper", "error", err)
			warnAt = time.Time{}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (k *Keeper) attempt(ctx context.Context) (*link, error) {
	conn, err := k.dial()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		if !k.cfg.External {
			if err := k.start(); err != nil {
				return nil, err
			}
		}
		return nil, fmt.Errorf("%w: %w", errRetry, err)
	}
	if err != nil {
		// EACCES: the socket of an earlier keeper, which was killed, and which was of another boxd.
		if errors.Is(err, unix.EAGAIN) || k.cfg.External && errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: %w", errRetry, err)
		}
		return nil, err
	}
	l := &link{conn: conn, done: make(chan struct{}), pending: map[uint32]*call{}}
	if err := k.greet(ctx, conn); err != nil {
		conn.Close()
		return nil, err
	}
	if k.child != nil {
		k.child.connected = true
	}
	return l, nil
}

func (k *Keeper) dial() (*fdpass.Conn, error) {
	dir, err := unix.Open(filepath.Join(k.cfg.RunDir, isolation.KeeperDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := fdpass.Dial(dir, isolation.KeeperSocket)
	if err != nil {
		return nil, err
	}
	conn, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err == nil {
		conn.Patience = keeperTimeout
	}
	return conn, err
}

// greet checks a keeper's version and configuration by its greeting, and asks it to leave if they
// differ.
func (k *Keeper) greet(ctx context.Context, conn *fdpass.Conn) error {
	want, err := k.wantedGreeting()
	if err != nil {
		return err
	}
	got, err := receiveGreeting(ctx, conn)
	if err != nil {
		return err
	}
	mismatch := greetingMismatch(got, want)
	switch {
	case mismatch == "":
		return nil
	case k.cfg.External:
		return fmt.Errorf("the keeper of %s does not match boxd, restart it: %s", k.cfg.RunDir, mismatch)
	case k.child != nil && !k.child.connected:
		return fmt.Errorf("the keeper %s does not match boxd: %s", k.cfg.Program, mismatch)
	}
	k.cfg.Log.Info("replacing the keeper; its boxes keep running", "reason", mismatch)
	if err := conn.Send(isolation.EncodeKeeperRequest(1, &isolation.Leave{})); err != nil {
		return fmt.Errorf("%w: %w", errRetry, err)
	}
	for { // until the keeper has closed the connection
		_, files, err := conn.RecvContext(ctx, true)
		fdpass.CloseAll(files)
		if err != nil {
			return fmt.Errorf("%w: %w", errRetry, err)
		}
	}
}

// wantedGreeting returns the greeting of a keeper that suits this boxd.
func (k *Keeper) wantedGreeting() (*isolation.Greeting, error) {
	g := &isolation.Greeting{Version: isolation.KeeperVersion, Flags: k.cfg.Flags()}
	if k.cfg.External { // an update of the program restarts the unit
		return g, nil
	}
	var program, boxInit, boxFiles, boxNet unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{k.cfg.Program: &program, k.cfg.BoxInit: &boxInit, k.cfg.BoxFiles(): &boxFiles, k.cfg.BoxNet(): &boxNet} {
		if err := unix.Stat(path, st); err != nil {
			return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	g.Programs = isolation.ProgramsID(&program, &boxInit, &boxFiles, &boxNet)
	return g, nil
}

// receiveGreeting receives a keeper's greeting. The keeper may just be ending, or be busy with another boxd.
func receiveGreeting(ctx context.Context, conn *fdpass.Conn) (*isolation.Greeting, error) {
	hello := &isolation.Hello{Version: isolation.KeeperVersion}
	if err := conn.Send(isolation.EncodeKeeperRequest(0, hello)); err != nil {
		return nil, fmt.Errorf("%w: %w", errRetry, err)
	}
	body, files, err := conn.RecvContext(ctx, true)
	fdpass.CloseAll(files)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it has closed the connection, as to a user that it was not told to obey (-boxd-uid; this is %d)", errRetry, os.Geteuid())
	}
	if err != nil {
		return nil, fmt.Errorf("greet the keeper: %w", err)
	}
	_, reply, err := isolation.DecodeKeeperReply(body)
	greeting, ok := reply.(*isolation.Greeting)
	if err == nil && !ok {
		err = isolation.ErrMalformed
	}
	if err != nil {
		return nil, fmt.Errorf("greet the keeper: %w", err)
	}
	return greeting, nil
}

// start starts a keeper, unless one is just starting. It lives on without this process.
func (k *Keeper) start() error {
	if c := k.child; c != nil {
		select {
		case <-c.exited:
			k.child = nil
			if !c.connected && !c.cmd.ProcessState.Success() {
				return fmt.Errorf("the keeper %s has ended at once: %v", k.cfg.Program, c.cmd.ProcessState)
			}
		default:
			return nil
		}
	}
	// Not CommandContext: the keeper ends when it is asked to, so that it can end the boxes
	// first.
	cmd := exec.Command(k.cfg.Program, k.cfg.Flags()...) //nolint:noctx // see above
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = k.cfg.Stderr
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	c := &child{cmd: cmd, exited: make(chan struct{})}
	k.child = c
	go func() { // ends with the keeper
		_ = cmd.Wait() // the error is in its process state too
		close(c.exited)
	}()
	return nil
}

// do sends a request and waits for its answer. If the answer to a Launch comes too late, its box is ended.
func (l *link) do(ctx context.Context, req isolation.KeeperRequest) (answer, error) {
	c := &call{reply: make(chan answer, 1)}
	if launch, ok := req.(*isolation.Launch); ok {
		c.key, c.resume = launch.Spec.Key, launch.Spec.Resume
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return answer{}, ErrKeeperGone
	}
	l.next++
	number := l.next
	l.pending[number] = c
	l.mu.Unlock()
	if err := l.conn.Send(isolation.EncodeKeeperRequest(number, req)); err != nil {
		l.mu.Lock()
		delete(l.pending, number)
		l.mu.Unlock()
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
			err = ErrKeeperGone
		}
		return answer{}, fmt.Errorf("ask the keeper: %w", err)
	}
	select {
	case a, ok := <-c.reply:
		if !ok {
			return answer{}, ErrKeeperGone
		}
		if failed, ok := a.msg.(*isolation.StepError); ok {
			fdpass.CloseAll(a.files)
			return answer{}, failed
		}
		return a, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	c.abandoned = true
	l.mu.Unlock()
	select {
	case a, ok := <-c.reply: // the answer came after all
		if ok {
			l.discard(c, a)
		}
	default:
	}
	return answer{}, ctx.Err()
}

// receive delivers answers until the connection ends.
func (l *link) receive() {
	for {
		body, files, err := l.conn.Recv(false)
		var number uint32
		var reply isolation.KeeperReply
		if err == nil || errors.Is(err, fdpass.ErrNoRoom) { // ErrNoRoom concerns one request only
			number, reply, err = isolation.DecodeKeeperReply(body)
		}
		if err != nil {
			fdpass.CloseAll(files)
			break
		}
		a := answer{reply, files}
		l.mu.Lock()
		c := l.pending[number]
		delete(l.pending, number)
		wanted := c != nil && !c.abandoned
		if wanted {
			c.reply <- a // never blocks: it has room for the one answer
		}
		l.mu.Unlock()
		if !wanted {
			l.discard(c, a)
		}
	}
	l.conn.Close()
	l.mu.Lock()
	l.closed = true
	for _, c := range l.pending {
		close(c.reply)
	}
	l.pending = nil
	l.mu.Unlock()
}

// discard undoes what the answer to an abandoned request has brought.
func (l *link) discard(c *call, a answer) {
	fdpass.CloseAll(a.files)
	if _, launched := a.msg.(*isolation.Launched); !launched || c == nil || c.key == "" {
		return
	}
	l.mu.Lock()
	l.next++
	number := l.next
	l.mu.Unlock()
	end := &isolation.EndBox{Key: c.key, RemoveWork: !c.resume}
	_ = l.conn.Send(isolation.EncodeKeeperRequest(number, end)) // the answer to this is dropped; if the keeper is lost, the next one has the box
}
