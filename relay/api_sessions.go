// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// listSessions lists the sessions of the caller, of the owner in the query, or of all.
func listSessions(c *Call) (any, error) {
	all := c.R.URL.Query().Get("all")
	allOwners := all == "true"
	switch {
	case all != "" && all != "true" && all != "false":
		return nil, fault.Field("all", all, "true or false")
	case allOwners && !c.Caller.Is(c.Others):
		return nil, fault.Field("all", "true", "false").Of(fault.Denied).WithText("permission denied: only operators can list everyone's boxes; you see your own")
	}
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	labels, _, err := pairs("label", query["label"], false)
	if err != nil {
		return nil, err
	}
	metadata, shown, err := pairs("metadata", query["metadata"], true)
	if err != nil {
		return nil, err
	}
	usage := query.Get("usage")
	if usage != "" && usage != "true" && usage != "false" {
		return nil, fault.Field("usage", usage, "true or false")
	}
	page, err := readPage(query)
	if err != nil {
		return nil, err
	}
	list := api.SessionList{Sessions: []api.Session{}}
	var found []*session.Session
	for _, s := range c.Sup.List(owner, allOwners) {
		info := s.Info()
		if !page.reached(s) || !policy.Has(info.Settings.Labels, labels) || !policy.Has(info.Settings.Metadata, metadata) {
			continue
		}
		answer := sessionAnswer(info)
		if !shown {
			answer.Metadata = nil
		}
		if page.full(answer.Metadata) {
			list.Next = cursorOf(found[len(found)-1])
			break
		}
		found, list.Sessions = append(found, s), append(list.Sessions, answer)
	}
	if usage == "true" {
		for i, s := range found {
			addUsage(c, s, &list.Sessions[i])
		}
	}
	return list, nil
}

// Limits of a page of a list.
const (
	maxPage         = 10_000
	maxPageMetadata = 16 << 20 // bytes, except for the first session of a page
)

// sessionPage is the position in a list, and the room left on the page.
type sessionPage struct {
	created time.Time // of the last session on the previous page
	id      string    // of that session; "": this is the first page
	left    int       // sessions that still fit
	listed  int       // sessions
	bytes   int       // of metadata
}

// readPage reads limit and after of a query.
func readPage(query url.Values) (p sessionPage, err error) {
	p.left = maxPage
	if text := query.Get("limit"); text != "" {
		if p.left, err = strconv.Atoi(text); err != nil || p.left < 1 || p.left > maxPage {
			return p, fault.Field("limit", text, "1 to "+strconv.Itoa(maxPage))
		}
	}
	if text := query.Get("after"); text != "" {
		nanos, id, ok := strings.Cut(text, ".")
		n, err := strconv.ParseInt(nanos, 10, 64)
		if err != nil || !ok || id == "" {
			return p, fault.Field("after", text, "next of an earlier page")
		}
		p.created, p.id = time.Unix(0, n), id
	}
	return p, nil
}

// cursorOf returns the cursor after a session.
func cursorOf(s *session.Session) string {
	return strconv.FormatInt(s.Created.UnixNano(), 10) + "." + s.ID
}

// reached reports whether a session comes after those of earlier pages.
func (p *sessionPage) reached(s *session.Session) bool {
	return p.id == "" || cmp.Or(s.Created.Compare(p.created), cmp.Compare(s.ID, p.id)) > 0
}

// full reports whether there is no room for another session with this metadata, and counts it otherwise.
func (p *sessionPage) full(metadata map[string]string) bool {
	size := 0
	for name, value := range metadata {
		size += len(name) + len(value)
	}
	if p.left == 0 || p.listed > 0 && p.bytes+size > maxPageMetadata {
		return true
	}
	p.left, p.listed, p.bytes = p.left-1, p.listed+1, p.bytes+size
	return false
}

// pairs reads conditions on the sessions of a list: NAME=value, repeatable. If flag is set, the value may also be true
// or false.
func pairs(field string, values []string, flag bool) (all map[string]string, on bool, err error) {
	all = map[string]string{}
	for _, text := range values {
		name, value, ok := strings.Cut(text, "=")
		before, dup := all[name]
		switch {
		case !ok && flag && (text == "true" || text == "false"):
			on = text == "true"
		case !ok && flag:
			return nil, false, fault.Field(field, text, "NAME=value, true or false")
		case !ok || name == "":
			return nil, false, fault.Field(field, text, "NAME=value")
		case dup && before != value:
			return nil, false, fault.Field(field, text, "one value of "+strconv.Quote(name))
		default:
			all[name] = value
		}
	}
	return all, on, nil
}

// createSession makes a session, or finds the one of that id.
func createSession(c *Call) (any, error) {
	var req api.SessionRequest
	if err := c.decodeBody(&req, maxSessionBody); err != nil {
		return nil, err
	}
	want := sessionRequestOf(&req)
	if req.DryRun {
		return planAnswer(c.Context(), c.Log, c.Sup.PlanSession(c.Context(), c.Caller, want)), nil
	}
	s, isNew, err := c.Sup.Create(c.Context(), c.Caller, want)
	if err != nil {
		return nil, err
	}
	if !isNew {
		return sessionAnswer(s.Info()), nil
	}
	answer := Created{Body: sessionAnswer(s.Info())}
	if want.MadeUp { // useless to a caller that does not learn its id
		answer.Undo = func() { c.End(s, session.EndUnclaimed) }
	}
	return answer, nil
}

