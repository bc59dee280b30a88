// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// greet makes what every boxd is told first.
func (k *Keeper) greet() error {
	var own, boxInit, boxFiles unix.Stat_t
	err := unix.Stat("/proc/self/exe", &own)
	if err == nil {
		err = unix.Fstat(k.boxInit, &boxInit)
	}
	if err == nil {
		err = unix.Fstat(k.boxFiles, &boxFiles)
	}
	if err != nil {
		return fmt.Errorf("programs: %w", err)
	}
	k.greeting = isolation.Greeting{Version: isolation.KeeperVersion, Flags: k.cfg.Flags(), Programs: isolation.ProgramsID(&own, &boxInit, &boxFiles)}
	return nil
}

// firstPatience is how long a keeper waits for the boxd that has started it.
const firstPatience = 30 * time.Second

// Serve answers one boxd after the other. It returns when ctx ends or boxd asks for it, and, unless the
// keeper is to linger, when neither a boxd nor a box is left. One that is not to linger belongs to the boxd
// that it serves, which may be stopped by the same signal and need it for that: it goes when that has.
func (k *Keeper) Serve(ctx context.Context) error {
	serving := ctx
	if !k.cfg.Linger {
		serving = context.WithoutCancel(ctx)
	}
	stopReaper := StartReaper()
	defer stopReaper()
	k.lending.Pool.Warm()
	conns, stop := k.accept()
	defer stop()
	first := time.NewTimer(firstPatience)
	defer first.Stop()
	for waiting := true; ; {
		var conn *fdpass.Conn
		var last isolation.KeeperRequest
		select {
		case conn = <-conns:
			waiting = false
			last = k.converse(serving, conn)
		case <-first.C:
			waiting = false
		case <-k.ended:
		case <-ctx.Done():
			k.close()
			return nil
		}
		if last.Quit {
			k.endAll()
		}
		switch {
		case last.Leave, ctx.Err() != nil, !waiting && !k.cfg.Linger && (last.Quit || k.idle()):
			k.close()
			if conn != nil { // last of all: boxd waits for the end of this
				conn.Close()
			}
			return nil
		case last.Quit:
			reply := isolation.KeeperReply{Req: last.Req, Done: true}
			_ = conn.Send(reply.Encode()) // boxd is going
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// accept takes connections of our own user. stop must be called; it ends with the listener.
func (k *Keeper) accept() (conns <-chan *fdpass.Conn, stop func()) {
	accepted, done := make(chan *fdpass.Conn), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			fd, err := k.listener.Accept()
			if err != nil && !errors.Is(err, os.ErrClosed) {
				k.cfg.Log.Printf("accept: %v", err)
				select { // no room for a descriptor: there may be later
				case <-time.After(acceptAgain):
					continue
				case <-done:
				}
			}
			if err != nil {
				return
			}
			conn, err := k.admit(fd)
			if err != nil {
				k.cfg.Log.Printf("connection refused: %v", err)
				continue
			}
			select {
			case accepted <- conn:
			case <-done:
				conn.Close()
				return
			}
		}
	})
	return accepted, func() {
		close(done)
		k.listener.Close()
		all.Wait()
	}
}

// acceptAgain is when it is tried again to accept after that has failed.
const acceptAgain = 100 * time.Millisecond

// admit holds a connection against the one rule there is: it is our own user's.
func (k *Keeper) admit(fd int) (*fdpass.Conn, error) {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("of uid %d: %w", peer.Uid, unix.EPERM)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return fdpass.FromFD(fd, fdpass.MaxInline)
}

// converse answers boxd until its end of the connection closes, or until its last request, which is
// returned. All others are answered then. The connection stays the caller's.
func (k *Keeper) converse(ctx context.Context, conn *fdpass.Conn) isolation.KeeperRequest {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	wanted, gone := context.WithCancel(ctx) // filesystems are not waited for when nobody does any more
	defer gone()
	var requests sync.WaitGroup
	defer requests.Wait()
	for {
		body, files, err := conn.Recv(false)
		var req *isolation.KeeperRequest
		if err == nil {
			fdpass.CloseAll(files) // no request carries any
			req, err = isolation.DecodeKeeperRequest(body)
		}
		switch {
		case err != nil:
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				k.cfg.Log.Printf("connection to boxd: %v", err)
			}
			conn.Close() // so that no answer waits for a boxd that has stopped
			gone()
			return isolation.KeeperRequest{}
		case req.Leave || req.Quit:
			return *req
		}
		requests.Go(func() { k.answer(wanted, conn, req) })
	}
}

