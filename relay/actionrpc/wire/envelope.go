// SPDX-License-Identifier: Apache-2.0

// The messages of LangBot's action RPC: requests with their context, answers, errors.

package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Limits of the protocol.
const (
	MaxMessage   = 16 << 20 // bytes of a message, in either direction
	MaxCalls     = 128      // concurrent calls of one connection
	maxErrorText = 4096     // characters of an error
)

// unknownSeq is the sequence number of a request that has none.
const unknownSeq = -1

// Request is what a client asks for.
type Request struct {
	Seq     int64
	Action  string
	Data    map[string]json.RawMessage
	Context *Context // nil: the request has none
}

// Context names the Workspace that an action is for.
type Context struct {
	Instance   string
	Workspace  string
	Generation int64 // of its placement, at least 1
}

// maxValues is how many values a message may have, keys included: decoding takes more memory than the text itself.
const maxValues = 200_000

// fewValues reports whether a message has at most maxValues values. Invalid JSON may pass.
func fewValues(text []byte) bool {
	values := 1
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ',', ':', '[', '{':
			if values++; values > maxValues {
				return false
			}
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return true
}

// ParseRequest reads a message. A nil request without an error is ignored. With an error, seq is the sequence number of
// the answer.
func ParseRequest(text []byte) (req *Request, seq int64, err error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return nil, 0, nil //nolint:nilerr // what is no object is passed over, as the protocol has it
	}
	_, answer := fields["code"] // an answer to no request
	if _, is := fields["action"]; !is || answer {
		return nil, 0, nil
	}
	r := &Request{Seq: unknownSeq}
	var bad problems
	if n, ok := CoerceInt(fields["seq_id"]); ok {
		r.Seq = n
	} else {
		bad.add("seq_id", "Input should be a valid integer")
	}
	var ok bool
	if r.Action, ok = StringOf(fields["action"]); !ok {
		bad.add("action", "Input should be a valid string")
	}
	if r.Data, ok = ObjectOf(fields["data"]); !ok {
		bad.add("data", "Input should be a valid dictionary")
	}
	if raw := fields["context"]; !IsNull(raw) {
		r.Context = parseContext(raw, &bad)
	}
	if err := bad.error("ActionRequest"); err != nil {
		return nil, r.Seq, err
	}
	return r, r.Seq, nil
}

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseContext reads either form of a context: the second one describes an installation, whose own fields are ignored
// here.
func parseContext(raw json.RawMessage, bad *problems) *Context {
	fields, ok := ObjectOf(raw)
	if !ok {
		bad.add("context", "Input should be a valid dictionary")
		return nil
	}
	c := &Context{Generation: 1}
	text := func(name string, required bool) (s string) {
		raw, given := fields[name]
		if !given && !required || IsNull(raw) && !required {
			return ""
		}
		s, ok := StringOf(raw)
		if s = strings.TrimSpace(s); !ok || s == "" {
			bad.add("context."+name, "Value error, must not be empty")
		}
		return s
	}
	whole := func(name string) int64 {
		n, ok := CoerceInt(fields[name])
		if !ok || n < 1 {
			bad.add("context."+name, "Input should be greater than or equal to 1")
		}
		return n
	}
	c.Instance, c.Workspace = text("instance_uuid", true), text("workspace_uuid", true)
	if _, given := fields["placement_generation"]; given {
		c.Generation = whole("placement_generation")
	}
	_, revision := fields["runtime_revision"]
	_, artifact := fields["artifact_digest"]
	text("installation_uuid", revision || artifact)
	if revision || artifact {
		whole("runtime_revision")
		if s, ok := StringOf(fields["artifact_digest"]); !ok || !digest.MatchString(s) {
			bad.add("context.artifact_digest", "String should match pattern '^[0-9a-f]{64}$'")
		}
	}
	for name := range fields {
		switch name {
		case "instance_uuid", "workspace_uuid", "placement_generation", "installation_uuid", "runtime_revision", "artifact_digest":
		default:
			bad.add("context", "Extra inputs are not permitted")
		}
	}
	return c
}

// EncodeRequest returns the message of a request, with another sequence number.
func EncodeRequest(r *Request, seq int64) ([]byte, error) {
	type about struct {
		Instance   string `json:"instance_uuid"`
		Workspace  string `json:"workspace_uuid"`
		Generation int64  `json:"placement_generation"`
	}
	out := struct {
		Seq     int64                      `json:"seq_id"`
		Action  string                     `json:"action"`
		Data    map[string]json.RawMessage `json:"data"`
		Context *about                     `json:"context,omitempty"`
	}{Seq: seq, Action: r.Action, Data: r.Data}
	if c := r.Context; c != nil {
		out.Context = &about{c.Instance, c.Workspace, c.Generation}
	}
	text, err := encode(out)
	if err != nil {
		return nil, fmt.Errorf("action %s: %w", r.Action, err)
	}
	if len(text) > MaxMessage {
		return nil, Refusef("ValueError", "Runtime message exceeds %d byte limit", MaxMessage)
	}
	return text, nil
}

