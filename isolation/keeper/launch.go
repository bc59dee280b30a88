// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/mountfd"
	"github.com/boxd-dev/boxd/isolation"
)

// launching is one start of a box. Its steps run in order; when one fails, undo releases what the
// ones before it have taken, in reverse.
type launching struct {
	k       *Keeper
	spec    *isolation.Spec
	box     *box
	ids     idRange
	sources []source
	conn    *fdpass.Conn // towards PID 1, until boxd gets it
	pid     int
	pidfd   int
	mounts  []isolation.SetupMount
	trees   []int
	control int // for boxd
	undo    []func()
	failed  *isolation.StepError
}

func (l *launching) steps() []launchStep {
	return []launchStep{
		{isolation.StepValidate, l.claim},
		{isolation.StepMountSource, l.openSources},
		{isolation.StepIDRange, l.reserveIDs},
		{isolation.StepWorkspace, l.makeWorkspace},
		{isolation.StepClone, l.clone},
		{isolation.StepIDMap, l.mapMounts},
		{isolation.StepSetup, l.setUp},
	}
}

type launchStep struct {
	name isolation.Step
	do   func() (item string, err error)
}

// launch starts a box. On success the caller owns l.control and l.pidfd.
func (k *Keeper) launch(spec *isolation.Spec) *launching {
	l := &launching{k: k, spec: spec, pidfd: -1, control: -1}
	for _, s := range l.steps() {
		if item, err := s.do(); err != nil {
			l.failed = stepError(s.name, item, err)
			break
		}
	}
	for _, src := range l.sources {
		unix.Close(src.fd)
	}
	fdpass.CloseAll(l.trees)
	if l.failed != nil {
		for _, f := range slices.Backward(l.undo) {
			f()
		}
	}
	return l
}

// claim checks the specification and takes the key, so that nobody starts a second box under it.
func (l *launching) claim() (string, error) {
	if err := l.spec.Validate(); err != nil {
		return "", err
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	if l.k.boxes[l.spec.Key] != nil {
		return l.spec.Key, unix.EEXIST
	}
	l.box = &box{gone: make(chan struct{})}
	l.k.boxes[l.spec.Key] = l.box
	l.undo = append(l.undo, func() {
		l.k.mu.Lock()
		defer l.k.mu.Unlock()
		delete(l.k.boxes, l.spec.Key)
	})
	return "", nil
}

func (l *launching) openSources() (string, error) {
	var err error
	l.sources, err = l.k.openSources(l.spec)
	return "", err
}

func (l *launching) reserveIDs() (string, error) {
	ids, err := l.k.ids.take()
	if err != nil {
		return l.k.cfg.IDLock, err
	}
	l.ids = ids
	l.undo = append(l.undo, func() { l.k.ids.release(ids) })
	return "", nil
}

// makeWorkspace makes the managed workspace, new and empty: what an earlier session of the same key
// left must have been removed or it would be seen by this one.
func (l *launching) makeWorkspace() (string, error) {
	if !l.spec.ManagedWork {
		return "", nil
	}
	if err := l.k.makeWorkspace(l.spec.Key); err != nil {
		return l.spec.Key, err
	}
	l.undo = append(l.undo, func() {
		if err := l.k.removeWorkspace(l.spec.Key); err != nil {
			l.k.cfg.Log.Printf("workspace %s: %v", l.spec.Key, err)
		}
	})
	return "", nil
}

// clone starts PID 1 in its namespaces. From here on the box exists and is watched.
func (l *launching) clone() (string, error) {
	conn, child, err := fdpass.Pair(isolation.MaxBoxReply)
	if err != nil {
		return "socket", err
	}
	l.conn = conn
	l.undo = append(l.undo, func() { conn.Close() })
	defer unix.Close(child)
	l.pid, l.pidfd, err = l.k.zygote.clone(l.k, l.ids, child)
	if err != nil {
		return "", err
	}
	own, err := unix.FcntlInt(uintptr(l.pidfd), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(own, true) // so that the Go poller watches it
	}
	if err != nil {
		_ = unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0)
		unix.Close(l.pidfd)
		return "pidfd", err
	}
	l.k.mu.Lock()
	l.box.pid, l.box.ids, l.box.pidfd = l.pid, l.ids, os.NewFile(uintptr(own), "pidfd")
	l.k.mu.Unlock()
	// The watcher releases the range and the key when the box is dead; from here on that is its job.
	l.undo = append(l.undo[:0], func() {
		unix.Close(l.pidfd)
		if err := l.box.kill(); err != nil {
			l.k.cfg.Log.Print(err)
		}
		if l.spec.ManagedWork {
			_ = l.k.removeWorkspace(l.spec.Key)
		}
	}, func() { conn.Close() })
	go l.k.watch(l.spec.Key, l.box)
	return "", nil
}

