// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
	"github.com/boxd-dev/boxd/isolation/mounts"
)

// launching is one start of a box. Its steps run in order; when one fails, undo releases in
// reverse what the earlier ones have taken.
type launching struct {
	k           *keeper
	boxdContext func() context.Context // a context that lasts as long as boxd is connected
	spec        *isolation.Spec
	box         *box
	watched     bool // watch releases the box when it ends
	sources     []mounts.Source
	ids         *idRange      // id range that no PID 1 holds yet
	top         cgroup.Group  // cgroup that PID 1 is cloned into; FD -1: none
	dropped     bool          // dropPreforked has run
	pending     *pendingClone // the zygote is cloning a PID 1
	preforked   *preforkedBox
	socket      int // that PID 1 will listen on; -1: none
	mounts      []isolation.SetupMount
	resolv      string // text of resolv.conf(5)
	trees       []int
	undo        []func()
	failed      *isolation.StepError
}

func (l *launching) steps() []launchStep {
	return []launchStep{
		{isolation.StepValidate, l.claim},
		{isolation.StepNetwork, l.permitNetwork},
		{isolation.StepMountSource, l.openSources},
		{isolation.StepIDRange, l.takePreforked},
		{isolation.StepGroup, l.makeGroups},
		// If there is no preforked box, the zygote works from here on, and the workspace is made
		// meanwhile. A fresh PID 1 takes longer to reach its first line of code than the other
		// steps here.
		{isolation.StepZygote, l.askZygote},
		{isolation.StepWorkspace, l.makeWorkspace},
		{isolation.StepWorkspace, l.setHostQuotas},
		{isolation.StepSetup, l.makeDirectory},
		{isolation.StepClone, l.awaitClone},
		{isolation.StepGroup, l.enterGroup},
		{isolation.StepNetwork, l.attachNetwork},
		{isolation.StepIDMap, l.mapMounts},
		{isolation.StepGroup, l.settleGroup},
		{isolation.StepSetup, l.sendSetup},
	}
}

type launchStep struct {
	name isolation.Step
	do   func() (item string, err error)
}

// launch does the keeper's part of a start: afterwards PID 1 runs and has its Setup. Whether the set-up has succeeded, PID 1 reports
// to the holder of the control socket. On success the caller owns the descriptors of l.preforked.
func (k *keeper) launch(ctx context.Context, spec *isolation.Spec) *launching {
	l := k.tryLaunch(ctx, spec)
	if l.failed != nil && l.preforked != nil && l.preforked.ahead && slices.Contains([]isolation.Step{isolation.StepGroup, isolation.StepNetwork, isolation.StepIDMap, isolation.StepSetup}, l.failed.Step) {
		l = k.tryLaunch(ctx, spec) // the preforked one may have died since it was cloned
	}
	return l
}

func (k *keeper) tryLaunch(ctx context.Context, spec *isolation.Spec) *launching {
	l := &launching{k: k, boxdContext: func() context.Context { return ctx }, spec: spec, top: cgroup.Group{FD: noGroup}, socket: -1}
	for _, s := range l.steps() {
		if item, err := s.do(); err != nil {
			l.failed = isolation.NewStepError(s.name, item, err)
			break
		}
	}
	for _, src := range l.sources {
		unix.Close(src.FD)
	}
	fdpass.CloseAll(l.trees)
	if l.socket >= 0 {
		unix.Close(l.socket) // when PID 1 is dead the socket must not listen any more
	}
	if l.failed != nil {
		for _, f := range slices.Backward(l.undo) {
			f()
		}
	}
	if l.top.FD != noGroup {
		l.top.Close() // the zygote will not be asked again
	}
	return l
}

