// SPDX-License-Identifier: Apache-2.0

// Package e2b is E2B's dialect: its control plane, with processes, files, ports, code of sandboxes, on a socket of
// their own. A sandbox is a session of whoever has the API key, which is a token of boxd; everything that is done with
// it the one supervisor does.
//
// A request comes to ServeHTTP, which tells the control plane from a sandbox by headers, host name or path
// (route.go). For the control plane the API key says who calls (control.go); for a sandbox a token that was computed
// from the session says that its bearer may use it (credentials.go, sandbox.go). RPCs are process.go and filesystem.go, files.go
// has up and downloads, contexts.go runs code, ports.go leads to ports; scalebox.go
// and agent.go are the same for clients of Scalebox. record.go writes down what was to change something.
package e2b

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

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// maxCallerConnections is how many connections one principal may have. An SDK opens one for each stream.
const maxCallerConnections = 512

// Config is what the dialect needs.
type Config struct {
	Settings
	relay.Telemetry
	Gate   *access.Gate
	Tokens *access.PreviewKey // makes tokens of sandboxes
	Sup    *supervisor.Supervisor
	Log    *slog.Logger
	// TLS is the certificate of the listeners that are served by TLS; nil: none are.
	TLS *tls.Config
}

// Server serves E2B's clients.
type Server struct {
	cfg     Config
	callers *conns.Limiter
	// visitors have loads of their own, by the owners of the sandboxes that they visit; their connections are counted by callers.
	visitors *conns.Limiter
	index    *index
	rpc      *http.ServeMux // RPCs of a sandbox
	calls    map[string]procedure
	code     *contexts
	watches  watches
	inputs   turns
	due      pauses
}

// New returns a server; Serve makes it work.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, callers: conns.New(maxCallerConnections, conns.All), visitors: conns.New(maxCallerConnections, conns.All), rpc: http.NewServeMux(), calls: procedures(), inputs: turns{all: map[*process.Process]*turn{}}}
	s.code = newContexts(s)
	s.index = newIndex(s)
	options := []connect.HandlerOption{
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			return []connect.HandlerOption{connect.WithReadMaxBytes(s.calls[spec.Procedure].message())}
		}),
		connect.WithInterceptors(headers{}),
	}
	s.rpc.Handle(protocol.NewProcessHandler(&processService{s}, options...))
	s.rpc.Handle(protocol.NewFilesystemHandler(&filesystemService{s}, options...))
	agent := &agentService{s}
	s.rpc.Handle(protocol.NewContextServiceHandler(agent, options...))
	s.rpc.Handle(protocol.NewExecutionServiceHandler(agent, options...))
	return s
}

// Serve answers until ctx ends, and returns when every connection has ended too.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	front := relay.NewFront(ctx, relay.FrontConfig{
		Handler: s, Log: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), Callers: s.callers, Name: s.cfg.Gate.User,
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	if len(listeners) == 0 { // all come by gateways
		wg.Go(func() { <-ctx.Done() })
	}
	for _, ln := range listeners {
		wg.Go(func() { // ends with the front
			var err error
			if s.cfg.TLS != nil && s.cfg.ByTLS(ln) {
				err = front.ServeTLS(ln, s.cfg.TLS)
			} else {
				err = front.Serve(ln)
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("serve E2B: %w", err))
				mu.Unlock()
			}
		})
	}
	watchedCtx, unwatch := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { every(watchedCtx, pauseEvery, s.pauseDue) })
	wg.Wait()
	front.End(ctx)
	unwatch()
	background.Wait()
	s.due.run.Wait()
	s.watches.close()
	return errors.Join(errs...)
}

// every does something again and again until ctx ends.
func every(ctx context.Context, period time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			do(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = r.WithContext(trace.With(r.Context(), trace.FromHeader(r.Header)))
	expectBody(w, r)
	to, err := s.route(r)
	if err == nil {
		err = relay.OneLength(w, r)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if to.Control {
		s.control(w, r)
		return
	}
	s.data(w, r, to)
}
