// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/systemd"
)

// writeProgram writes a program. No child of another test has it open meanwhile, while which it could not be executed (ETXTBSY,
// execve(2)).
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// newServer returns a dialer of a scope server that has no service manager; begun is a file that a holder creates when it is
// started.
func newServer(t *testing.T) (dial DialScopes, begun string) {
	t.Helper()
	dir := t.TempDir()
	begun = filepath.Join(dir, "begun")
	program := filepath.Join(dir, "holder")
	writeProgram(t, program, "#!/bin/sh\n: >"+begun+"\nread x\n")
	scopes := systemd.NewScopes(t.Context())
	scopes.Close() // so that no call reaches a service manager, if the host has one
	s := &ScopeServer{Scopes: scopes, Program: func() string { return program }, Log: slog.New(slog.DiscardHandler)}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return func(ctx context.Context) (*fdpass.Conn, error) {
		conn, far, err := fdpass.Pair(fdpass.MaxInline)
		if err == nil {
			wg.Go(func() { s.ServeConn(ctx, far) })
		}
		return conn, err
	}, begun
}

// The server accepts only requests for scopes of boxes, so that a compromised boxd cannot do more.
func TestTheScopeServerAcceptsOnlyScopesOfBoxes(t *testing.T) {
	t.Parallel()
	dial, begun := newServer(t)
	key := strings.Repeat("a1", isolation.KeyLen/2)
	for _, lie := range []scopeRequest{
		{Do: scopeStart},
		{Do: scopeStart, Key: "../" + key[3:]},
		{Do: scopeStop, Key: key[1:]},
		{Do: scopeSet, Key: strings.ToUpper(key)},
		{Do: scopeStop, Key: "*"},
		{Do: scopeStart, Key: key + ".service"},
		{Do: "restart", Key: key},
		{Key: key},
	} {
		_, err := (&Driver{scopes: dial}).askScope(t.Context(), &lie)
		if err == nil || errors.Is(err, systemd.ErrNoBus) {
			t.Errorf("%+v: err = %v, want an error and err is not systemd.ErrNoBus", lie, err)
		}
	}
	if _, err := os.Stat(begun); err == nil {
		t.Error("a process was started for a refused request")
	}
	for _, text := range []string{"", "{", `{"do":3}`, strings.Repeat("[", 1000)} {
		conn, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Send([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if body, _, err := conn.Recv(true); err == nil {
			t.Errorf("%q is answered with %q", text, body)
		}
		conn.Close()
	}
}

// Without a service manager, as while it is executed again, a start is refused and leaves nothing behind; a scope that is to be
// stopped is recorded for later.
func TestScopesWithoutAServiceManager(t *testing.T) {
	t.Parallel()
	dial, _ := newServer(t)
	d := Scoped(nil, dial, slog.New(slog.DiscardHandler))
	key := strings.Repeat("b2", isolation.KeyLen/2)
	_, err := d.start(t.Context(), key, &cgroup.Limits{})
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Unavailable || !strings.Contains(err.Error(), string(systemd.ErrNoBus)) {
		t.Errorf("start: err = %v, want ok == true and f.Kind == fault.Unavailable and err containing string(systemd.ErrNoBus)",
			err)
	}
	if err := d.set(t.Context(), key, &cgroup.Limits{}); !errors.Is(err, systemd.ErrNoBus) {
		t.Errorf("set: err = %v, want err is systemd.ErrNoBus", err)
	}
	if err := d.stop(t.Context(), key); err != nil || !d.left[key] {
		t.Errorf("stop: %v, left %v", err, d.left)
	}
}

// A client of a server that does not answer waits only until its context ends, and returns the context's error.
func TestACallToAHungScopeServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	var far int
	d := &Driver{scopes: func(context.Context) (conn *fdpass.Conn, err error) {
		conn, far, err = fdpass.Pair(fdpass.MaxInline)
		return conn, err
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := d.askScope(ctx, &scopeRequest{Do: scopeStart})
	fdpass.CloseAll([]int{far})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want err is context.DeadlineExceeded", err)
	}
}

// A reply preserves the kind of an error, so that the caller can act on it.
func TestRepliesKeepTheKindOfAnError(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(&scopeReply{Error: "no such unit", Kind: systemd.ErrNoScope})
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{scopes: func(context.Context) (*fdpass.Conn, error) {
		conn, far, err := fdpass.Pair(fdpass.MaxInline)
		if err == nil {
			t.Cleanup(func() { fdpass.CloseAll([]int{far}) })
			err = fdpass.Send(far, body)
		}
		return conn, err
	}}
	if _, err := d.askScope(t.Context(), &scopeRequest{Do: scopeSet}); !errors.Is(err, systemd.ErrNoScope) {
		t.Errorf("err = %v, want err is systemd.ErrNoScope", err)
	}
}
