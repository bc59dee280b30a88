// SPDX-License-Identifier: Apache-2.0

// The gate authenticates every call, and ends calls whose caller loses its role while they run: by a reload, or
// when a token or grant expires.

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

// GateConfig is what the gate reads from box.toml.
type GateConfig struct {
	Access     Config
	Principals map[string]Rule
	// Open lets in callers that come over TCP without a token, as the principal Guest with the default role.
	Open bool
	// Fleet says which gateways may speak for whom.
	Fleet Fleet
	// Revoked is a file of lists of revoked certificates (PEM); "": none is.
	Revoked string
}

// Guest is the principal of who comes over TCP without a token, where that is allowed.
const Guest = "http:guest"

// Credential is the name of the file of tokens among the credentials that systemd lends boxd (systemd.exec(5)).
const Credential = "boxd.tokens"

// State is a configuration that is in order.
type State struct {
	rules  *Table
	tokens *Tokens
	open   bool
	Loud   []string // what an operator should hear about it

	node     string             // what this node is called in its fleet
	gateways map[string]Gateway // that may speak for others

	revoked *revocations
}

// Prepare reads what a configuration names: users, groups and tokens. credentials is the directory systemd has
// lent, "" if it has none.
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
			loud = append(loud, "the token "+t.Name+" holds for nobody: there is no table [principals."+t.Principal+"]")
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

// Person finds whom somebody has written: as a table [principals.NAME] is called, as "uid:N", or as a user of this host is.
// uid is NoUser if that is no user.
func (s *State) Person(written string) (name string, uid uint32, ok bool) {
	if written == Guest {
		return Guest, NoUser, true
	}
	return s.rules.Person(written)
}

// Credentials is the directory of systemd's credentials, "" if there is none.
func Credentials() string { return os.Getenv("CREDENTIALS_DIRECTORY") }

// Gate knows who may come in.
type Gate struct {
	state  atomic.Pointer[State]
	grants *Grants
	log    *slog.Logger
	now    func() time.Time
	since  time.Time // when it was made: what was asserted before may have been used

	mu      sync.Mutex
	visits  map[*visit]struct{}
	nonces  nonces // guarded by mu
	reviews atomic.Uint64

	refusals refusals
}

// NewGate returns a gate. The grants tell it of their changes.
func NewGate(state *State, store *Grants, log *slog.Logger) *Gate {
	g := &Gate{grants: store, log: log, now: time.Now, since: time.Now(), visits: map[*visit]struct{}{}}
	g.state.Store(state)
	store.OnChange(g.review)
	return g
}

// Use puts another configuration in force, for calls that are under way too.
func (g *Gate) Use(state *State) {
	g.state.Store(state)
	g.review()
}

// Grants are the roles that somebody has for a time.
func (g *Gate) Grants() *Grants { return g.grants }

// Knows reports whether somebody may be called so.
func (g *Gate) Knows(name string) bool { return g.state.Load().rules.Knows(name) }

// Person is the name of the principal that somebody has written, see State.Person, or what was written if that is nobody.
func (g *Gate) Person(written string) string {
	if name, _, ok := g.state.Load().Person(written); ok {
		return name
	}
	return written
}

// Peer is the other end of a connection, as the kernel knows it.
type Peer struct {
	Local    bool // it has come over the Unix socket, and so has ids
	UID, GID uint32
	Groups   []uint32
	PID      int // the process that has connected; another may have its id since
	// TLS says that it has come by TLS, and so from any host; Certificates are the one it has shown and those that have signed it, up
	// to an authority of ours, nil if it has shown none.
	TLS          bool
	Certificates []*x509.Certificate
}

// Pass is who makes a call.
type Pass struct {
	Principal
	Token string    // the name of the token or certificate it has shown; "": none
	Until time.Time // when it may be somebody else; zero: not by itself
	scope *Token
	count uint64 // of reviews, when it was made

	assertion *Assertion // by which it was let in; nil: by none
}

// Allows reports whether the pass is for a route at all. That is no question of roles: a token may be for some
// routes alone.
func (p *Pass) Allows(pattern string) bool { return p.scope == nil || p.scope.Allows(pattern) }

// Anonymous reports whether who calls has said nothing of itself.
func (p *Pass) Anonymous() bool { return p.Name == "" }

// scheme begins the value of the header Authorization, in any case (RFC 9110).
const scheme = "bearer "

// unknown is what everybody hears whose credentials do not hold, whatever is wrong with them.
func unknown() error {
	return fault.Errorf(fault.Unauthenticated, "authentication failed: missing, unknown, expired or revoked token").
		WithHint("pass it with --token, BOXD_TOKEN or BOXD_TOKEN_FILE; the Unix socket of boxd needs no token")
}

