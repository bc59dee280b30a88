// SPDX-License-Identifier: Apache-2.0

// Package client is boxd's end of its connections to the keeper or to PID 1 of a box.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ErrKeeperGone means that the keeper has ended during a request that cannot be repeated, or that
// there will be no keeper any more.
var ErrKeeperGone = errors.New("the keeper is gone")

// ErrNoKeeper means that boxkeeper is not running. Boxes keep running without one; none can
// be started or cleaned up until there is one again.
var ErrNoKeeper = errors.New("boxkeeper is not running")

// KeeperConfig says which keeper is wanted, and how to start it.
type KeeperConfig struct {
	isolation.KeeperConfig
	Program  string   // path of boxkeeper
	External bool     // systemd or another program starts it; wait for it
	Stderr   *os.File // log of a keeper that this process starts, and of its zygotes
	Log      *slog.Logger
}

// Keeper is the connection to a keeper. A lost connection is made again, to another keeper if
// that one is dead; the boxes keep running meanwhile.
type Keeper struct {
	cfg   KeeperConfig
	stop  func()          // ends the attempts to connect
	done  chan struct{}   // closed when no other keeper will be connected to
	child *child          // used by connect only
	recv  *fdpass.Buffers // of all boxes

	mu      sync.Mutex    // guards the fields below
	link    *link         // nil: not connected at present
	linked  chan struct{} // closed when there is a link
	closing bool
}

// Time limits for connecting again, and for the end.
const (
	relinkTimeout = 30 * time.Second // how long a request waits for a connection
	minRetryPause = 50 * time.Millisecond
	maxRetryPause = 5 * time.Second
	quitTimeout   = time.Minute // how long it may take to end every box
	undoTimeout   = 30 * time.Second
)

// StartKeeper connects to the running keeper, or else starts one, which then lives on without
// this process.
func StartKeeper(ctx context.Context, cfg KeeperConfig) (*Keeper, error) {
	k := &Keeper{cfg: cfg, recv: fdpass.NewBuffers(isolation.MaxBoxReply), done: make(chan struct{}), linked: make(chan struct{})}
	l, err := k.connect(ctx)
	if err != nil {
		return nil, err
	}
	baseCtx, stop := context.WithCancel(context.Background())
	k.stop = stop
	k.setLink(l)
	go k.maintain(baseCtx, l) //nolint:contextcheck // it outlives the start
	return k, nil
}

// maintain receives from one keeper after the other, until Close or Detach.
func (k *Keeper) maintain(ctx context.Context, l *link) {
	defer close(k.done)
	for l != nil {
		l.receive()
		more := k.markLost()
		close(l.done)
		if !more {
			return
		}
		k.cfg.Log.Warn("the keeper is gone; boxes keep running, and boxd waits for a new keeper")
		l = k.relink(ctx)
		if l != nil {
			k.cfg.Log.Info("connected to a new keeper")
			k.setLink(l)
		}
	}
}

