// SPDX-License-Identifier: Apache-2.0

// Connections that a gateway of a fleet passes on. The gateway has let LangBot in, and states with its signature for which principal.

package actionrpc

import (
	"context"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// gatewayKey is the context key of a request that a gateway has passed on.
type gatewayKey struct{}

func viaGateway(ctx context.Context) bool { return ctx.Value(gatewayKey{}) != nil }

// ServeGateway answers a request that a gateway of a fleet passes on. The statement in it must be for the owner of LangBot's sessions.
func (s *Server) ServeGateway(w http.ResponseWriter, r *http.Request) {
	pass, err := s.cfg.Gate.IdentifyLangBot(r.Header.Values(access.HeaderGateway), r.Method, r.RequestURI)
	if err == nil {
		err = s.actsForOwner(&pass)
	}
	if err != nil {
		w.Header().Set(wire.HeaderRefused, err.Error())
		wire.Reply(w, http.StatusForbidden, map[string]string{"message": err.Error()})
		return
	}
	ctx, release := s.cfg.Gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		now, err := s.cfg.Gate.ReassertedPass(&pass)
		if err == nil {
			err = s.actsForOwner(&now)
		}
		return now.Until, err
	})
	defer release()
	s.serve(w, r.WithContext(context.WithValue(ctx, gatewayKey{}, true)))
}

// actsForOwner refuses a gateway whose caller does not own the sessions here, or may make none.
func (s *Server) actsForOwner(pass *access.Pass) error {
	switch {
	case pass.Name != s.cfg.Principal:
		return fault.Field("principal", pass.Name, s.cfg.Principal+", which is langbot.principal of this node").Of(fault.Denied)
	case !pass.Is(access.User):
		return fault.Field("role", pass.Role.String(), access.User.String()+" or more").Of(fault.Denied)
	}
	return nil
}