// claim checks the specification and reserves the key, so that no second box starts under it.
func (l *launching) claim() (string, error) {
	if err := l.spec.Validate(); err != nil {
		return "", err
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	if l.k.boxes[l.spec.Key] != nil || l.k.damaged[l.spec.Key] {
		return l.spec.Key, unix.EEXIST
	}
	l.box = &box{done: make(chan struct{}), image: l.spec.Image}
	l.k.boxes[l.spec.Key] = l.box
	delete(l.k.hoarders.keys, l.spec.Key) // of an earlier box of this key
	l.undo = append(l.undo, func() {
		l.k.mu.Lock()
		defer l.k.mu.Unlock()
		if !l.watched {
			delete(l.k.boxes, l.spec.Key)
		}
	})
	return "", nil
}

func (l *launching) openSources() (string, error) {
	var err error
	l.sources, err = l.k.sources.Open(l.boxdContext(), l.spec.Caller, l.spec.Mounts)
	return "", err
}

// takePreforked takes a PID 1 that waits for its Setup, or an id range for a new one.
func (l *launching) takePreforked() (string, error) {
	fresh := l.spec.Image != "" || l.shared()
	l.preforked = l.k.ahead.enter(fresh, l.k.ids)
	l.undo = append(l.undo, func() { l.k.ahead.leave(l.k) })
	if l.preforked == nil {
		ids, err := l.k.ids.take()
		if errors.Is(err, unix.EUSERS) { // the last range may belong to a preforked box that is being made right now
			l.preforked = l.k.ahead.await(l.k.ids)
		}
		if l.preforked != nil && fresh { // it is for another image or for another network, but its id range is of use
			l.preforked.discard(l.k.ids)
			l.preforked = nil
			ids, err = l.k.ids.take()
		}
		switch {
		case l.preforked != nil:
		case errors.Is(err, unix.EUSERS):
			return l.k.cfg.IDLock, unix.EUSERS
		case err != nil:
			return "", err
		default:
			l.ids = &ids
		}
	}
	l.undo = append(l.undo, l.dropPreforked)
	return "", nil
}

// base returns the first of the box's host ids.
func (l *launching) base() uint32 {
	if l.ids != nil {
		return l.ids.Base
	}
	return l.preforked.ids.Base
}

// askZygote requests a PID 1 if none was ready. It is cloned into the box's cgroup directly, which
// takes no lock of the kernel.
func (l *launching) askZygote() (string, error) {
	if l.ids == nil {
		return "", nil
	}
	group := noGroup
	if l.box.groups != nil {
		top, err := l.box.groups.Top()
		if err != nil {
			return err.Error(), err
		}
		l.top = top
		group = top.FD
	}
	ids := *l.ids
	l.ids = nil
	pending, err := l.k.requestPrefork(l.spec.Image, ids, group, l.shared())
	if err != nil {
		return "", err
	}
	l.pending, l.preforked = pending, pending.e
	return "", nil
}

// dropPreforked releases what takePreforked has taken, whatever state it is in.
func (l *launching) dropPreforked() {
	if l.dropped {
		return
	}
	l.dropped = true
	if l.pending != nil {
		var err error
		if l.preforked, err = l.pending.await(); err != nil {
			return // await has released it
		}
	}
	switch {
	case l.ids != nil:
		l.k.ids.Release(*l.ids)
	case l.preforked == nil:
	case !l.watched:
		l.preforked.discard(l.k.ids)
	default:
		fdpass.CloseAll([]int{l.preforked.control, l.preforked.pidfd})
		if err := l.box.kill(); err != nil {
			l.k.cfg.Log.Printf("cannot end box %s: %v", l.spec.Key, err)
		}
	}
}

// makeGroups makes the box's cgroups.
func (l *launching) makeGroups() (string, error) {
	if !l.spec.Grouped {
		return "", nil
	}
	b, err := l.k.groups.make(l.k, l.spec, l.base())
	if err != nil {
		return err.Error(), err
	}
	l.k.mu.Lock()
	l.box.groups = b
	l.k.mu.Unlock()
	l.undo = append(l.undo, func() {
		l.dropPreforked() // which may be about to enter them
		if !l.watched {   // otherwise watch has removed them
			l.box.removeGroups(l.k.cfg.Log)
		}
	})
	return "", nil
}

// enterGroup moves a preforked PID 1 into the box's cgroup, which did not exist when it was
// cloned, and asks PID 1 for a cgroup namespace that begins there. It has started no other process yet.
func (l *launching) enterGroup() (string, error) {
	if l.box.groups == nil {
		return "", nil
	}
	if l.preforked.ahead {
		if err := l.box.groups.Enter(l.preforked.pid); err != nil {
			return err.Error(), err
		}
	}
	req := isolation.BoxRequest{UnshareCgroup: true}
	if err := fdpass.Send(l.preforked.control, req.Encode()); err != nil {
		return "cgroup namespace: " + err.Error(), err
	}
	return "", nil
}

// settleGroup moves PID 1 to where it stays, below the root of its cgroup namespace.
func (l *launching) settleGroup() (string, error) {
	if l.box.groups == nil {
		return "", nil
	}
	if err := awaitUnshared(l.preforked.control); err != nil {
		return "cgroup namespace: " + err.Error(), err
	}
	if err := l.box.groups.settle(l.preforked.pid); err != nil {
		return err.Error(), err
	}
	return "", nil
}

// unshareTimeout is how long PID 1 may take until it has its cgroup namespace; a fresh one begins to run meanwhile.
const unshareTimeout = 20 * time.Second

// awaitUnshared waits until PID 1 has its cgroup namespace. A *isolation.StepError says why it has none.
func awaitUnshared(control int) error {
	poll := []unix.PollFd{{Fd: int32(control), Events: unix.POLLIN}}
	for deadline := time.Now().Add(unshareTimeout); ; {
		n, err := unix.Poll(poll, int(max(time.Until(deadline), 0)/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = unix.ETIMEDOUT
		}
		if err != nil {
			return err
		}
		break
	}
	body, files, err := fdpass.Recv(control, fdpass.NewBuffer(isolation.MaxBoxReply), true)
	fdpass.CloseAll(files)
	if err != nil {
		return err
	}
	reply, err := isolation.DecodeBoxReply(body)
	switch {
	case err != nil:
		return err
	case reply.Failed != nil:
		return reply.Failed
	case !reply.Unshared:
		return unix.EPROTO
	}
	return nil
}

// makeWorkspace makes the managed workspace, new and empty: one that an earlier session with the
// same key has left must have been removed, or this session would see it. A box that resumes has
// what was left for it.
func (l *launching) makeWorkspace() (string, error) {
	if (!l.spec.ManagedWork || l.spec.Space != "") && !l.spec.OwnDir() {
		return "", nil
	}
	if l.spec.Resume {
		return l.spec.Key, overUsed(l.k.work.Resume(l.spec))
	}
	if err := l.k.work.MakeFor(l.spec); err != nil {
		return l.spec.Key, err
	}
	// Nothing is in it yet: PID 1 attaches it, and no program runs before the start is over.
	l.undo = append(l.undo, func() {
		if err := l.k.work.Remove(l.spec.Key); err != nil {
			l.k.cfg.Log.Printf("cannot remove workspace %s: %v", l.spec.Key, err)
		}
	})
	return "", nil
}

// setHostQuotas sets the quotas that the box has on directories of the host.
func (l *launching) setHostQuotas() (string, error) {
	if l.spec.Work == (isolation.Quota{}) {
		return "", nil
	}
	l.undo = append(l.undo, func() { l.k.hostQuotas.Release(l.spec.Key) })
	for _, src := range l.sources {
		if !src.Mount.Writable {
			continue
		}
		if err := l.k.hostQuotas.Take(l.boxdContext(), l.spec.Key, &src.Mount, src.FD, disk.Limits(l.spec.Work)); err != nil {
			return src.Mount.Source, err
		}
	}
	return "", nil
}

// mapMounts makes the mounts that the box will attach, parents before children, each id-mapped so
// that the box user owns the files in it.
func (l *launching) mapMounts() (string, error) {
	if item, err := l.mapRoot(); err != nil {
		return item, err
	}
	if l.spec.ManagedWork {
		dir, err := l.k.work.OpenFor(l.spec)
		if err != nil {
			return isolation.Workspace, err
		}
		l.sources = append(l.sources, mounts.Source{
			FD: dir, Mount: isolation.Mount{Target: isolation.Workspace, Writable: true}, Owner: mounts.WorkOwner(),
		})
	}
	if l.spec.DiskHome {
		dir, err := l.k.work.OpenHome(l.spec.Key)
		if err != nil {
			return l.spec.HomeDir(), err
		}
		l.sources = append(l.sources, mounts.Source{
			FD: dir, Mount: isolation.Mount{Target: l.spec.HomeDir(), Writable: true}, Owner: mounts.WorkOwner(),
		})
	}
	for _, shared := range l.spec.Lent {
		key, target := shared[:isolation.KeyLen], shared[isolation.KeyLen:]
		dir, err := l.k.work.Spaces.OpenPath(key)
		if err != nil {
			return target, err
		}
		l.sources = append(l.sources, mounts.Source{FD: dir, Mount: isolation.Mount{Target: target, NoSymlinks: true}, Owner: mounts.WorkOwner()})
	}
	slices.SortStableFunc(l.sources, func(a, b mounts.Source) int { return cmp.Compare(len(a.Mount.Target), len(b.Mount.Target)) })
	for _, src := range l.sources {
		if err := l.mapMount(src); err != nil {
			return src.Mount.Target, err
		}
	}
	return "", nil
}

func (l *launching) mapMount(src mounts.Source) error {
	tree, err := l.k.sources.Tree(l.boxdContext(), l.spec, &src, l.preforked.ids.Base, l.ownMap)
	if err != nil {
		return err
	}
	l.trees = append(l.trees, tree)
	l.mounts = append(l.mounts, isolation.SetupMount{Target: src.Mount.Target, Writable: src.Mount.Writable})
	return nil
}

// ownMap opens the box's own user namespace. It maps the other ids of the box as well, also that
// of root.
func (l *launching) ownMap() (int, error) {
	return unix.Open("/proc/"+strconv.Itoa(l.preforked.pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// sendSetup sends PID 1 its Setup.
func (l *launching) sendSetup() (string, error) {
	if err := l.writeRecord(); err != nil {
		return "record", err
	}
	hostWritable := slices.ContainsFunc(l.spec.Mounts, func(m isolation.Mount) bool { return m.Writable })
	files := slices.Clone(l.trees)
	if l.box.groups != nil {
		files = append(files, l.box.groups.Work().FD)
	}
	files = append(files, l.socket)
	if err := pin(l.preforked.ids.Base, &l.spec.View, l.preforked.pid); err != nil {
		l.k.cfg.Log.Printf("cannot pin box %s to its processors: %v", l.spec.Key, err)
	}
	req := isolation.BoxRequest{Setup: &isolation.Setup{
		View:      l.k.view(&l.spec.View),
		Hostname:  l.spec.Hostname,
		Scratch:   l.spec.Scratch,
		Rlimits:   l.spec.Rlimits,
		Mounts:    l.mounts,
		Grouped:   l.box.groups != nil,
		Adoptable: true,
		Filter:    l.k.filter(hostWritable, l.spec.Writable),
		Resolv:    l.resolv,
		User:      l.spec.User,
		Root:      l.spec.Writable,
	}}
	return "", fdpass.Send(l.preforked.control, req.Encode(), files...)
}

// awaitClone waits for the zygote's answer, if there was a request. From here on the box exists
// and is watched.
func (l *launching) awaitClone() (string, error) {
	if pending := l.pending; pending != nil {
		l.pending = nil
		var err error
		if l.preforked, err = pending.await(); err != nil {
			return "", err
		}
	}
	e := l.preforked
	pidfd, err := unix.FcntlInt(uintptr(e.pidfd), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(pidfd, true) // so that the Go poller watches it
	}
	if err != nil {
		return "pidfd", err
	}
	l.k.mu.Lock()
	l.box.pid, l.box.ids, l.box.pidfd = e.pid, e.ids, os.NewFile(uintptr(pidfd), "pidfd")
	l.k.mu.Unlock()
	l.watched = true
	go l.k.watch(l.spec.Key, l.box)
	return "", nil
}

// filterOf says which filter a box has.
type filterOf struct{ hostWritable, root bool }

func (k *keeper) filter(hostWritable, root bool) []byte {
	return k.filters[filterOf{hostWritable, root}]
}
