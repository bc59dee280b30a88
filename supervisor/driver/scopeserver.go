// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/systemd"
)

// A client that may talk to the service manager as root can start any program as root. So boxd may not, where it runs as a unit:
// it asks a ScopeServer in a separate unit, which creates, changes and stops scopes of boxes and nothing else. Elsewhere the
// server is part of boxd, and is asked in the same way.
//
// A connection is for one request:
//
//	driver                          server
//	scopeRequest ─────────────────► makes, changes or stops the scope
//	             ◄───────────────── scopeReply
//	"" or the end ────────────────► after a start: lets go the process that holds the scope, and closes

// The requests.
const (
	scopeStart = "start"
	scopeSet   = "set"
	scopeStop  = "stop"
)

// scopeRequest is about the scope of one box.
type scopeRequest struct {
	Do     string              `json:"do"`
	Key    string              `json:"key"` // of the box
	Limits systemd.ScopeLimits `json:"limits"`
}

// scopeReply is the result of a request.
type scopeReply struct {
	Group string        `json:"group,omitempty"` // absolute path, after a start
	Error string        `json:"error,omitempty"`
	Kind  systemd.Error `json:"kind,omitempty"` // kind of error, if a caller can act on it
}

// serverTimeout bounds one request. It is longer than the client's timeout.
const serverTimeout = timeout + 5*time.Second

// ScopeServer makes, changes and stops scopes of boxes for a Driver.
type ScopeServer struct {
	Scopes  *systemd.Scopes
	Program func() string // path of boxkeeper, which holds a scope until a box is in it
	Log     *slog.Logger
}

// ServeConn serves one connection, which it closes.
func (s *ScopeServer) ServeConn(ctx context.Context, fd int) {
	conn, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		s.Log.Warn("cannot read from a connection", "error", err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	body, files, err := conn.Recv(true)
	fdpass.CloseAll(files)
	if err != nil {
		return // the client is gone
	}
	var req scopeRequest
	if err := json.Unmarshal(body, &req); err != nil {
		s.Log.Warn("malformed request", "error", err)
		return
	}
	holder, err := s.do(ctx, &req)
	reply := scopeReply{}
	if holder != nil {
		reply.Group = holder.group
		defer holder.release()
	}
	if err != nil {
		reply.Error = err.Error()
		for _, kind := range []systemd.Error{systemd.ErrNoBus, systemd.ErrScopeExists, systemd.ErrNoScope} {
			if errors.Is(err, kind) {
				reply.Kind = kind
			}
		}
	}
	if body, err = json.Marshal(&reply); err == nil {
		err = conn.Send(body)
	}
	if err != nil || holder == nil {
		return
	}
	_, files, _ = conn.Recv(true) // released, or the client is gone
	fdpass.CloseAll(files)
}

// do carries out a request. The scope's name is made here, from a key that can only be a box's.
func (s *ScopeServer) do(ctx context.Context, req *scopeRequest) (*heldScope, error) {
	if !isolation.ValidKey(req.Key) {
		return nil, fmt.Errorf("key of a box %q: %w", req.Key, unix.EINVAL)
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	name := systemd.ScopeName(req.Key)
	switch req.Do {
	case scopeStart:
		return s.start(ctx, name, req.Limits)
	case scopeSet:
		return nil, s.Scopes.Set(ctx, name, req.Limits)
	case scopeStop:
		return nil, s.stop(ctx, name)
	}
	return nil, fmt.Errorf("request %q: must be one of %q, %q and %q", req.Do, scopeStart, scopeSet, scopeStop)
}

// start creates a scope. After an error none remains.
func (s *ScopeServer) start(ctx context.Context, name string, limits systemd.ScopeLimits) (*heldScope, error) {
	holder, err := newHeldScope(s.Program())
	if err != nil {
		return nil, err
	}
	path, err := s.Scopes.Start(ctx, name, holder.cmd.Process.Pid, limits)
	if err == nil {
		holder.group = filepath.Join(cgroup.Mount, path)
		return holder, nil
	}
	holder.release()
	if !errors.Is(err, systemd.ErrScopeExists) && !errors.Is(err, systemd.ErrNoBus) {
		if serr := s.stop(context.WithoutCancel(ctx), name); serr != nil {
			s.Log.Warn("cannot stop a scope", "error", serr) // its only process has ended, so it ends by itself
		}
	}
	return nil, err
}

func (s *ScopeServer) stop(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	group := filepath.Join(cgroup.Mount, systemd.Slice, name)
	// The box is dead. A process in a scope of that name belongs to another boxd, and a scope whose last process is just exiting
	// ends by itself.
	if living, err := populated(group); err == nil && living {
		return nil
	}
	if err := s.Scopes.Stop(ctx, name); err != nil {
		return err
	}
	// systemd gives up on a cgroup that the keeper tidies at the same moment, and then no one else removes it.
	return removeGroup(group)
}
