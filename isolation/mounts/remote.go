// SPDX-License-Identifier: Apache-2.0

// Directories that callers name are opened, checked against the rules and mounted by worker
// processes: their filesystem may never answer, and a worker that takes too long is abandoned.

package mounts

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// Sources has mount sources opened and mounted by workers.
type Sources struct {
	Pool *WorkerPool
	Maps *UserNamespaces
}

// How many jobs on filesystems that callers have named may be waited for at a time, and how many
// of those for one user; each needs a process of some megabytes. And how long, where the
// configuration does not say.
const (
	maxJobs          = 64
	maxJobsPerCaller = 8
	timeout          = 5 * time.Second
)

// OpenSources checks the rules for mount sources, and returns Sources whose workers apply them.
func OpenSources(state string, cfg *isolation.KeeperConfig, maps *UserNamespaces, log *log.Logger) (*Sources, error) {
	for _, text := range cfg.Allow {
		if _, err := parseAllowRule(text); err != nil {
			return nil, err
		}
	}
	return &Sources{Maps: maps, Pool: newWorkerPool(poolConfig{
		Args: workerArgs(state, cfg.Allow), Patience: cmp.Or(cfg.Patience, timeout), Most: maxJobs, Each: maxJobsPerCaller, Keep: 2, Log: log,
	})}, nil
}

// Close cancels all jobs.
func (d *Sources) Close() {
	if d != nil {
		d.Pool.Close()
	}
}

// The first byte of a job and of its answer says what is asked. The rest of an answer is a
// KeeperReply.
const (
	askOpen    byte = 'o' // open the source of a mount; the answer has its owner and a descriptor
	askTree    byte = 't' // make an id-mapped mount of an open source; the answer has a descriptor
	askChange  byte = 'c' // change a mount of a live box
	askOutside byte = 'r' // remove what was made for mounts of a box that has ended, or say what a target lacks
	askFollow  byte = 'f' // return where a path leads
)

// Lengths of the fixed parts at the start of a job.
const (
	ownerLen = 4 * 4
	placeLen = 2 * 4
)

// jobInfo says what a job is about, for the error if it fails.
type jobInfo struct {
	caller uint32
	step   isolation.Step
	item   string // what the answer says that has failed
	field  string
	value  string
}

// do runs a job in a worker, and returns what its answer holds besides the reply. The descriptors
// are the caller's.
func (d *Sources) do(ctx context.Context, w jobInfo, request []byte, files ...int) (isolation.KeeperReply, []byte, []int, error) {
	body, got, err := d.Pool.Do(ctx, w.caller, request, files...)
	if err != nil {
		return nil, nil, nil, d.failure(w, err)
	}
	if len(body) >= ownerLen {
		_, reply, err := isolation.DecodeKeeperReply(body[ownerLen:])
		if failed, ok := reply.(*isolation.StepError); ok {
			fdpass.CloseAll(got)
			failed.Item = cmp.Or(failed.Item, w.item)
			return nil, nil, nil, failed
		}
		if err == nil {
			return reply, body[:ownerLen], got, nil
		}
	}
	fdpass.CloseAll(got)
	return nil, nil, nil, d.failure(w, errors.New("the answer of a worker is malformed"))
}

// failure is the error of a job without an answer. A job that is late is refused by the path that
// the caller has named; if a worker has died, that path is not to blame.
func (d *Sources) failure(w jobInfo, err error) error {
	step := &isolation.StepError{Step: w.step, Item: w.value}
	switch {
	case errors.Is(err, errLate):
		step.Errno = unix.ETIMEDOUT
		step.Refused = &isolation.Refusal{Field: w.field, Value: w.value, Allowed: "on a filesystem that answers within " + d.Pool.timeout().String() + "; it did not"}
	case errors.Is(err, errBusy):
		step.Errno = unix.ETIMEDOUT
		step.Refused = &isolation.Refusal{Field: w.field, Value: w.value, Allowed: "tried again later: too many of your directories do not answer now"}
	default:
		*step = isolation.StepError{Step: isolation.StepSetup, Item: err.Error(), Errno: unix.EPROTO}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			step.Errno = errno // descriptors or memory are short now, and may not be later
		}
		if errors.Is(err, errCanceled) {
			step.Errno = unix.ECANCELED
		}
	}
	return step
}

// Open opens the sources of mounts with the caller's access rights.
func (d *Sources) Open(ctx context.Context, caller isolation.Caller, mounts []isolation.Mount) ([]Source, error) {
	list := make([]Source, 0, len(mounts))
	for i, m := range mounts {
		src, err := d.open(ctx, caller, m, sourceField(i))
		if err != nil {
			for _, src := range list {
				unix.Close(src.FD)
			}
			return nil, err
		}
		list = append(list, *src)
	}
	return list, nil
}

// sourceField is the field that a refusal of the source of mount i names.
func sourceField(i int) string { return "mounts[" + strconv.Itoa(i) + "].source" }

