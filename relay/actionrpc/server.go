// SPDX-License-Identifier: Apache-2.0

// Package actionrpc serves LangBot's protocol: its action RPC, with the relay of its managed processes, over WebSocket
// on a socket of its own. The supervisor does all the work.
package actionrpc

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"

	"github.com/boxd-dev/boxd/relay"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor"
)

// Headers of requests.
const (
	headerToken      = "X-LangBot-Box-Control-Token" //nolint:gosec // the name of a header
	headerInstance   = "X-LangBot-Instance-Id"
	headerWorkspace  = "X-LangBot-Workspace-Id"
	headerGeneration = "X-LangBot-Placement-Generation"
)

// Limits of what clients can make boxd hold.
const (
	maxConnections  = 512 // admitted connections
	maxLongest      = 4   // messages of maximum length that are read or in progress at once; as many of relays
	maxWorkspace    = 256
	requestPatience = 10 * time.Second // for a request that is no WebSocket
	maxOwed         = 2 * maxCalls     // pending and unreceived answers of a connection
	sendPatience    = time.Minute      // for an answer of up to 16 MiB, unless Config has another timeout
)

// goodbye is the reason of connections that end because boxd does.
const goodbye = "Box runtime shutting down"

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
	cfg          Config
	started      time.Time
	initConfig   atomic.Pointer[InitConfig]
	initializing sync.Mutex // serializes INITs
	boxes        *Boxes
	fence        *Fence
	held         *MessageBudget // memory of requests
	relayed      *PartBudget    // memory of input to processes, for each Workspace
	uploads      *UploadBudget
	live         sync.WaitGroup // WebSockets, which http.Server does not track
	actions      map[string]action
	grants       *Grants     // of LangBot's own admission
	seen         evidence    // that boxes meet its demands
	invalid      atomic.Bool // all sessions are to be checked against the grants

	// What the admission does with boxes, which tests replace.
	attest    func(ctx context.Context, spec *boxSpec, work string) Proof
	end       func(ctx context.Context, which func(id string) bool) error
	available func() bool

	mu       sync.Mutex
	instance string // the one that is served; "": none yet
}

// New returns a server; Serve runs it.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: time.Now(), instance: cfg.Instance, held: NewMessageBudget(maxLongest), relayed: NewPartBudget(maxLongest), uploads: NewUploadBudget(), grants: NewGrants(time.Now)}
	s.seen.turn = make(chan struct{}, 1)
	s.initConfig.Store(cfg.Marker.Init())
	s.boxes = newBoxes(BoxesConfig{Sup: cfg.Sup, Profile: cfg.Profile, NeedImage: cfg.MissingImage == refuseImage, Soft: cfg.AllowSoftStorage, Owner: s.owner, Init: s.initConfig.Load, Log: cfg.Log})
	s.attest, s.end, s.available = s.boxes.Attest, s.boxes.EndAll, s.boxes.Available
	namespace := func(k FenceKey) string { return Namespace(k.Instance, k.Workspace) }
	s.fence = NewFence(Workspaces{
		Highest: func(k FenceKey) int64 { return s.boxes.Highest(namespace(k)) },
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
		Handler: s, Log: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), Callers: conns.New(maxConnections, conns.All), Name: s.cfg.Gate.User, Patience: requestPatience,
	})
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, ln := range listeners {
		all.Go(func() { // ends with the front
			if err := front.Serve(ln); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("serve LangBot: %w", err))
				mu.Unlock()
			}
		})
	}
	watched, unwatch := context.WithCancel(ctx)
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweeps(watched) })
	all.Wait()
	front.End(ctx)
	unwatch()
	sweeping.Wait()
	s.live.Wait()
	return errors.Join(errs...)
}

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := fromHere(r); err != nil {
		s.cfg.Log.Warn("connection of LangBot refused", "reason", err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	parts := strings.Split(r.URL.EscapedPath(), "/")
	ids := make([]string, len(parts))
	for i := range parts {
		var err error
		if ids[i], err = url.PathUnescape(parts[i]); err != nil || i > 0 && ids[i] == "" {
			http.NotFound(w, r)
			return
		}
	}
	path := strings.Join(ids[1:], "/")
	get := r.Method == http.MethodGet
	relayed := get && len(ids) > 4 && ids[1] == "v1" && ids[2] == "sessions" && ids[4] == "managed-process" && ids[len(ids)-1] == "ws"
	switch {
	case get && path == "healthz":
		reply(w, http.StatusOK, map[string]any{"live": true, "resources": s.resources()})
	case get && path == "readyz":
		s.ready(r.Context(), w)
	case get && len(ids) == 3 && path == "rpc/ws":
		s.rpc(w, r)
	case relayed && len(ids) == 6:
		s.relay(w, r, ids[3], defaultProcess)
	case relayed && len(ids) == 7:
		s.relay(w, r, ids[3], ids[5])
	default:
		http.NotFound(w, r)
	}
}

func reply(w http.ResponseWriter, status int, body any) {
	text, _ := json.Marshal(body) // plain data: cannot fail
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have gone
}

// fromHere refuses, at a loopback address, requests that a web page may have made a browser send. At any other address
// the client must have the token.
func fromHere(r *http.Request) error {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		return nil
	}
	return access.FromHere(r.Header.Values("Origin"), r.Host)
}

