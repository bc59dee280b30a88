// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net"
	"net/http"

	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// route tells what a request is for. Host names decide, then headers, then the path.
func (s *Server) route(r *http.Request) (wire.Destination, error) {
	if to, ok := wire.PortHost(r.Host, s.domain(r.Context())); ok {
		return to, nil
	}
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); gatewayOf(r.Context()) == nil && (!ok || at.IP.IsLoopback()) {
		if err := access.FromHere(r.Header.Values("Origin"), r.Host); err != nil {
			return wire.Destination{}, err
		}
	}
	return wire.Route(r)
}

// domain is that below which the ports of sandboxes have names: a gateway's, for who comes by one.
func (s *Server) domain(ctx context.Context) string {
	if g := gatewayOf(ctx); g != nil && g.domain != "" {
		return g.domain
	}
	return wire.Domain(s.cfg.Domain, s.cfg.Listen)
}
