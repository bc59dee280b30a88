// SPDX-License-Identifier: Apache-2.0

// Package client is boxd's end of the conversations with the keeper and with PID 1 of each box.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ErrKeeperGone means that the keeper has ended; without it no box can start or be cleaned up.
var ErrKeeperGone = errors.New("the keeper is gone")

// KeeperConfig says how to start a keeper as a child. It becomes the keeper's flags.
type KeeperConfig struct {
	Program  string // path of boxkeeper
	BoxInit  string // path of boxinit
	StateDir string
	IDBase   uint32
	IDCount  uint32
	IDLock   string
	Ahead    int    // how many boxes are cloned ahead of need
	Store    uint64 // bytes of the store of workspaces, where the state directory has no quotas; 0: none
	Group    string // control group for the boxes, an absolute path; "": none
	Allow    []string
	Etc      []string
	Stderr   io.Writer // where the keeper and its zygotes log
}

// Keeper is the connection to a running keeper.
type Keeper struct {
	conn *fdpass.Conn
	cmd  *exec.Cmd
	done chan struct{} // closed when the connection has ended

	mu      sync.Mutex // guards the fields below
	next    uint32
	waiting map[uint32]*call
	gone    bool
}

// call is one request under way. The reply of an abandoned one is undone, not delivered.
type call struct {
	reply     chan answer
	key       string
	abandoned bool
}

type answer struct {
	msg   *isolation.KeeperReply
	files []int
}

// keeperPatience is how long a request may wait for a keeper that does not receive.
const keeperPatience = 30 * time.Second

// StartKeeper starts a keeper. It ends, and every box with it, when Close is called or this process
// dies.
func StartKeeper(ctx context.Context, cfg KeeperConfig) (*Keeper, error) {
	conn, child, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		return nil, err
	}
	conn.Patience = keeperPatience
	peer := os.NewFile(uintptr(child), "keeper")
	defer peer.Close()
	args := []string{
		"-state", cfg.StateDir, "-boxinit", cfg.BoxInit, "-id-lock", cfg.IDLock, "-ahead", strconv.Itoa(cfg.Ahead), "-group", cfg.Group, "-store", strconv.FormatUint(cfg.Store, 10),
		"-id-base", strconv.FormatUint(uint64(cfg.IDBase), 10), "-id-count", strconv.FormatUint(uint64(cfg.IDCount), 10),
	}
	for _, a := range cfg.Allow {
		args = append(args, "-allow", a)
	}
	for _, e := range cfg.Etc {
		args = append(args, "-etc", e)
	}
	// Not CommandContext: the keeper ends by its connection, so that it can end the boxes first.
	cmd := exec.Command(cfg.Program, args...) //nolint:noctx // see above
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = cfg.Stderr
	cmd.ExtraFiles = []*os.File{peer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	k := &Keeper{conn: conn, cmd: cmd, done: make(chan struct{}), waiting: map[uint32]*call{}}
	if err := k.greet(ctx); err != nil {
		conn.Close()
		_ = cmd.Wait()
		return nil, fmt.Errorf("greet the keeper %s: %w", cfg.Program, err)
	}
	go k.receive()
	return k, nil
}

func (k *Keeper) greet(ctx context.Context) error {
	hello := isolation.KeeperRequest{Hello: isolation.KeeperVersion}
	if err := k.conn.Send(hello.Encode()); err != nil {
		return err
	}
	body, files, err := k.conn.RecvContext(ctx, true)
	if err != nil {
		return err
	}
	fdpass.CloseAll(files)
	reply, err := isolation.DecodeKeeperReply(body)
	if err != nil {
		return err
	}
	if reply.Hello != isolation.KeeperVersion {
		return fmt.Errorf("it speaks version %d, not %d: restart boxd and the keeper together", reply.Hello, isolation.KeeperVersion)
	}
	return nil
}

// Program is the path of the keeper's program.
func (k *Keeper) Program() string { return k.cmd.Path }

// Done is closed when the keeper is gone.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Close ends the keeper and all its boxes and waits for that.
func (k *Keeper) Close() error {
	err := k.conn.Close()
	<-k.done
	return errors.Join(err, k.cmd.Wait())
}

// Launch starts a box. If ctx ends first, the box is ended as soon as it has started.
func (k *Keeper) Launch(ctx context.Context, spec *isolation.Spec) (*Box, error) {
	box, err := k.launch(ctx, spec)
	if errors.Is(err, ErrBoxLost) {
		// PID 1 may have been cloned ahead of need and be dead since, or dying; the next one is fresh.
		box, err = k.launch(ctx, spec)
	}
	return box, err
}

