// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// maxLogs is how many entries of a log an answer has at most, and has if its client does not say.
const maxLogs = 1000

// logger is whose entries those of a log are, as clients of E2B show it.
const logger = "boxd"

// logEntry is an event of a sandbox as an entry of its log.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`

	level slog.Level
}

// logLine is the same as older clients read it: a JSON object in a text.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// logged is an event as an entry of a log.
func logged(e *events.Event) logEntry {
	fields := map[string]string{"logger": logger}
	for name, value := range map[string]string{
		"process": e.Process, "exec": e.Exec, "profile": e.Profile, "reason": e.Reason, "detail": e.Detail, "request": e.Request.ID,
	} {
		if value != "" {
			fields[name] = value
		}
	}
	if e.Took > 0 {
		fields["took"] = e.Took.Round(time.Microsecond).String()
	}
	level := e.Type.Level()
	return logEntry{e.Time.UTC(), strings.ToLower(level.String()), e.Type.Text(), fields, level}
}

// line is an entry as older clients read it.
func (l *logEntry) line() (logLine, error) {
	all := maps.Clone(l.Fields)
	all["level"], all["message"] = l.Level, l.Message
	text, err := json.Marshal(all)
	return logLine{l.Timestamp, string(text)}, err
}

// events are the entries of the log of the sandbox in the path that wants says yes to, the oldest first. One that has ended has its
// log for as long as boxd keeps events.
func (c *controlCall) events(wants func(*logEntry) bool) ([]logEntry, error) {
	_, missing := c.session()
	list := []logEntry{}
	if missing != nil {
		if _, err := c.server.cfg.Sup.Session(c.pass.Principal, c.id); err == nil || !wire.ValidID(c.id) { // a session that is no sandbox
			return nil, missing
		}
	}
	known := missing == nil
	for at, filter := c.server.cfg.Events.Start(), (&events.Filter{Owner: c.pass.Name, Session: c.id}); ; {
		batch, changed := c.server.cfg.Events.Read(at, filter)
		for i := range batch.Events {
			known = true
			if l := logged(&batch.Events[i]); wants(&l) {
				list = append(list, l)
			}
		}
		if at = batch.Next; changed != nil {
			break
		}
	}
	if !known {
		return nil, missing
	}
	return list, nil
}

// logs answers with the log of a sandbox as older clients ask for it.
func (c *controlCall) logs() error {
	start, err := c.number("start", 0, 0, 1<<50)
	if err != nil {
		return err
	}
	limit, err := c.number("limit", maxLogs, 0, maxLogs)
	if err != nil {
		return err
	}
	list, err := c.events(func(l *logEntry) bool { return l.Timestamp.UnixMilli() >= start })
	if err != nil {
		return err
	}
	list = list[:min(int64(len(list)), limit)]
	lines := make([]logLine, len(list))
	for i := range list {
		if lines[i], err = list[i].line(); err != nil {
			return err
		}
	}
	reply(c.w, http.StatusOK, map[string]any{"logs": lines, "logEntries": list})
	return nil
}

// logEntries answers with the log of a sandbox, from a time on, or from there to its beginning.
func (c *controlCall) logEntries() error {
	query := c.r.URL.Query()
	direction := query.Get("direction")
	if direction != "" && direction != "forward" && direction != "backward" {
		return fault.Field("direction", direction, fault.OneOf("forward", "backward"))
	}
	backward, start := direction == "backward", int64(0)
	if backward {
		start = 1 << 50
	}
	cursor, err := c.number("cursor", start, 0, 1<<50)
	if err != nil {
		return err
	}
	limit, err := c.number("limit", maxLogs, 0, maxLogs)
	if err != nil {
		return err
	}
	minLevel := slog.LevelDebug
	if text := query.Get("level"); text != "" {
		if err := minLevel.UnmarshalText([]byte(text)); err != nil {
			return fault.Field("level", text, fault.OneOf("debug", "info", "warn", "error"))
		}
	}
	list, err := c.events(func(l *logEntry) bool {
		at := l.Timestamp.UnixMilli()
		return l.level >= minLevel && strings.Contains(l.Message, query.Get("search")) && (backward && at <= cursor || !backward && at >= cursor)
	})
	if err != nil {
		return err
	}
	if backward {
		slices.Reverse(list)
	}
	reply(c.w, http.StatusOK, map[string]any{"logs": list[:min(int64(len(list)), limit)]})
	return nil
}