// Identify tells who makes a call over a connection with these values of the header Authorization. Without any,
// who has come over the Unix socket is who the kernel says, who has shown a certificate is whom that names, and who has come over
// TCP is nobody: a pass without a name and role, unless the gate is open, which is for the loopback.
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
		who, ok := s.rules.OfName(t.Principal)
		if !ok {
			g.refusals.note(g.log, g.now(), "the token "+t.Name+" is of nobody")
			return Pass{}, unknown()
		}
		p = Pass{Principal: who, Token: t.Name, Until: t.Expires, scope: t}
	case peer.Local:
		p.Principal = s.rules.OfUser(peer.UID, peer.GID, peer.Groups)
	case len(peer.Certificates) > 0:
		lists, changed := s.revoked.now(g.log)
		if changed {
			time.AfterFunc(0, g.review) // not here: a review may be what asks
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

// User is the name of the principal of who has come over the Unix socket, whatever that may do.
func (g *Gate) User(peer *Peer) string {
	return g.state.Load().rules.OfUser(peer.UID, peer.GID, peer.Groups).Name
}

// IsOut reports whether somebody who had something once may not do anything any more. Who has no name any more, as a table
// is gone, is out too, unless a user of the host.
func (g *Gate) IsOut(who Principal) bool {
	now, ok := g.state.Load().now(who)
	if grant, given := g.grants.Of(who.Name); given && grant.Role > now.Role {
		return false
	}
	return !ok || now.Role == 0
}

// IsOut reports the same of a state that is in force nowhere, as if there were no grants.
func (s *State) IsOut(who Principal) bool {
	now, ok := s.now(who)
	return !ok || now.Role == 0
}

// Renamed reports by which name a user of the host would come who had something under another, as a table of [principals] is
// about it, or no more.
func (s *State) Renamed(who Principal) (name string, ok bool) {
	now, ok := s.now(who)
	return now.Name, ok && now.Name != who.Name
}

// now is who somebody is now who had something once. Without ok it is nobody any more.
func (s *State) now(who Principal) (now Principal, ok bool) {
	rules := s.rules
	now, ok = rules.OfName(who.Name)
	if uid, isUser := UserOf(who.Name); isUser {
		now, ok = rules.OfUser(uid, who.GID, who.Groups), true
	} else if !ok && who.UID != NoUser {
		now, ok = rules.OfUser(who.UID, who.GID, who.Groups), true
	}
	if who.Name == Guest {
		now, ok = Principal{Name: Guest, Role: rules.Usual()}, true
	}
	return now, ok
}

// Reauthenticate tells who somebody is now who was let in before, by the name of the token or certificate that was shown, or with
// "" as the user the kernel knew. Somebody who would not be let in now is nobody.
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
		if who, ok := s.rules.OfName(t.Principal); ok {
			p = Pass{Principal: who, Token: t.Name, Until: t.Expires, scope: t}
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

// raise gives a pass the role that was granted for a time, and takes what its token does not have.
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

// Unknown is the refusal of who has to be somebody and is nobody.
func (g *Gate) Unknown() error { return unknown() }

// token is the one that was shown, or why there is none.
func (s *State) token(authorization []string, now time.Time) (*Token, string) {
	value := authorization[0]
	if len(authorization) > 1 || len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return nil, "what was shown is no bearer token"
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

// refusals keeps a flood of refusals out of the log: one line a second, with the number of those before it.
type refusals struct {
	mu     sync.Mutex
	last   time.Time
	unsaid int
}

func (r *refusals) note(log *slog.Logger, now time.Time, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.last) < time.Second {
		r.unsaid++
		return
	}
	log.Warn("authentication failed", "reason", why, "others_unsaid", r.unsaid)
	r.last, r.unsaid = now, 0
}

// visit is a call that was let in.
type visit struct {
	mu             sync.Mutex
	reauthenticate func() (until time.Time, err error)
	end            context.CancelCauseFunc
	timer          *time.Timer
	left           bool
}

// Watch asks again about a call whenever it may have another answer: after a change, and when the time of its pass
// is over. The context ends with the error of that question. leave must be called when the call has ended.
func (g *Gate) Watch(ctx context.Context, pass *Pass, again func() (time.Time, error)) (watched context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	v := &visit{reauthenticate: again, end: end}
	g.mu.Lock()
	g.visits[v] = struct{}{}
	g.mu.Unlock()
	v.mu.Lock()
	v.wait(pass.Until)
	v.mu.Unlock()
	if g.reviews.Load() != pass.count { // that one did not know of this call
		v.check()
	}
	return ctx, func() {
		g.mu.Lock()
		delete(g.visits, v)
		g.mu.Unlock()
		v.mu.Lock()
		v.left = true
		if v.timer != nil {
			v.timer.Stop()
		}
		v.mu.Unlock()
		end(nil)
	}
}

// check asks about a call.
func (v *visit) check() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left {
		return
	}
	until, err := v.reauthenticate()
	if err != nil {
		v.end(err)
		return
	}
	v.wait(until)
}

// wait asks again at a time. Where the clock jumps, a new pass is asked for soon enough: every request is.
func (v *visit) wait(until time.Time) {
	if v.timer != nil {
		v.timer.Stop()
	}
	if !until.IsZero() {
		v.timer = time.AfterFunc(time.Until(until)+time.Millisecond, v.check)
	}
}

// review asks about all calls.
func (g *Gate) review() {
	g.reviews.Add(1)
	g.mu.Lock()
	list := make([]*visit, 0, len(g.visits))
	for v := range g.visits {
		list = append(list, v)
	}
	g.mu.Unlock()
	for _, v := range list {
		v.check()
	}
}

// Named is the principal of a table [principals.NAME], with the role it has now.
func (g *Gate) Named(name string) (p Principal, ok bool) {
	if p, ok = g.state.Load().rules.OfName(name); !ok {
		return p, false
	}
	if grant, given := g.grants.Of(name); given && grant.Role > p.Role {
		p.Role, p.Rule = grant.Role, "grant"
	}
	return p, true
}
