// SPDX-License-Identifier: Apache-2.0

// The gate authenticates every call, and ends a running call when its caller loses its role: by a reload, or when a token or
// grant expires.

package access

import (
	"context"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// GateConfig is the gate's part of box.toml.
type GateConfig struct {
	Access     Config
	Principals map[string]Rule
	// Open lets in TCP callers without a token, as the principal Guest with the default role.
	Open bool
	// Fleet says which gateways may speak for which principals.
	Fleet Fleet
	// Revoked is a file of certificate revocation lists (PEM); "": none.
	Revoked string
}

// Guest is the principal of TCP callers without a token, where they are allowed.
const Guest = "http:guest"

// Credential is the name of the token file among the credentials that systemd passes to boxd (systemd.exec(5)).
const Credential = "boxd.tokens"

// State is a validated configuration.
type State struct {
	rules  *Table
	tokens *Tokens
	open   bool
	Loud   []string // warnings for the operator

	node     string             // this node's name in its fleet
	gateways map[string]Gateway // that may speak for others

	revoked *revocations
}

// Prepare resolves the users, groups and tokens that a configuration names. credentials is systemd's credentials directory, "" if
// there is none.
func Prepare(c *GateConfig, host HostLookup, credentials string) (*State, error) {
	if err := ValidateRules(c.Access, c.Principals); err != nil {
		return nil, err
	}
	table, loud := ResolveRules(c.Access, c.Principals, host)
	set := &Tokens{}
	if c.Access.Tokens != "" {
		var err error
		if set, err = ReadTokens(c.Access.Tokens, false); err != nil {
			return nil, err
		}
	}
	if credentials != "" {
		fromCredential, err := ReadTokens(filepath.Join(credentials, Credential), true)
		if err == nil {
			set, err = JoinTokens(set, fromCredential)
		}
		if err != nil {
			return nil, err
		}
	}
	now := time.Now()
	set.Each(func(t *Token) {
		if _, ok := table.OfName(t.Principal); !ok {
			loud = append(loud, "the token "+t.Name+" is unusable: there is no table [principals."+t.Principal+"]")
		}
		if t.Over(now) {
			loud = append(loud, "the token "+t.Name+" has expired")
		}
	})
	gateways, err := readGateways(c.Fleet.Gateways)
	if err != nil {
		return nil, err
	}
	lists, err := readRevocations(c.Revoked)
	if err != nil {
		return nil, err
	}
	return &State{rules: table, tokens: set, open: c.Open, Loud: loud, node: c.Fleet.NodeName(), gateways: gateways, revoked: lists}, nil
}

// Person resolves a name as a person writes it: the NAME of a table [principals.NAME], "uid:N", or a user name of this host. uid
// is NoUser if the principal is no host user.
func (s *State) Person(written string) (name string, uid uint32, ok bool) {
	if written == Guest {
		return Guest, NoUser, true
	}
	return s.rules.Person(written)
}

// Credentials is the directory of systemd's credentials, "" if there is none.
func Credentials() string { return os.Getenv("CREDENTIALS_DIRECTORY") }

// Gate authenticates callers.
type Gate struct {
	state  atomic.Pointer[State]
	grants *Grants
	log    *slog.Logger
	now    func() time.Time
	since  time.Time // when it was made: earlier assertions may have been used

	mu           sync.Mutex
	watchedCalls map[*watchedCall]struct{}
	nonces       nonces // guarded by mu
	reviews      atomic.Uint64

	refusals refusals
}

// NewGate returns a gate, which store notifies of changes to grants.
func NewGate(state *State, store *Grants, log *slog.Logger) *Gate {
	g := &Gate{grants: store, log: log, now: time.Now, since: time.Now(), watchedCalls: map[*watchedCall]struct{}{}}
	g.state.Store(state)
	store.OnChange(g.review)
	return g
}

// Use puts another configuration in force, also for running calls.
func (g *Gate) Use(state *State) {
	g.state.Store(state)
	g.review()
}

// Grants returns the temporary roles of principals.
func (g *Gate) Grants() *Grants { return g.grants }

// Knows reports whether a principal may have this name.
func (g *Gate) Knows(name string) bool { return g.state.Load().rules.Knows(name) }

// Person returns the principal's name for what a person wrote (see State.Person), or the text itself if it names none.
func (g *Gate) Person(written string) string {
	if name, _, ok := g.state.Load().Person(written); ok {
		return name
	}
	return written
}

// Peer is the other end of a connection, as the kernel knows it.
type Peer struct {
	Local    bool // over the Unix socket, so uid and groups are known
	UID, GID uint32
	Groups   []uint32
	PID      int // the process that connected; its pid may have been reused since
	// TLS says that the connection uses TLS, so the peer may be any host. Certificates is the chain it presented, up to one of
	// our CAs, nil without one.
	TLS          bool
	Certificates []*x509.Certificate
}

// Pass is the identity of a call's caller.
type Pass struct {
	Principal
	Token string    // name of its token or certificate; "": none
	Until time.Time // when to authenticate again; zero: only after a change
	scope *Token
	count uint64 // of reviews when it was made

	assertion *Assertion // that let it in; nil: none
}

// Allows reports whether the pass covers a route at all. This is independent of the role: a token may be limited to some routes.
func (p *Pass) Allows(pattern string) bool { return p.scope == nil || p.scope.Allows(pattern) }

// Anonymous reports whether the caller has presented no identity.
func (p *Pass) Anonymous() bool { return p.Name == "" }

// scheme begins the value of the header Authorization, in any case (RFC 9110).
const scheme = "bearer "

// unknown is the error for any invalid credentials, whatever is wrong with them.
func unknown() error {
	return fault.Errorf(fault.Unauthenticated, "authentication failed: missing, unknown, expired or revoked token").
		WithHint("pass it with --token, BOXD_TOKEN or BOXD_TOKEN_FILE; the Unix socket of boxd needs no token")
}

// Identify authenticates a call by its connection and the values of its Authorization header. Without a header, a caller on the
// Unix socket is the user the kernel reports, and a caller with a certificate is whom that names. A caller on TCP is anonymous, a
// pass without name and role, unless the gate is open, which is for loopback.
func (g *Gate) Identify(peer *Peer, authorization []string) (Pass, error) {
	count := g.reviews.Load()
	s := g.state.Load()
	var p Pass
	switch {
	case len(authorization) > 0:
		t, why := s.token(authorization, g.now())
		if t == nil {
			g.refusals.note(g.log, g.now(), why)
			return Pass{}, unknown()
		}
		principal, ok := s.rules.OfName(t.Principal)
		if !ok {
			g.refusals.note(g.log, g.now(), "the token "+t.Name+" is unusable")
			return Pass{}, unknown()
		}
		p = Pass{Principal: principal, Token: t.Name, Until: t.Expires, scope: t}
	case peer.Local:
		p.Principal = s.rules.OfUser(peer.UID, peer.GID, peer.Groups)
	case len(peer.Certificates) > 0:
		lists, changed := s.revoked.now(g.log)
		if changed {
			time.AfterFunc(0, g.review) // not here: a review may be the caller
		}
		var err error
		if p, err = s.certified(peer.Certificates, lists, g.now()); err != nil {
			g.refusals.note(g.log, g.now(), err.Error())
			return Pass{}, err
		}
	case s.open && !peer.TLS:
		p.Principal = Principal{Name: Guest, UID: NoUser, GID: NoUser, Role: s.rules.Usual(), Rule: "daemon.http_insecure"}
	default:
		return Pass{}, nil
	}
	return g.raise(p, count), nil
}

// User returns the principal name of a caller on the Unix socket, whatever its role.
func (g *Gate) User(peer *Peer) string {
	return g.state.Load().rules.OfUser(peer.UID, peer.GID, peer.Groups).Name
}

// IsOut reports whether a former owner has lost all access. A principal whose table is gone is out too, unless it is a host user.
func (g *Gate) IsOut(principal Principal) bool {
	now, ok := g.state.Load().now(principal)
	if grant, given := g.grants.Of(principal.Name); given && grant.Role > now.Role {
		return false
	}
	return !ok || now.Role == 0
}

// IsOut reports the same for a state that is not in force, ignoring grants.
func (s *State) IsOut(principal Principal) bool {
	now, ok := s.now(principal)
	return !ok || now.Role == 0
}

// Renamed returns a host user's current principal name if it differs from the one in principal, because a table of [principals] now
// applies to that user, or no longer does.
func (s *State) Renamed(principal Principal) (name string, ok bool) {
	now, ok := s.now(principal)
	return now.Name, ok && now.Name != principal.Name
}

// now returns the current principal for a former one; ok is false if there is none any more.
func (s *State) now(principal Principal) (now Principal, ok bool) {
	rules := s.rules
	now, ok = rules.OfName(principal.Name)
	if uid, isUser := UserOf(principal.Name); isUser {
		now, ok = rules.OfUser(uid, principal.GID, principal.Groups), true
	} else if !ok && principal.UID != NoUser {
		now, ok = rules.OfUser(principal.UID, principal.GID, principal.Groups), true
	}
	if principal.Name == Guest {
		now, ok = Principal{Name: Guest, Role: rules.Usual()}, true
	}
	return now, ok
}

// Reauthenticate identifies again a caller that was let in before, by the name of the token or certificate it presented, or with
// "" as the user the kernel reported. A caller that would not be let in now gets an empty pass.
func (g *Gate) Reauthenticate(peer *Peer, token string) Pass {
	if token == "" && peer.Local {
		p, err := g.Identify(peer, nil)
		if err != nil {
			return Pass{}
		}
		return p
	}
	count, s, now := g.reviews.Load(), g.state.Load(), g.now()
	var p Pass
	s.tokens.Each(func(t *Token) {
		if t.Name != token || t.Over(now) {
			return
		}
		if principal, ok := s.rules.OfName(t.Principal); ok {
			p = Pass{Principal: principal, Token: t.Name, Until: t.Expires, scope: t}
		}
	})
	if named, ok := s.recertified(token); ok {
		p = named
	}
	if p.Anonymous() {
		return p
	}
	return g.raise(p, count)
}

// raise adds the role of a temporary grant to a pass, and then reduces it to what its token allows.
func (g *Gate) raise(p Pass, count uint64) Pass {
	if grant, ok := g.grants.Of(p.Name); ok && grant.Role > p.Role {
		p.Role, p.Rule = grant.Role, "grant"
		if p.Until.IsZero() || grant.Until.Before(p.Until) {
			p.Until = grant.Until
		}
	}
	if p.scope != nil && p.scope.Role != 0 && p.scope.Role < p.Role {
		p.Role, p.Rule = p.scope.Role, "the token "+p.Token
	}
	p.count = count
	return p
}

// Unknown returns the error for a caller that must authenticate and has not.
func (g *Gate) Unknown() error { return unknown() }

// token returns the presented token, or why there is none.
func (s *State) token(authorization []string, now time.Time) (*Token, string) {
	value := authorization[0]
	if len(authorization) > 1 || len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return nil, "the header has no bearer token"
	}
	t := s.tokens.Find(strings.TrimSpace(value[len(scheme):]))
	switch {
	case t == nil:
		return nil, "the token is not known"
	case t.Over(now):
		return nil, "the token " + t.Name + " has expired"
	}
	return t, ""
}

