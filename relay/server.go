// SPDX-License-Identifier: Apache-2.0

// Package relay is boxd's HTTP server: routes, authorization, streams.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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

// Config configures the server.
type Config struct {
	Version string
	Telemetry
	// Gate authenticates callers.
	Gate *access.Gate
	// Previews signs tokens of previews.
	Previews *access.PreviewKey
	// Skills stores skills.
	Skills *skills.Store
	// Drives stores drives.
	Drives *volumes.Drives
	// Images stores images.
	Images *images.Store
	// Settings returns the effective configuration.
	Settings func() ([]api.Setting, error)
	// IdleExit is how long there must be no session and no connection before Serve returns; 0: it does not. It needs a
	// *net.UnixListener that another process keeps open, or the next client cannot connect.
	IdleExit time.Duration
	// Fleet is the Unix socket of gateways; nil: there is none.
	Fleet net.Listener
	// E2B handles requests of E2B's protocol from gateways; nil: they are refused.
	E2B http.Handler
	// LangBot handles requests of LangBot's protocol from gateways; nil: they are refused.
	LangBot http.Handler
	// HTTPS are listeners for clients on other hosts, and TLS is their configuration.
	HTTPS []net.Listener
	TLS   *tls.Config
}

// Server serves one supervisor.
type Server struct {
	cfg     Config
	common  *Deps
	routes  []Route
	self    *SelfListener // for its self-checks
	within  *SelfListener // for its calls as another caller
	mcp     *conversations
	gate    *access.Gate
	callers *conns.Limiter
}

// New returns a server; Serve runs it.
func New(cfg Config, sup *supervisor.Supervisor, log *slog.Logger) *Server {
	common := &Deps{Gate: cfg.Gate, Sup: sup, Skills: cfg.Skills, Drives: cfg.Drives, Images: cfg.Images, Log: log, Version: cfg.Version, Settings: cfg.Settings, Started: time.Now(), Previews: cfg.Previews, Answers: answerTimeout, Telemetry: cfg.Telemetry}
	conversations := newConversations(cfg.Version, log)
	return &Server{
		cfg: cfg, common: common, routes: routes(conversations), mcp: conversations, self: newSelfListener(), within: newSelfListener(), gate: cfg.Gate, callers: conns.New(conns.Each, conns.All),
	}
}

// Serve serves a Unix socket, and loopback listeners, until ctx ends or boxd is idle, and returns when every stream has
// ended too.
func (s *Server) Serve(ctx context.Context, ln net.Listener, others ...net.Listener) error {
	if len(others) > 0 {
		s.common.HTTP = others[0].Addr().String()
	}
	front := NewFront(ctx, FrontConfig{
		Handler: http.HandlerFunc(s.dialects), Log: slog.NewLogLogger(s.common.Log.Handler(), slog.LevelWarn), Callers: s.callers, Name: s.gate.User,
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = front.serveUncounted(ownListener{s.self}) }) // ends with s.self
	wg.Go(func() { _ = front.serveUncounted(s.within) })
	if s.cfg.Fleet != nil {
		wg.Go(func() { _ = front.serveFleet(s.cfg.Fleet) }) // ends with the front
	}
	for _, ln := range s.cfg.HTTPS {
		wg.Go(func() { _ = front.ServeTLS(ln, s.cfg.TLS) }) // ends with the front
	}
	for _, other := range others {
		wg.Go(func() { _ = front.Serve(other) }) // ends with the front
	}
	if unix, ok := ln.(*net.UnixListener); ok && s.cfg.IdleExit > 0 {
		ln = &idleListener{UnixListener: unix, After: s.cfg.IdleExit, Idle: func() bool { return s.callers.None() && s.common.Sup.Idle() }}
	}
	err := front.Serve(ln)
	front.End(ctx)
	_, _ = s.self.Close(), s.within.Close() // cannot fail
	wg.Wait()
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

// Check asks the running server whether it is healthy.
func (s *Server) Check(ctx context.Context) error { return s.self.Check(ctx, "/healthz") }

// ownListener is for calls of boxd to itself, which count for no caller.
type ownListener struct{ *SelfListener }

// Accept returns the next connection; its remote address is the caller.
func (l ownListener) Accept() (net.Conn, error) {
	conn, err := l.SelfListener.Accept()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, peerAddr{limits: conns.NewLimits(), self: &access.Principal{Name: "boxd"}}, func() {}}, nil
}
