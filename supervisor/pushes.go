// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// Results of executions are pushed to a bucket if their session is configured so. First they are copied out of the box, as a
// version of one of the owner's drives, which outlives box and boxd; then they are sent, with retries, until that succeeds or
// they are too old. No caller that waits for an execution waits for that.

// Sender sends an archive to a bucket and returns a summary. It has network access, which boxd has not.
type Sender func(ctx context.Context, to *driver.BucketTarget, archive func(io.Writer) error) (summary string, err error)

// Packer writes an archive of a directory of a session, made inside its box.
type Packer func(ctx context.Context, s *session.Session, dir string, w io.Writer) error

// Limits and intervals of pushes.
const (
	pushGivenUp  = 72 * time.Hour // after which it is not tried any more
	pushFirst    = time.Second    // between the first two attempts
	pushSlowest  = 10 * time.Minute
	pushAtOnce   = 2                      // to one bucket
	pushTimeout  = time.Hour              // of one attempt
	takeTries    = 8                      // attempts to copy results out of a box
	takeFirst    = 200 * time.Millisecond // between the first two
	takeTimeout  = 30 * time.Second       // that the end of a session waits for results that are being copied
	maxBucketKey = 64 << 10               // bytes of a credential file
)

// Reasons in events about results that were not pushed.
const (
	pushRetries = "retry"
	pushGaveUp  = "given_up"
	pushLost    = "lost"
)

// pusher copies results out of boxes and sends them. It is safe for concurrent use.
type pusher struct {
	drives      *volumes.Drives
	send        Sender
	pack        Packer
	config      func() *policy.Config
	credentials string
	record      *recorder
	events      *events.Log
	log         *slog.Logger
	work        *sync.WaitGroup
	wakeup      chan struct{} // signaled when there may be something to send
	baseCtx     func() context.Context
	leaving     func() bool // the boxes are about to be left to the next boxd

	mu         sync.Mutex                   // guards the fields below
	outputCopy map[string][]*outputCopy     // by session key
	sending    map[string]map[string]string // the sessions of pushes under way, by bucket and then by place
}

func newPusher(v *Supervisor, parts *Parts) *pusher {
	return &pusher{
		drives: parts.Stores.Drives, send: parts.Send, pack: parts.Pack, config: v.cfg.Load, credentials: access.Credentials(), record: &v.record, events: v.events, log: v.log, work: &v.work,
		wakeup: make(chan struct{}, 1), baseCtx: func() context.Context { return v.baseCtx }, leaving: v.sessionHooks.Leaving, outputCopy: map[string][]*outputCopy{}, sending: map[string]map[string]string{},
	}
}

// ExpectOutput notes, before an execution begins, that its results are to be pushed, if its session says so. id is that of the
// execution, if it has one. The caller then calls ended: with true when it has ended, or goes on as process p, whose end is
// waited for; with false if it did not begin, or had begun earlier.
func (v *Supervisor) ExpectOutput(s *session.Session, version, id string) (ended func(began bool, p *process.Process)) {
	settings := s.Current()
	if settings.Push == "" || version == "" {
		return func(bool, *process.Process) {}
	}
	push := session.Push{Version: version, Process: id}
	isNew := v.pushes.note(s, push)
	return func(began bool, p *process.Process) {
		switch {
		case !began && isNew:
			v.pushes.drop(s, push)
		case !began: // noted by the call that began the execution
		case p == nil:
			v.pushes.take(s, push, nil)
		default:
			v.pushes.take(s, push, p.Done())
		}
	}
}

// resumePushes continues with the results that an earlier boxd has not copied.
func (v *Supervisor) resumePushes(s *session.Session) {
	for _, p := range s.Pushes() {
		var ended <-chan struct{}
		if proc, err := s.Process(p.Process); p.Process != "" && err == nil {
			ended = proc.Done()
		}
		v.pushes.take(s, p, ended)
	}
}

// note records that results are to be copied. It reports whether that was new.
func (p *pusher) note(s *session.Session, push session.Push) bool {
	isNew := s.AddPush(push)
	if isNew {
		p.write(s)
	}
	return isNew
}

func (p *pusher) drop(s *session.Session, push session.Push) {
	s.RemovePush(push)
	p.write(s)
}

func (p *pusher) write(s *session.Session) {
	if err := p.record.Write(s); err != nil {
		p.log.Error("cannot write record", "session", s.ID, "error", err)
	}
}

// outputCopy is a copy of results out of a box that is pending or under way.
type outputCopy struct {
	ended <-chan struct{} // closed when the execution has ended; nil: it had before
	done  chan struct{}   // closed when the copy has succeeded or was given up
}

