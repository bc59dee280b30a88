// SPDX-License-Identifier: Apache-2.0

// boxd logs to the journal with fields that can be queried (journalctl BOXD_SESSION=work) if
// standard error is connected to the journal, and as text or JSON otherwise.

package systemd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	journald "github.com/coreos/go-systemd/v22/journal"

	"github.com/boxd-dev/boxd/internal/trace"
)

// Config is the table [log].
type Config struct {
	Format string `toml:"format"`
	Level  string `toml:"level"`
}

// The formats.
const (
	formatAuto    = "auto"    // journal if standard error is connected to the journal, otherwise text
	formatText    = "text"    // key=value
	formatJSON    = "json"    // one object per line
	formatJournal = "journal" // the journal's own protocol
)

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Format: formatAuto, Level: "info"} }

func levels() map[string]slog.Level {
	return map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
}

// Validate names the key that is wrong, and what is allowed.
func (c *Config) Validate() error {
	if !slices.Contains([]string{formatAuto, formatText, formatJSON, formatJournal}, c.Format) {
		return fmt.Errorf("log.format = %q: must be one of %q, %q, %q and %q", c.Format, formatAuto, formatText, formatJSON, formatJournal)
	}
	if _, ok := levels()[c.Level]; !ok {
		return fmt.Errorf("log.level = %q: must be one of \"debug\", \"info\", \"warn\" and \"error\"", c.Level)
	}
	return nil
}

// Open returns the handler for a valid configuration. Text goes to stderr, and so does what the
// journal does not accept.
func Open(c Config, stderr io.Writer) slog.Handler {
	format := c.Format
	if ours, err := journald.StderrIsJournalStream(); format == formatAuto && err == nil && ours && journald.Enabled() {
		format = formatJournal
	}
	options := &slog.HandlerOptions{Level: levels()[c.Level], ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == messageID {
			return slog.Attr{} // only the journal gets it
		}
		return a
	}}
	switch format {
	case formatJournal:
		return &handler{level: levels()[c.Level], send: journald.Send, otherwise: slog.NewTextHandler(stderr, options)}
	case formatJSON:
		return &requestHandler{slog.NewJSONHandler(stderr, options)}
	}
	return &requestHandler{slog.NewTextHandler(stderr, options)}
}

// messageID is the attribute with the catalog id of a line; only the journal gets it.
const messageID = "message_id"

// requestHandler adds the request to lines of text and JSON.
type requestHandler struct{ slog.Handler }

// Handle adds the request in the context.
func (h *requestHandler) Handle(ctx context.Context, r slog.Record) error {
	if q := trace.Of(ctx); q.ID != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request", q.ID))
		if q.Principal != "" {
			r.AddAttrs(slog.String("principal", q.Principal))
		}
		if q.Parent != "" {
			r.AddAttrs(slog.String("traceparent", q.Parent))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *requestHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &requestHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *requestHandler) WithGroup(name string) slog.Handler {
	return &requestHandler{h.Handler.WithGroup(name)}
}

// handler writes to the journal.
type handler struct {
	level     slog.Level
	send      func(message string, priority journald.Priority, fields map[string]string) error
	otherwise slog.Handler
	attrs     []slog.Attr
	prefix    string // prefix of names, from groups
}

// Enabled reports whether lines of a level are written.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle sends one line. If the journal does not accept it, it goes to standard error, so that no
// line is lost silently.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	fields := map[string]string{"SYSLOG_IDENTIFIER": "boxd"}
	var words strings.Builder
	words.WriteString(r.Message)
	put := func(a slog.Attr) bool {
		put(fields, &words, h.prefix, a)
		return true
	}
	for _, a := range h.attrs {
		put(a)
	}
	r.Attrs(put)
	if q := trace.Of(ctx); q.ID != "" {
		fields["BOXD_REQUEST"] = q.ID
		if q.Parent != "" {
			fields["TRACEPARENT"] = q.Parent
		}
		if q.Principal != "" {
			fields["BOXD_PRINCIPAL"] = q.Principal
		}
	}
	if err := h.send(words.String(), priority(r.Level), fields); err != nil {
		return h.otherwise.Handle(ctx, r)
	}
	return nil
}

// WithAttrs returns a handler that adds attributes to its lines.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	copied := *h
	copied.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		copied.attrs = append(copied.attrs, a)
	}
	copied.otherwise = h.otherwise.WithAttrs(attrs)
	return &copied
}

// WithGroup returns a handler that prefixes the names of later attributes.
func (h *handler) WithGroup(name string) slog.Handler {
	copied := *h
	copied.prefix = h.prefix + name + "_"
	copied.otherwise = h.otherwise.WithGroup(name)
	return &copied
}

// put adds an attribute to the fields and to the text for people.
func put(fields map[string]string, words *strings.Builder, prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		for _, b := range value.Group() {
			put(fields, words, prefix+a.Key+"_", b)
		}
		return
	}
	text := value.String()
	switch {
	case a.Equal(slog.Attr{}), text == "":
		return
	case a.Key == messageID:
		fields["MESSAGE_ID"] = text
		return
	case a.Key == "request":
		fields["BOXD_REQUEST"] = text
		return
	case a.Key == "traceparent":
		fields["TRACEPARENT"] = text
		return
	}
	fields[fieldOf(prefix+a.Key)] = text
	if strings.ContainsAny(text, " \t\n\"=") {
		fmt.Fprintf(words, " %s=%q", a.Key, text)
		return
	}
	fmt.Fprintf(words, " %s=%s", a.Key, text)
}

// maxField is the longest field name that journald accepts.
const maxField = 64

// fieldOf returns the name of a field: with the characters that the journal allows, and with a
// prefix of our own.
func fieldOf(key string) string {
	name := []byte("BOXD_" + strings.ToUpper(key))
	for i, c := range name {
		if ('A' > c || c > 'Z') && ('0' > c || c > '9') {
			name[i] = '_'
		}
	}
	return string(name[:min(len(name), maxField)])
}

func priority(level slog.Level) journald.Priority {
	switch {
	case level >= slog.LevelError:
		return journald.PriErr
	case level >= slog.LevelWarn:
		return journald.PriWarning
	case level >= slog.LevelInfo:
		return journald.PriInfo
	}
	return journald.PriDebug
}