// getSession describes a session.
func getSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return detailedSession(c, s), nil
}

// detailedSession describes a session with its resource usage.
func detailedSession(c *Call, s *session.Session) api.Session {
	answer := sessionAnswer(s.Info())
	addUsage(c, s, &answer)
	if answer.Push != "" {
		answer.Pushed = pushedAnswer(c, s)
	}
	if u := c.Sup.Traffic(c.Context(), s); u != nil {
		answer.Traffic = trafficAnswer(u)
	}
	return answer
}

// addUsage adds what cgroups and quotas count of a session.
func addUsage(c *Call, s *session.Session, answer *api.Session) {
	if w := c.Sup.Work(c.Context(), s); w != nil {
		full := session.IsFull(*w)
		answer.Workspace = &api.Quota{Kind: "workspace", Used: quantity.Size(w.Used), Limit: quantity.Size(w.Limit), Files: w.Files, FilesLimit: w.FilesLimit, Hit: full}
	}
	u := s.Usage()
	if u == nil {
		return
	}
	answer.Usage = &api.SessionUsage{
		CPUMS: inMilliseconds(u.CPU), ThrottledMS: inMilliseconds(u.Throttled), Memory: quantity.Size(u.Memory), MemoryPeak: quantity.Size(u.MemoryPeak),
		Swap: quantity.Size(u.Swap), Pids: int(u.Pids), Read: quantity.Size(u.Read), Written: quantity.Size(u.Written), OOMKills: int(u.OOMKills),
		Pressure: api.Pressure{CPU: u.CPUPressure, Memory: u.MemoryPressure, IO: u.IOPressure},
	}
}

// getUsageHistory returns the recent resource usage of a session.
func getUsageHistory(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var after time.Time
	if text := c.R.URL.Query().Get("after"); text != "" {
		if after, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, fault.Field("after", text, "a time such as 2026-11-21T09:30:00Z")
		}
	}
	samples := s.History(after)
	answer := api.UsageHistory{
		Interval: quantity.Duration(supervisor.SampleEvery), Kept: quantity.Duration(c.Sup.HistoryKept()), Samples: make([]api.UsageSample, len(samples)),
	}
	for i := range samples {
		answer.Samples[i] = sampleAnswer(&samples[i])
	}
	return answer, nil
}

func sampleAnswer(m *session.Sample) api.UsageSample {
	answer := api.UsageSample{At: time.UnixMilli(m.At).UTC()}
	if m.Quota {
		answer.Workspace = &api.WorkspaceUsage{Used: quantity.Size(m.Used), Files: m.Files}
	}
	if m.Counted {
		answer.Usage = &api.SampledUsage{
			CPUMS: inMilliseconds(m.CPU), CPUPercent: hundredths(m.CPUPercent), Memory: quantity.Size(m.Memory), Swap: quantity.Size(m.Swap),
			Pids: int(m.Pids), Read: quantity.Size(m.Read), Written: quantity.Size(m.Written),
			Pressure: api.Pressure{CPU: hundredths(m.CPUPressure), Memory: hundredths(m.MemoryPressure), IO: hundredths(m.IOPressure)},
		}
	}
	return answer
}

// hundredths rounds a percentage to the two decimals of the kernel's files.
func hundredths(n float32) float64 { return math.Round(float64(n)*100) / 100 }

// changeSession changes a living session, completely or not at all.
func changeSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var r api.SessionChange
	if err := c.decodeBody(&r, maxSessionBody); err != nil {
		return nil, err
	}
	err = c.Sup.Update(c.Context(), s, &policy.Request{Patch: r.Patch, Labels: r.Labels, Metadata: r.Metadata, NetworkRules: r.NetworkRules})
	if err != nil {
		return nil, err
	}
	return detailedSession(c, s), nil
}

// freezeSession freezes all programs of a session.
func freezeSession(c *Call) (any, error) { return setFrozen(c, true) }

// thawSession thaws them.
func thawSession(c *Call) (any, error) { return setFrozen(c, false) }

func setFrozen(c *Call, on bool) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if err := s.Freeze(c.Context(), on); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// stopSession ends the programs and the box of a session, which keeps its data on disk.
func stopSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if s, err = c.Sup.Stop(c.Context(), s); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// startSession starts a stopped session again.
func startSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.SessionStart
	if c.R.ContentLength != 0 { // the body is optional
		if err := c.decodeBody(&in, maxSessionBody); err != nil {
			return nil, err
		}
	}
	if s, err = c.Sup.Start(c.Context(), s, (*time.Duration)(in.Wait)); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// renewSession restarts the idle time of a session.
func renewSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if err := c.Sup.Renew(c.Context(), s); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// deleteSession ends a session.
func deleteSession(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return noContent{}, c.Sup.End(c.Context(), s, session.EndDeleted)
}
