// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	greeting   = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	oldHello   = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	settled    = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	callSquare = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"square","arguments":{"n":4}}}`
)

// answer is a response.
type answer struct {
	ID     any             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// exchange sends lines one by one, each after the previous answer, and returns the answers.
func exchange(t *testing.T, lines ...string) (answers []answer) {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	type number struct {
		N int `json:"n"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "square"}, func(_ context.Context, _ *mcp.CallToolRequest, in number) (*mcp.CallToolResult, number, error) {
		return nil, number{in.N * in.N}, nil
	})
	in, typing := io.Pipe()
	screen, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- server.Run(t.Context(), &Stdio{In: in, Out: out}) }()
	read := bufio.NewReader(screen)
	for _, line := range lines {
		if _, err := io.WriteString(typing, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if line == settled || line == "" {
			continue
		}
		got, err := read.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		answers = append(answers, a)
	}
	typing.Close()
	if err := <-ended; err != nil {
		t.Errorf("at the end of its input: %v", err)
	}
	return answers
}

func TestWhatIsNoMessageIsRefusedAndTheNextOneServed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		line    string
		code    int
		id      any
		message string
	}{
		"no JSON":              {`{"jsonrpc":`, -32700, nil, "not JSON"},
		"bytes":                {"\x00\xff\xfe", -32700, nil, "not JSON"},
		"a number":             {`17`, -32600, nil, "not a JSON-RPC 2.0 message"},
		"another version":      {`{"jsonrpc":"1.0","id":7,"method":"ping"}`, -32600, 7.0, "not a JSON-RPC 2.0 message"},
		"nothing in it":        {`{}`, -32600, nil, "not a JSON-RPC 2.0 message"},
		"a batch":              {`[{"jsonrpc":"2.0","id":8,"method":"ping"}]`, -32600, nil, "batches"},
		"an empty batch":       {`[]`, -32600, nil, "batches"},
		"an unknown method":    {`{"jsonrpc":"2.0","id":"x","method":"no/such"}`, -32601, "x", "no/such"},
		"an unknown tool":      {`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"cube","arguments":{}}}`, -32602, 9.0, `unknown tool "cube"`},
		"params of wrong type": {`{"jsonrpc":"2.0","id":10,"method":"tools/call","params":"x"}`, -32602, 10.0, ""},
		"no params":            {`{"jsonrpc":"2.0","id":11,"method":"tools/call"}`, -32600, 11.0, "params"},
		"too long":             {`{"jsonrpc":"2.0","id":12,"method":"ping","params":{"x":"` + strings.Repeat("x", maxLine) + `"}}`, -32600, nil, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := exchange(t, greeting, settled, tc.line, "", callSquare)
			if len(got) != 3 || got[0].Error != nil {
				t.Fatalf("got %+v, want len(got) == 3 and got[0].Error == nil", got)
			}
			if e := got[1].Error; e == nil || e.Code != tc.code || got[1].ID != tc.id || !strings.Contains(e.Message, tc.message) {
				t.Errorf("answered by %+v, %+v", got[1], e)
			}
			if got[2].Error != nil || !strings.Contains(string(got[2].Result), `"n":16`) {
				t.Errorf("the next message is answered by %+v", got[2])
			}
		})
	}
}

func TestRequestsBeforeTheHandshakeAreRefused(t *testing.T) {
	t.Parallel()
	got := exchange(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, strings.ReplaceAll(callSquare, `"id":1`, `"id":"a"`), `{"jsonrpc":"2.0","id":2,"method":"ping"}`, greeting, settled, callSquare)
	for i, id := range []any{1.0, "a"} {
		if e := got[i].Error; e == nil || e.Code != -32600 || got[i].ID != id || !strings.Contains(e.Message, "initializ") {
			t.Errorf("answered by %+v, %+v", got[i], e)
		}
	}
	for _, a := range got[2:] {
		if a.Error != nil {
			t.Errorf("a = %+v, want a.Error == nil", a)
		}
	}
}

func TestArgumentsOfTheWrongTypeAreAnErrorOfTheTool(t *testing.T) {
	t.Parallel()
	for _, args := range []string{`{"n":"four"}`, `{}`, `{"n":4,"m":5}`, `[4]`, `4`} {
		got := exchange(t, greeting, settled, strings.Replace(callSquare, `{"n":4}`, args, 1))
		if a := got[1]; a.Error != nil || !strings.Contains(string(a.Result), `"isError":true`) {
			t.Errorf("%s: a = %+v, want a.Error == nil and a.Result containing `\"isError\":true`", args, a)
		}
	}
}

func TestBatchesAreTakenFromThoseWhoSpeakTheOldProtocol(t *testing.T) {
	t.Parallel()
	got := exchange(t, oldHello, settled, "["+callSquare+"]", `[{"jsonrpc":"2.0","id":3},5]`, `[]`)
	if got[1].Error != nil || !strings.Contains(string(got[1].Result), `"n":16`) {
		t.Errorf("got[1] = %+v, want got[1].Error == nil and got[1].Result containing `\"n\":16`", got[1])
	}
	for _, a := range got[2:] {
		if a.Error == nil || a.Error.Code != -32600 {
			t.Errorf("a = %+v, want a.Error != nil and a.Error.Code == -32600", a)
		}
	}
}

// Every input is a message or gets a refusal, which is a message itself.
func FuzzParse(f *testing.F) {
	for _, line := range []string{greeting, settled, callSquare, "[" + callSquare + "]", "{}", "[]", "", "null", `{"jsonrpc":"2.0","id":{},"method":1}`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{}}`} {
		f.Add([]byte(line), true)
		f.Add([]byte(line), false)
	}
	f.Fuzz(func(t *testing.T, line []byte, batches bool) {
		messages, refusal := parseMessages(line, batches)
		if (len(messages) == 0) == (refusal == nil) && len(line) > 0 {
			t.Fatalf("%q: messages = %v and refusal = %v, want (len(messages) == 0) != (refusal == nil) or len(line) == 0",
				line, messages, refusal)
		}
		if len(messages) > 1 && !batches {
			t.Fatalf("%q is %d messages", line, len(messages))
		}
		if refusal != nil && (refusal.Code == 0 || refusal.ID != nil && !json.Valid(refusal.ID)) {
			t.Fatalf("%q: refusal = %+v, want refusal == nil or refusal.Code != 0 and (refusal.ID == nil or json.Valid(refusal.ID))",
				line, refusal)
		}
	})
}

func TestTheEndOfTheInputLeavesTimeForAnswers(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	var out strings.Builder
	in := strings.NewReader(greeting + "\n" + settled + "\n" + `{"jsonrpc":"2.0","id":1,"method":"tools/list"}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	if err := server.Run(t.Context(), &Stdio{In: in, Out: &out}); err != nil {
		t.Error(err)
	}
	if got := out.String(); strings.Count(got, `"result"`) != 3 || strings.Contains(got, `"error"`) {
		t.Errorf("answered by %s", got)
	}
}
