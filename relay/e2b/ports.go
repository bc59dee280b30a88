// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"net/http"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// port hands a request on to a program that listens in the sandbox. It never sees what proves the right to that.
func (s *Server) port(w http.ResponseWriter, r *http.Request, sb *sandbox, port int) {
	release, err := sb.limits.Stream()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer release()
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || !strings.HasPrefix(r.RequestURI, "/") {
		s.fail(w, r, fault.Field("request", r.Method+" "+r.RequestURI, "a path, with a method other than CONNECT and TRACE"))
		return
	}
	r.Body = &timedBody{ReadCloser: r.Body, conn: http.NewResponseController(w), release: func() {}}
	err = relay.ForwardToPort(w, r, relay.PortForward{Ports: s.cfg.Sup.Ports, Session: sb.Session, Port: uint16(port), Log: s.cfg.Log, Hide: func(out *http.Request) {
		for _, name := range []string{wire.HeaderAccess, wire.HeaderTraffic, wire.HeaderSandbox, wire.HeaderPort, wire.HeaderKey} {
			out.Header.Del(name)
		}
		for _, value := range out.Header.Values("Authorization") {
			if strings.Contains(value, access.TokenPrefix) || strings.Contains(strings.ToLower(value), wire.HexPrefix) { // of the control plane, shown by mistake
				out.Header.Del("Authorization")
			}
		}
	}})
	if err == nil {
		return
	}
	if kind := fault.KindOf(err); kind == fault.Unavailable || kind == fault.Conflict { // nothing listens
		err = &wire.Error{Code: http.StatusBadGateway, Message: closedMessage, SandboxID: sb.ID, Port: port}
	}
	s.fail(w, r, err)
}
