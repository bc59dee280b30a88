// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	journald "github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/trace"
)

type sent struct {
	message  string
	priority journald.Priority
	fields   map[string]string
}

func requested(t *testing.T) context.Context {
	t.Helper()
	return trace.With(t.Context(), trace.New("r1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
}

func TestTheJournalGetsFields(t *testing.T) {
	t.Parallel()
	var got []sent
	h := &handler{level: slog.LevelInfo, otherwise: slog.DiscardHandler, send: func(m string, p journald.Priority, f map[string]string) error {
		got = append(got, sent{m, p, f})
		return nil
	}}
	log := slog.New(h)
	ctx := requested(t)
	log.DebugContext(ctx, "too much")
	log.With("session", "s 1").WarnContext(ctx, "session ended", "owner", "uid:1", "reason", "idle", messageID, "abc", "empty", "", "odd-key.ä", 3, slog.Group("usage", "cpu_ms", 12))
	log.WithGroup("g").Error("bad", "error", errors.New("two\nlines"))
	want := []sent{
		{`session ended session="s 1" owner=uid:1 reason=idle odd-key.ä=3 cpu_ms=12`, journald.PriWarning, map[string]string{
			"SYSLOG_IDENTIFIER": "boxd", "BOXD_SESSION": "s 1", "BOXD_OWNER": "uid:1", "BOXD_REASON": "idle", "MESSAGE_ID": "abc", "BOXD_ODD_KEY___": "3", "BOXD_USAGE_CPU_MS": "12",
			"BOXD_REQUEST": "r1", "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}},
		{`bad error="two\nlines"`, journald.PriErr, map[string]string{"SYSLOG_IDENTIFIER": "boxd", "BOXD_G_ERROR": "two\nlines"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sent{})); diff != "" {
		t.Error(diff)
	}
}

func TestWhatTheJournalDoesNotTakeIsNotLost(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	h := &handler{otherwise: slog.NewTextHandler(&text, nil), send: func(string, journald.Priority, map[string]string) error { return errors.New("full") }}
	slog.New(h).With("session", "s").Info("session started")
	if !strings.Contains(text.String(), `msg="session started" session=s`) {
		t.Errorf("standard error has %q, want text.String() containing `msg=\"session started\" session=s`",
			text.String())
	}
}

func TestFieldNamesAreLegal(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"session": "BOXD_SESSION", "_x": "BOXD__X", "a b": "BOXD_A_B", strings.Repeat("x", 100): "BOXD_" + strings.Repeat("X", 59)} {
		if got := fieldOf(key); got != want {
			t.Errorf("fieldOf(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestElsewhereTextAndJSONNameTheRequest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	slog.New(Open(Config{Format: formatJSON, Level: "warn"}, &out)).With("a", 1).WarnContext(requested(t), "hello", "session", "s")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["request"] != "r1" || line["session"] != "s" || line["traceparent"] == nil || line["level"] != "WARN" {
		t.Errorf(`%v: out = %s, want no error and line["request"] == "r1" and line["session"] == "s" and line["traceparent"] != nil and line["level"] == "WARN"`,
			err, out.String())
	}
	out.Reset()
	log := slog.New(Open(Config{Format: formatAuto, Level: "info"}, &out))
	log.DebugContext(requested(t), "not this")
	log.InfoContext(requested(t), "hello")
	log.Info("by itself")
	if got := out.String(); !strings.Contains(got, "msg=hello request=r1 traceparent=00-") || strings.Contains(got, "not this") || strings.Count(got, "request=") != 1 {
		t.Errorf(`the text is %q, want got containing "msg=hello request=r1 traceparent=00-" and got without "not this" and strings.Count(got, "request=") == 1`,
			got)
	}
}

func TestConfigIsHeldToWhatThereIs(t *testing.T) {
	t.Parallel()
	if c := DefaultConfig(); c.Validate() != nil {
		t.Error("the default is refused")
	}
	for _, c := range []Config{{"", "info"}, {"xml", "info"}, {"text", ""}, {"text", "loud"}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf(`%+v: err = %v, want an error containing "must be"`, c, err)
		}
	}
}
