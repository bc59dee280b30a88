// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Labels of the sessions that are sandboxes, beside wire.LabelTemplate. boxctl shows them too.
const (
	labelKey    = "e2b.key"    // the name of the token of boxd by which its bearers are held to be its owner
	labelClosed = "e2b.closed" // "true": its client wants no public ports
)

// sandbox is a session on behalf of whoever has proven a right to it.
type sandbox struct {
	*session.Session

	pass   access.Pass
	limits *conns.Limits
	root   bool // the request is of the user root, whom the box has

	template Template // that it was made of; empty if it is gone
}

// index knows which sandboxes there are, by their ids: requests do not name their owners.
type index struct {
	server *Server
	once   sync.Once

	mu     sync.Mutex
	owners map[string][]string // of sandboxes, by their ids, which two owners may both have
}

func newIndex(s *Server) *index { return &index{server: s, owners: map[string][]string{}} }

// fill takes in the sandboxes that an earlier boxd has made.
func (x *index) fill() {
	x.once.Do(func() {
		for _, info := range x.server.cfg.Sup.Sessions(access.Principal{}, true) {
			if info.Settings.Labels[wire.LabelTemplate] != "" && wire.ValidID(info.ID) {
				x.add(info.ID, info.Owner)
			}
		}
	})
}

func (x *index) add(id, owner string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if list := x.owners[id]; !slices.Contains(list, owner) {
		x.owners[id] = append(slices.Clone(list), owner)
	}
}

func (x *index) remove(id, owner string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(x.owners[id]), func(o string) bool { return o == owner })
	if x.owners[id] = list; len(list) == 0 {
		delete(x.owners, id)
	}
}

// find returns the living sandboxes of an id: one, unless somebody has given a session of his own the id of another's sandbox,
// which must neither hide that nor be taken for it.
func (x *index) find(id string) []*session.Session {
	x.fill()
	x.mu.Lock()
	owners := x.owners[id] // never changed, see add
	x.mu.Unlock()
	var list []*session.Session
	for _, owner := range owners {
		s, err := x.server.cfg.Sup.Session(access.Principal{Name: owner}, id)
		switch {
		case err == nil:
			list = append(list, s)
		case fault.KindOf(err) == fault.NotFound:
			x.remove(id, owner)
		}
	}
	// A session that somebody has given the id of another's sandbox is younger: ids are chosen by chance.
	slices.SortStableFunc(list, func(a, b *session.Session) int { return a.Info().Created.Compare(b.Info().Created) })
	return list
}

// isFirst reports whether a sandbox is the oldest of its id.
func (x *index) isFirst(sess *session.Session) bool {
	list := x.find(sess.ID)
	return len(list) > 0 && list[0].Owner.Name == sess.Owner.Name
}

// all are the sandboxes there are.
func (x *index) all() []*session.Session {
	x.fill()
	x.mu.Lock()
	ids := make([]string, 0, len(x.owners))
	for id := range x.owners {
		ids = append(ids, id)
	}
	x.mu.Unlock()
	var list []*session.Session
	for _, id := range ids {
		list = append(list, x.find(id)...)
	}
	return list
}

// which returns the sandbox of which fits says yes, nil if there is none. Tokens are long and random: at most one does.
func (x *index) which(fits func(*session.Session) bool) *session.Session {
	for _, s := range x.all() {
		if fits(s) {
			return s
		}
	}
	return nil
}

// named finds the sandbox that a request is for, by what it says, and tells whether it has proven a right to that.
func (s *Server) named(r *http.Request, to wire.Destination) (sess *session.Session, proven bool, err error) {
	access, traffic := r.Header.Get(wire.HeaderAccess), ""
	if to.Port != wire.PortEnvd && (to.Port != wire.PortCode || r.URL.Path != "/execute") {
		traffic = r.Header.Get(wire.HeaderTraffic)
	}
	var signature *signed
	if to.Port == wire.PortEnvd && access == "" {
		signature = signedAddress(r)
	}
	fits := func(sess *session.Session) bool {
		switch {
		case access != "": // one that is wrong is not made good by another
			return same(access, s.token(purposeAccess, sess))
		case traffic != "":
			return same(traffic, s.token(purposeTraffic, sess))
		}
		return signature != nil && signature.fits(s.token(purposeAccess, sess))
	}
	if to.Sandbox != "" {
		for _, one := range s.index.find(to.Sandbox) {
			if proven = fits(one); sess == nil || proven {
				sess = one
			}
			if proven {
				break
			}
		}
		if sess == nil {
			return nil, false, wire.Gone(to.Sandbox)
		}
	} else if sess = s.index.which(fits); sess != nil {
		proven = true
	}
	if proven && signature != nil && signature.expired(time.Now()) {
		return nil, false, unauthorized(expiredMessage)
	}
	return sess, proven, nil
}

