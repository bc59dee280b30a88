// SPDX-License-Identifier: Apache-2.0

// Previews show ports of boxes to browsers, each under a host name of its own, to every visitor with a token. Requests
// for such a name never reach the API, and roles of the API do not count here.

package relay

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Where a token is: in the URL that is opened first, and in the cookie that the browser gets.
const (
	Query  = "boxd_token"
	cookie = "boxd_preview"
	header = "Boxd-Preview" // for programs
)

// Limits of the response of a box.
const (
	headTimeout = time.Minute // for the head
	maxHead     = 64 << 10
)

// showPreview answers a request for a preview.
func showPreview(c *Deps, w http.ResponseWriter, r *http.Request) {
	c.Streams.Add(1)
	defer c.Streams.Done()
	if err := show(c, w, r); err != nil {
		call := &Call{Deps: c, W: w, R: r}
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		call.Fail(r.Context(), err)
	}
}

func show(c *Deps, w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || !strings.HasPrefix(r.RequestURI, "/") {
		return fault.Field("request", r.Method+" "+r.RequestURI, "a path, with a method other than CONNECT and TRACE")
	}
	text, first := shown(r)
	key := c.Previews
	t, err := key.Read(text, time.Now())
	if err != nil || key.Host(t) != strings.Split(r.Host, ":")[0] {
		return fault.Errorf(fault.Unauthenticated, "%s", refusalText(err)).WithHint("create a preview link with boxctl preview")
	}
	v := visit{c, t}
	s, pass, err := v.admit()
	if err != nil {
		return err
	}
	if err := conns.IdentifyVisitor(r.Context(), pass.Name); err != nil {
		return err
	}
	if first {
		return enterPreview(w, r, text, t)
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), time.Unix(t.Expires, 0), access.ErrPreviewOver)
	defer cancel()
	ctx, release := c.Gate.Watch(ctx, &pass, func() (time.Time, error) {
		_, p, err := v.admit()
		return p.Until, err
	})
	defer release()
	return v.proxy(w, r.WithContext(ctx), s)
}

func refusalText(err error) string {
	if errors.Is(err, access.ErrPreviewOver) {
		return err.Error()
	}
	return "missing or invalid preview token"
}

// shown returns the token of a request, and whether it is in the URL.
func shown(r *http.Request) (text string, first bool) {
	if query := r.URL.Query(); query.Has(Query) {
		return query.Get(Query), true
	}
	if list := r.Header.Values(header); len(list) > 0 {
		return list[0], false
	}
	for _, c := range r.CookiesNamed(cookie) {
		return c.Value, false
	}
	return "", false
}

// enterPreview stores the token in a cookie for this host name alone, and redirects to the URL without it: pages pass
// their URL on to others. Scripts cannot read the cookie.
func enterPreview(w http.ResponseWriter, r *http.Request, text string, t *access.PreviewToken) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return fault.Field("method", r.Method, "GET for an address with a token")
	}
	query := r.URL.Query()
	query.Del(Query)
	to := url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query.Encode()}
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: text, Path: "/", Expires: time.Unix(t.Expires, 0), HttpOnly: true, SameSite: http.SameSiteLaxMode})
	w.Header().Set("Location", to.String())
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// visit is a request with a valid token.
type visit struct {
	c     *Deps
	token *access.PreviewToken
}

// admit checks a token against the current state: its maker must still be allowed to make it, and the session be the same one.
func (v visit) admit() (*session.Session, access.Pass, error) {
	t := v.token
	by := &t.By
	pass := v.c.Gate.Reauthenticate(&access.Peer{Local: by.Token == "" && by.Name != access.Guest, UID: by.UID, GID: by.GID, Groups: by.Groups}, by.Token)
	if pass.Name != by.Name || !pass.Allows(previewRoute) || !pass.Is(access.User) || by.Name != t.Owner && !pass.Is(access.Admin) {
		return nil, pass, fault.Errorf(fault.Denied, "permission denied: the maker of this preview link no longer has access").WithHint("create a new one with boxctl preview")
	}
	s, err := v.c.Sup.Session(access.Principal{Name: t.Owner}, t.Session)
	if err == nil && s.Created.UnixNano() != t.Made {
		err = fault.Errorf(fault.NotFound, "the session of this preview has ended").WithHint("create a new one with boxctl preview")
	}
	if err == nil {
		err = v.c.Sup.Ports.May(s)
	}
	return s, pass, err
}

// previewRoute is the route that makes tokens.
const previewRoute = "POST /v1/sessions/{id}/ports/{port}/token"

// makePreview makes a token.
func makePreview(c *Call) (any, error) {
	port, err := session.ParsePort(c.Path.Port)
	if err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var req api.PortTokenRequest
	if err := c.decodeBody(&req, maxSmallBody); err != nil {
		return nil, err
	}
	if err := c.Sup.Ports.May(s); err != nil {
		return nil, err
	}
	life, err := lifetime(req.Lifetime, c.Sup.Ports.MaxPreview())
	if err != nil {
		return nil, err
	}
	ends := time.Now().Add(life).Truncate(time.Second)
	t := &access.PreviewToken{
		Owner: s.Owner.Name, Session: s.ID, Made: s.Created.UnixNano(), Port: port, Expires: ends.Unix(),
		By: access.PreviewMaker{Name: c.Caller.Name, Token: c.Token, UID: c.Caller.UID, GID: c.Caller.GID, Groups: c.Caller.Groups},
	}
	text, err := c.Previews.Sign(t)
	if err != nil {
		return nil, err
	}
	token := api.PortToken{Token: text, Host: c.Previews.Host(t), ExpiresAt: ends.UTC()}
	if _, at, err := net.SplitHostPort(c.HTTP); err == nil {
		token.URL = "http://" + net.JoinHostPort(token.Host, at) + "/?" + Query + "=" + text
	}
	return Created{Body: token}, nil
}