// take copies results out of a box once the execution has ended, and has them sent.
func (p *pusher) take(s *session.Session, push session.Push, ended <-chan struct{}) {
	t := &outputCopy{ended, make(chan struct{})}
	p.mu.Lock()
	p.outputCopy[s.Key] = append(p.outputCopy[s.Key], t)
	p.mu.Unlock()
	p.work.Go(func() {
		defer p.takeDone(s.Key, t)
		ctx := p.baseCtx()
		if ended != nil {
			select {
			case <-ended: // the results are pushed however it ended
			case <-ctx.Done():
			}
		}
		err := p.takeNow(ctx, s, push.Version)
		if err != nil && (ctx.Err() != nil || p.leaving()) {
			return // the record has it, for the next boxd
		}
		if err != nil {
			s.Emit(ctx, events.Event{Type: events.PushFailed, Process: push.Process, Reason: pushLost, Detail: "output version " + push.Version + ": " + err.Error()})
		}
		p.drop(s, push)
	})
}

func (p *pusher) takeDone(key string, t *outputCopy) {
	close(t.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outputCopy[key] = slices.DeleteFunc(slices.Clone(p.outputCopy[key]), func(o *outputCopy) bool { return o == t }); len(p.outputCopy[key]) == 0 {
		delete(p.outputCopy, key)
	}
}

// awaitPushes waits, for a limited time, until the results of executions that have ended are out of a box that is about to end. It reports
// whether it has waited.
func (p *pusher) awaitPushes(ctx context.Context, s *session.Session, reason session.EndReason) (waited bool) {
	p.mu.Lock()
	list := p.outputCopy[s.Key]
	p.mu.Unlock()
	if len(list) == 0 || reason == session.EndLost || reason == session.EndFileLocks || reason == session.EndUnhealthy || p.leaving() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	for _, t := range list {
		select {
		case <-t.ended:
		default:
			if t.ended != nil {
				continue // still running: it ends with its box, without a wait
			}
		}
		waited = true
		select {
		case <-t.done:
		case <-s.Ended():
			return waited
		case <-ctx.Done():
			return waited
		}
	}
	return waited
}

// takeNow makes a version of a drive from results. It retries while others are filling that drive, or it is full.
func (p *pusher) takeNow(ctx context.Context, s *session.Session, version string) error {
	settings := s.Current()
	bucket, prefix, err := policy.ReadPush(settings.Push)
	if err != nil {
		return err
	}
	wait := takeFirst
	for n := 1; ; n++ {
		err = p.fill(ctx, s, bucket, path.Join(cmp.Or(prefix, s.ID), version), version)
		if err == nil || n == takeTries || !retriable(err) || errors.Is(err, context.Canceled) {
			return err
		}
		select {
		case <-time.After(wait):
			wait *= 2
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// retriable reports whether an operation that failed may succeed later.
func retriable(err error) bool {
	kind := fault.KindOf(err)
	return kind == fault.Conflict || kind == fault.Exhausted || kind == fault.Unavailable
}

// fill packs the results inside their box into a version of a drive.
func (p *pusher) fill(ctx context.Context, s *session.Session, bucket, prefix, version string) error {
	dir := path.Join(isolation.Workspace, "output", version)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := p.pack(ctx, s, dir, w)
		w.CloseWithError(err)
		packed <- err
	}()
	drive := policy.DriveForPush(bucket)
	v, _, err := p.drives.Fill(ctx, s.Owner.Name, drive, &volumes.Filling{Origin: "session " + s.ID + ", " + dir}, r)
	r.CloseWithError(io.ErrClosedPipe)
	cancel() // stop a packer that still runs
	if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) && !errors.Is(failed, context.Canceled) {
		return failed
	}
	if err != nil {
		return err
	}
	err = p.drives.SetTarget(s.Owner.Name, drive, v.Number, &volumes.Target{Owner: s.Owner.Name, Session: s.ID, Bucket: bucket, Prefix: prefix, Since: time.Now().UTC()})
	p.wake()
	return err
}

func (p *pusher) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default: // it is already pending
	}
}

