// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// States of a sandbox.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// Pages of the list of sandboxes.
const (
	defaultPage = wire.UsualPage
	maxPage     = 1000
)

// listedSandbox describes a sandbox in a list.
type listedSandbox struct {
	SandboxID   string            `json:"sandboxID"`
	TemplateID  string            `json:"templateID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	State       string            `json:"state"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskSizeMB  int64             `json:"diskSizeMB"`
	Metadata    map[string]string `json:"metadata"`
	EnvdVersion string            `json:"envdVersion"`
}

// sandboxDetail describes a sandbox by itself.
type sandboxDetail struct {
	listedSandbox

	EnvdAccessToken     string         `json:"envdAccessToken,omitempty"`
	Domain              string         `json:"domain"`
	AllowInternetAccess bool           `json:"allowInternetAccess"`
	Network             sandboxNetwork `json:"network"`
	Lifecycle           lifecycle      `json:"lifecycle"`
}

type sandboxNetwork struct {
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	AllowPublicTraffic bool     `json:"allowPublicTraffic"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // "kill" or "pause"
}

// far is when a sandbox ends that never does: clients demand a time.
const far = 100 * 365 * 24 * time.Hour

// listed describes a session as a sandbox.
func (s *Server) listed(info *session.Info) listedSandbox {
	set := &info.Settings
	l := listedSandbox{
		SandboxID: info.ID, TemplateID: set.Labels[wire.LabelTemplate], ClientID: clientID, StartedAt: info.Created.UTC(), EndAt: info.Expires.UTC(), State: stateRunning,
		CPUCount: max(1, int(set.CPUs+0.999)), MemoryMB: int64(set.Memory >> 20), DiskSizeMB: int64(set.WorkspaceQuota >> 20),
		Metadata: set.Metadata, EnvdVersion: envdVersion,
	}
	if l.Metadata == nil {
		l.Metadata = map[string]string{}
	}
	if end, ok := endOf(set.Labels); ok && (l.EndAt.IsZero() || end.Before(l.EndAt)) { // its owner's policy may end it before it is paused
		l.EndAt = end.UTC()
	}
	if l.EndAt.IsZero() {
		l.EndAt = info.Created.Add(far).UTC()
	}
	if isPaused(info) {
		l.State = statePaused
	}
	return l
}

// get describes a sandbox.
func (c *controlCall) get() error {
	s, err := c.session()
	if err != nil {
		return err
	}
	info := s.Info()
	set := &info.Settings
	d := sandboxDetail{
		listedSandbox: c.server.listed(&info), Domain: c.server.domain(c.r.Context()),
		AllowInternetAccess: set.Network != policy.NetworkOff && (set.Network != policy.NetworkEgress || len(set.NetworkRules) > 0), Lifecycle: lifecycle{OnTimeout: "kill"},
	}
	if allows(&c.pass) {
		d.EnvdAccessToken = c.server.token(purposeAccess, s)
	}
	if set.Network == policy.NetworkEgress {
		d.Network.AllowOut, d.Network.DenyOut = set.NetworkRules, []string{everywhere.String()}
	}
	d.Network.AllowPublicTraffic = c.server.cfg.publicPorts(set.Labels[wire.LabelTemplate]) && set.Labels[labelClosed] == ""
	if _, ok := endOf(set.Labels); ok {
		d.Lifecycle.OnTimeout = "pause"
	}
	d.Lifecycle.AutoResume = set.Labels[labelResume] != ""
	reply(c.w, http.StatusOK, &d)
	return nil
}

// filter is which sandboxes a list is to have.
type filter struct {
	metadata map[string]string // all of it
	states   []string
	template string
	after    time.Time
	asc      bool
	limit    int64
	next     string
}

// unescaped reads the pairs of a filter by metadata, which clients encode twice over.
func unescaped(text string) (map[string]string, error) {
	form, err := url.ParseQuery(text)
	if err != nil {
		return nil, err
	}
	pairs := map[string]string{}
	for k, values := range form {
		name, err := url.QueryUnescape(k)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if pairs[name], err = url.QueryUnescape(v); err != nil {
				return nil, err
			}
		}
	}
	return pairs, nil
}

func (c *controlCall) filter() (*filter, error) {
	q := c.r.URL.Query()
	f := &filter{template: q.Get("template"), next: q.Get("nextToken")}
	var err error
	if f.limit, err = c.number("limit", defaultPage, 1, maxPage); err != nil {
		return nil, err
	}
	if f.metadata, err = unescaped(q.Get("metadata")); err != nil {
		return nil, fault.Field("metadata", q.Get("metadata"), "NAME=VALUE&…, encoded as a form")
	}
	for _, list := range q["state"] {
		for state := range strings.SplitSeq(list, ",") {
			if state != stateRunning && state != statePaused {
				return nil, fault.Field("state", state, fault.OneOf(stateRunning, statePaused))
			}
			f.states = append(f.states, state)
		}
	}
	switch order := q.Get("order"); order {
	case "asc", "desc", "":
		f.asc = order == "asc"
	default:
		return nil, fault.Field("order", order, "asc or desc")
	}
	if text := q.Get("startedAfter"); text != "" {
		if f.after, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, fault.Field("startedAfter", text, "a time such as 2026-01-02T15:04:05Z")
		}
	}
	if f.template != "" {
		if name, _, ok := c.server.cfg.template(f.template); ok {
			f.template = name
		}
	}
	return f, nil
}

// has reports whether a list has a sandbox.
func (f *filter) has(l *listedSandbox) bool {
	for k, v := range f.metadata {
		if got, ok := l.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return (len(f.states) == 0 || slices.Contains(f.states, l.State)) && (f.template == "" || l.TemplateID == f.template) &&
		(f.after.IsZero() || !l.StartedAt.Truncate(time.Millisecond).Before(f.after.Truncate(time.Millisecond)))
}

// past reports whether a sandbox comes after a mark.
func past(l *listedSandbox, at int64, id string, asc bool) bool {
	order := wire.Compare(l.StartedAt.UnixNano(), l.SandboxID, at, id)
	return asc && order > 0 || !asc && order < 0
}

// list answers with the sandboxes of the caller, a page at a time.
func (c *controlCall) list() error {
	f, err := c.filter()
	if err != nil {
		return err
	}
	var all []listedSandbox
	for _, info := range c.server.cfg.Sup.Sessions(c.pass.Principal, false) {
		if info.Settings.Labels[wire.LabelTemplate] == "" || info.State == session.StateEnding || info.State == session.StateEnded {
			continue
		}
		if l := c.server.listed(&info); f.has(&l) {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b listedSandbox) int {
		order := wire.Compare(a.StartedAt.UnixNano(), a.SandboxID, b.StartedAt.UnixNano(), b.SandboxID)
		if !f.asc {
			order = -order
		}
		return order
	})
	if f.next != "" {
		nanos, id, ok := wire.ReadMark(f.next)
		if !ok {
			return fault.Field("nextToken", f.next, "that of the answer before, in its header "+wire.HeaderNext)
		}
		all = slices.DeleteFunc(all, func(l listedSandbox) bool { return !past(&l, nanos, id, f.asc) })
	}
	if int64(len(all)) > f.limit {
		all = all[:f.limit]
		last := &all[len(all)-1]
		c.w.Header().Set(wire.HeaderNext, wire.Mark(last.StartedAt, last.SandboxID))
	}
	if all == nil {
		all = []listedSandbox{}
	}
	reply(c.w, http.StatusOK, all)
	return nil
}
