// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Fleet is the table [fleet] of box.toml. boxd reads which gateways may speak for which principals; the fleet's servers and this
// host's name in it are for boxfleet, which asks boxd.
type Fleet struct {
	Socket      string             `toml:"socket"`      // for boxfleet; its clients must send an assertion; "": no fleet
	Name        string             `toml:"name"`        // of this node; "": the host's name
	Servers     []string           `toml:"servers"`     // of NATS
	Credentials string             `toml:"credentials"` // file for NATS
	CA          string             `toml:"ca"`          // CA file for the servers' certificates; "": the host's CAs
	Listen      string             `toml:"listen"`      // HOST:PORT where gateways connect to boxfleet without NATS between; "": nowhere
	Labels      map[string]string  `toml:"labels,omitempty"`
	Gateways    map[string]Gateway `toml:"gateways,omitempty"`
}

// Gateway is a table [fleet.gateways.NAME]: what a gateway may do on this node.
type Gateway struct {
	Key        string   `toml:"key"`        // Ed25519, 32 bytes in base64: what boxfleet key prints
	Role       Role     `toml:"role"`       // the highest role of its callers here
	Principals []string `toml:"principals"` // that it may speak for; a trailing * matches any suffix
	Images     bool     `toml:"images"`     // it may import images of the fleet here when a session needs one

	public ed25519.PublicKey
}

// DefaultFleet returns the built-in configuration.
func DefaultFleet() Fleet { return Fleet{Servers: []string{}} }

// maxNode is the longest node name, in bytes.
const maxNode = 63

// NodeName returns this node's name in the fleet.
func (f *Fleet) NodeName() string {
	if f.Name != "" {
		return f.Name
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	name, _, _ = strings.Cut(name, ".")
	return strings.ToLower(name)
}

// ValidNode reports whether a node may have this name: it must be a valid DNS label, since it becomes part of NATS subjects.
func ValidNode(name string) bool {
	return name != "" && len(name) <= maxNode && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
}

// Validate reports everything that is wrong.
func (f *Fleet) Validate() error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("fleet.%s = %v: must be %s", key, value, allowed))
	}
	if f.Socket != "" && !strings.HasPrefix(f.Socket, "/") {
		bad("socket", strconv.Quote(f.Socket), "an absolute path, or empty")
	}
	if f.Name != "" && !ValidNode(f.Name) {
		bad("name", strconv.Quote(f.Name), fmt.Sprintf("at most %d characters of a-z, 0-9 and -, or empty for the name of the host", maxNode))
	}
	if f.Name == "" && f.Socket != "" && !ValidNode(f.NodeName()) {
		bad("name", `""`, fmt.Sprintf("set, since the name of this host, %q, has other characters than a-z, 0-9 and -", f.NodeName()))
	}
	for _, s := range f.Servers {
		if u, err := url.Parse(s); err != nil || (u.Scheme != "tls" && u.Scheme != "nats") || u.Host == "" {
			bad("servers", strconv.Quote(s), `addresses such as "tls://nats.example.org:4222"`)
		} else if u.Scheme == "nats" && !isLoopbackHost(u.Hostname()) {
			bad("servers", strconv.Quote(s), "tls:// for a server on another host")
		}
	}
	for key, path := range map[string]string{"credentials": f.Credentials, "ca": f.CA} {
		if path != "" && !strings.HasPrefix(path, "/") {
			bad(key, strconv.Quote(path), "an absolute path, or empty")
		}
	}
	if f.Listen != "" && !reachable(f.Listen) {
		bad("listen", strconv.Quote(f.Listen), `the address of this host for gateways, such as "10.0.0.5:7443", or empty`)
	}
	for name, value := range f.Labels {
		if !validName(name) || len(value) > maxName || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			bad("labels", fmt.Sprintf("{%s = %q}", name, value), fmt.Sprintf("names of letters, digits and . _ @ - with values of at most %d characters without spaces", maxName))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Gateways)) {
		g := f.Gateways[name]
		if !validName(name) {
			bad("gateways."+name, "a table", fmt.Sprintf("named with at most %d letters, digits, and . _ @ - after the first", maxName))
		}
		if _, err := ParseFleetKey(g.Key); err != nil {
			bad("gateways."+name+".key", strconv.Quote(g.Key), "the key that boxfleet key prints, 32 bytes in base64")
		}
		for _, p := range g.Principals {
			if start, open := strings.CutSuffix(p, "*"); !validName(start) && (!open || start != "") {
				bad("gateways."+name+".principals", strconv.Quote(p), "names of tables [principals.NAME], or the beginning of such names with * at the end")
			}
		}
	}
	return errors.Join(errs...)
}

