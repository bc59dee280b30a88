// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// An MCP server answers every request and is never restarted while skills are added to its session and removed.
func TestAnMCPServerAnswersWhileSkillsComeAndGo(t *testing.T) {
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	install(t, d, "mcpserver")
	d.NewProcess(t, "s1", "mcp", &api.ProcessRequest{Argv: []string{"/workspace/mcpserver"}, Stdin: true})
	in, feed := io.Pipe()
	lines, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		_, err := d.Attach(ctx, "s1", "mcp", client.AttachOptions{Write: true, Lines: true}, client.Stdio{Stdin: in, Stdout: out, Stderr: os.Stderr}, nil)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("attached: err = %v, want err is context.Canceled", err)
		}
		out.Close()
		in.Close()
	})
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.IOTransport{Reader: lines, Writer: feed}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var stop atomic.Bool
	asking := make(chan struct{})
	work.Go(func() {
		defer close(asking)
		for i := 1; !stop.Load() && ctx.Err() == nil; i++ {
			r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "square", Arguments: map[string]int{"number": i}})
			if err != nil {
				t.Errorf("question %d: %v", i, err)
				return
			}
			got, err := json.Marshal(r.StructuredContent)
			if want := fmt.Sprintf(`{"calls":%d,"square":%d}`, i, i*i); err != nil || string(got) != want {
				t.Errorf("the answer to %d is %s, %v, want no error and got == want", i, got, err)
				return
			}
			asked.Store(int64(i))
		}
	})
	answers := func(when string) {
		t.Helper()
		was := asked.Load()
		boxtest.Eventually(t, "the server answers "+when, func() bool { return asked.Load() > was+2 || t.Failed() })
	}
	c := d.Client
	answers("at first")
	for _, name := range []string{"one", "two"} {
		if _, err := c.CreateSkill(t.Context(), &api.SkillRequest{Name: name, Description: "Does it."}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.ActivateSkill(t.Context(), "s1", name); err != nil {
			t.Fatal(err)
		}
		answers("with " + name)
	}
	if err := c.DeactivateSkill(t.Context(), "s1", "one", false); err != nil {
		t.Fatal(err)
	}
	answers("without one")
	r, err := d.Exec(t.Context(), "s1", &api.ExecRequest{Argv: []string{"ls", "/skills"}})
	if err != nil || r.Stdout != "two\n" {
		t.Errorf(`r = %+v, err = %v, want no error and r.Stdout == "two\n"`, r, err)
	}
	stop.Store(true)
	<-asking
}
