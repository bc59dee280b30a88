// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// SetTimes sets how long the box lives without this boxd. PID 1 counts from when it receives
// them.
func (b *Box) SetTimes(t isolation.Times) error {
	if err := b.send(&isolation.BoxRequest{Times: &t}); err != nil {
		return ErrBoxLost
	}
	return nil
}

// SetPrivate gives PID 1 a file to hold for the next boxd, in place of the one it has. f stays
// the caller's.
func (b *Box) SetPrivate(f *os.File) error {
	if err := b.send(&isolation.BoxRequest{Private: true}, int(f.Fd())); err != nil {
		return ErrBoxLost
	}
	return nil
}

// Adopted is what was found in a box that an earlier boxd has left.
type Adopted struct {
	Private  *os.File   // the file of the last SetPrivate, or whatever a hostile PID 1 sends; nil: none
	Programs []*Program // the durable ones, by id; all have started, and some may have ended
	Frozen   bool
}

// maxAdopted exceeds the durable programs that any session can have.
const maxAdopted = 1024

// adoptTimeout is how long PID 1 may take to report its programs. It may first have to kill
// those of the earlier boxd's callers, on a host that has little time for it.
const adoptTimeout = time.Minute

// Adopt connects to a box that an earlier boxd has left. Programs that were not durable are dead
// or dying.
func (k *Keeper) Adopt(ctx context.Context, key string) (*Box, *Adopted, error) {
	launched, control, pidfd, err := k.adopt(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	b, err := newBox(launched, control, pidfd, k.recv)
	if err != nil {
		return nil, nil, err
	}
	adopted, err := b.adopt(ctx)
	if err != nil {
		b.Close()
		for _, p := range b.adoptedPrograms {
			p.Close()
			if p.private != nil {
				p.private.Close()
			}
		}
		return nil, nil, fmt.Errorf("adopt the box: %w", err)
	}
	return b, adopted, nil
}

func (b *Box) adopt(ctx context.Context) (*Adopted, error) {
	b.mu.Lock()
	b.adopting = true
	b.mu.Unlock()
	if err := b.send(&isolation.BoxRequest{Adopt: isolation.BoxVersion}); err != nil {
		return nil, ErrBoxLost
	}
	timer := time.NewTimer(adoptTimeout)
	defer timer.Stop()
	select {
	case last := <-b.adoptReply:
		if last.Version < 1 || last.Version > isolation.BoxVersion {
			return nil, fmt.Errorf("its version is %d, this boxd supports 1 to %d", last.Version, isolation.BoxVersion)
		}
		b.freezeMu.Lock()
		b.frozen = last.Frozen
		b.freezeMu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.version = last.Version
		adopted := &Adopted{Private: b.private, Programs: b.adoptedPrograms, Frozen: last.Frozen}
		b.private, b.adoptedPrograms, b.adopting = nil, nil, false
		slices.SortFunc(adopted.Programs, func(x, y *Program) int { return int(int64(x.id) - int64(y.id)) })
		return adopted, nil
	case <-b.done:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.noDescriptors {
			return nil, &isolation.StepError{Step: isolation.StepReceive, Item: "descriptors", Errno: unix.EMFILE}
		}
		return nil, ErrBoxLost
	case <-timer.C:
		return nil, &isolation.StepError{Step: isolation.StepReceive, Item: "PID 1 does not answer", Errno: unix.ETIMEDOUT}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliverProgram adds a program that PID 1 reports.
func (b *Box) deliverProgram(reply *isolation.BoxReply, files []int) error {
	k := reply.Program
	b.mu.Lock()
	defer b.mu.Unlock()
	known := slices.ContainsFunc(b.adoptedPrograms, func(p *Program) bool { return p.id == reply.ID })
	if known || !b.adopting || len(files) == 0 || len(b.adoptedPrograms) >= maxAdopted {
		return isolation.ErrMalformed
	}
	cmd := isolation.Command{Output: k.Output, Durable: true}
	if k.Terminal {
		cmd.Terminal = &isolation.Terminal{}
	}
	p := b.newProgram(&cmd)
	p.id, p.inputTaken = reply.ID, int64(k.Taken)
	if k.Exited != nil && p.attach(&isolation.BoxReply{Exited: k.Exited}, nil) != nil {
		return isolation.ErrMalformed
	}
	offset := len(files) % 2 // one more file than pairs: the private one that PID 1 was holding
	if err := p.start(k.PID, k.Input, files[offset:]); err != nil {
		return err
	}
	if offset > 0 {
		p.private = os.NewFile(uintptr(files[0]), "private")
	}
	if k.Exited != nil {
		p.end(k.Exited, nil)
	} else {
		b.programs[p.id] = p
	}
	b.adoptedPrograms = append(b.adoptedPrograms, p)
	return nil
}

// deliverAdopted handles the last message of the report, after all programs.
func (b *Box) deliverAdopted(reply *isolation.BoxReply, files []int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.adopting || b.private != nil || len(files) > 1 || (len(files) == 1) != reply.Adopted.Private || reply.Adopted.Next == 0 {
		return isolation.ErrMalformed
	}
	if len(files) == 1 {
		b.private = os.NewFile(uintptr(files[0]), "private")
	}
	b.next, b.leftRunning = reply.Adopted.Next-1, reply.Adopted.LeftRunning
	select {
	case b.adoptReply <- *reply.Adopted:
		return nil
	default:
		return isolation.ErrMalformed
	}
}
