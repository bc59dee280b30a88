// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
)

// agentService is the code of a sandbox as clients of Scalebox ask for it.
type agentService struct{ server *Server }

// codeError is an error of contexts as RPCs have it.
func (a *agentService) codeError(ctx context.Context, err error) error {
	if lost(of(ctx).Session, err) {
		return connect.NewError(connect.CodeUnavailable, errors.New(strings.ToLower(wire.GoneMessage)))
	}
	return a.server.rpcError(ctx, err)
}

// CreateContext makes a context. Clients make one for each run and remove none, so the one that was longest not used makes room.
func (a *agentService) CreateContext(ctx context.Context, req *protocol.CreateContextRequest) (*protocol.CodeContext, error) {
	dir := ""
	if req.Cwd != "" {
		dir = of(ctx).path(req.Cwd)
	}
	x, err := a.server.code.create(ctx, of(ctx), req.Language, dir, true)
	if err != nil {
		return nil, a.codeError(ctx, err)
	}
	return &protocol.CodeContext{Id: x.ID, Language: x.Language, Cwd: x.Dir, CreatedAt: timestamppb.New(time.Now())}, nil
}

// DestroyContext ends a context.
func (a *agentService) DestroyContext(ctx context.Context, req *protocol.DestroyContextRequest) (*protocol.DestroyContextResponse, error) {
	if err := a.server.code.destroy(ctx, of(ctx), req.ContextId); err != nil {
		return nil, a.codeError(ctx, err)
	}
	return &protocol.DestroyContextResponse{Success: true}, nil
}

// Execute runs code and sends what happens.
func (a *agentService) Execute(ctx context.Context, req *protocol.ExecuteRequest, stream *connect.ServerStream[protocol.ExecuteResponse]) error {
	sb := of(ctx)
	release, err := sb.limits.Stream()
	if err != nil {
		return a.server.rpcError(ctx, err)
	}
	defer release()
	execute := &executeRequest{Context: req.ContextId, Code: req.Code, Env: req.EnvVars}
	if req.ContextId == "" {
		execute.Language = req.Language
	}
	if n, ok := ctx.Value(notedKey{}).(*noted); ok {
		n.what.Argv, n.what.Env = []string{req.Language, req.Code}, slices.Sorted(maps.Keys(req.EnvVars))
	}
	start, count := time.Now(), int64(0)
	err = a.server.code.execute(ctx, sb, execute, func(e *codeEvent) error {
		if e.Type == eventCount {
			count = e.ExecutionCount
		}
		if m := agentEvent(e, start, count); m != nil {
			return stream.Send(m)
		}
		return nil
	})
	return a.codeError(ctx, err)
}

// agentEvent is an event as a message; nil for what clients of Scalebox do not hear of.
func agentEvent(e *codeEvent, start time.Time, count int64) *protocol.ExecuteResponse {
	switch e.Type {
	case eventStdout:
		return &protocol.ExecuteResponse{Event: &protocol.ExecuteResponse_Stdout{Stdout: &protocol.ExecuteOutput{Content: e.Text}}}
	case eventStderr:
		return &protocol.ExecuteResponse{Event: &protocol.ExecuteResponse_Stderr{Stderr: &protocol.ExecuteOutput{Content: e.Text}}}
	case eventError:
		return &protocol.ExecuteResponse{Event: &protocol.ExecuteResponse_Error{Error: &protocol.ExecuteError{Name: *e.Name, Value: *e.Value, Traceback: *e.Traceback}}}
	case eventResult:
		r := e.codeResult
		m := &protocol.ExecuteResult{
			StartedAt: timestamppb.New(start), FinishedAt: timestamppb.Now(), Text: e.Text, Html: plain(r.HTML), Markdown: plain(r.Markdown), Svg: plain(r.SVG), Png: plain(r.PNG),
			Jpeg: plain(r.JPEG), Pdf: plain(r.PDF), Latex: plain(r.Latex), Json: plain(r.JSON), Javascript: plain(r.JavaScript), Data: plain(r.Data),
			Chart: chartOf(r.Chart), ExecutionCount: int32(count), IsMainResult: r.Main, Extra: map[string]string{},
		}
		for mime, value := range r.Extra {
			m.Extra[mime] = plain(value)
		}
		return &protocol.ExecuteResponse{Event: &protocol.ExecuteResponse_Result{Result: m}}
	}
	return nil
}

// plain is a JSON text as it is, and any other JSON value as it is written.
func plain(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return strings.ToValidUTF8(string(raw), "\ufffd") // a message has nothing else, and code may write anything
}
