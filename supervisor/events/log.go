// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"log/slog"
	"time"
)

// messageID is the attribute with the MESSAGE_ID of a line, for the journal.
const messageID = "message_id"

// Logged returns a watcher that writes each event to a log.
func Logged(log *slog.Logger) func(context.Context, *Event) {
	return func(ctx context.Context, e *Event) {
		level := e.Type.Level()
		if !log.Enabled(ctx, level) {
			return
		}
		var buf [10]slog.Attr // on the stack: handlers do not keep it
		attrs := buf[:0]
		for _, a := range [...]slog.Attr{
			slog.String("session", e.Session), slog.String("owner", e.Owner), slog.String("reason", e.Reason), slog.String("process", e.Process), slog.String("exec", e.Exec),
			slog.String("profile", e.Profile), slog.String("detail", e.Detail), slog.String(messageID, e.Type.MessageID()),
		} {
			if a.Value.String() != "" {
				attrs = append(attrs, a)
			}
		}
		if e.Request.ID == "" && e.Principal != "" { // otherwise the log has it from the request
			attrs = append(attrs, slog.String("principal", e.Principal))
		}
		if e.Took > 0 {
			attrs = append(attrs, slog.Duration("took", e.Took.Round(time.Microsecond)))
		}
		log.LogAttrs(ctx, level, e.Type.Text(), attrs...)
	}
}

// Level is the level of the type's log lines.
func (t Type) Level() slog.Level {
	//nolint:exhaustive // all others are ordinary
	switch t {
	case ConfigRefused, AuditFailed:
		return slog.LevelError
	case SessionFailed, SessionUnhealthy, Denied, OOM, Quota, AuditRecovered, GrantChanged:
		return slog.LevelWarn
	case ExecStarted: // the end is logged too
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