func (d *Sources) open(ctx context.Context, caller isolation.Caller, m isolation.Mount, field string) (*Source, error) {
	w := jobInfo{caller.UID, isolation.StepMountSource, m.Source, field, m.Source}
	_, owner, files, err := d.do(ctx, w, encode(askOpen, nil, &isolation.ChangeMount{Op: isolation.MountAdd, Caller: caller, Mount: m}))
	if step, ok := errors.AsType[*isolation.StepError](err); ok && step.Refused != nil && step.Refused.Field == Field {
		step.Refused.Field = field
	}
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		fdpass.CloseAll(files)
		return nil, d.failure(w, unix.EMFILE) // this process has no descriptor left for it
	}
	return &Source{Mount: m, FD: files[0], Owner: ownerOf(owner)}, nil
}

// Tree does what Source.Tree does, for a box with these ids. A worker does it for a directory of
// the host, whose filesystem a caller has named, but not for boxd's own filesystems. Files of
// managed workspaces have the box user's own number on disk, so the box's own user namespace,
// which own opens, is their id map. That namespace maps root of the box too, so a host directory
// never gets it.
func (d *Sources) Tree(ctx context.Context, spec *isolation.Spec, src *Source, base uint32, ownMap func() (int, error)) (int, error) {
	if src.Owner.Managed {
		return src.tree(ownMap)
	}
	if src.Owner.ofHost() {
		return src.tree(func() (int, error) { return d.Maps.Get(src.Owner, base) })
	}
	field := sourceField(slices.Index(spec.Mounts, src.Mount))
	files, err := d.files(src, base)
	if err != nil {
		return -1, err
	}
	defer fdpass.CloseAll(files[1:])
	w := jobInfo{spec.Caller.UID, isolation.StepMountSource, src.Mount.Target, field, src.Mount.Source}
	_, _, got, err := d.do(ctx, w, encode(askTree, nil, &isolation.ChangeMount{Op: isolation.MountAdd, Mount: src.Mount}), files...)
	if err != nil {
		return -1, err
	}
	if len(got) != 1 {
		fdpass.CloseAll(got)
		return -1, d.failure(w, unix.EMFILE)
	}
	return got[0], nil
}

// files are the descriptors a source is mounted with. All but the first must be closed by the
// caller.
func (d *Sources) files(src *Source, base uint32) ([]int, error) {
	files := []int{src.FD}
	if src.Owner.Mapped {
		ns, err := d.Maps.Get(src.Owner, base)
		if err != nil {
			return nil, err
		}
		files = append(files, ns)
	}
	return files, nil
}

// Place is a live box: its PID 1, a pidfd of that process, and the first of its host ids.
type Place struct {
	PID    int
	PIDFD  int
	IDBase uint32
}

// Change lists or changes the mounts of a live box, but not its skills.
func (d *Sources) Change(ctx context.Context, b *Place, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	files := []int{b.PIDFD}
	if req.Op == isolation.MountAdd || req.Op == isolation.MountReplace {
		src, err := d.open(ctx, req.Caller, req.Mount, Field)
		if err != nil {
			return nil, err
		}
		defer unix.Close(src.FD)
		more, err := d.files(src, b.IDBase)
		if err != nil {
			return nil, err
		}
		defer fdpass.CloseAll(more[1:])
		files = append(files, more...)
	}
	place := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(b.PID)), b.IDBase)
	return d.mounted(ctx, jobInfo{req.Caller.UID, isolation.StepMount, req.Mount.Target, "target", req.Mount.Target}, encode(askChange, place, req), files...)
}

// NeedsNoBox reports whether an operation is done by Outside.
func NeedsNoBox(op isolation.MountOp) bool {
	return op == isolation.MountTidy || op == isolation.MountMissing || op == isolation.MountFollow
}

// Outside removes what was made for mounts of a box that has ended, or returns what a target
// lacks, or, as Made, where the source of a mount leads once symbolic links are resolved.
func (d *Sources) Outside(ctx context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	kind := askOutside
	if req.Op == isolation.MountFollow {
		kind = askFollow
		if !isolation.CleanAbsolute(req.Mount.Source) {
			return nil, &isolation.Refusal{Field: Field, Value: req.Mount.Source, Allowed: "an absolute path"}
		}
	} else if err := req.Validate(); err != nil {
		return nil, err
	}
	return d.mounted(ctx, jobInfo{req.Caller.UID, isolation.StepMountSource, req.Mount.Source, Field, req.Mount.Source}, encode(kind, nil, req))
}

func (d *Sources) mounted(ctx context.Context, w jobInfo, request []byte, files ...int) (*isolation.Mounted, error) {
	reply, _, got, err := d.do(ctx, w, request, files...)
	fdpass.CloseAll(got)
	if err != nil {
		return nil, err
	}
	mounted, ok := reply.(*isolation.Mounted)
	if !ok {
		return nil, d.failure(w, fmt.Errorf("the answer of a worker: %w", isolation.ErrMalformed))
	}
	return mounted, nil
}

func encode(kind byte, place []byte, req *isolation.ChangeMount) []byte {
	return append(append([]byte{kind}, place...), isolation.EncodeKeeperRequest(0, req)...)
}

func ownerOf(b []byte) Owner {
	var words [4]uint32
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return OwnerOf(words)
}