// refusals limits a flood of refusals to one log line a second, which has the number of those before it.
type refusals struct {
	mu         sync.Mutex
	last       time.Time
	unreported int
}

func (r *refusals) note(log *slog.Logger, now time.Time, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.last) < time.Second {
		r.unreported++
		return
	}
	log.Warn("authentication failed", "reason", why, "others_unsaid", r.unreported)
	r.last, r.unreported = now, 0
}

// watchedCall is a call that was let in.
type watchedCall struct {
	mu             sync.Mutex
	reauthenticate func() (until time.Time, err error)
	cancel         context.CancelCauseFunc
	timer          *time.Timer
	left           bool
}

// Watch checks a running call again whenever the result may differ: after a change, and when its pass expires. The context is
// cancelled with the error of that check. release must be called when the call has ended.
func (g *Gate) Watch(ctx context.Context, pass *Pass, again func() (time.Time, error)) (watchedCtx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	v := &watchedCall{reauthenticate: again, cancel: cancel}
	g.mu.Lock()
	g.watchedCalls[v] = struct{}{}
	g.mu.Unlock()
	v.mu.Lock()
	v.wait(pass.Until)
	v.mu.Unlock()
	if g.reviews.Load() != pass.count { // that review missed this call
		v.check()
	}
	return ctx, func() {
		g.mu.Lock()
		delete(g.watchedCalls, v)
		g.mu.Unlock()
		v.mu.Lock()
		v.left = true
		if v.timer != nil {
			v.timer.Stop()
		}
		v.mu.Unlock()
		cancel(nil)
	}
}

