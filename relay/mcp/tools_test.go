// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What reaches others says so: from the start where the box has a network, or from when another box has one.
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
					t.Errorf("with a network %v, %s: %v", want, tool.Name, got)
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

func TestSecondsBecomeATime(t *testing.T) {
	t.Parallel()
	if seconds(nil) != nil {
		t.Error("no seconds are a time")
	}
	for n, want := range map[float64]time.Duration{1.5: 1500 * time.Millisecond, 0: 0, -7: -time.Second, 1e300: 100 * 365 * 24 * time.Hour} {
		if got := time.Duration(*seconds(&n)); got != want {
			t.Errorf("%v: %v", n, got)
		}
	}
}
