// SPDX-License-Identifier: Apache-2.0

// Requests from a gateway of a fleet. For the control plane the gateway authenticates the caller and signs who that is. A request
// for a sandbox is authorized by the sandbox's own token, which the node checks. But only the gateway knows whether the API key
// that this token depends on is still valid. So the gateway first asks which key that is, and if it is valid, sends the request with a
// signed statement that it is.

package e2b

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// gatewayKey is the context key of the gateway that sent a request.
type gatewayKey struct{}

// gateway is what a gateway adds to a request.
type gateway struct {
	signed         []string
	method, target string
	domain         string
	create         string // id for a new sandbox
	ask            bool   // only tell which key the sandbox depends on
}

// gatewayOf returns what the gateway added to a request, nil if it came from a client directly.
func gatewayOf(ctx context.Context) *gateway {
	g, _ := ctx.Value(gatewayKey{}).(*gateway)
	return g
}

// ServeGateway answers a request that a gateway of a fleet forwards.
func (s *Server) ServeGateway(w http.ResponseWriter, r *http.Request) {
	g := &gateway{
		signed: r.Header.Values(wire.HeaderGateway), method: r.Method, target: r.RequestURI,
		domain: r.Header.Get(wire.HeaderDomain), create: r.Header.Get(wire.HeaderNew), ask: r.Header.Get(wire.HeaderAsk) != "",
	}
	for _, name := range []string{wire.HeaderGateway, wire.HeaderDomain, wire.HeaderNew, wire.HeaderAsk} {
		r.Header.Del(name) // no program sees them
	}
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), gatewayKey{}, g)))
}

// caller is the caller of the control plane, as signed by the gateway.
func (g *gateway) caller(gate *access.Gate, w http.ResponseWriter) (access.Pass, error) {
	pass, err := gate.IdentifyAsserted(g.signed, g.method, g.target)
	if err == nil && pass.Anonymous() {
		err = gate.Unknown()
	}
	if err != nil {
		w.Header().Set(wire.HeaderRefused, "true")
	}
	return pass, err
}

// holder is the pass of the key that the gateway states to be valid. It has no name if the gateway only asks.
func (g *gateway) holder(gate *access.Gate, w http.ResponseWriter) (access.Pass, error) {
	pass, err := gate.IdentifyHolder(g.signed, g.method, g.target)
	if err != nil {
		w.Header().Set(wire.HeaderRefused, "true")
	}
	return pass, err
}

// checkHolder returns an error unless the gateway's statement is about the key that the sandbox depends on.
func checkHolder(pass *access.Pass, sess *session.Session) error {
	if pass.Name != sess.Owner.Name || pass.Token != sess.Current().Labels[labelKey] || !allows(pass) {
		return keyless()
	}
	return nil
}

// writeHolder answers a gateway which key a sandbox depends on.
func writeHolder(w http.ResponseWriter, sess *session.Session) {
	w.Header().Set(wire.HeaderHolds, url.QueryEscape(sess.Current().Labels[labelKey]))
	w.Header().Set(wire.HeaderOwner, url.QueryEscape(sess.Owner.Name))
	w.WriteHeader(http.StatusNoContent)
}

// markNone tells a gateway that this node has no sandbox that the request could be for, unless the error is about one.
func (g *gateway) markNone(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*wire.Error](err); g.ask && (err == nil || ok && e.Code == http.StatusBadGateway) {
		w.Header().Set(wire.HeaderNone, "true")
	}
}

// reasserted checks whether the gateway may still speak for the principal of a request that is under way.
func (s *Server) reasserted(before *access.Pass, sess *session.Session) (time.Time, error) {
	now, err := s.cfg.Gate.ReassertedPass(before)
	if err == nil && (now.Name != before.Name || sess != nil && !allows(&now)) {
		err = s.cfg.Gate.Unknown()
	}
	return now.Until, err
}