// defaultLifetime is the default lifetime of a token.
const defaultLifetime = 15 * time.Minute

// lifetime returns how long a token is valid, at least a second.
func lifetime(requested string, limit time.Duration) (time.Duration, error) {
	if limit == 0 {
		return 0, fault.Errorf(fault.Denied, "previews are switched off (sessions.preview_max = \"0s\")").
			WithHint("use boxctl forward, or have the operator raise sessions.preview_max in box.toml").
			By(fault.Denial{Layer: fault.LayerPolicy, Rule: "sessions.preview_max", Used: "0s", Allowed: "0s", Setting: "a longer sessions.preview_max"})
	}
	if requested == "" {
		return min(defaultLifetime, limit), nil
	}
	life, err := quantity.ParseDuration(requested)
	if err != nil || time.Duration(life) < time.Second || time.Duration(life) > limit {
		return 0, fault.Field("lifetime", requested, "a duration from 1s to "+quantity.Duration(limit).String())
	}
	return time.Duration(life), nil
}

// proxy forwards the request to the box.
func (v visit) proxy(w http.ResponseWriter, r *http.Request, s *session.Session) error {
	return ForwardToPort(w, r, PortForward{Ports: v.c.Sup.Ports, Session: s, Port: v.token.Port, Log: v.c.Log, Hide: outward})
}

// hijackable closes a connection that was taken over from it when ctx ends: what copies to a visitor who reads nothing would stay.
type hijackable struct {
	http.ResponseWriter

	ctx context.Context //nolint:containedctx // that of the request
}

// Hijack is called by httputil.ReverseProxy for a WebSocket.
func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		context.AfterFunc(h.ctx, func() { conn.Close() }) // it ends with the request at the latest
	}
	return conn, rw, err
}

// Unwrap is called by http.ResponseController.
func (h hijackable) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// PortForward is the target of ForwardToPort.
type PortForward struct {
	Ports   *session.Ports
	Session *session.Session
	Port    uint16
	Log     *slog.Logger
	Hide    func(*http.Request) // removes from the request what the box must not see
}

// ForwardToPort forwards a request to a program that listens on a port of a box. Each request has a connection of its
// own, so that no bytes left in one reach another. A returned error has not been answered.
func ForwardToPort(w http.ResponseWriter, r *http.Request, to PortForward) error {
	var failed error
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return to.Ports.Open(ctx, to.Session, to.Port)
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHead, ResponseHeaderTimeout: headTimeout,
	}
	p := httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = "http", out.Out.Host
			to.Hide(out.Out)
			if up := out.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
				out.Out.Header.Del("Upgrade")
				out.Out.Header.Del("Connection")
			}
		},
		Transport: transport, FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error { return inward(r, resp) },
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:       slog.NewLogLogger(to.Log.Handler(), slog.LevelDebug),
	}
	p.ServeHTTP(hijackable{w, r.Context()}, r)
	switch ended := context.Cause(r.Context()); {
	case failed == nil:
		return nil
	case fault.KindOf(ended) != fault.Internal:
		return ended
	case fault.KindOf(failed) != fault.Internal:
		return failed
	case r.Context().Err() != nil:
		return fault.Errorf(fault.Unavailable, "the preview ended: %v", ended).WithHint("reload the page")
	}
	return fault.Errorf(fault.Unavailable, "the program on port %d did not answer with HTTP", to.Port).WithHint("%v", failed)
}

// outward removes boxd's own cookie, header and tokens from a request before the box gets it.
func outward(r *http.Request) {
	r.Header.Del(header)
	if others := without(r.Header.Values("Cookie"), cookie); others != "" {
		r.Header.Set("Cookie", others)
	} else {
		r.Header.Del("Cookie")
	}
	for _, value := range r.Header.Values("Authorization") {
		if strings.Contains(value, access.TokenPrefix) { // a token of the API, sent by mistake
			r.Header.Del("Authorization")
		}
	}
}

// without returns the Cookie headers without one name, otherwise as they were.
func without(headers []string, name string) string {
	var others []string
	for _, line := range headers {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			if n, _, _ := strings.Cut(part, "="); part != "" && strings.TrimSpace(n) != name {
				others = append(others, part)
			}
		}
	}
	return strings.Join(others, "; ")
}

var errUnasked = errors.New("the box switched protocols without a request")

// inward checks and filters what the box may send to a browser.
func inward(r *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols && (!strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket")) {
		return errUnasked
	}
	set := resp.Header.Values("Set-Cookie")
	resp.Header.Del("Set-Cookie")
	for _, line := range set { // for this host name alone, and not boxd's own
		c, err := http.ParseSetCookie(line)
		if err == nil && c.Domain == "" && c.Name != cookie {
			resp.Header.Add("Set-Cookie", line)
		}
	}
	for name := range resp.Header {
		if strings.HasPrefix(name, "Boxd-") { // only boxd and gateways of a fleet set those
			delete(resp.Header, name)
		}
	}
	resp.Header.Del("Alt-Svc") // would bypass boxd
	return nil
}