// relink connects again, however long that takes. It returns nil when ctx ends.
func (k *Keeper) relink(ctx context.Context) *link {
	for pause := minRetryPause; ; pause = min(2*pause, maxRetryPause) {
		l, err := k.connect(ctx)
		if err == nil {
			return l
		}
		if ctx.Err() == nil {
			k.cfg.Log.Error("cannot start a keeper", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (k *Keeper) setLink(l *link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.link = l
	close(k.linked)
}

// markLost records that the link has ended and reports whether there is to be another.
func (k *Keeper) markLost() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.link, k.linked = nil, make(chan struct{})
	return !k.closing
}

// current returns the link, after waiting for one if need be. The error is ErrNoKeeper if there
// is none in time, or ErrKeeperGone after Close.
func (k *Keeper) current(ctx context.Context) (*link, error) {
	var timeout <-chan time.Time
	for {
		k.mu.Lock()
		l, linked := k.link, k.linked
		k.mu.Unlock()
		if l != nil {
			return l, nil
		}
		if timeout == nil {
			timeout = time.After(relinkTimeout)
		}
		select {
		case <-linked: // it may have been lost again by now
		case <-k.done:
			return nil, ErrKeeperGone
		case <-timeout:
			return nil, ErrNoKeeper
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// maxAttempts is how often a repeatable request is made.
const maxAttempts = 3

// do makes a repeatable request; if the keeper goes, it repeats it to the next one.
func (k *Keeper) do(ctx context.Context, req isolation.KeeperRequest) (answer, error) {
	for n := 1; ; n++ {
		l, err := k.current(ctx)
		if err != nil {
			return answer{}, err
		}
		a, err := l.do(ctx, req)
		if !errors.Is(err, ErrKeeperGone) {
			return a, err
		}
		if n == maxAttempts {
			return answer{}, ErrNoKeeper
		}
		<-l.done // wait until it is not the current one any more
	}
}

// requestFiles makes a repeatable request, and returns the reply and the files with it, which are the
// caller's.
func requestFiles[R isolation.KeeperReply](ctx context.Context, k *Keeper, req isolation.KeeperRequest) (reply R, files []int, err error) {
	a, err := k.do(ctx, req)
	if err != nil {
		return reply, nil, err
	}
	reply, ok := a.msg.(R)
	if !ok {
		fdpass.CloseAll(a.files)
		return reply, nil, fmt.Errorf("ask the keeper: %w", isolation.ErrMalformed)
	}
	return reply, a.files, nil
}

// request is requestFiles for a reply that comes without files.
func request[R isolation.KeeperReply](ctx context.Context, k *Keeper, req isolation.KeeperRequest) (R, error) {
	reply, files, err := requestFiles[R](ctx, k, req)
	fdpass.CloseAll(files)
	return reply, err
}

// command makes a repeatable request whose reply has no result.
func (k *Keeper) command(ctx context.Context, req isolation.KeeperRequest) error {
	_, err := request[*isolation.Done](ctx, k, req)
	return err
}

// Present reports whether there is a keeper at the moment. It may be too busy to answer.
func (k *Keeper) Present() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link != nil
}

// Program returns the path of the keeper's program.
func (k *Keeper) Program() string { return k.cfg.Program }

// Done is closed when there will be no keeper any more: after Close or Detach.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Close ends all boxes, and waits until they and the keeper have ended. An external keeper keeps
// running.
func (k *Keeper) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	l, err := k.current(ctx)
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	if err == nil {
		// A keeper that ends may not answer.
		if _, err = l.do(ctx, &isolation.Quit{}); errors.Is(err, ErrKeeperGone) {
			err = nil
		}
	}
	k.disconnect()
	if err == nil && !k.cfg.External && k.child != nil {
		select {
		case <-k.child.exited:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("end the keeper: %w", err)
	}
	return nil
}

// Detach ends the connection. The keeper and the boxes keep running.
func (k *Keeper) Detach() {
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	k.disconnect()
}

func (k *Keeper) disconnect() {
	k.stop()
	k.mu.Lock()
	if k.link != nil {
		k.link.conn.Close()
	}
	k.mu.Unlock()
	<-k.done
}

// Launch starts a box. If ctx ends first, the box is ended as soon as it has started.
func (k *Keeper) Launch(ctx context.Context, spec *isolation.Spec) (*Box, error) {
	for attempts := 0; ; {
		box, err := k.launch(ctx, spec)
		switch {
		case errors.Is(err, ErrKeeperGone) && ctx.Err() == nil && !k.closed():
			// What the lost keeper has begun is ended; the next one starts over.
		case errors.Is(err, ErrBoxLost) && attempts < maxAttempts:
			attempts++ // a preforked PID 1 may have died before it was used; the next one is fresh
		default:
			return box, err
		}
	}
}

// undo ends a box whose start a lost keeper has begun: the next keeper may find it, or its workspace, and boxd would know of
// neither. If that keeper is lost too, undo continues with the one after it.
func (k *Keeper) undo(ctx context.Context, spec *isolation.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	for {
		err := k.End(ctx, spec.Key, !spec.Resume)
		if !errors.Is(err, ErrKeeperGone) && !errors.Is(err, ErrNoKeeper) || k.closed() || ctx.Err() != nil {
			return err
		}
	}
}

// closed reports whether there will be no keeper any more.
func (k *Keeper) closed() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

func (k *Keeper) launch(ctx context.Context, spec *isolation.Spec) (*Box, error) {
	l, err := k.current(ctx)
	if err != nil {
		return nil, err
	}
	a, err := l.do(ctx, &isolation.Launch{Spec: *spec})
	if errors.Is(err, ErrKeeperGone) {
		<-l.done
		// The start may have come so far that the next keeper finds the box, of which boxd would not know.
		if eerr := k.undo(context.WithoutCancel(ctx), spec); eerr != nil {
			return nil, fmt.Errorf("%w; after that: %w", ErrNoKeeper, eerr)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	launched, ok := a.msg.(*isolation.Launched)
	if !ok {
		fdpass.CloseAll(a.files)
		return nil, fmt.Errorf("launch: %w", isolation.ErrMalformed)
	}
	var box *Box
	err = error(&isolation.StepError{Step: isolation.StepSetup, Item: "descriptors", Errno: unix.EMFILE})
	if len(a.files) == 2 {
		box, err = newBox(*launched, a.files[0], a.files[1], k.recv)
	} else {
		fdpass.CloseAll(a.files) // ErrNoRoom, see receive
	}
	if err == nil {
		if err = box.awaitReady(ctx); err == nil {
			return box, nil
		}
		box.Close()
	}
	// The keeper has started the box, so the keeper has to end it again.
	return nil, errors.Join(err, k.undo(context.WithoutCancel(ctx), spec))
}

// End kills a box and waits until nothing of it is left but its files on disk, or not even those with removeWork. Without that,
// they are synced. It is no error if the box does not exist.
func (k *Keeper) End(ctx context.Context, key string, removeWork bool) error {
	return k.command(ctx, &isolation.EndBox{Key: key, RemoveWork: removeWork})
}

// WhyEnded returns why the keeper has ended a box by itself.
func (k *Keeper) WhyEnded(ctx context.Context, key string) (isolation.EndCause, error) {
	ended, err := request[*isolation.Ended](ctx, k, &isolation.WhyEnded{Key: key})
	if err != nil {
		return isolation.CauseNone, err
	}
	return ended.Cause, nil
}

// SetLimits changes the limits of a live box, all or none. The error unwraps to an
// *isolation.Refusal if a limit is below what the box uses.
func (k *Keeper) SetLimits(ctx context.Context, key string, limits *cgroup.Limits, work isolation.Quota) error {
	return k.command(ctx, &isolation.SetLimits{Key: key, Limits: *limits, Work: work})
}

// SetOwnerLimits changes the limits for all boxes of an owner together. Errors are as for
// SetLimits.
func (k *Keeper) SetOwnerLimits(ctx context.Context, owner *cgroup.Owner) error {
	return k.command(ctx, &isolation.SetOwnerLimits{Owner: *owner})
}

// SetHostname sets the hostname of a box in which no program runs yet.
func (k *Keeper) SetHostname(ctx context.Context, key, hostname string) error {
	return k.command(ctx, &isolation.SetHostname{Key: key, Hostname: hostname})
}

// Reclaim takes back memory that the programs of a box do not need.
func (k *Keeper) Reclaim(ctx context.Context, key string) error {
	return k.command(ctx, &isolation.Reclaim{Key: key})
}

// ProbeHost returns what can be enforced on this host.
func (k *Keeper) ProbeHost(ctx context.Context) (*isolation.Host, error) {
	return request[*isolation.Host](ctx, k, &isolation.LookHost{})
}

// Check returns the keeper's checks of the host.
func (k *Keeper) Check(ctx context.Context) ([]isolation.Check, error) {
	checked, err := request[*isolation.Checked](ctx, k, &isolation.CheckHost{})
	if err != nil {
		return nil, err
	}
	return checked.Checks, nil
}

// List returns the keys of all living boxes, sorted.
func (k *Keeper) List(ctx context.Context) ([]string, error) {
	var keys []string
	for after := ""; ; {
		page, err := request[*isolation.Listed](ctx, k, &isolation.ListBoxes{After: after})
		if err != nil {
			return nil, err
		}
		if page.More && (len(page.Keys) == 0 || page.Keys[len(page.Keys)-1] <= after) {
			return nil, fmt.Errorf("list: %w", isolation.ErrMalformed)
		}
		keys = append(keys, page.Keys...)
		if !page.More {
			return keys, nil
		}
		after = keys[len(keys)-1]
	}
}

// adopt connects to PID 1 of a living box again: the control socket and the pidfd are the
// caller's. ESRCH: the box is dead.
func (k *Keeper) adopt(ctx context.Context, key string) (launched isolation.Launched, control, pidfd int, err error) {
	reply, files, err := requestFiles[*isolation.Launched](ctx, k, &isolation.Adopt{Key: key})
	if err != nil {
		return launched, -1, -1, err
	}
	if len(files) != 2 {
		fdpass.CloseAll(files) // ErrNoRoom, see receive
		return launched, -1, -1, &isolation.StepError{Step: isolation.StepSetup, Item: "descriptors", Errno: unix.EMFILE}
	}
	return *reply, files[0], files[1], nil
}
