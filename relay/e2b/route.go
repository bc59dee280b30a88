// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay"
)

// Ports of a sandbox that are none of its programs'.
const (
	portEnvd = 49983 // processes and files
	portCode = 49999 // code
)

// destination is what a request is for: the control plane, or a port of a sandbox.
type destination struct {
	control bool
	sandbox string // its id; "": the request does not name it, and a token or signature tells
	port    int
	host    bool // the host name says so
}

// sandboxID is what ids of sandboxes look like: they are part of a label of a host name.
var sandboxID = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// route tells what a request is for. Host names decide, then headers, then the path, since signed addresses have neither.
func (s *Server) route(r *http.Request) (destination, error) {
	if to, ok := s.portHost(r.Host); ok {
		return to, nil
	}
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); !ok || at.IP.IsLoopback() {
		if err := relay.FromHere(r); err != nil {
			return destination{}, err
		}
	}
	id, port := r.Header.Get(headerSandbox), r.Header.Get(headerPort)
	if id != "" || port != "" {
		return headerDestination(id, port)
	}
	switch path := agentPath(r.URL.Path); {
	case isAgent(path), path == "/health" && r.Header.Get(headerAccess) != "",
		strings.HasPrefix(path, "/process.Process/"), strings.HasPrefix(path, "/filesystem.Filesystem/"), path == filesPath, path == "/envs", path == "/metrics" && r.Header.Get(headerAccess) != "":
		return destination{port: portEnvd}, nil
	case path == "/execute", path == "/contexts", strings.HasPrefix(path, "/contexts/"):
		return destination{port: portCode}, nil
	}
	return destination{control: true}, nil
}

func headerDestination(id, port string) (destination, error) {
	to := destination{sandbox: id, port: portEnvd}
	if id == "" || !sandboxID.MatchString(id) {
		return to, fault.Field(headerSandbox, id, "the id of a sandbox: lower-case letters and digits")
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return to, fault.Field(headerPort, port, "a port, 1 to 65535")
		}
		to.port = int(n)
	}
	return to, nil
}

// portHost reads a host name PORT-ID.DOMAIN.
func (s *Server) portHost(host string) (to destination, ok bool) {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	domain, _, err := net.SplitHostPort(s.domain())
	if err != nil {
		domain = s.domain()
	}
	label, ok := strings.CutSuffix(strings.ToLower(name), "."+strings.ToLower(domain))
	if !ok {
		return to, false
	}
	port, id, ok := strings.Cut(label, "-")
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 || !sandboxID.MatchString(id) {
		return to, false
	}
	return destination{sandbox: id, port: int(n), host: true}, true
}

// domain is that below which the ports of sandboxes have names.
func (s *Server) domain() string {
	if s.cfg.Domain != "" {
		return s.cfg.Domain
	}
	if _, port, err := net.SplitHostPort(s.cfg.Listen); err == nil {
		return net.JoinHostPort("localhost", port)
	}
	return "localhost"
}