// isPublic reports whether a request for a port needs no token: it has none, and the sandbox is the first that has had that id.
func (s *Server) isPublic(r *http.Request, sess *session.Session, to wire.Destination) bool {
	if sess == nil || to.Port == wire.PortEnvd || to.Port == wire.PortCode || r.Header.Get(wire.HeaderAccess) != "" || r.Header.Get(wire.HeaderTraffic) != "" {
		return false
	}
	labels := sess.Current().Labels
	return s.cfg.publicPorts(labels[wire.LabelTemplate]) && labels[labelClosed] == "" && s.index.isFirst(sess)
}

// enter lets a request for a sandbox in. release must follow, and the context ends when its bearer may not use it any more. A visitor
// has proven itself by the traffic token alone, which the owner of a sandbox may give to others, or needed no token: what visitors have open and
// make boxd hold must not keep the owner out.
func (s *Server) enter(r *http.Request, sess *session.Session, stated *access.Pass, visitor bool) (ctx context.Context, sb *sandbox, release func(), err error) {
	pass, again := access.Pass{}, func() (time.Time, error) {
		now, err := s.holder(sess)
		return now.Until, err
	}
	if stated != nil {
		pass, again, err = *stated, func() (time.Time, error) { return s.reasserted(stated, sess) }, checkHolder(stated, sess)
	} else {
		pass, err = s.holder(sess)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	identify, callers := conns.Identify, s.callers
	if visitor {
		identify, callers = conns.IdentifyVisitor, s.visitors
	}
	if err := identify(r.Context(), pass.Name); err != nil {
		return nil, nil, nil, err
	}
	limits, unshare := callers.Share(pass.Name)
	ctx, unwatch := s.cfg.Gate.Watch(r.Context(), &pass, again)
	release = sync.OnceFunc(func() { unwatch(); unshare() })
	_, template, ok := s.cfg.template(sess.Current().Labels[wire.LabelTemplate])
	if !ok {
		template = &Template{}
	}
	return ctx, &sandbox{sess, pass, limits, false, *template}, release, nil
}

// holder is on whose behalf the bearer of a sandbox's token acts: its owner, by the API key that has made or connected it,
// for as long as that key holds.
func (s *Server) holder(sess *session.Session) (access.Pass, error) {
	pass := s.cfg.Gate.Reauthenticate(&access.Peer{}, sess.Current().Labels[labelKey])
	if pass.Name != sess.Owner.Name || !allows(&pass) {
		return pass, keyless()
	}
	return pass, nil
}

// keyless refuses the tokens of a sandbox whose key does not hold.
func keyless() error { return unauthorized(wire.KeylessMessage) }

// dataRoutes are the routes of boxd's API that do what the tokens of a sandbox lead to.
func dataRoutes() []string {
	return []string{
		"POST /v1/sessions/{id}/exec", "PUT /v1/sessions/{id}/processes/{p}", "GET /v1/sessions/{id}/processes/{p}/stream", "POST /v1/sessions/{id}/processes/{p}/signal",
		"POST /v1/sessions/{id}/fs/read", "POST /v1/sessions/{id}/fs/write", "POST /v1/sessions/{id}/fs/list", "POST /v1/sessions/{id}/fs/move", "POST /v1/sessions/{id}/fs/remove",
		"GET /v1/sessions/{id}/ports/{port}/stream",
	}
}

// allows reports whether a key allows all that the tokens of a sandbox lead to. They are the same for every key, and nothing
// tells by which of them a bearer has got them: so who may not do all of it does not get them, and does not stand for them.
func allows(pass *access.Pass) bool {
	return pass.Is(access.User) && !slices.ContainsFunc(dataRoutes(), func(route string) bool { return !pass.Allows(route) })
}

// sandboxKey is the context key of the sandbox that a request is for.
type sandboxKey struct{}

// of is the sandbox that an RPC is for.
func of(ctx context.Context) *sandbox {
	sb, _ := ctx.Value(sandboxKey{}).(*sandbox)
	return sb
}

// data answers a request for a sandbox.
func (s *Server) data(w http.ResponseWriter, r *http.Request, to wire.Destination) {
	var stated *access.Pass // of the key that a gateway states to be valid
	by := gatewayOf(r.Context())
	if by != nil {
		pass, err := by.holder(s.cfg.Gate, w)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		stated = &pass
	}
	found, proven, err := s.named(r, to)
	if by != nil && found == nil {
		by.markNone(w, err)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if found != nil {
		if info := found.Info(); isPaused(&info) && (!proven || found.Current().Labels[labelResume] == "") {
			s.fail(w, r, wire.Gone(found.ID)) // clients connect to it, which has it go on
			return
		}
	}
	health := r.URL.Path == "/health" && (to.Port == wire.PortEnvd || to.Port == wire.PortCode)
	switch {
	case found != nil && health:
		w.WriteHeader(map[int]int{wire.PortEnvd: http.StatusNoContent, wire.PortCode: http.StatusOK}[to.Port])
		return
	case health && to.Sandbox == "":
		s.fail(w, r, wire.Gone("")) // a client of Scalebox shows its token, and it is of no sandbox any more
		return
	case !proven && !s.isPublic(r, found, to):
		s.fail(w, r, unauthorized(wire.UnprovenMessage))
		return
	}
	if by != nil && by.ask {
		writeHolder(w, found)
		return
	}
	ctx, sb, release, err := s.enter(r, found, stated, to.Port != wire.PortEnvd && r.Header.Get(wire.HeaderAccess) == "")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer release()
	if err := s.resumePaused(ctx, sb); err != nil { //nolint:contextcheck // it is that of the request
		s.fail(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(ctx, sandboxKey{}, sb)) //nolint:contextcheck // the same
	switch to.Port {
	case wire.PortEnvd:
		s.envd(w, r, sb)
	case wire.PortCode:
		s.code.serve(w, r, sb)
	default:
		s.port(w, r, sb, to.Port)
	}
}

// resumePaused resumes a sandbox that is paused, for as long as a new one lives.
func (s *Server) resumePaused(ctx context.Context, sb *sandbox) error {
	now, resumed, err := s.resume(ctx, sb.Session)
	if err != nil || !resumed {
		return err
	}
	sb.Session = now
	return s.extend(ctx, now, defaultTimeout, true, now.Current().Labels[labelKey])
}

// envd answers a request for the processes and files of a sandbox.
func (s *Server) envd(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	if path := wire.AgentPath(r.URL.Path); path != r.URL.Path {
		r = r.Clone(r.Context())
		r.URL.Path = path
	}
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/process.Process/"), strings.HasPrefix(path, "/filesystem.Filesystem/"), strings.HasPrefix(path, wire.AgentPackage):
		s.rpcs(w, r, sb)
	case path == wire.FilesPath:
		s.files(w, r, sb)
	case path == wire.UploadPath, strings.HasPrefix(path, wire.DownloadPath):
		s.files(w, r, sb)
	case path == "/envs" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, sb.envs())
	case path == "/metrics" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, s.sandboxMetrics(r.Context(), sb.Session))
	default:
		s.fail(w, r, refusal(http.StatusNotFound, "no route "+r.Method+" "+fault.Show(path)))
	}
}

// envs is the environment that the client has given the sandbox.
func (sb *sandbox) envs() map[string]string {
	given := map[string]string{}
	for _, name := range sb.Current().EnvNames {
		for _, pair := range sb.Environment() {
			if value, ok := strings.CutPrefix(pair, name+"="); ok {
				given[name] = value
			}
		}
	}
	return given
}

var errVanished = errors.New("the client has gone")