// encode writes < > & as they are, as the reference does: what is passed on would grow beyond the limit.
func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(v); err != nil {
		return nil, err //nolint:wrapcheck // callers say of what
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// problems are the errors in a message.
type problems []string

func (p *problems) add(field, what string) { *p = append(*p, field+"\n  "+what) }

func (p problems) error(model string) error {
	if len(p) == 0 {
		return nil
	}
	return Refusef("ValidationError", "%s", ProblemText(model, p))
}

// ProblemText formats the errors in the fields of a model.
func ProblemText(model string, wrong []string) string {
	s := "s"
	if len(wrong) == 1 {
		s = ""
	}
	return fmt.Sprintf("%d validation error%s for %s\n%s", len(wrong), s, model, strings.Join(wrong, "\n"))
}

// Refusal is an error as the protocol has it: clients look for the class.
type Refusal struct {
	Class string // "BoxValidationError"; "": none
	Text  string
}

// Refusef returns a refusal of a class.
func Refusef(class, format string, args ...any) *Refusal {
	return &Refusal{Class: class, Text: fmt.Sprintf(format, args...)}
}

// Error returns the text of an answer, which begins with the class in any case.
func (e *Refusal) Error() string {
	text := e.Text
	if utf8.RuneCountInString(text) > maxErrorText {
		text = string([]rune(text)[:maxErrorText]) + "... [protocol error truncated]"
	}
	if e.Class == "" {
		return text
	}
	return e.Class + ": " + text
}

// Stale is the refusal of an earlier placement.
func Stale() error { return Refusef("PermissionError", "Stale Box placement generation") }

// TooManyCalls refuses one call too many on a connection.
func TooManyCalls() error {
	return Refusef("", "Runtime connection is busy (max %d concurrent actions)", MaxCalls)
}

// Answer is what a client receives; its fields are in the order of the reference.
type Answer struct {
	Seq     int64  `json:"seq_id"`
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data"`
	Chunk   string `json:"chunk_status"`
}

// ParseAnswer reads the answer of a node.
func ParseAnswer(text []byte) (*Answer, error) {
	var in struct {
		Seq     *int64          `json:"seq_id"`
		Code    *int            `json:"code"`
		Message *string         `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("an answer of LangBot's protocol: %w", err)
	}
	if in.Seq == nil || in.Code == nil || in.Message == nil || len(in.Data) == 0 {
		return nil, Refusef("BoxError", "a node has sent no answer of LangBot's protocol")
	}
	return &Answer{*in.Seq, *in.Code, *in.Message, in.Data, "continue"}, nil
}

// Encode returns the message of an answer to the request with that sequence number; one that would be too long becomes an error.
func (a *Answer) Encode(seq int64) []byte {
	out := *a
	out.Seq = seq
	text, err := encode(out)
	if err != nil {
		return Failure(seq, Refusef("RuntimeError", "the answer cannot be written"))
	}
	if len(text) > MaxMessage {
		return Failure(seq, Refusef("ValueError", "Runtime message exceeds %d byte limit", MaxMessage))
	}
	return text
}

// Success returns the answer to a request that has succeeded.
func Success(seq int64, data any) []byte {
	return (&Answer{seq, 0, "success", data, "continue"}).Encode(seq)
}

// Failure returns the answer to a request that has failed.
func Failure(seq int64, err error) []byte {
	text, _ := encode(Answer{seq, 1, err.Error(), struct{}{}, "continue"}) // plain data: cannot fail
	return text
}

// Explain gives an error that boxd or a gateway has a class of the protocol.
func Explain(err error) error {
	if _, ok := errors.AsType[*Refusal](err); ok || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	class := "BoxError"
	switch fault.KindOf(err) {
	case fault.NotFound:
		class = "BoxSessionNotFoundError"
	case fault.Invalid, fault.Denied, fault.Unsupported:
		class = "BoxValidationError"
	case fault.Conflict:
		class = "BoxSessionConflictError"
	case fault.Exhausted:
		class = "BoxCapacityExceededError"
	case fault.Unavailable:
		class = "BoxBackendUnavailableError"
	case fault.Internal, fault.Unauthenticated:
	}
	text := err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		text += " (" + f.Hint + ")"
	}
	return Refusef(class, "%s", text)
}
