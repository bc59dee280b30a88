// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

func TestAPanicInAnActionFailsOnlyThatCall(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &Server{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	a := &action{do: func(context.Context, *call) (any, error) {
		var none map[string]int
		none["x"] = 1 //nolint:staticcheck // it is to break
		return none, nil
	}}
	c := &call{Request: &wire.Request{Seq: 7, Action: "box_exec"}}
	data, err := s.safely(t.Context(), c, a)
	if data != nil || err == nil || !strings.HasPrefix(err.Error(), "RuntimeError: ") {
		t.Errorf(`data = %v, err = %v, want data == nil and an error and err starting with "RuntimeError: "`, data, err)
	}
	if text := log.String(); !strings.Contains(text, "box_exec") || !strings.Contains(text, "nil map") || !strings.Contains(text, "rpc_test.go") {
		t.Errorf(`the log says: text = %s, want text containing "box_exec" and text containing "nil map" and text containing "rpc_test.go"`,
			text)
	}
	// A request without a connection panics before its action, and is answered all the same.
	if text := s.answer(t.Context(), c); !bytes.Contains(text, []byte(`{"seq_id":7,"code":1,`)) {
		t.Errorf("text = %s, want text containing []byte(`{\"seq_id\":7,\"code\":1,`)", text)
	}
}