// run sends pushes that are due until ctx ends.
func (p *pusher) run(ctx context.Context) {
	if p.send == nil || p.drives == nil {
		return
	}
	for ctx.Err() == nil {
		timer := time.NewTimer(p.begin(ctx))
		select {
		case <-timer.C:
		case <-p.wakeup:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// begin starts the pushes that are due, and returns when to check again.
func (p *pusher) begin(ctx context.Context) time.Duration {
	now, next := time.Now(), pushSlowest
	for _, pending := range p.drives.Pending() {
		if left := pending.Next.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if !p.reserve(&pending) {
			continue // one of those under way wakes us
		}
		p.work.Go(func() {
			defer p.wake()
			defer p.release(&pending)
			p.try(ctx, &pending)
		})
	}
	return next
}

func bucketKey(pending *volumes.Pending) string {
	return fmt.Sprintf("%s\x00%s\x00%d\x00%s\x00%s", pending.Owner, pending.Drive, pending.Version, pending.Prefix, pending.Session)
}

// reserve takes one of the few slots of a bucket, so that a bucket that does not answer does not block others.
func (p *pusher) reserve(pending *volumes.Pending) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	sending, at := p.sending[pending.Bucket], bucketKey(pending)
	if _, exists := sending[at]; exists || len(sending) >= pushAtOnce {
		return false
	}
	if sending == nil {
		sending = map[string]string{}
		p.sending[pending.Bucket] = sending
	}
	sending[at] = pending.Session
	return true
}

func (p *pusher) release(pending *volumes.Pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sending[pending.Bucket], bucketKey(pending))
}

// try makes one attempt to send a version, and records the outcome.
func (p *pusher) try(ctx context.Context, pending *volumes.Pending) {
	summary, err := p.sendOne(ctx, pending)
	if ctx.Err() != nil {
		return // interrupted: not an attempt
	}
	t := pending.Target
	now := time.Now().UTC()
	e := events.Event{Session: t.Session, Owner: t.Owner}
	where := "bucket " + t.Bucket + ", " + t.Prefix
	if err == nil {
		t.Done, t.Error, t.Next = now, "", time.Time{}
		e.Type, e.Detail, e.Took = events.PushDone, where+": "+summary, now.Sub(t.Since)
	} else {
		repeated := t.Error == err.Error()
		t.Tries++
		t.Error, t.Next = err.Error(), now.Add(backoff(t.Tries))
		e.Type, e.Reason, e.Detail = events.PushFailed, pushRetries, where+": "+t.Error
		if now.Sub(t.Since) > pushGivenUp {
			t.GivenUp, e.Reason = now, pushGaveUp
		} else if repeated {
			e.Type = ""
		}
	}
	if err := p.drives.SetTarget(t.Owner, pending.Drive, pending.Version, &t); err != nil {
		if fault.KindOf(err) != fault.NotFound { // otherwise its owner has removed it
			p.log.Error("cannot note that results were pushed", "session", t.Session, "error", err)
		}
		return
	}
	if e.Type != "" {
		p.events.Add(ctx, e)
	}
}

// backoff is the delay after that many attempts.
func backoff(tries int) time.Duration {
	return min(pushFirst<<min(tries-1, 20), pushSlowest)
}

func (p *pusher) sendOne(ctx context.Context, pending *volumes.Pending) (string, error) {
	bucket, ok := p.config().Buckets[pending.Bucket]
	if !ok {
		return "", fmt.Errorf("box.toml no longer has a table [buckets.%s]", pending.Bucket)
	}
	key, _, err := readSource(p.credentials, bucket.Credential, bucket.File, maxBucketKey)
	if err != nil {
		p.log.Error("cannot read the credentials of a bucket", "bucket", pending.Bucket, "error", err)
		return "", errors.New("its credentials cannot be read; the log of boxd says why")
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	to := &driver.BucketTarget{
		Address: strings.TrimSuffix(bucket.Address, "/") + "/" + pending.Prefix, Endpoint: bucket.Endpoint, Region: bucket.Region, Insecure: bucket.Insecure, Credentials: key,
	}
	return p.send(ctx, to, func(w io.Writer) error {
		_, err := p.drives.Archive(pending.Owner, pending.Drive, pending.Version, w)
		return err
	})
}

// PushState counts the pushes of a session by state.
type PushState struct {
	Waiting, Done, GivenUp int
	Error                  string // the latest of a push that has not succeeded
}

// PushState counts the pushes of a session by state.
func (v *Supervisor) PushState(s *session.Session) PushState {
	st := PushState{Waiting: len(s.Pushes())}
	if v.pushes.drives == nil {
		return st
	}
	for _, t := range v.pushes.drives.TargetsOf(s.Owner.Name, s.ID) {
		switch {
		case !t.Done.IsZero():
			st.Done++
		case !t.GivenUp.IsZero():
			st.GivenUp++
			st.Error = t.Error
		default:
			st.Waiting++
			st.Error = cmp.Or(t.Error, st.Error)
		}
	}
	return st
}

// failing lists buckets that results do not reach, for the status of boxd.
func (p *pusher) failing() (list []string) {
	if p.drives == nil {
		return nil
	}
	count, last := map[string]int{}, map[string]string{}
	var names []string
	for _, pending := range p.drives.Pending() {
		if pending.Error == "" {
			continue
		}
		if count[pending.Bucket]++; count[pending.Bucket] == 1 {
			names = append(names, pending.Bucket)
		}
		last[pending.Bucket] = pending.Error
	}
	for _, name := range names {
		list = append(list, fmt.Sprintf("results do not reach the bucket %s (%d waiting): %s", name, count[name], last[name]))
	}
	return list
}
