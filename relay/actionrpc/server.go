// SPDX-License-Identifier: Apache-2.0

// Package actionrpc serves LangBot's protocol: its action RPC, with the relay of its managed processes, over WebSocket
// on a socket of its own. The supervisor does all the work.
package actionrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"

	"github.com/boxd-dev/boxd/relay"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor"
)

// Limits of what clients can make boxd hold.
const (
	maxConnections = 512              // admitted connections
	maxLongest     = 4                // messages of maximum length that are read or in progress at once; as many of relays
	requestTimeout = 10 * time.Second // for a request that is no WebSocket
)

// Config configures the server.
type Config struct {
	Settings
	relay.Telemetry
	Token  string // "": none is needed
	Gate   *access.Gate
	Sup    *supervisor.Supervisor
	Skills *skills.Store
	Log    *slog.Logger
	// Marker records that LangBot's own admission is required.
	Marker Marker
	// Taken is the directory that records which Workspaces' earlier skills are in the store; "": they are not imported.
	Taken string
	// Patience is how long a client may take to receive an answer before it is cut off. 0 is a minute.
	Patience time.Duration
}

// Server serves LangBot.
type Server struct {
	cfg           Config
	started       time.Time
	handshakes    *wire.Handshakes
	initConfig    atomic.Pointer[InitConfig]
	initMu        sync.Mutex // serializes INITs
	boxes         *Boxes
	fence         *Fence
	requestBudget *wire.MessageBudget // memory of requests
	relayed       *wire.PartBudget    // memory of input to processes, for each Workspace
	uploads       *wire.UploadBudget
	wg            sync.WaitGroup // WebSockets, which http.Server does not track
	actions       map[string]action
	grants        *Grants     // of LangBot's own admission
	seen          inspection  // that boxes meet its demands
	invalid       atomic.Bool // all sessions are to be checked against the grants

	// What the admission does with boxes, which tests replace.
	attest    func(ctx context.Context, spec *boxSpec, work string) Proof
	endBoxes  func(ctx context.Context, which func(id string) bool) error
	available func() bool
}

// New returns a server; Serve runs it.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: time.Now(), handshakes: wire.NewHandshakes(cfg.Token, cfg.Instance), requestBudget: wire.NewMessageBudget(maxLongest), relayed: wire.NewPartBudget(maxLongest), uploads: wire.NewUploadBudget(), grants: NewGrants(time.Now)}
	s.seen.turn = make(chan struct{}, 1)
	s.initConfig.Store(cfg.Marker.Init())
	s.boxes = newBoxes(BoxesConfig{Sup: cfg.Sup, Profile: cfg.Profile, NeedImage: cfg.MissingImage == refuseImage, Soft: cfg.AllowSoftStorage, Owner: s.owner, Init: s.initConfig.Load, Log: cfg.Log})
	s.attest, s.endBoxes, s.available = s.boxes.Attest, s.boxes.endAll, s.boxes.Available
	namespace := func(k FenceKey) string { return wire.Namespace(k.Instance, k.Workspace) }
	s.fence = NewFence(Workspaces{
		Highest: func(k FenceKey) int64 { return s.boxes.highest(namespace(k)) },
		Retire: func(ctx context.Context, k FenceKey, generation int64) error {
			return s.boxes.Retire(ctx, namespace(k), generation)
		},
	})
	s.actions = s.table()
	return s
}

// owner returns the principal that owns all sessions, by the current configuration.
func (s *Server) owner() (access.Principal, error) {
	p, ok := s.cfg.Gate.Named(s.cfg.Principal)
	if !ok || !p.Is(access.User) {
		return p, fault.Errorf(fault.Denied, "permission denied: LangBot's principal %s needs the user role", fault.Show(s.cfg.Principal)).
			WithHint("add to box.toml: [principals.%s] with role = \"user\"", s.cfg.Principal)
	}
	return p, nil
}

