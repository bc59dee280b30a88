// SPDX-License-Identifier: Apache-2.0

// LangBot's action RPC. Nodes implement the protocol; a gateway lets LangBot in, finds or chooses the node of each Workspace, and passes
// requests on to it.

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/fault"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Messages of maximum length that are read or under way at once: requests of all connections, and answers of all nodes.
const maxLongest = 4

// langBotFront is the HTTP handler for LangBot.
type langBotFront struct {
	g          *gateway
	principal  string
	byTLS      bool
	handshakes *rpc.Handshakes
	requests   *rpc.MessageBudget
	answers    *rpc.MessageBudget
	uploads    *rpc.UploadBudget
	wg         sync.WaitGroup // WebSockets, which http.Server does not track

	mu     sync.Mutex // guards the fields below
	init   map[string]json.RawMessage
	limits rpc.Limits
}

func newLangBotFront(g *gateway, cfg *gatewayConfig, token string) *langBotFront {
	return &langBotFront{
		g: g, principal: cfg.LangBot.Principal, byTLS: cfg.Gateway.Certificate != "", handshakes: rpc.NewHandshakes(token, cfg.LangBot.Instance),
		requests: rpc.NewMessageBudget(maxLongest), answers: rpc.NewMessageBudget(maxLongest), uploads: rpc.NewUploadBudget(),
		init: map[string]json.RawMessage{}, limits: rpc.DefaultLimits(),
	}
}

// wait waits for the end of all WebSockets, which the end of their listener's context begins.
func (f *langBotFront) wait() { f.wg.Wait() }

// ServeHTTP answers a request.
func (f *langBotFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !f.byTLS {
		if err := rpc.FromHere(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
	}
	switch to := rpc.RouteOf(r); {
	case to.Health:
		rpc.Reply(w, http.StatusOK, map[string]any{"live": true, "resources": resources()})
	case to.Ready:
		f.ready(w)
	case to.RPC:
		f.rpc(w, r)
	case to.Relay:
		f.relay(w, r, to.Session) //nolint:contextcheck // the request has it
	default:
		http.NotFound(w, r)
	}
}

// resources are the counters of the two routes that need no token. What nodes have is told by GET /v1/fleet/nodes.
func resources() any {
	return map[string]any{"event_loop": struct{}{}, "blocking_executor": struct{}{}}
}

// ready reports whether a node can take a Workspace.
func (f *langBotFront) ready(w http.ResponseWriter) {
	why := ""
	if len(f.nodes()) == 0 {
		why = noLangBotNode().Error()
	}
	status := http.StatusOK
	if why != "" {
		status = http.StatusServiceUnavailable
	}
	body := map[string]any{"ready": why == "", "mode": "standard", "checks": map[string]bool{"backend_available": why == ""}, "backend": backend(why == ""), "resources": resources()}
	if why != "" {
		body["error"] = why
	}
	rpc.Reply(w, status, body)
}

func backend(available bool) any { return map[string]any{"name": "boxd", "available": available} }

// nodes are those that are ready and serve LangBot to gateways.
func (f *langBotFront) nodes() []nodeState {
	return slices.DeleteFunc(f.g.known(), func(n nodeState) bool {
		return n.State != api.FleetNodeReady || !slices.Contains(n.Capabilities, canLangBot)
	})
}

func noLangBotNode() error {
	return fault.Errorf(fault.Unavailable, "no node is ready that serves LangBot to gateways").WithHint("set langbot.fleet = true in box.toml of nodes; GET /v1/fleet/nodes lists them")
}

// pass is the principal for which LangBot is let in, as the configuration is now.
func (f *langBotFront) pass() (access.Pass, error) {
	who, ok := f.g.cfg.Gate.Named(f.principal)
	if !ok || !who.Is(access.User) {
		return access.Pass{}, fault.Errorf(fault.Denied, "permission denied: LangBot's principal %s needs the user role", fault.Show(f.principal)).
			WithHint("add to gateway.toml: [principals.%s] with role = \"user\"", f.principal)
	}
	return access.Pass{Principal: who, Token: "langbot"}, nil
}

// admit lets a client in, and returns a context that ends when it is not let in any more; release must be called. Otherwise it answers, and the
// context is nil.
func (f *langBotFront) admit(w http.ResponseWriter, r *http.Request, pin bool) (ctx context.Context, instance string, pass access.Pass, release func()) {
	var err error
	why := "missing or wrong control token"
	if f.handshakes.Known(r) {
		instance, why = f.handshakes.Admit(r, pin)
	}
	if why == "" {
		pass, err = f.pass()
	}
	if why == "" && err == nil {
		err = conns.Identify(r.Context(), pass.Name)
	}
	if err != nil {
		why = err.Error()
	}
	if why != "" {
		f.refuse(w, why)
		return nil, "", pass, nil
	}
	ctx, release = f.g.cfg.Gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		_, err := f.pass()
		return time.Time{}, err
	})
	return ctx, instance, pass, release
}

func (f *langBotFront) refuse(w http.ResponseWriter, why string) {
	f.g.log.Warn("connection of LangBot refused", "reason", why)
	rpc.Unauthorized(w)
}

// rpc serves a connection of the action RPC until it ends.
func (f *langBotFront) rpc(w http.ResponseWriter, r *http.Request) {
	ctx, instance, pass, release := f.admit(w, r, true)
	if ctx == nil {
		return
	}
	defer release()
	f.wg.Add(1)
	defer f.wg.Done()
	ws := rpc.Upgrade(w, r, &websocket.AcceptOptions{})
	if ws == nil {
		return
	}
	defer ws.CloseNow()                                                                             //nolint:errcheck // a closed one is fine
	stop := context.AfterFunc(ctx, func() { _ = ws.Close(websocket.StatusGoingAway, rpc.Goodbye) }) //nolint:contextcheck // it is that of the request
	defer stop()
	baseCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &langBotConn{f: f, baseCtx: baseCtx, instance: instance, pass: pass, files: rpc.NewUploads(f.uploads), links: map[string]*nodeLink{}}
	defer c.files.Close()
	defer c.tasks.Wait()
	defer cancel()
	served := &rpc.Conn{WS: ws, Budget: f.requests, Answer: c.answer}
	served.Serve(baseCtx) //nolint:contextcheck // it ends with the client
}

// relay passes on a connection to a managed process, to the node of its Workspace.
func (f *langBotFront) relay(w http.ResponseWriter, r *http.Request, session string) {
	ctx, instance, pass, release := f.admit(w, r, false)
	if ctx == nil {
		return
	}
	defer release()
	f.wg.Add(1)
	defer f.wg.Done()
	workspace, generation, why := rpc.WorkspaceOf(r)
	if namespace := rpc.Namespace(instance, workspace); why == "" && !strings.HasPrefix(session, rpc.Prefix(namespace, generation)) {
		why = "session of another Workspace or generation"
	}
	if why != "" {
		f.refuse(w, why)
		return
	}
	claim, err := f.g.claimOf(ctx, pass.Name, workspaceID(instance, workspace))
	switch {
	case err != nil:
	case claim == nil || claim.Workspace != generation:
		f.refuse(w, "the placement generation is not the current one")
		return
	case claim.State == api.FleetClaimLost:
		err = lostWorkspace(claim)
	}
	c := &call{w: w, r: r.WithContext(ctx), pass: pass, langBot: true}
	if err == nil {
		err = f.g.pass(c, claim.Node, nil)
	}
	if err != nil {
		c.fail(w, err)
	}
}