// resources returns the counters of the two unauthenticated routes.
func (s *Server) resources() map[string]any {
	c := s.boxes.Counts()
	return map[string]any{
		"event_loop": struct{}{}, "blocking_executor": struct{}{}, "sessions": c.Sessions, "managed_processes": c.Running, "completed_processes": c.Completed,
		"creating_session_tasks": c.Starting, "closing_session_tasks": c.Ending, "background_tasks": 0,
	}
}

func (s *Server) ready(ctx context.Context, w http.ResponseWriter) {
	var r readiness
	if initConfig := s.initConfig.Load(); initConfig.FromBefore() { // LangBot waits for 200 before it sends anything; no Workspace is admitted yet
		r = s.plainly(initConfig)
	} else {
		r = s.readiness(ctx, true)
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, struct {
		readiness
		Resources any `json:"resources"`
	}{r, s.resources()})
}

// only returns a header that occurs exactly once.
func only(r *http.Request, name string) string {
	if v := r.Header.Values(name); len(v) == 1 {
		return strings.TrimSpace(v[0])
	}
	return ""
}

// refuse sends the one answer to every refused client; the log says why.
func (s *Server) refuse(w http.ResponseWriter, why string) {
	s.cfg.Log.Warn("connection of LangBot refused", "reason", why)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte("Unauthorized")) // the client may have gone
}

// admit returns why a handshake is refused, "" if it is not. The first instance that connects by RPC is the only one
// served from then on.
func (s *Server) admit(r *http.Request, pin bool) (instance, why string) {
	if s.cfg.Token != "" && subtle.ConstantTimeCompare([]byte(only(r, headerToken)), []byte(s.cfg.Token)) != 1 {
		return "", "missing or wrong control token"
	}
	instance = only(r, headerInstance)
	if !validInstance(instance) {
		return "", "missing or invalid instance id"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.instance == "" && pin:
		if upgrades(r) { // a plain request pins nothing
			s.instance = instance
		}
	case s.instance != instance:
		return "", "the instance " + instance + " is not the one that is served; restart boxd to serve another (sessions live on), or set langbot.instance"
	}
	if err := conns.Identify(r.Context(), s.cfg.Principal); err != nil {
		return "", err.Error()
	}
	return instance, ""
}

func upgrades(r *http.Request) bool { return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") }

// upgrade makes a WebSocket of an admitted request; nil: it has been answered.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, o *websocket.AcceptOptions) *websocket.Conn {
	if !upgrades(r) {
		http.Error(w, "this route needs a WebSocket", http.StatusBadRequest)
		return nil
	}
	o.CompressionMode = websocket.CompressionDisabled
	ws, err := websocket.Accept(w, r, o)
	if err != nil {
		return nil // Accept has answered
	}
	ws.SetReadLimit(MaxMessage)
	return ws
}

// relay serves the standard input and output of a managed process.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, physical, id string) {
	instance, why := s.admit(r, false)
	workspace, text := only(r, headerWorkspace), only(r, headerGeneration)
	generation, err := strconv.ParseInt(text, 10, 64)
	key := FenceKey{Instance: instance, Workspace: workspace}
	switch {
	case why != "":
	case workspace == "" || len([]rune(workspace)) > maxWorkspace:
		why = "the Workspace is missing, or too long"
	case err != nil || generation < 1 || strconv.FormatInt(generation, 10) != text:
		why = "missing or invalid placement generation"
	}
	if why != "" {
		s.refuse(w, why)
		return
	}
	ctx, call, ok := s.fence.Join(r.Context(), key, generation)
	if !ok {
		s.refuse(w, "the placement generation is not the current one")
		return
	}
	defer call.Leave() //nolint:errcheck // a relay has no answer
	tenant := Tenant{Prefix: Prefix(Namespace(instance, workspace), generation)}
	if initConfig := s.initConfig.Load(); initConfig.Required {
		pass, err := s.pass(ctx, initConfig, Namespace(instance, workspace), generation)
		if err == nil && pass.Grant.MaxProcesses <= 0 {
			err = denied("Sandbox admission grant does not permit managed process relay")
		}
		if err != nil {
			s.refuseRelay(w, err)
			return
		}
	}
	if !strings.HasPrefix(physical, tenant.Prefix) || physical == tenant.Prefix {
		s.refuse(w, "session of another Workspace or generation")
		return
	}
	to, err := s.boxes.Relay(tenant, physical, id)
	if err != nil {
		s.refuseRelay(w, err)
		return
	}
	s.live.Add(1)
	defer s.live.Done()
	ws := s.upgrade(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if ws == nil {
		return
	}
	over := context.AfterFunc(r.Context(), func() { _ = ws.Close(websocket.StatusGoingAway, goodbye) }) // boxd ends
	defer over()
	retired := context.AfterFunc(ctx, func() {
		if r.Context().Err() == nil {
			_ = ws.Close(websocket.StatusNormalClosure, "") // a later generation was placed
		}
	})
	defer retired()
	room, leave := s.relayed.Enter(tenant.Prefix)
	defer leave()
	serveAttach(context.WithoutCancel(ctx), ws, to, AttachConfig{Started: s.started, Room: room, Log: s.cfg.Log})
}

// refuseRelay answers an admitted client that asks for something that is not there.
func (s *Server) refuseRelay(w http.ResponseWriter, err error) {
	body := struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"BoxError", err.Error()}
	if e, ok := errors.AsType[*refusal](err); ok {
		body.Code, body.Message = e.Class, e.Text
	}
	reply(w, http.StatusBadRequest, map[string]any{"error": body})
}