// watch waits for the end of a box, whoever caused it, and releases what only the living need. Its
// own end comes with the box's: Serve kills every box before it returns.
func (k *Keeper) watch(key string, b *box) {
	if raw, err := b.pidfd.SyscallConn(); err == nil {
		// A pidfd is readable once the process is dead (pidfd_open(2)); PID 1 dies after all others.
		_ = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}
	b.pidfd.Close()
	k.ids.release(b.ids)
	k.mu.Lock()
	delete(k.boxes, key)
	k.mu.Unlock()
	close(b.gone)
}

// mapMounts makes the trees the box will attach, each mapped so that the box user is the owner of
// the files in it.
func (l *launching) mapMounts() (string, error) {
	if l.spec.ManagedWork {
		if err := l.mapWorkspace(); err != nil {
			return isolation.Workspace, err
		}
	}
	slices.SortStableFunc(l.sources, func(a, b source) int { return cmp.Compare(len(a.mount.Target), len(b.mount.Target)) })
	for _, src := range l.sources {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
		if !src.mount.Writable {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if src.owner.mapped {
			ns, err := l.k.users.get(src.owner, l.ids.base)
			if err != nil {
				return src.mount.Source, err
			}
			attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
			attr.Userns_fd = uint64(ns)
		}
		if err := l.addTree(src.fd, src.mount.Target, &attr); err != nil {
			return src.mount.Source, err
		}
	}
	return "", nil
}

// mapWorkspace adds the managed workspace. Its files are the box user's id on disk too, so the
// box's own user namespace is the map.
func (l *launching) mapWorkspace() error {
	ns, err := unix.Open("/proc/"+strconv.Itoa(l.pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	dir, err := l.k.openWorkspace(l.spec.Key)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return l.addTree(dir, isolation.Workspace, &unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_IDMAP,
		Propagation: unix.MS_PRIVATE,
		Userns_fd:   uint64(ns),
	})
}

func (l *launching) addTree(dir int, target string, attr *unix.MountAttr) error {
	tree, err := mountfd.Clone(dir, "", false)
	if err != nil {
		return err
	}
	l.trees = append(l.trees, tree)
	l.mounts = append(l.mounts, isolation.SetupMount{Target: target, Writable: attr.Attr_set&unix.MOUNT_ATTR_RDONLY == 0})
	return mountfd.Restrict(tree, attr)
}

// setUp tells PID 1 what to make of itself, waits until it has, and takes the socket back for boxd.
func (l *launching) setUp() (string, error) {
	hostWritable := slices.ContainsFunc(l.spec.Mounts, func(m isolation.Mount) bool { return m.Writable })
	req := isolation.BoxRequest{Setup: &isolation.Setup{
		Hostname: l.spec.Hostname,
		Scratch:  l.spec.Scratch,
		Rlimits:  l.spec.Rlimits,
		Mounts:   l.mounts,
		Filter:   l.k.filter(hostWritable),
	}}
	if err := l.conn.Send(req.Encode(), l.trees...); err != nil {
		return "send", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupPatience)
	defer cancel()
	body, files, err := l.conn.RecvContext(ctx, true)
	if errors.Is(err, io.EOF) {
		return "PID 1 ended", unix.ECHILD
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "PID 1 does not answer", unix.ETIMEDOUT
	}
	if err != nil {
		return "receive", err
	}
	fdpass.CloseAll(files)
	reply, err := isolation.DecodeBoxReply(body)
	if err != nil {
		return "answer", err
	}
	if reply.Failed != nil {
		return "", reply.Failed
	}
	if !reply.Ready {
		return "answer", fmt.Errorf("unexpected: %w", isolation.ErrMalformed)
	}
	l.control, err = l.conn.Take()
	return "take", err
}

func (k *Keeper) filter(hostWritable bool) []byte {
	if hostWritable {
		return k.filters[1]
	}
	return k.filters[0]
}
