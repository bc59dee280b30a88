// SPDX-License-Identifier: Apache-2.0

// Package relay is every way into boxd: routes, who may take them, streams.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/relay/conns"
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
	// Fleet is the Unix socket of gateways; nil: there is none.
	Fleet net.Listener
	// HTTPS are listeners for callers of other hosts, and TLS how they are served.
	HTTPS []net.Listener
	TLS   *tls.Config
}

// Server serves one supervisor.
type Server struct {
	cfg     Config
	common  *Deps
	routes  []Route
	self    *SelfListener // where it looks at itself
	within  *SelfListener // where it calls itself in somebody's name
	mcp     *Conversations
	gate    *access.Gate
	callers *conns.Limiter
}

// New returns a server; Serve makes it work.
func New(cfg Config, sup *supervisor.Supervisor, log *slog.Logger) *Server {
	common := &Deps{Gate: cfg.Gate, Sup: sup, Skills: cfg.Skills, Drives: cfg.Drives, Images: cfg.Images, Log: log, Version: cfg.Version, Settings: cfg.Settings, Started: time.Now(), Previews: cfg.Previews, Answers: answerPatience, Telemetry: cfg.Telemetry}
	talks := newConversations(cfg.Version, log)
	return &Server{
		cfg: cfg, common: common, routes: routes(talks), mcp: talks, self: newSelfListener(), within: newSelfListener(), gate: cfg.Gate, callers: conns.New(conns.Each, conns.All),
	}
}

// Serve answers on a Unix socket, and on others of the loopback, until ctx ends or boxd is idle, and returns when
// every stream has ended too.
func (s *Server) Serve(ctx context.Context, ln net.Listener, others ...net.Listener) error {
	if len(others) > 0 {
		s.common.HTTP = others[0].Addr().String()
	}
	front := NewFront(ctx, FrontConfig{
		Handler: s, Log: slog.NewLogLogger(s.common.Log.Handler(), slog.LevelWarn), Callers: s.callers, Name: s.gate.User,
	})
	var itself sync.WaitGroup
	itself.Go(func() { _ = front.serveUncounted(ownListener{s.self}) }) // ends with the mirror
	itself.Go(func() { _ = front.serveUncounted(s.within) })
	if s.cfg.Fleet != nil {
		itself.Go(func() { _ = front.serveFleet(s.cfg.Fleet) }) // ends with the front
	}
	for _, ln := range s.cfg.HTTPS {
		itself.Go(func() { _ = front.ServeTLS(ln, s.cfg.TLS) }) // ends with the front
	}
	for _, other := range others {
		itself.Go(func() { _ = front.Serve(other) }) // ends with the front
	}
	if unix, ok := ln.(*net.UnixListener); ok && s.cfg.IdleExit > 0 {
		ln = &IdleListener{UnixListener: unix, After: s.cfg.IdleExit, Idle: func() bool { return s.callers.None() && s.common.Sup.Idle() }}
	}
	err := front.Serve(ln)
	front.End(ctx)
	_, _ = s.self.Close(), s.within.Close() // cannot fail
	itself.Wait()
	s.mcp.Close()
	s.common.Streams.Wait()
	switch {
	case errors.Is(err, errIdle):
		s.common.Log.Info("boxd stops: no sessions and no connections (idle_exit); the next connection starts it again", "after", s.cfg.IdleExit)
		return nil
	case err != nil:
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Check asks the server that serves whether it is well.
func (s *Server) Check(ctx context.Context) error { return s.self.Check(ctx, "/healthz") }

// ownListener is where boxd calls itself. That counts as nobody's connection.
type ownListener struct{ *SelfListener }

// Accept returns the next connection; its remote address is the caller.
func (l ownListener) Accept() (net.Conn, error) {
	conn, err := l.SelfListener.Accept()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, peerAddr{limits: conns.NewLimits(), self: &access.Principal{Name: "boxd"}}, func() {}}, nil
}
