// SPDX-License-Identifier: Apache-2.0

// Package keeper is the privileged half of boxd: it starts boxes, ends them, and does nothing else.
//
// It takes plain data over one socket, holds it against its own root-owned configuration, and never
// parses JSON, HTTP or archives.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup/tree"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/rootfs"
	"github.com/boxd-dev/boxd/isolation/seccomp"
	"github.com/boxd-dev/boxd/isolation/workspaces"
)

// Config is what the keeper allows. It comes from root and is never changed by a request.
type Config struct {
	StateDir string // holds the managed workspaces; 0700
	BoxInit  string // the program that becomes PID 1 of a box
	IDBase   uint32 // first host id of the first range, a multiple of isolation.IDRange
	IDCount  uint32 // number of ranges, one for each living box
	IDLock   string // file that reserves ranges among all keepers of the host
	Store    uint64 // bytes of the store, where the state directory has no quotas; 0: no store
	Ahead    int    // how many boxes are cloned ahead of need
	Group    string // control group that has been delegated to boxd, an absolute path; "": none
	Allow    []AllowRule
	Host     rootfs.Host
	Log      *log.Logger
}

// Times the keeper gives to things that take milliseconds when all is well.
const (
	zygotePatience = 20 * time.Second
	endPatience    = 30 * time.Second
)

// Keeper serves one boxd.
type Keeper struct {
	cfg     Config
	conn    *fdpass.Conn
	boxInit int // descriptor of cfg.BoxInit
	filters [2]seccomp.Filter
	ids     idRanges
	users   userNamespaces
	zygote  zygote
	ahead   nursery
	groups  groups
	work    *workspaces.Dir

	mu    sync.Mutex // guards the field below
	boxes map[string]*box
}

// box is a box from the reservation of its key to its removal. It is watched once it has a pidfd.
type box struct {
	pid    int
	pidfd  *os.File
	ids    idRange
	groups *tree.Box     // nil: none
	gone   chan struct{} // closed when it and all its processes are dead and released
}

// New checks the configuration and prepares what all boxes share. It takes conn over.
func New(cfg Config, conn *fdpass.Conn) (*Keeper, error) {
	if cfg.IDBase%isolation.IDRange != 0 || cfg.IDBase == 0 || cfg.IDCount == 0 ||
		uint64(cfg.IDBase)+uint64(cfg.IDCount)*isolation.IDRange > 1<<32-isolation.IDRange {
		return nil, fmt.Errorf("id ranges %d+%d: want a multiple of %d, and all below 2³²", cfg.IDBase, cfg.IDCount, isolation.IDRange)
	}
	// Whatever boxd was started with besides goes no further: a program in a box would have it.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close on exec: %w", err)
	}
	// Boxes of a zygote that has ended become the keeper's, which reaps them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("subreaper: %w", err)
	}
	state, err := filepath.EvalSymlinks(cfg.StateDir) // as the sources of mounts are compared with it
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	cfg.StateDir = state
	k := &Keeper{
		cfg: cfg, conn: conn, boxes: map[string]*box{}, ahead: nursery{want: cfg.Ahead},
		ids: idRanges{path: cfg.IDLock, base: cfg.IDBase, count: cfg.IDCount, used: map[uint32]bool{}},
	}
	for i := range k.filters {
		f, err := seccomp.Compile(seccomp.Default(), seccomp.Options{Arch: runtime.GOARCH, HostWritable: i == 1})
		if err != nil {
			return nil, err
		}
		k.filters[i] = f
	}
	if k.boxInit, err = unix.Open(cfg.BoxInit, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.BoxInit, err)
	}
	if k.work, err = workspaces.Open(cfg.StateDir, cfg.Store); err != nil {
		unix.Close(k.boxInit)
		return nil, err
	}
	return k, nil
}

