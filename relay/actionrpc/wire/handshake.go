// SPDX-License-Identifier: Apache-2.0

// The HTTP of LangBot's protocol: routes, headers, and who is let in.

package wire

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/supervisor/access"
)

// Headers of requests.
const (
	HeaderToken      = "X-LangBot-Box-Control-Token" //nolint:gosec // the name of a header
	HeaderInstance   = "X-LangBot-Instance-Id"
	HeaderWorkspace  = "X-LangBot-Workspace-Id"
	HeaderGeneration = "X-LangBot-Placement-Generation"

	// HeaderRefused tells a gateway why its node refuses; with the status 403 that is about the gateway, not about its client.
	HeaderRefused = "Boxd-Langbot-Refused"
)

// Goodbye is the reason of connections that end because the server does.
const Goodbye = "Box runtime shutting down"

// PathRPC is the path of the action RPC.
const PathRPC = "/rpc/ws"

// DefaultProcess is the id of a managed process that a request does not name.
const DefaultProcess = "default"

const maxWorkspace = 256

// Route is what a request is for.
type Route struct {
	Health, Ready, RPC bool
	Relay              bool // to a managed process
	Session, Process   string
}

// RouteOf finds the route of a request; the zero Route: there is none.
func RouteOf(r *http.Request) (to Route) {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	ids := make([]string, len(parts))
	for i := range parts {
		var err error
		if ids[i], err = url.PathUnescape(parts[i]); err != nil || i > 0 && ids[i] == "" {
			return to
		}
	}
	if r.Method != http.MethodGet {
		return to
	}
	relayed := len(ids) > 4 && ids[1] == "v1" && ids[2] == "sessions" && ids[4] == "managed-process" && ids[len(ids)-1] == "ws"
	switch path := "/" + strings.Join(ids[1:], "/"); {
	case path == "/healthz":
		to.Health = true
	case path == "/readyz":
		to.Ready = true
	case path == PathRPC && len(ids) == 3:
		to.RPC = true
	case relayed && len(ids) == 6:
		to = Route{Relay: true, Session: ids[3], Process: DefaultProcess}
	case relayed && len(ids) == 7:
		to = Route{Relay: true, Session: ids[3], Process: ids[5]}
	}
	return to
}

// FromHere refuses, at a loopback address, requests that a web page may have made a browser send. At any other address the client must have
// the token.
func FromHere(r *http.Request) error {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		return nil
	}
	return access.FromHere(r.Header.Values("Origin"), r.Host)
}

// Reply answers with JSON.
func Reply(w http.ResponseWriter, status int, body any) {
	text, _ := json.Marshal(body) // plain data: cannot fail
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have gone
}

// Unauthorized is the one answer to every refused client; logs say why.
func Unauthorized(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte("Unauthorized")) // the client may have gone
}

// RefuseRelay answers an admitted client that asks for a relay that it cannot have.
func RefuseRelay(w http.ResponseWriter, err error) {
	body := struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"BoxError", err.Error()}
	if e, ok := errors.AsType[*Refusal](err); ok {
		body.Code, body.Message = e.Class, e.Text
	}
	Reply(w, http.StatusBadRequest, map[string]any{"error": body})
}

// only returns a header that occurs exactly once.
func only(r *http.Request, name string) string {
	if v := r.Header.Values(name); len(v) == 1 {
		return strings.TrimSpace(v[0])
	}
	return ""
}

// instance matches an instance id.
var instance = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// ValidInstance reports whether a text is an instance id.
func ValidInstance(id string) bool { return instance.MatchString(id) }

// Handshakes decides who is let in.
type Handshakes struct {
	token string

	mu       sync.Mutex
	instance string // the one that is served; "": none yet
}

// NewHandshakes returns the rules: the token that clients need, "" if none, and the only instance that is served, "" for the first that
// connects.
func NewHandshakes(token, instance string) *Handshakes {
	return &Handshakes{token: token, instance: instance}
}

// Known reports whether a client has the token.
func (h *Handshakes) Known(r *http.Request) bool {
	return h.token == "" || subtle.ConstantTimeCompare([]byte(only(r, HeaderToken)), []byte(h.token)) == 1
}

// Admit returns why a handshake of a client that is known is refused, "" if it is not. The first instance that connects by RPC (pin) is the
// only one served from then on.
func (h *Handshakes) Admit(r *http.Request, pin bool) (instance, why string) {
	instance = only(r, HeaderInstance)
	if !ValidInstance(instance) {
		return "", "missing or invalid instance id"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.instance == "" && pin:
		if upgrades(r) { // a plain request pins nothing
			h.instance = instance
		}
	case h.instance != instance:
		return "", "the instance " + instance + " is not the one that is served; restart to serve another (sessions live on), or set langbot.instance"
	}
	return instance, ""
}

// WorkspaceOf returns the Workspace and placement generation in the headers of a relay, or why it has none.
func WorkspaceOf(r *http.Request) (workspace string, generation int64, why string) {
	workspace, text := only(r, HeaderWorkspace), only(r, HeaderGeneration)
	generation, err := strconv.ParseInt(text, 10, 64)
	switch {
	case workspace == "" || len([]rune(workspace)) > maxWorkspace:
		why = "the Workspace is missing, or too long"
	case err != nil || generation < 1 || strconv.FormatInt(generation, 10) != text:
		why = "missing or invalid placement generation"
	}
	return workspace, generation, why
}

func upgrades(r *http.Request) bool { return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") }

// Upgrade makes a WebSocket of an admitted request; nil: it has been answered.
func Upgrade(w http.ResponseWriter, r *http.Request, o *websocket.AcceptOptions) *websocket.Conn {
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