// answer serves one request: what has begun is finished or undone, but for what waits for a filesystem when ctx ends.
// A reply that cannot be sent means that boxd is gone.
func (k *Keeper) answer(ctx context.Context, conn *fdpass.Conn, req *isolation.KeeperRequest) {
	reply := isolation.KeeperReply{Req: req.Req}
	var files []int
	refused := refuse(req)
	switch {
	case refused != nil:
		reply.Failed = stepError(isolation.StepSetup, refused.Error(), refused)
	case req.Launch != nil:
		k.answerLaunch(ctx, conn, req)
		return
	case req.Adopt != nil:
		var err error
		if reply.Launched, files, err = k.adopt(req.Adopt.Key); err != nil {
			reply.Failed = stepError(isolation.StepSetup, req.Adopt.Key, err)
		}
		defer fdpass.CloseAll(files)
	case req.List != nil:
		reply.Listed = page(k.living(), req.List.After)
	case req.End != nil:
		reply.Failed = failure(isolation.StepWorkspace, req.End.Key, k.end(req.End))
	case req.Limits != nil:
		if err := k.setLimits(req.Limits); err != nil {
			reply.Failed = stepError(isolation.StepGroup, err.Error(), err)
		}
	case req.Dress != nil:
		reply.Failed = failure(isolation.StepHostname, req.Dress.Key, k.dress(req.Dress))
	case req.Reclaim != nil:
		reply.Failed = failure(isolation.StepGroup, req.Reclaim.Key, k.reclaim(req.Reclaim.Key))
	case req.Mount != nil:
		var err error
		if reply.Mounted, err = k.changeMount(ctx, req.Mount); err != nil {
			reply.Failed = stepError(isolation.StepMount, req.Mount.Mount.Target, err)
		}
	case req.Space != nil:
		reply.Failed = failure(isolation.StepWorkspace, req.Space.Key, k.work.ChangeSpace(req.Space))
	case req.Network != nil:
		var err error
		if reply.Listed, files, err = k.network(req.Network); err != nil {
			reply.Failed = stepError(isolation.StepNetwork, err.Error(), err)
		}
		defer fdpass.CloseAll(files)
	case req.Look:
		reply.Host = k.groups.look(k)
		k.work.Probe(reply.Host)
		reply.Host.Bounds = k.bounds.Probe()
	case req.Held != nil:
		var err error
		if reply.Listed, err = k.bounds.Held(req.Held); err != nil {
			reply.Failed = stepError(isolation.StepWorkspace, req.Held.Source, err)
		}
	case req.Check:
		reply.Checks = k.checks()
	default:
		reply.Hello = &k.greeting
	}
	_ = conn.Send(reply.Encode(), files...)
}

// failure is the step that an error ends, nil if there is none.
func failure(step isolation.Step, detail string, err error) *isolation.StepError {
	if err == nil {
		return nil
	}
	return stepError(step, detail, err)
}

// refuse refuses what is asked about a box by a key that cannot be one: keys become names in directories of root's.
// What comes with a specification, a mount or a workspace is validated with those.
func refuse(req *isolation.KeeperRequest) error {
	var key string
	switch {
	case req.End != nil && (req.End.Key != "" || req.End.Tree == ""):
		key = req.End.Key
	case req.Limits != nil && ownerIn(req.Limits.Key) == "":
		key = req.Limits.Key
	case req.Adopt != nil:
		key = req.Adopt.Key
	case req.Dress != nil:
		key = req.Dress.Key
	case req.Reclaim != nil:
		key = req.Reclaim.Key
	case req.Network != nil:
		key = req.Network[0]
	case req.List != nil && req.List.After != "":
		key = req.List.After
	default:
		return nil
	}
	if !ValidKey(key) {
		return fmt.Errorf("key of a box: %w", unix.EINVAL)
	}
	return nil
}

// answerLaunch starts a box. One that boxd does not get is ended: nobody would know of it.
func (k *Keeper) answerLaunch(ctx context.Context, conn *fdpass.Conn, req *isolation.KeeperRequest) {
	reply := isolation.KeeperReply{Req: req.Req}
	l := k.launch(ctx, req.Launch)
	if l.failed != nil {
		reply.Failed = l.failed
		k.cfg.Log.Printf("box %s: %v", req.Launch.Key, l.failed)
		_ = conn.Send(reply.Encode())
		return
	}
	defer k.ahead.leave(k) //nolint:contextcheck // what it makes is for whoever comes next
	files := []int{l.embryo.control, l.embryo.pidfd}
	reply.Launched = &isolation.Launched{PID: uint32(l.embryo.pid), IDBase: l.embryo.ids.Base, Group: l.box.path()}
	k.mu.Lock()
	l.box.handed = true // before boxd can ask for a list
	k.mu.Unlock()
	err := conn.Send(reply.Encode(), files...)
	fdpass.CloseAll(files)
	if err == nil {
		return
	}
	if err := k.end(&isolation.EndBox{Key: req.Launch.Key, RemoveWork: true}); err != nil {
		k.cfg.Log.Printf("box %s, which nobody has: %v", req.Launch.Key, err)
	}
}