func (k *Keeper) launch(ctx context.Context, spec *isolation.Spec) (*Box, error) {
	a, err := k.do(ctx, &isolation.KeeperRequest{Launch: spec}, spec.Key)
	if err != nil {
		return nil, err
	}
	if a.msg.Launched == nil {
		fdpass.CloseAll(a.files)
		return nil, fmt.Errorf("launch: %w", isolation.ErrMalformed)
	}
	var box *Box
	err = error(&isolation.StepError{Step: isolation.StepSetup, Item: "descriptors", Errno: unix.EMFILE})
	if len(a.files) == 2 {
		box, err = newBox(*a.msg.Launched, a.files[0], a.files[1])
	} else {
		fdpass.CloseAll(a.files) // ErrNoRoom, see receive
	}
	if err == nil {
		if err = box.awaitReady(ctx); err == nil {
			return box, nil
		}
		box.Close()
	}
	// The keeper has done its part; what came of it has to be undone with its help.
	return nil, errors.Join(err, k.End(context.WithoutCancel(ctx), spec.Key, true))
}

// End kills a box and waits until it has left nothing behind, with removeWork not even its
// workspace. A box that does not exist is no error.
func (k *Keeper) End(ctx context.Context, key string, removeWork bool) error {
	a, err := k.do(ctx, &isolation.KeeperRequest{End: &isolation.EndBox{Key: key, RemoveWork: removeWork}}, "")
	fdpass.CloseAll(a.files)
	return err
}

// SetLimits changes the limits of a living box, all or none. The error unwraps to an
// *isolation.Refusal if one is below what the box uses.
func (k *Keeper) SetLimits(ctx context.Context, key string, limits *cgroup.Limits, work isolation.Quota) error {
	a, err := k.do(ctx, &isolation.KeeperRequest{Limits: &isolation.SetLimits{Key: key, Limits: *limits, Work: work}}, "")
	fdpass.CloseAll(a.files)
	return err
}

// Look finds out what can be enforced on this host.
func (k *Keeper) Look(ctx context.Context) (*isolation.Host, error) {
	a, err := k.do(ctx, &isolation.KeeperRequest{Look: true}, "")
	fdpass.CloseAll(a.files)
	if err != nil {
		return nil, err
	}
	if a.msg.Host == nil {
		return nil, fmt.Errorf("look: %w", isolation.ErrMalformed)
	}
	return a.msg.Host, nil
}

// Check examines the host.
func (k *Keeper) Check(ctx context.Context) ([]isolation.Check, error) {
	a, err := k.do(ctx, &isolation.KeeperRequest{Check: true}, "")
	fdpass.CloseAll(a.files)
	if err != nil {
		return nil, err
	}
	return a.msg.Checks, nil
}

// do sends a request and waits for its answer. key names the box that an unwanted answer started.
func (k *Keeper) do(ctx context.Context, req *isolation.KeeperRequest, key string) (answer, error) {
	c := &call{reply: make(chan answer, 1), key: key}
	k.mu.Lock()
	if k.gone {
		k.mu.Unlock()
		return answer{}, ErrKeeperGone
	}
	k.next++
	req.Req = k.next
	k.waiting[req.Req] = c
	k.mu.Unlock()
	if err := k.conn.Send(req.Encode()); err != nil {
		k.mu.Lock()
		delete(k.waiting, req.Req)
		k.mu.Unlock()
		return answer{}, fmt.Errorf("ask the keeper: %w", err)
	}
	select {
	case a, ok := <-c.reply:
		if !ok {
			return answer{}, ErrKeeperGone
		}
		if a.msg.Failed != nil {
			fdpass.CloseAll(a.files)
			return answer{}, a.msg.Failed
		}
		return a, nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	c.abandoned = true
	k.mu.Unlock()
	select {
	case a, ok := <-c.reply: // it came between the two
		if ok {
			k.discard(c, a)
		}
	default:
	}
	return answer{}, ctx.Err()
}

// receive delivers answers until the connection ends.
func (k *Keeper) receive() {
	defer close(k.done)
	for {
		body, files, err := k.conn.Recv(false)
		var reply *isolation.KeeperReply
		if err == nil || errors.Is(err, fdpass.ErrNoRoom) { // that is the trouble of one request
			reply, err = isolation.DecodeKeeperReply(body)
		}
		if err != nil {
			fdpass.CloseAll(files)
			break
		}
		a := answer{reply, files}
		k.mu.Lock()
		c := k.waiting[reply.Req]
		delete(k.waiting, reply.Req)
		wanted := c != nil && !c.abandoned
		if wanted {
			c.reply <- a // has room for the one answer
		}
		k.mu.Unlock()
		if !wanted {
			k.discard(c, a)
		}
	}
	k.mu.Lock()
	k.gone = true
	for _, c := range k.waiting {
		close(c.reply)
	}
	k.waiting = nil
	k.mu.Unlock()
}

// discard undoes what an answer nobody waits for has brought.
func (k *Keeper) discard(c *call, a answer) {
	fdpass.CloseAll(a.files)
	if c == nil || a.msg.Launched == nil {
		return
	}
	k.mu.Lock()
	k.next++
	end := isolation.KeeperRequest{Req: k.next, End: &isolation.EndBox{Key: c.key, RemoveWork: true}}
	k.mu.Unlock()
	_ = k.conn.Send(end.Encode()) // its answer is dropped; without a keeper there is no box either
}