// Serve answers boxd until its end of the connection closes, then ends every box and returns.
func (k *Keeper) Serve() error {
	stopReaper := startReaper()
	defer stopReaper()
	var requests sync.WaitGroup
	defer k.close()
	defer requests.Wait()
	for {
		body, files, err := k.conn.Recv(false)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive from boxd: %w", err)
		}
		fdpass.CloseAll(files) // no request carries any
		req, err := isolation.DecodeKeeperRequest(body)
		if err != nil {
			return fmt.Errorf("request from boxd: %w", err)
		}
		requests.Go(func() { k.answer(req) })
	}
}

// answer serves one request. A reply that cannot be sent means boxd is gone; Serve sees that too.
func (k *Keeper) answer(req *isolation.KeeperRequest) {
	reply := isolation.KeeperReply{Req: req.Req}
	var files []int
	switch {
	case req.Launch != nil:
		l := k.launch(req.Launch)
		if l.failed != nil {
			reply.Failed = l.failed
			k.cfg.Log.Printf("box %s: %v", req.Launch.Key, l.failed)
			break
		}
		defer k.ahead.leave(k)
		files = []int{l.embryo.control, l.embryo.pidfd}
		defer fdpass.CloseAll(files)
		reply.Launched = &isolation.Launched{PID: uint32(l.embryo.pid), IDBase: l.embryo.ids.base, Group: l.box.path()}
	case req.End != nil:
		if err := k.end(req.End); err != nil {
			reply.Failed = stepError(isolation.StepWorkspace, req.End.Key, err)
			break
		}
		reply.Done = true
	case req.Limits != nil:
		if err := k.setLimits(req.Limits); err != nil {
			reply.Failed = stepError(isolation.StepGroup, err.Error(), err)
			break
		}
		reply.Done = true
	case req.Look:
		reply.Host = k.groups.look(k)
		k.work.Look(reply.Host)
	case req.Check:
		reply.Checks = k.check()
	default:
		reply.Hello = isolation.KeeperVersion
	}
	_ = k.conn.Send(reply.Encode(), files...)
}

// end kills a box if it lives, waits until nothing of it is left, and removes its workspace if
// asked. A box that is not known is no error: what is asked for is true.
func (k *Keeper) end(req *isolation.EndBox) error {
	k.mu.Lock()
	b := k.boxes[req.Key]
	starting := b != nil && b.pidfd == nil
	k.mu.Unlock()
	if starting {
		return fmt.Errorf("box %s is still starting: %w", req.Key, syscall.EBUSY)
	}
	if b != nil {
		if err := b.kill(); err != nil {
			return err
		}
	}
	if !req.RemoveWork {
		return nil
	}
	return k.work.Remove(req.Key)
}

// kill ends PID 1 of the box, with which the kernel ends every other process in it.
func (b *box) kill() error {
	raw, err := b.pidfd.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-b.gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("box of pid %d does not die: %w", b.pid, syscall.EBUSY)
	}
}

// close ends all boxes; nobody is left to want them.
func (k *Keeper) close() {
	k.mu.Lock()
	boxes := make([]*box, 0, len(k.boxes))
	for _, b := range k.boxes {
		boxes = append(boxes, b)
	}
	k.mu.Unlock()
	var all sync.WaitGroup
	for _, b := range boxes {
		all.Go(func() {
			if err := b.kill(); err != nil {
				k.cfg.Log.Print(err)
			}
		})
	}
	all.Wait()
	k.ahead.close(&k.ids)
	k.zygote.close()
	k.users.close()
	k.groups.close()
	k.ids.close()
	k.work.Close(k.cfg.Log)
	unix.Close(k.boxInit)
	k.conn.Close()
}

// startReaper collects every ended child. Boxes are watched by pidfd, so their status is not needed
// here; zygotes, id map holders and half-made clones have nobody else.
func startReaper() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for {
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
		signal.Stop(signals)
	}
}

func stepError(step isolation.Step, item string, err error) *isolation.StepError {
	if s, ok := errors.AsType[*isolation.StepError](err); ok {
		return s
	}
	s := &isolation.StepError{Step: step, Item: item, Errno: unix.EPROTO}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		s.Errno = errno
	}
	if r, ok := errors.AsType[*isolation.Refusal](err); ok {
		s.Refused = r
	}
	return s
}