// Serve serves until ctx ends, and returns when all connections have ended.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	front := relay.NewFront(ctx, relay.FrontConfig{
		Handler: s, Log: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), Callers: conns.New(maxConnections, conns.All), Name: s.cfg.Gate.User, Patience: requestTimeout,
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, ln := range listeners {
		wg.Go(func() { // ends with the front
			if err := front.Serve(ln); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("serve LangBot: %w", err))
				mu.Unlock()
			}
		})
	}
	watchedCtx, unwatch := context.WithCancel(ctx)
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweeps(watchedCtx) })
	if len(listeners) == 0 { // only gateways are served
		<-ctx.Done()
	}
	wg.Wait()
	front.End(ctx)
	unwatch()
	sweeping.Wait()
	s.wg.Wait()
	return errors.Join(errs...)
}

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := wire.FromHere(r); err != nil {
		s.cfg.Log.Warn("connection of LangBot refused", "reason", err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	s.serve(w, r)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	switch to := wire.RouteOf(r); {
	case to.Health:
		wire.Reply(w, http.StatusOK, map[string]any{"live": true, "resources": s.resources()})
	case to.Ready:
		s.ready(r.Context(), w)
	case to.RPC:
		s.rpc(w, r)
	case to.Relay:
		s.relay(w, r, to.Session, to.Process)
	default:
		http.NotFound(w, r)
	}
}

// resources returns the counters of the two unauthenticated routes.
func (s *Server) resources() map[string]any {
	c := s.boxes.counts()
	return map[string]any{
		"event_loop": struct{}{}, "blocking_executor": struct{}{}, "sessions": c.Sessions, "managed_processes": c.Running, "completed_processes": c.Completed,
		"creating_session_tasks": c.Starting, "closing_session_tasks": c.Ending, "background_tasks": 0,
	}
}

func (s *Server) ready(ctx context.Context, w http.ResponseWriter) {
	var r readiness
	if initConfig := s.initConfig.Load(); initConfig.FromBefore() { // LangBot waits for 200 before it sends anything; no Workspace is admitted yet
		r = s.basicReadiness(initConfig)
	} else {
		r = s.readiness(ctx, true)
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	wire.Reply(w, status, struct {
		readiness
		Resources any `json:"resources"`
	}{r, s.resources()})
}

// refuse sends the one answer to every refused client; the log says why, and so does the answer to a gateway.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why string) {
	s.cfg.Log.Warn("connection of LangBot refused", "reason", why)
	if viaGateway(r.Context()) {
		w.Header().Set(wire.HeaderRefused, why)
	}
	wire.Unauthorized(w)
}

// admit returns why a handshake is refused, "" if it is not.
func (s *Server) admit(r *http.Request, pin bool) (instance, why string) {
	if !viaGateway(r.Context()) && !s.handshakes.Known(r) {
		return "", "missing or wrong control token"
	}
	instance, why = s.handshakes.Admit(r, pin)
	if why == "" {
		if err := conns.Identify(r.Context(), s.cfg.Principal); err != nil {
			return "", err.Error()
		}
	}
	return instance, why
}

// relay serves the standard input and output of a managed process.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, physical, id string) {
	instance, why := s.admit(r, false)
	var key FenceKey
	var generation int64
	if why == "" {
		key.Instance = instance
		key.Workspace, generation, why = wire.WorkspaceOf(r)
	}
	if why != "" {
		s.refuse(w, r, why)
		return
	}
	ctx, call, ok := s.fence.Join(r.Context(), key, generation)
	if !ok {
		s.refuse(w, r, "the placement generation is not the current one")
		return
	}
	defer call.Leave() //nolint:errcheck // a relay has no answer
	tenant := Tenant{Prefix: wire.Prefix(wire.Namespace(instance, key.Workspace), generation)}
	if initConfig := s.initConfig.Load(); initConfig.Required {
		pass, err := s.pass(ctx, initConfig, wire.Namespace(instance, key.Workspace), generation)
		if err == nil && pass.Grant.MaxProcesses <= 0 {
			err = denied("Sandbox admission grant does not permit managed process relay")
		}
		if err != nil {
			wire.RefuseRelay(w, err)
			return
		}
	}
	if !strings.HasPrefix(physical, tenant.Prefix) || physical == tenant.Prefix {
		s.refuse(w, r, "session of another Workspace or generation")
		return
	}
	to, err := s.boxes.Relay(tenant, physical, id)
	if err != nil {
		wire.RefuseRelay(w, err)
		return
	}
	s.wg.Add(1)
	defer s.wg.Done()
	ws := wire.Upgrade(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if ws == nil {
		return
	}
	stop := context.AfterFunc(r.Context(), func() { _ = ws.Close(websocket.StatusGoingAway, wire.Goodbye) }) // boxd ends
	defer stop()
	retired := context.AfterFunc(ctx, func() {
		if r.Context().Err() == nil {
			_ = ws.Close(websocket.StatusNormalClosure, "") // a later generation was placed
		}
	})
	defer retired()
	budget, release := s.relayed.Enter(tenant.Prefix)
	defer release()
	serveAttach(context.WithoutCancel(ctx), ws, to, attachConfig{Started: s.started, Room: budget, Log: s.cfg.Log})
}
