// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

// canceledCtx returns a canceled context, so that nothing waits.
func canceledCtx(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func (p *pid1) expectFreeze(want bool) {
	p.t.Helper()
	if req := p.nextRequest(); req.Freeze == nil || req.Freeze.On != want {
		p.t.Fatalf("%+v", req)
	}
}

func TestAPingIsAnswered(t *testing.T) {
	t.Parallel()
	box, p := newTestBox(t)
	done := make(chan error, 1)
	for _, failed := range []*isolation.StepError{nil, {Step: isolation.StepFreeze, Errno: 95}} { // a refusal shows that it is alive
		go func() { done <- box.Ping(t.Context()) }()
		p.expectFreeze(false)
		p.reply(&isolation.BoxReply{Frozen: true, Failed: failed})
		if err := <-done; err != nil {
			t.Errorf("%v: %v", failed, err)
		}
	}
}

// While an answer is outstanding no other Ping is sent, and the late answer is not taken for that
// of another.
func TestALateAnswerToAPing(t *testing.T) {
	t.Parallel()
	box, p := newTestBox(t)
	for range 3 {
		if err := box.Ping(canceledCtx(t)); !errors.Is(err, ErrSilent) {
			t.Fatal(err)
		}
	}
	p.expectFreeze(false)
	done := make(chan error, 1)
	go func() { done <- box.Freeze(true) }()
	p.reply(&isolation.BoxReply{Frozen: true})
	p.expectFreeze(true) // no second ping was sent before that
	p.reply(&isolation.BoxReply{Frozen: true})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := box.Ping(canceledCtx(t)); err != nil {
		t.Errorf("a frozen box is asked: %v", err)
	}
	go func() { done <- box.Freeze(false) }()
	p.expectFreeze(false)
	p.reply(&isolation.BoxReply{Frozen: true})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := box.Ping(canceledCtx(t)); !errors.Is(err, ErrSilent) {
		t.Errorf("a thawed box is not asked: %v", err)
	}
}

func TestAnUnsolicitedReplyOfPID1EndsTheBox(t *testing.T) {
	t.Parallel()
	box, p := newTestBox(t)
	p.reply(&isolation.BoxReply{Frozen: true})
	<-box.Done()
	if err := box.Ping(t.Context()); !errors.Is(err, ErrBoxLost) {
		t.Error(err)
	}
}
