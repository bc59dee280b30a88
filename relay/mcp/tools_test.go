// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/api"
)

// Tools that reach outside say so: from the start if the box has a network, or as soon as another box has one.
func TestProgramsReachOthersWhereABoxHasANetwork(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		changed := make(chan struct{}, 8)
		tools := &tools{server: mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil), outputs: newOutputs(DefaultOutputLimits())}
		tools.register(open)
		near, far := mcp.NewInMemoryTransports()
		if _, err := tools.server.Connect(t.Context(), near, nil); err != nil {
			t.Fatal(err)
		}
		client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		})
		session, err := client.Connect(t.Context(), far, nil)
		if err != nil {
			t.Fatal(err)
		}
		look := func(want bool) {
			t.Helper()
			list, err := session.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, tool := range list.Tools {
				runs := tool.Name == "box_exec" || tool.Name == "process_start" || tool.Name == "process_write"
				if got := *tool.Annotations.OpenWorldHint; got != (runs && want) {
					t.Errorf("with a network %v, %s: got %v, want (runs && want)", want, tool.Name, got)
				}
			}
		}
		look(open)
		tools.announceNetwork()
		if !open {
			<-changed
		}
		look(true)
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
}

// properties calls found for every object property of a schema.
func properties(schema any, where string, found func(where string, property map[string]any)) {
	node, ok := schema.(map[string]any)
	if !ok {
		return
	}
	fields, _ := node["properties"].(map[string]any)
	for name, field := range fields {
		property, _ := field.(map[string]any)
		found(where+"."+name, property)
		properties(field, where+"."+name, found)
	}
	properties(node["items"], where+"[]", found)
}

// A model has only these texts to go by, and each costs it some of its context.
func TestDescriptionsForAModelAreShortAndPlain(t *testing.T) {
	t.Parallel()
	const mostOfTool, mostOfParameter = 36, 15 // words
	data, err := os.ReadFile("../../docs/testdata/unclear-words.txt")
	if err != nil {
		t.Fatal(err)
	}
	check := func(where, text string, most int) {
		if words := len(strings.Fields(text)); words == 0 || words > most {
			t.Errorf("%s: %d words: text = %q, want words != 0 and words <= %v", where, words, text, most)
		}
		for phrase := range strings.Lines(string(data)) {
			if phrase = strings.TrimSpace(phrase); !strings.HasPrefix(phrase, "#") && strings.Contains(" "+strings.ToLower(text)+" ", " "+phrase+" ") {
				t.Errorf(`%s says %q: text = %q, want phrase starting with "#" or " " + strings.ToLower(text) + " " without " " + phrase + " "`,
					where, phrase, text)
			}
		}
	}
	tools := &tools{server: mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil), outputs: newOutputs(DefaultOutputLimits())}
	tools.register(true)
	near, far := mcp.NewInMemoryTransports()
	if _, err := tools.server.Connect(t.Context(), near, nil); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	parameters := 0
	for _, tool := range list.Tools {
		check(tool.Name, tool.Description, mostOfTool)
		if !strings.HasSuffix(tool.Description, ".") {
			t.Errorf("%s: %q is no sentence", tool.Name, tool.Description)
		}
		properties(tool.InputSchema, tool.Name, func(where string, property map[string]any) {
			parameters++
			text, _ := property["description"].(string)
			check(where, text, mostOfParameter)
		})
	}
	if len(list.Tools) < 15 || parameters < 60 {
		t.Errorf("%d tools with %d parameters", len(list.Tools), parameters)
	}
	f := facts()
	f.Box.Skills, f.Box.Mounts = []string{"pdf"}, []api.Mount{{Target: "/data", Mode: "rw"}}
	for _, network := range []string{"off", "egress", "host"} {
		f.Box.Network = network
		for line := range strings.Lines(WriteInstructions(f)) {
			check("instructions", line, 50)
		}
	}
}

func TestSecondsBecomeATime(t *testing.T) {
	t.Parallel()
	if seconds(nil) != nil {
		t.Error("seconds(nil) is not nil")
	}
	for n, want := range map[float64]time.Duration{1.5: 1500 * time.Millisecond, 0: 0, -7: -time.Second, 1e300: 100 * 365 * 24 * time.Hour} {
		if got := time.Duration(*seconds(&n)); got != want {
			t.Errorf("%v: got %v, want %v", n, got, want)
		}
	}
}
