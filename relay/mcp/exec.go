// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// answerLimit is the maximum size of a stream in an answer, in bytes: a longer one is cut in the middle.
const answerLimit = 16 << 10

type execArgs struct {
	sessionArg
	programArgs
	Stdin          string   `json:"stdin,omitempty" jsonschema:"data for standard input"`
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty" jsonschema:"timeout in seconds; default and maximum depend on the profile"`
}

// programArgs are the arguments that say what to run.
type programArgs struct {
	Command  *string           `json:"command,omitempty" jsonschema:"shell command; set exactly one of command, argv and code"`
	Argv     []string          `json:"argv,omitempty" jsonschema:"program and arguments, run without a shell"`
	Code     *string           `json:"code,omitempty" jsonschema:"source code to run, in the given language"`
	Language string            `json:"language,omitempty" jsonschema:"language of code, e.g. python"`
	Cwd      string            `json:"cwd,omitempty" jsonschema:"working directory (default /workspace)"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"environment variables"`
	User     string            `json:"user,omitempty" jsonschema:"root, if its root filesystem is writable (default: an ordinary user)"`
}

// seconds returns a duration for a request, nil if there is none.
func seconds(n *float64) *quantity.Duration {
	if n == nil {
		return nil
	}
	const limit = 100 * 365 * 24 * 3600 // a cap that fits a duration
	return new(quantity.Duration(min(max(*n, -1), limit) * float64(time.Second)))
}

func (t *tools) addExec() {
	add(t, &mcp.Tool{
		Name:        "box_exec",
		Description: "Run a command in the box and wait for its result. Cancelling the call kills the command and all its child processes.",
		Annotations: changes("Run a command", true, false, t.open),
	}, t.exec)
}

func (t *tools) exec(ctx context.Context, req *mcp.CallToolRequest, id string, in *execArgs) (*mcp.CallToolResult, error) {
	out, errs := t.outputs.newStream(), t.outputs.newStream()
	stdio := client.Stdio{Stdout: out, Stderr: errs}
	if in.Stdin != "" {
		stdio.Stdin = strings.NewReader(in.Stdin)
	}
	done := t.report(ctx, req, out, errs)
	r, err := t.client.ExecStream(ctx, id, &api.ExecRequest{
		Command: in.Command, Argv: in.Argv, Code: in.Code, Language: in.Language, Cwd: in.Cwd, Env: in.Env, User: in.User, Timeout: seconds(in.TimeoutSeconds),
	}, stdio, nil)
	done()
	if err != nil {
		return nil, err
	}
	return t.outcome(r, out, errs), nil
}

// report sends progress notifications about a command, if the client wants them, until done is called.
func (t *tools) report(ctx context.Context, req *mcp.CallToolRequest, out, errs *outputStream) (done func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	beat := t.progressEvery
	if beat <= 0 {
		beat = time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends when done is called
		defer close(ended)
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		for start := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			last := out.lastLine()
			if last == "" {
				last = errs.lastLine()
			}
			message := fmt.Sprintf("%d bytes of output", out.written()+errs.written())
			if last != "" {
				message += ": " + last
			}
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: time.Since(start).Seconds(), Message: message})
		}
	}()
	return func() {
		cancel()
		<-ended // nothing about a call may follow its answer
	}
}

// outcome returns the answer about an execution.
func (t *tools) outcome(r *api.ExecResult, out, errs *outputStream) *mcp.CallToolResult {
	var head strings.Builder
	head.WriteString(ending(r))
	if r.LeftoversKilled > 0 {
		fmt.Fprintf(&head, "; killed %d background processes it left running", r.LeftoversKilled)
	}
	for _, c := range r.Clamped {
		fmt.Fprintf(&head, "\n%s: lowered from %s to the maximum %s (%s)", c.Field, c.Asked, c.Got, c.By)
	}
	for _, q := range r.Quota {
		fmt.Fprintf(&head, "\nthe %s is full: %v of %v used", q.Kind, q.Used, q.Limit)
	}
	result := text("%s", head.String())
	result.IsError = r.Status != "exited"
	long := map[string]*outputStream{}
	for _, s := range []struct {
		name   string
		stream *outputStream
	}{{"stdout", out}, {"stderr", errs}} {
		if s.stream.written() == 0 {
			continue
		}
		shown, truncated := s.stream.text(answerLimit)
		result.Content = append(result.Content, &mcp.TextContent{Text: s.name + ":\n" + shown})
		if truncated {
			long[s.name] = s.stream
		}
	}
	if len(long) == 0 {
		return result
	}
	uris := t.outputs.add(long)
	for _, name := range []string{"stdout", "stderr"} {
		if uri := uris[name]; uri != "" {
			result.Content = append(result.Content, &mcp.ResourceLink{
				URI: uri, Name: name, MIMEType: "text/plain", Size: new(long[name].written()),
				Description: "full " + name + " of the command; use box_read with this URI as path to read more",
			})
		}
	}
	return result
}

// ending describes how a program has ended.
func ending(r *api.ExecResult) string {
	elapsed := (time.Duration(r.DurationMS*1e6) * time.Nanosecond).Round(time.Millisecond)
	switch r.Status {
	case "exited":
		return fmt.Sprintf("exit code %d after %v", *r.ExitCode, elapsed)
	case "signaled":
		return fmt.Sprintf("killed by %s after %v", r.Signal, elapsed)
	case "timed_out":
		return fmt.Sprintf("killed: timeout after %v; set timeout_seconds to allow more, up to the maximum of the profile", r.Timeout)
	case "oom_killed":
		if r.OOM != nil {
			return fmt.Sprintf("killed: out of memory (limit of the %s: %v)", r.OOM.Of, r.OOM.Limit)
		}
		return "killed: out of memory"
	case "start_failed":
		if r.Failure != nil {
			return "not started: " + r.Failure.Text
		}
	case "lost":
		return "lost: the box ended while the command was running"
	}
	return r.Status
}

// addOutputs makes truncated output available as a resource.
func (t *tools) addOutputs() {
	t.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "output", Title: "Output of a command", MIMEType: "text/plain", URITemplate: outputTemplate,
		Description: "full stdout or stderr of a command with truncated output",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		stream := t.outputs.get(req.Params.URI)
		if stream == nil {
			return nil, mcp.ResourceNotFoundError(req.Params.URI)
		}
		whole := t.outputs.whole(stream)
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: whole}}}, nil
	})
}
