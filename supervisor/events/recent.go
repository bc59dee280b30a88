// SPDX-License-Identifier: Apache-2.0

// The latest errors, of requests and of boxd itself, where people look first. Errors of one principal, however many, never
// displace another's.

package events

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/trace"
)

// RecentError is one error. Empty fields do not apply.
type RecentError struct {
	Time      time.Time
	Principal string // the caller; "": boxd itself
	Route     string // "POST /v1/sessions/{id}/exec"
	Session   string
	Status    int    // of the answer
	Kind      string // name of the fault, the end of a problem's type
	Detail    string
	Request   trace.Request
}

// Bounds of what is kept.
const (
	maxPerPrincipal = 64 // of each principal, and of boxd itself
	maxPrincipals   = 64
	maxText         = 1024 // bytes of a detail
	maxID           = 256  // bytes of a session id, which may be an invalid one
)

// Recent keeps the latest errors. A nil Recent accepts errors and keeps none.
type Recent struct {
	mu   sync.Mutex
	rows map[string][]RecentError // by principal, oldest first
}

// NewRecent returns an empty Recent.
func NewRecent() *Recent { return &Recent{rows: map[string][]RecentError{}} }

// Add records an error, now, for the context's request.
func (l *Recent) Add(ctx context.Context, e RecentError) {
	if l == nil {
		return
	}
	e.Time, e.Request = time.Now(), trace.Of(ctx)
	e.Detail, e.Session = truncate(e.Detail, maxText), truncate(e.Session, maxID)
	l.mu.Lock()
	defer l.mu.Unlock()
	row, known := l.rows[e.Principal]
	if !known && len(l.rows) >= maxPrincipals {
		l.evictOldestLocked()
	}
	if len(row) >= maxPerPrincipal {
		row = row[:copy(row, row[1:])]
	}
	l.rows[e.Principal] = append(row, e)
}

// truncate truncates a text to this many bytes, and does not retain the rest.
func truncate(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// evictOldestLocked drops the principal whose last error is the oldest.
func (l *Recent) evictOldestLocked() {
	var oldest string
	var oldestTime time.Time
	for principal, row := range l.rows {
		if last := row[len(row)-1].Time; principal != "" && (oldestTime.IsZero() || last.Before(oldestTime)) {
			oldest, oldestTime = principal, last
		}
	}
	delete(l.rows, oldest)
}

// Of returns the errors of a principal, oldest first, or with allOwners those of all and of boxd itself.
func (l *Recent) Of(principal string, allOwners bool) []RecentError {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !allOwners {
		if principal == "" {
			return nil
		}
		return slices.Clone(l.rows[principal])
	}
	var all []RecentError
	for _, row := range l.rows {
		all = append(all, row...)
	}
	slices.SortStableFunc(all, func(a, b RecentError) int { return a.Time.Compare(b.Time) })
	return all
}

// Watch returns a handler that keeps warnings and errors of boxd itself, and passes everything on to next.
func (l *Recent) Watch(next slog.Handler) slog.Handler { return &handler{Handler: next, list: l} }

type handler struct {
	slog.Handler
	list    *Recent
	session string // from WithAttrs
}

// Handle keeps what was not logged for a request: errors of requests are added with their answer.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && trace.Of(ctx).ID == "" {
		e := RecentError{Session: h.session, Kind: strings.ToLower(r.Level.String())}
		detail := []string{r.Message}
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "session" {
				e.Session = a.Value.String()
			}
			detail = append(detail, a.Key+"="+a.Value.String())
			return true
		})
		e.Detail = strings.ToValidUTF8(strings.Join(detail, " "), "�")
		h.list.Add(ctx, e)
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs wraps that of next.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	copied := *h
	copied.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == "session" {
			copied.session = a.Value.String()
		}
	}
	return &copied
}

// WithGroup wraps that of next.
func (h *handler) WithGroup(name string) slog.Handler {
	copied := *h
	copied.Handler = h.Handler.WithGroup(name)
	return &copied
}
