// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// EventOptions select events. The zero value selects all stored events that the caller may see.
type EventOptions struct {
	After   string // the id of an event, or "latest"
	Session string
	Types   []string
	Follow  bool // future events too
}

// maxEvent is the maximum length of the line of an event, in bytes.
const maxEvent = 1 << 20

// Events passes past events to each, and with Follow future ones, until each fails or ctx ends. It continues over a
// restart of boxd, with an event of the type "gap".
func (c *Client) Events(ctx context.Context, o EventOptions, each func(*api.Event) error) error {
	var last time.Time // when boxd last answered
	for {
		answered, err := c.events(ctx, &o, each)
		if answered {
			last = time.Now()
		}
		var failed *callbackError
		switch {
		case errors.As(err, &failed):
			return failed.error
		case ctx.Err() != nil:
			return ctx.Err()
		case !o.Follow || time.Since(last) > restartTimeout:
			return err
		}
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// How long a restarting boxd may take to answer again, and how often to try.
const (
	restartTimeout = time.Minute
	restartPause   = 200 * time.Millisecond
)

// callbackError is an error of the callback that gets the events.
type callbackError struct{ error }

// events uses one connection. It reports whether boxd answered.
func (c *Client) events(ctx context.Context, o *EventOptions, each func(*api.Event) error) (answered bool, err error) {
	query := queryOf("after", o.After, "session", o.Session, "type", strings.Join(o.Types, ","))
	query.Set("follow", strconv.FormatBool(o.Follow))
	body, err := c.open(ctx, http.MethodGet, c.owned(target{path: "/v1/events"}, query), nil)
	if err != nil {
		return false, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	var id string
	var e *api.Event
	for lines.Scan() {
		if place, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = place
		}
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			e = &api.Event{}
			if err := json.Unmarshal(data, e); err != nil {
				return true, fmt.Errorf("event: %w", err)
			}
		}
		if len(lines.Bytes()) > 0 {
			continue // only an empty line completes the event, or without data the resume position
		}
		o.After = cmp.Or(id, o.After)
		if e == nil {
			continue
		}
		if err := each(e); err != nil {
			return true, &callbackError{err}
		}
		e = nil
	}
	return true, lines.Err()
}

// Errors returns the latest errors: the caller's own, or for operators those of all callers.
func (c *Client) Errors(ctx context.Context) (api.ErrorList, error) {
	return request[api.ErrorList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/errors"}, nil), nil)
}

// AuditOptions select audit records. The zero value selects the last hundred.
type AuditOptions struct {
	N                           int // at most; 0: 100
	Session, Principal, Request string
}

// Audit returns the latest matching records of the audit log. It is for operators.
func (c *Client) Audit(ctx context.Context, o AuditOptions) (api.AuditList, error) {
	query := queryOf("n", positive(o.N), "session", o.Session, "principal", o.Principal, "request", o.Request)
	return request[api.AuditList](ctx, c, http.MethodGet, target{path: "/v1/audit"}.with(query), nil)
}
