// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"net/http"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay"
)

// port hands a request on to a program that listens in the sandbox. It never sees what proves the right to that.
func (s *Server) port(w http.ResponseWriter, r *http.Request, sb *sandbox, port int) {
	leave, err := sb.limits.Stream()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer leave()
	err = relay.ForwardToPort(w, r, relay.PortForward{Ports: s.cfg.Sup.Ports, Session: sb.Session, Port: uint16(port), Log: s.cfg.Log, Hide: func(out *http.Request) {
		for _, name := range []string{headerAccess, headerTraffic, headerSandbox, headerPort, headerKey} {
			out.Header.Del(name)
		}
	}})
	if err == nil {
		return
	}
	if kind := fault.KindOf(err); kind == fault.Unavailable || kind == fault.Conflict { // nothing listens
		err = &answerError{Code: http.StatusBadGateway, Message: closedMessage, SandboxID: sb.ID, Port: port}
	}
	s.fail(w, r, err)
}
