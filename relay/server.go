// SPDX-License-Identifier: Apache-2.0

// Package relay is every way into boxd: routes, who may take them, and streams.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// Config is what the relay needs to know.
type Config struct {
	Version string
	Telemetry
	// Gate knows who calls.
	Gate *access.Gate
	// Previews signs tokens of previews.
	Previews *access.PreviewKey
	// Skills keeps skills.
	Skills *skills.Store
	// Drives keeps drives.
	Drives *volumes.Drives
	// Images keeps images.
	Images *images.Store
	// Settings tells what is in force of the configuration.
	Settings func() ([]api.Setting, error)
	// IdleExit is how long there is no session and no connection before Serve returns by itself; 0: it does
	// not. It needs a *net.UnixListener that somebody else keeps open, or the next caller finds nobody.
	IdleExit time.Duration
}

// Bounds of what a peer can make boxd hold.
const (
	maxHeader      = 64 << 10
	headerPatience = 10 * time.Second
	answerPatience = time.Minute // for an answer to be taken
	idlePatience   = 2 * time.Minute
	stopPatience   = 5 * time.Second
)

// Server serves one supervisor.
type Server struct {
	cfg     Config
	common  *Deps
	routes  []Route
	mirror  *SelfListener // where it looks at itself
	within  *SelfListener // where it calls itself in somebody's name
	mcp     *Conversations
	gate    *access.Gate
	callers *ConnLimiter
}

// New returns a server; Serve makes it work.
func New(cfg Config, sup *supervisor.Supervisor, log *slog.Logger) *Server {
	common := &Deps{Gate: cfg.Gate, Sup: sup, Skills: cfg.Skills, Drives: cfg.Drives, Images: cfg.Images, Log: log, Version: cfg.Version, Settings: cfg.Settings, Started: time.Now(), Previews: cfg.Previews, Answers: answerPatience, Telemetry: cfg.Telemetry}
	talks := NewConversations(cfg.Version, log)
	return &Server{
		cfg: cfg, common: common, routes: routes(talks), mcp: talks, mirror: NewSelfListener(), within: NewSelfListener(), gate: cfg.Gate, callers: NewConnLimiter(MaxUserConnections),
	}
}

// Serve answers on a Unix socket, and on others of the loopback, until ctx ends or boxd is idle, and returns when
// every stream has ended too.
func (s *Server) Serve(ctx context.Context, ln net.Listener, others ...net.Listener) error {
	if len(others) > 0 {
		s.common.HTTP = others[0].Addr().String()
	}
	srv := &http.Server{
		Handler:           s,
		ConnContext:       withPeer,
		ConnState:         watchHeads,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.common.Log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: headerPatience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    maxHeader,

		DisableGeneralOptionsHandler: true, // every answer is ours
	}
	done := make(chan struct{}) // closed when every ordinary request has its answer
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		if srv.Shutdown(late) != nil {
			_ = srv.Close() // ends what does not end by itself
		}
	})
	var itself sync.WaitGroup
	itself.Go(func() { _ = srv.Serve(ownListener{s.mirror}) }) // ends with the mirror
	itself.Go(func() { _ = srv.Serve(s.within) })
	for _, other := range others {
		itself.Go(func() { _ = srv.Serve(peerListener{other, s.callers, s.gate.User}) }) // ends with the server
	}
	if unix, ok := ln.(*net.UnixListener); ok && s.cfg.IdleExit > 0 {
		ln = &IdleListener{UnixListener: unix, After: s.cfg.IdleExit, Idle: func() bool { return s.callers.None() && s.common.Sup.Idle() }}
	}
	err := srv.Serve(peerListener{ln, s.callers, s.gate.User})
	if stop() { // the listener has ended by itself; what came in by another one has its answer
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		_ = srv.Shutdown(late)
		cancel()
		_ = srv.Close()
	} else {
		<-done
	}
	_, _ = s.mirror.Close(), s.within.Close() // cannot fail
	itself.Wait()
	s.mcp.Close()
	s.common.Streams.Wait()
	switch {
	case errors.Is(err, ErrIdle):
		s.common.Log.Info("boxd ends: there is no session and no caller; the next caller starts it again", "after", s.cfg.IdleExit)
		return nil
	case errors.Is(err, http.ErrServerClosed):
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// Check asks the server that serves whether it is well.
func (s *Server) Check(ctx context.Context) error { return s.mirror.Check(ctx, "/healthz") }

// ownListener is where boxd calls itself. That counts as nobody's connection.
type ownListener struct{ *SelfListener }

// Accept returns the next connection; its remote address is the caller.
func (l ownListener) Accept() (net.Conn, error) {
	conn, err := l.SelfListener.Accept()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, peerAddr{load: NewLimits(), self: &access.Principal{Name: "boxd"}}, func() {}}, nil
}
