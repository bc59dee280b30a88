// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// kindOf is the kind of an answer, as records have it.
func kindOf(e *wire.Error) fault.Kind {
	switch e.Code {
	case http.StatusUnauthorized:
		return fault.Unauthenticated
	case http.StatusForbidden:
		return fault.Denied
	case http.StatusNotFound, http.StatusBadGateway:
		return fault.NotFound
	case http.StatusConflict:
		return fault.Conflict
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return fault.Exhausted
	case http.StatusNotImplemented:
		return fault.Unsupported
	case http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusInternalServerError:
		return fault.Internal
	}
	return fault.Invalid
}

// refusal is an error with a status of its own.
func refusal(status int, message string) *wire.Error {
	return &wire.Error{Code: status, Message: message}
}

// The sentences that clients know.
const (
	closedMessage  = "The sandbox is running but port is not open"
	expiredMessage = "signature is already expired"
)

// unauthorized is the one answer to whoever does not prove a right.
func unauthorized(what string) *wire.Error {
	return refusal(http.StatusUnauthorized, what)
}

// inWords is what an error says to a client, with the hint if there is one. What is not meant for clients is in the log.
func (s *Server) inWords(ctx context.Context, err error) (message string, kind fault.Kind) {
	kind = fault.KindOf(err)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Message, kindOf(e)
	}
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e.Message(), fault.Invalid
	}
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		return step.Error(), kind
	}
	if errors.Is(err, errBroken) || ctx.Err() != nil && errors.Is(err, ctx.Err()) { // nothing of boxd's has failed
		return err.Error(), fault.Unavailable
	}
	if kind == fault.Internal {
		s.cfg.Log.ErrorContext(ctx, "request failed", "error", err)
		return "boxd failed; its log has the reason", kind
	}
	message = err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		message += " (" + f.Hint + ")"
	}
	return message, kind
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		message, _ := s.inWords(r.Context(), err)
		e = refusal(relay.RefusalProblem(err).Status, message)
	}
	if e.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", relay.RetryAfter)
	}
	reply(w, e.Code, e)
}

// reply answers with JSON.
func reply(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // nothing of ours cannot be written
		status, text = http.StatusInternalServerError, []byte(`{"code":500,"message":"the answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // who has hung up needs no answer
}

// codeOf is how RPCs say what kind of error it is.
func codeOf(kind fault.Kind) connect.Code {
	switch kind {
	case fault.Invalid:
		return connect.CodeInvalidArgument
	case fault.NotFound:
		return connect.CodeNotFound
	case fault.Conflict:
		return connect.CodeFailedPrecondition
	case fault.Denied:
		return connect.CodePermissionDenied
	case fault.Exhausted:
		return connect.CodeResourceExhausted
	case fault.Unsupported:
		return connect.CodeUnimplemented
	case fault.Unavailable:
		return connect.CodeUnavailable
	case fault.Unauthenticated:
		return connect.CodeUnauthenticated
	case fault.Internal:
	}
	return connect.CodeInternal
}

// rpcError is an error as RPCs have it.
func (s *Server) rpcError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return connect.NewError(map[bool]connect.Code{true: connect.CodeDeadlineExceeded, false: connect.CodeCanceled}[errors.Is(ctx.Err(), context.DeadlineExceeded)], ctx.Err())
	}
	message, kind := s.inWords(ctx, err)
	return connect.NewError(codeOf(kind), errors.New(message))
}

// lost reports whether an error means that the session has ended under way.
func lost(sess *session.Session, err error) bool {
	return fault.KindOf(err) == fault.NotFound && sess.Info().State != session.StateReady
}