// reachable reports whether somebody else can connect to what is listened at: a host, or its address, with a port.
func reachable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, " /*") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	ip := net.ParseIP(host)
	return err == nil && n > 0 && (ip == nil || !ip.IsUnspecified() && !ip.IsMulticast())
}

func isLoopbackHost(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// ParseFleetKey reads the public key of a gateway.
func ParseFleetKey(text string) (ed25519.PublicKey, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("key %q: must be 32 bytes in base64", text)
	}
	return key, nil
}

// FleetKey formats a key for ParseFleetKey.
func FleetKey(key ed25519.PublicKey) string { return base64.StdEncoding.EncodeToString(key) }

// actsFor reports whether a gateway may speak for a principal.
func (g *Gateway) actsFor(name string) bool {
	return slices.ContainsFunc(g.Principals, func(p string) bool {
		start, open := strings.CutSuffix(p, "*")
		return open && strings.HasPrefix(name, start) || p == name
	})
}

// SpeaksFor reports whether some gateway may speak for a principal on this node.
func (f *Fleet) SpeaksFor(name string) bool {
	for _, g := range f.Gateways {
		if g.actsFor(name) {
			return true
		}
	}
	return false
}

// readGateways parses the keys of the gateways.
func readGateways(tables map[string]Gateway) (map[string]Gateway, error) {
	all := map[string]Gateway{}
	for name, g := range tables {
		var err error
		if g.public, err = ParseFleetKey(g.Key); err != nil {
			return nil, fmt.Errorf("fleet.gateways.%s: %w", name, err)
		}
		all[name] = g
	}
	return all, nil
}

// fleetToken is Pass.Token for a caller of a gateway. No token of this host has such a name.
func fleetToken(a *Assertion) string { return FleetToken(a.Gateway, a.Token) }

// FleetToken is the name that a node uses for a token of a gateway.
func FleetToken(gateway, token string) string { return "fleet:" + gateway + ":" + token }

// Routes returns the routes that the caller's token allows; nil: all.
func (p *Pass) Routes() []string {
	if p.scope == nil {
		return nil
	}
	return p.scope.Routes
}

// IdentifyAsserted authenticates a request from a gateway by the values of its Authorization header. Without any, the caller is
// anonymous: a pass without a name.
func (g *Gate) IdentifyAsserted(authorization []string, method, target string) (Pass, error) {
	return g.identifyAsserted(AssertionScheme, authorization, method, target)
}

// IdentifyHolder verifies a gateway's statement that one of its tokens is valid, and returns the pass of that token. It does not
// authenticate the caller of the request. The pass has no name if the statement only identifies the gateway.
func (g *Gate) IdentifyHolder(values []string, method, target string) (Pass, error) {
	if len(values) == 0 {
		return Pass{}, unknown()
	}
	return g.identifyAsserted(holderScheme, values, method, target)
}

// IdentifyLangBot authenticates a request of LangBot's protocol by the values of HeaderGateway.
func (g *Gate) IdentifyLangBot(values []string, method, target string) (Pass, error) {
	if len(values) == 0 {
		return Pass{}, unknown()
	}
	return g.identifyAsserted(langBotScheme, values, method, target)
}

func (g *Gate) identifyAsserted(scheme string, values []string, method, target string) (Pass, error) {
	if len(values) == 0 {
		return Pass{}, nil
	}
	count, s, now := g.reviews.Load(), g.state.Load(), g.now()
	a, err := readAssertion(scheme, values, s.gateways)
	if err != nil {
		g.refusals.note(g.log, now, err.Error())
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: this node does not know the gateway").
			WithHint("the operator of the node can allow its key in [fleet.gateways.NAME] of box.toml")
	}
	bare := scheme == holderScheme && a.Principal == ""              // gains nothing when it is shown again, and any stranger makes a gateway sign one
	if err := g.fits(a, s, method, target, now, !bare); err != nil { // the gateway may see why: its signature is valid
		g.refusals.note(g.log, now, err.Error())
		return Pass{}, err
	}
	if bare {
		return Pass{}, nil
	}
	return g.asserted(a, s, count)
}

// ReassertedPass authenticates again a caller that an assertion let in. An expired assertion does not end a call that began in
// time; a gateway that may no longer speak for its caller does.
func (g *Gate) ReassertedPass(before *Pass) (Pass, error) {
	if before.assertion == nil { // no assertion was made
		return Pass{}, nil
	}
	count, s := g.reviews.Load(), g.state.Load()
	if _, ok := s.gateways[before.assertion.Gateway]; !ok {
		return Pass{}, fault.Errorf(fault.Unauthenticated, "authentication failed: this node no longer knows the gateway").
			WithHint("the configuration of the node has changed: see [fleet.gateways.NAME] of its box.toml")
	}
	return g.asserted(before.assertion, s, count)
}

