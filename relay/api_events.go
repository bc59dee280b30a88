// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/supervisor/events"
)

// eventsHeartbeat is how often a client gets a heartbeat when nothing happens.
const eventsHeartbeat = 15 * time.Second

// afterLatest asks only for events from now on.
const afterLatest = "latest"

// reader is a request for events.
type reader struct {
	filter events.Filter
	at     events.Position
	follow bool
}

// streamEvents sends past and future events as server-sent events.
func streamEvents(c *Call) (any, error) {
	r, err := readEvents(c)
	if err != nil {
		return nil, err
	}
	release, err := c.Limits.Stream()
	if err != nil {
		return nil, err
	}
	defer release()
	c.W.Header().Set("Content-Type", "text/event-stream")
	c.W.Header().Set("Cache-Control", "no-store")
	c.W.Header().Set("X-Content-Type-Options", "nosniff")
	if c.R.Method == http.MethodHead {
		return nil, nil //nolint:nilnil // the headers were asked for
	}
	c.Streams.Add(1)
	defer c.Streams.Done()
	r.send(c)
	return nil, nil //nolint:nilnil // it has been sent
}

// readEvents reads a request, and checks it against what its caller may see.
func readEvents(c *Call) (*reader, error) {
	query := c.R.URL.Query()
	r := &reader{follow: true, filter: events.Filter{Session: query.Get("session")}}
	var err error
	if r.filter.Owner, r.filter.Everybody, err = ownerFilter(c, query); err != nil {
		return nil, err
	}
	switch text := query.Get("follow"); text {
	case "", "true":
	case "false":
		r.follow = false
	default:
		return nil, fault.Field("follow", text, "true or false")
	}
	if text := query.Get("type"); text != "" {
		for name := range strings.SplitSeq(text, ",") {
			if !events.Type(name).Valid() {
				return nil, fault.Field("type", name, knownEvents())
			}
			r.filter.Types = append(r.filter.Types, events.Type(name))
		}
	}
	switch after := cmp.Or(c.R.Header.Get("Last-Event-ID"), query.Get("after")); after {
	case "":
		r.at = c.Events.Start()
	case afterLatest:
		r.at = c.Events.End()
	default:
		if r.at, err = events.ParsePosition(after); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func knownEvents() string {
	var list []string
	for _, t := range events.Types() {
		list = append(list, string(t))
	}
	return fault.OneOf(list...)
}

// ownerFilter returns whose events the caller may see and asks for: an operator those of all or of one, any other caller its
// own.
func ownerFilter(c *Call, query url.Values) (owner string, allOwners bool, err error) {
	owner = c.principalNamed(query.Get("owner"))
	operator := c.Caller.Is(access.Operator)
	switch {
	case owner == "" && operator:
		return "", true, nil
	case owner == "":
		return c.Caller.Name, false, nil
	case owner != c.Caller.Name && !operator:
		return "", false, fault.Field("owner", owner, c.Caller.Name+", or left out").Of(fault.Denied).
			WithText("permission denied: only operators see the events of others")
	}
	return owner, false, nil
}

// send sends events until there are no more, or the client has gone.
func (r *reader) send(c *Call) {
	out := http.NewResponseController(c.W)
	write := func(text []byte) bool {
		_ = out.SetWriteDeadline(time.Now().Add(c.Answers)) // every connection has deadlines
		_, err := c.W.Write(text)
		return err == nil && out.Flush() == nil
	}
	// An id without data is no event, but the position to resume from (HTML, "Server-sent events"): without it a client
	// of afterLatest that has had no event yet would miss what happens while it reconnects.
	place := func() []byte { return []byte("id: " + r.at.String() + "\n\n") }
	if !write(place()) {
		return
	}
	ticker := time.NewTicker(eventsHeartbeat)
	defer ticker.Stop()
	for {
		b, more := c.Events.Read(r.at, &r.filter)
		r.at = b.Next
		text, err := r.render(c, &b)
		if err != nil || len(text) > 0 && !write(text) {
			return
		}
		switch {
		case more == nil:
			continue
		case !r.follow:
			return
		}
		if !wait(c.Context(), more, ticker.C, func() bool { return write(place()) }) {
			return
		}
	}
}

// wait returns when there is more, and sends heartbeats meanwhile.
func wait(ctx context.Context, more <-chan struct{}, beat <-chan time.Time, sign func() bool) bool {
	for {
		select {
		case <-more:
			return true
		case <-beat:
			if !sign() {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// render formats a batch as server-sent events.
func (r *reader) render(c *Call, b *events.Batch) ([]byte, error) {
	var text bytes.Buffer
	put := func(e *api.Event) error {
		data, err := json.Marshal(e)
		if err != nil {
			c.Log.ErrorContext(c.Context(), "cannot encode an event", "error", err)
			return err
		}
		text.WriteString("id: " + e.ID + "\nevent: " + e.Type + "\ndata: ")
		text.Write(data)
		text.WriteString("\n\n")
		return nil
	}
	if b.Restarted || b.Missed > 0 {
		c.Metrics.Missed(b.Missed)
		place := b.Next
		if len(b.Events) > 0 {
			place.Seq = b.Events[0].Seq - 1
		}
		if err := put(&api.Event{ID: place.String(), Time: time.Now(), Type: api.EventGap, Gap: &api.Gap{Restarted: b.Restarted, Missed: b.Missed}}); err != nil {
			return nil, err
		}
	}
	for i := range b.Events {
		if err := put(event(b.Next.Epoch, &b.Events[i])); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

func event(epoch string, e *events.Event) *api.Event {
	return &api.Event{
		ID: events.Position{Epoch: epoch, Seq: e.Seq}.String(), Time: e.Time, Type: string(e.Type), Session: e.Session, Owner: e.Owner, Principal: e.Principal,
		Process: e.Process, Exec: e.Exec, Profile: e.Profile, Reason: e.Reason, Detail: e.Detail, TookMS: milliseconds(e.Took), Request: e.Request.ID, Parent: e.Request.Parent,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// getErrors lists the latest errors.
func getErrors(c *Call) (any, error) {
	owner, allOwners, err := ownerFilter(c, c.R.URL.Query())
	if err != nil {
		return nil, err
	}
	list := api.ErrorList{Errors: []api.RecentError{}}
	for _, e := range c.Errors.Of(owner, allOwners) {
		list.Errors = append(list.Errors, api.RecentError{
			Time: e.Time, Principal: e.Principal, Route: e.Route, Session: e.Session, Status: e.Status, Kind: e.Kind, Detail: e.Detail,
			Request: e.Request.ID, Parent: e.Request.Parent,
		})
	}
	return list, nil
}

// getMetrics answers a scrape. The metrics are of the whole host, and name no principal.
func getMetrics(c *Call) (any, error) {
	c.limitReadTime()
	c.Metrics.ServeHTTP(c.W, c.R)
	return nil, nil //nolint:nilnil // it has been sent
}