// check authenticates a call again.
func (v *watchedCall) check() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left {
		return
	}
	until, err := v.reauthenticate()
	if err != nil {
		v.cancel(err)
		return
	}
	v.wait(until)
}

// wait schedules a check. Where the clock jumps ahead, a request under way may go on that much longer; every new one is authenticated.
func (v *watchedCall) wait(until time.Time) {
	if v.timer != nil {
		v.timer.Stop()
	}
	if !until.IsZero() {
		v.timer = time.AfterFunc(time.Until(until)+time.Millisecond, v.check)
	}
}

// review checks all calls.
func (g *Gate) review() {
	g.reviews.Add(1)
	g.mu.Lock()
	list := make([]*watchedCall, 0, len(g.watchedCalls))
	for v := range g.watchedCalls {
		list = append(list, v)
	}
	g.mu.Unlock()
	for _, v := range list {
		v.check()
	}
}

// Named returns the principal of a table [principals.NAME], with its present role.
func (g *Gate) Named(name string) (p Principal, ok bool) {
	if p, ok = g.state.Load().rules.OfName(name); !ok {
		return p, false
	}
	if grant, given := g.grants.Of(name); given && grant.Role > p.Role {
		p.Role, p.Rule = grant.Role, "grant"
	}
	return p, true
}
