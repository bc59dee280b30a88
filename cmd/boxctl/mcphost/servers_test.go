// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestAServerIsFoundInTheFileOfAHost(t *testing.T) {
	t.Parallel()
	want := &Server{Command: "npx", Args: []string{"-y", "x"}, Env: map[string]string{"A": "b"}}
	const entry = `{"command":"npx","args":["-y","x"],"env":{"A":"b"},"disabled":false}`
	for _, tc := range []struct{ file, message string }{
		{`{"mcpServers":{"s":` + entry + `}}`, ""},
		{`{"servers":{"s":` + entry + `},"inputs":[]}`, ""},
		{`{"servers":{"s":{"type":"stdio",` + entry[1:] + `}}`, ""},
		{`{"mcpServers":{"s":{"type":"stdio","command":"${NPX}","args":["-y","${NONE:-x}"],"env":{"A":"${env:LETTER}"}}}}`, ""},
		{`{"mcpServers":{"s":{"command":"n${EMPTY:-p}x","args":["${DASH}y","x${EMPTY}"],"env":{"A":"b"}}}}`, ""},
		{`{"mcpServers":{"s":{"command":"x","args":["${NONE}"]}}}`, "NONE is not set"},
		{`{"mcpServers":{"s":{"command":"x","args":["${NPX"]}}}`, "in which only ${NAME}"},
		{`{"mcpServers":{"s":{"command":"${EMPTY}"}}}`, "command is missing: must be a program"},
		{`{"servers":{"s":{"command":"x","envFile":"${workspaceFolder}/.env"}}}`, "envFile is not supported"},
		{`{"mcpServers":{"s":{"command":"x","args":["${userHome}/x"]}}}`, "in which only ${NAME}"},
		{`{"mcpServers":{"a":{},"b":{}}}`, `name = "s": must be a server of the file: a, b`},
		{`{}`, `name = "s": must be a server of the file`},
		{`// a comment`, "the list of servers"},
		{`{"mcpServers":[]}`, "the list of servers"},
		{`{"mcpServers":{"s":{"url":"http://x"}}}`, "only servers on standard input"},
		{`{"mcpServers":{"s":{"type":"sse","command":"x"}}}`, "only servers on standard input"},
		{`{"mcpServers":{"s":{}}}`, "command is missing: must be a program"},
		{`{"mcpServers":{"s":{"command":"x","args":["${workspaceFolder}/x"]}}}`, "in which only ${NAME}"},
		{`{"mcpServers":{"s":{"command":"x","env":{"K":"${input:key}"}}}}`, "in which only ${NAME}"},
		{`{"mcpServers":{"s":{"command":"x\u0000"}}}`, "NUL"},
		{strings.Repeat(" ", MaxFile) + "{}", "at most"},
	} {
		got, err := FindServer([]byte(tc.file), "s", variables)
		if tc.message == "" && (err != nil || !cmp.Equal(got, want)) || tc.message != "" && (err == nil || !strings.Contains(err.Error(), tc.message)) {
			t.Errorf(`%.80s: got %+v, err = %v, want (tc.says != "" or no error and got == %+v) and (tc.says == "" or an error containing %q)`,
				tc.file, got, err, want, tc.message)
		}
	}
}

// variables looks up a variable in the environment of boxctl's caller.
func variables(name string) (string, bool) {
	value, ok := map[string]string{"NPX": "npx", "LETTER": "b", "EMPTY": "", "DASH": "-"}[name]
	return value, ok
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"s":{"command":"npx","args":["-y","x"],"env":{"A":"b"}}}}`), "s")
	f.Add([]byte(`{"servers":{"":{"url":1}}}`), "")
	f.Add([]byte(`{"servers":{"s":{"command":"${NPX:-x}","args":["${env:EMPTY}${","${}"]}}}`), "s")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		got, err := FindServer(data, name, variables)
		if err == nil && got.Command == "" {
			t.Fatalf("%q has no command", data)
		}
		if _, ok := errors.AsType[*fault.Error](err); err != nil && !ok {
			t.Fatalf("%q: the error %v does not say what is wrong", data, err)
		}
	})
}
