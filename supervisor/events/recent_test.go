// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/supervisor/events"
)

func TestAFloodPushesOutNothingOfOthers(t *testing.T) {
	t.Parallel()
	l := events.NewRecent()
	ctx := trace.With(t.Context(), trace.Request{ID: "r"})
	l.Add(ctx, events.RecentError{Principal: "uid:1", Detail: "mine"})
	for i := range 1000 {
		l.Add(ctx, events.RecentError{Principal: "uid:2", Detail: fmt.Sprint(i)})
	}
	if own := l.Of("uid:1", false); len(own) != 1 || own[0].Detail != "mine" || own[0].Request.ID != "r" || own[0].Time.IsZero() {
		t.Errorf("of the first: %+v", own)
	}
	if other := l.Of("uid:2", false); len(other) != 64 || other[0].Detail != "936" || other[63].Detail != "999" {
		t.Errorf("of the second: %d", len(other))
	}
	if all := l.Of("", true); len(all) != 65 || all[0].Detail != "mine" {
		t.Errorf("of all: %d", len(all))
	}
	if none := l.Of("", false); none != nil {
		t.Errorf("of nobody: %+v", none)
	}
}

func TestManyPrincipalsAreBounded(t *testing.T) {
	t.Parallel()
	l := events.NewRecent()
	l.Add(t.Context(), events.RecentError{Detail: "of boxd itself"})
	for i := range 1000 {
		l.Add(t.Context(), events.RecentError{Principal: fmt.Sprint("uid:", i), Detail: strings.Repeat("é", 5000), Session: strings.Repeat("é", 5000)})
	}
	all := l.Of("", true)
	if len(all) != 64 || all[0].Detail != "of boxd itself" || all[63].Principal != "uid:999" || len(all[63].Detail) > 1100 || len(all[63].Session) > 300 {
		t.Errorf("%d are kept, the first %+v", len(all), all[0])
	}
}

func TestBoxdsOwnErrorsAreKept(t *testing.T) {
	t.Parallel()
	l := events.NewRecent()
	log := slog.New(l.Watch(slog.NewTextHandler(io.Discard, nil)))
	log.Info("all is well")
	log.Warn("keeper", "error", "gone")
	log.With("session", "s").Error("cannot end session; trying again")
	log.ErrorContext(trace.With(t.Context(), trace.Request{ID: "r"}), "request failed")
	all := l.Of("", true)
	if len(all) != 2 || all[0].Detail != "keeper error=gone" || all[0].Kind != "warn" || all[1].Session != "s" {
		t.Errorf("kept %+v", all)
	}
	if own := l.Of("uid:1", false); len(own) != 0 {
		t.Errorf("a user sees %+v", own)
	}
}
