// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay"
)

// contextAnswer describes a context.
type contextAnswer struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func describeContext(x *codeContext) contextAnswer { return contextAnswer{x.ID, x.Language, x.Dir} }

// serve answers a request for port 49999 of a sandbox, from somebody who has shown that he may.
func (c *contexts) serve(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	rest, ours := strings.CutPrefix(r.URL.Path, "/contexts")
	id, verb, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if ours && rest != "" && rest[0] != '/' || verb != "" && verb != "restart" {
		ours = false
	}
	do, what := (func(http.ResponseWriter, *http.Request, *sandbox) error)(nil), call{session: sb.ID, alters: true}
	switch {
	case r.URL.Path == "/execute" && r.Method == http.MethodPost:
		do, what.route = c.serveExecute, "code/execute"
	case !ours:
		answerText(w, http.StatusNotFound, "Not Found")
		return
	case id == "" && r.Method == http.MethodGet:
		do, what.route, what.alters = c.serveList, "code/contexts", false
	case id == "" && r.Method == http.MethodPost:
		do, what.route = c.serveCreate, "code/create-context"
	case id != "" && verb == "" && r.Method == http.MethodDelete:
		do = func(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
			return done(w, c.destroy(r.Context(), sb, id))
		}
		what.route, what.ends = "code/remove-context", true
	case verb == "restart" && r.Method == http.MethodPost:
		do = func(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
			return done(w, c.restart(r.Context(), sb, id))
		}
		what.route = "code/restart-context"
	default:
		answerText(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	broken := false
	c.server.recorded(w, r, sb.pass, what, func(w http.ResponseWriter, r *http.Request) error {
		err := do(w, r, sb)
		if errors.Is(err, errBroken) {
			broken = true
		} else if err != nil {
			c.refuse(w, r, err)
		}
		return err
	})
	if broken {
		panic(http.ErrAbortHandler) // so that no client takes for the end what is none
	}
}

// errBroken is what becomes of an answer that has begun and cannot be ended.
var errBroken = errors.New("the answer is incomplete")

func done(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusOK)
	}
	return err
}

func (c *contexts) serveList(w http.ResponseWriter, _ *http.Request, sb *sandbox) error {
	list := []contextAnswer{}
	for _, x := range c.list(sb) {
		list = append(list, describeContext(x))
	}
	reply(w, http.StatusOK, list)
	return nil
}

func (c *contexts) serveCreate(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
	var req struct{ Language, Cwd string }
	if err := c.decode(w, r, sb, &req); err != nil {
		return err
	}
	x, err := c.create(r.Context(), sb, req.Language, req.Cwd, false)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, describeContext(x))
	return nil
}

func (c *contexts) serveExecute(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
	release, err := sb.limits.Stream()
	if err != nil {
		return err
	}
	defer release()
	var req struct {
		Code     string            `json:"code"`
		Context  string            `json:"context_id"`
		Language string            `json:"language"`
		Env      map[string]string `json:"env_vars"`
	}
	if err := c.decode(w, r, sb, &req); err != nil {
		return err
	}
	if req.Context != "" && req.Language != "" {
		return fault.Field("language", req.Language, "left out where there is a context_id").WithText("Only one of context_id or language can be provided")
	}
	if n, ok := r.Context().Value(notedKey{}).(*noted); ok {
		n.what.Argv, n.what.Env = []string{req.Language, req.Code}, slices.Sorted(maps.Keys(req.Env))
	}
	lines := &eventWriter{w: w, control: http.NewResponseController(w)}
	err = c.execute(r.Context(), sb, &executeRequest{Context: req.Context, Language: req.Language, Code: req.Code, Env: req.Env}, lines.emit)
	switch {
	case err == nil || !lines.started:
		return err
	case r.Context().Err() != nil, lines.failed, fault.KindOf(err) == fault.NotFound: // the client has gone, or the sandbox has
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	message, _ := c.server.inWords(r.Context(), err)
	return errors.Join(lines.emit(newError("ExecutionFailed", message, "")), lines.emit(&codeEvent{Type: eventEnd}))
}

// eventWriter writes events to a client, a line each.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	started bool
	failed  bool
}

func (e *eventWriter) emit(event *codeEvent) error {
	line, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	if !e.started {
		e.started = true
		e.w.Header().Set("Content-Type", "application/x-ndjson")
		e.w.Header().Set("Cache-Control", "no-store")
	}
	_, err = e.w.Write(append(line, '\n'))
	if err == nil {
		err = e.control.Flush()
	}
	e.failed = err != nil
	return err
}

// decode reads a request.
func (c *contexts) decode(w http.ResponseWriter, r *http.Request, sb *sandbox, into any) error {
	if err := sb.Use(); err != nil {
		return err
	}
	body, release, err := c.server.bounded(w, r, sb, procedure{})
	if err != nil {
		return err
	}
	defer release()
	text, err := io.ReadAll(http.MaxBytesReader(w, body, maxMessage))
	if err != nil {
		return fault.Field("body", fault.Word("not there"), fmt.Sprintf("JSON of at most %d bytes", maxMessage)).WithText("cannot read the body of the request: %w", err)
	}
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fault.Field("body", fault.Word("something else"), "a JSON object as the protocol defines it").WithText("cannot read the body of the request: %w", err)
	}
	return nil
}

// refuse answers with an error in the words of the code interpreter: a status and plain text.
func (c *contexts) refuse(w http.ResponseWriter, r *http.Request, err error) {
	message, kind := c.server.inWords(r.Context(), err)
	status := http.StatusInternalServerError
	switch kind {
	case fault.Invalid:
		status = http.StatusBadRequest
	case fault.NotFound:
		status = http.StatusNotFound
	case fault.Exhausted:
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", relay.RetryAfter)
	case fault.Denied:
		status = http.StatusForbidden
	case fault.Unavailable:
		status = http.StatusServiceUnavailable
	case fault.Internal, fault.Conflict, fault.Unsupported, fault.Unauthenticated:
	}
	answerText(w, status, message)
}

func answerText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // to a client that may have gone
}
