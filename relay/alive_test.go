// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// serving runs a server until the test or ctx ends; then it closes ended.
func serving(ctx context.Context, t *testing.T, s *Server, ln net.Listener) (ended <-chan struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := s.Serve(ctx, ln); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-over
	})
	return over
}

func TestTheSelfCheckRequestsHealthzLikeACaller(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	s, _ := quiet()
	answer := make(chan error, 1)
	s.routes = []Route{line("GET /healthz", unauthenticated, "", func(c *Call) (any, error) {
		select {
		case err := <-answer:
			return api.Health{}, err
		case <-c.Context().Done():
			return nil, c.Context().Err()
		}
	})}
	ended := serving(ctx, t, s, listen(t))
	answer <- nil
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("a server that is well: %v", err)
	}
	answer <- fault.Errorf(fault.Unavailable, "as told")
	if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "as told") {
		t.Errorf(`an unhealthy server: err = %v, want an error containing "503" and err containing "as told"`, err)
	}
	timeoutCtx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Check(timeoutCtx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that does not answer: err = %v, want err is context.DeadlineExceeded", err)
	}
	stop()
	<-ended
	if err := s.Check(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a server that has ended: err = %v, want err is net.ErrClosed", err)
	}
}

func TestServeEndsOnlyWithoutACaller(t *testing.T) {
	t.Parallel()
	s, log := quiet()
	s.cfg.IdleExit = 20 * time.Millisecond
	ln, ok := listen(t).(*net.UnixListener)
	if !ok {
		t.Fatal("the listener is no *net.UnixListener")
	}
	ln.SetUnlinkOnClose(false)
	held, err := ln.File() // the service manager's
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	conn := dial(t, ln) // an idle one
	ended := serving(t.Context(), t, s, ln)
	select {
	case <-ended:
		t.Fatal("the server ended while a caller was connected")
	case <-time.After(4 * s.cfg.IdleExit):
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("a check: %v", err)
	}
	conn.Close() // the check does not count as a client
	await(t, "it does not end without a caller", ended)
	if !strings.Contains(log.String(), "no sessions and no connections") {
		t.Errorf(`the log has %s, want log.String() containing "no sessions and no connections"`, log)
	}
	// The socket stays open: a client that connects now is served by the next boxd.
	late := dial(t, ln)
	next, err := net.FileListener(held)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	taken, err := next.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := late.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := taken.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("n = %d, err = %v, want n == 1 and no error", n, err)
	}
}