// fits checks that an assertion is for this request, node and time, and with once that it was not used before.
func (g *Gate) fits(a *Assertion, s *State, method, target string, now time.Time, once bool) error {
	wrong := func(field, value, allowed string) error {
		return fault.Field(field, value, allowed).Of(fault.Unauthenticated)
	}
	switch {
	case a.Node != s.node:
		return wrong("node of the caller's identity", a.Node, s.node)
	case a.Method != method || a.Target != target:
		return wrong("request of the caller's identity", a.Method+" "+a.Target, method+" "+target)
	case a.Issued.Before(g.since) && g.since.Sub(a.Issued) > time.Millisecond:
		return wrong("issue time of the caller's identity", a.Issued.Format(time.RFC3339Nano), "after the start of boxd, "+g.since.UTC().Format(time.RFC3339Nano))
	case a.Issued.After(now.Add(assertionSkew)):
		return wrong("issue time of the caller's identity", a.Issued.Format(time.RFC3339Nano), "not after the time of this node, "+now.UTC().Format(time.RFC3339Nano))
	case !a.Expires.After(now):
		return wrong("expiry of the caller's identity", a.Expires.Format(time.RFC3339Nano), "after the time of this node, "+now.UTC().Format(time.RFC3339Nano))
	case a.Expires.Sub(a.Issued) > maxAssertionLife || a.Nonce == "" || len(a.Nonce) > maxName:
		return wrong("life of the caller's identity", a.Expires.Sub(a.Issued).String(), "at most "+maxAssertionLife.String()+", with a nonce")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if once && !g.nonces.use(a.Nonce, a.Expires, now) {
		return wrong("nonce of the caller's identity", a.Nonce, "one that was not used before")
	}
	return nil
}

// asserted returns the pass of the principal that an assertion names, with the lowest of three roles: the principal's here, the
// highest that the gateway may give, and the one it gave.
func (g *Gate) asserted(a *Assertion, s *State, count uint64) (Pass, error) {
	gateway := s.gateways[a.Gateway]
	principal, ok := s.rules.OfName(a.Principal)
	if !ok || !gateway.actsFor(a.Principal) {
		why := "it is not in fleet.gateways." + a.Gateway + ".principals of the node's box.toml"
		if !ok {
			why = "the node's box.toml has no table [principals." + a.Principal + "]"
		}
		g.refusals.note(g.log, g.now(), "the gateway "+a.Gateway+" may not speak for "+a.Principal+": "+why)
		return Pass{}, fault.Field("principal", a.Principal, "one that the gateway may speak for on this node").Of(fault.Denied).
			WithText("permission denied: the gateway %s may not speak for %s on the node %s: %s", fault.Show(a.Gateway), fault.Show(a.Principal), s.node, why)
	}
	p := g.raise(Pass{Principal: principal, Token: fleetToken(a), scope: &Token{Name: a.Token, Routes: a.Routes}, assertion: a}, count)
	if gateway.Role < p.Role {
		p.Role, p.Rule = gateway.Role, "fleet.gateways."+a.Gateway+".role"
	}
	if a.Role < p.Role {
		p.Role, p.Rule = a.Role, "the gateway "+a.Gateway
	}
	if a.Image {
		return g.importing(p, a, &gateway)
	}
	return p, nil
}

// importRoute is the one route that a gateway may use for itself.
const importRoute = "POST /v1/images"

// importing returns the pass of a gateway that imports an image, in the name of the caller who needs it: for that route alone.
func (g *Gate) importing(p Pass, a *Assertion, gateway *Gateway) (Pass, error) {
	path, _, _ := strings.Cut(a.Target, "?")
	if p.Role < User {
		return Pass{}, fault.Field("role", p.Role.String(), User.String()+" or more").Of(fault.Denied).WithText("permission denied: an image of the fleet is for callers with the %s role, %s has %q here (%s)", User, fault.Show(a.Principal), p.Role, p.Rule)
	}
	if !gateway.Images || a.Method+" "+path != importRoute {
		return Pass{}, fault.Field("fleet.gateways."+a.Gateway+".images", "false", "true").Of(fault.Denied).
			WithText("permission denied: the gateway %s may not import images on this node", fault.Show(a.Gateway)).WithHint("the operator of the node can set images = true in [fleet.gateways.%s] of its box.toml", a.Gateway)
	}
	p.Role, p.Rule = Operator, "fleet.gateways."+a.Gateway+".images"
	p.scope = &Token{Name: a.Token, Routes: []string{importRoute}}
	return p, nil
}
