// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

type startArgs struct {
	sessionArg
	programArgs
	Name      string `json:"name" jsonschema:"name for the process, unique in the box"`
	Stdin     bool   `json:"stdin,omitempty" jsonschema:"open standard input for process_write"`
	Restart   string `json:"restart,omitempty" jsonschema:"restart policy: no (default), on-failure or always"`
	ReadyLine string `json:"ready_line,omitempty" jsonschema:"wait until an output line matches this regular expression"`
	ReadyPort int    `json:"ready_port,omitempty" jsonschema:"wait until this TCP port in the box accepts connections"`
}

type processArgs struct {
	sessionArg
	Name string `json:"name" jsonschema:"name of the process"`
}

type processesArgs struct {
	sessionArg
	Name string `json:"name,omitempty" jsonschema:"name of the process (default: all processes)"`
}

type outputArgs struct {
	sessionArg
	Name   string `json:"name" jsonschema:"name of the process"`
	Lines  int    `json:"lines,omitempty" jsonschema:"number of last lines to return (default 100)"`
	Stream string `json:"stream,omitempty" jsonschema:"return only stdout or only stderr (default both)"`
}

type inputArgs struct {
	sessionArg
	Name        string  `json:"name" jsonschema:"name of the process"`
	Text        string  `json:"text" jsonschema:"data for standard input; end a line with a newline"`
	End         bool    `json:"end,omitempty" jsonschema:"close standard input after the text"`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"seconds to wait for output (default 1, maximum 60)"`
}

func (t *tools) addStart() {
	add(t, &mcp.Tool{
		Name:        "process_start",
		Description: "Start a long-running program, such as a server, in the background. Its name identifies it in process_list, process_output, process_write and process_stop. A call with the same arguments returns the running process instead of starting another.",
		Annotations: changes("Start a process", true, false, t.open),
	}, t.start)
	add(t, &mcp.Tool{
		Name:        "process_write",
		Description: "Write to the standard input of a process started with stdin, and return its new output.",
		Annotations: changes("Write to a process", true, false, t.open),
	}, t.input)
	add(t, &mcp.Tool{Name: "process_list", Description: "List background processes in the box, or show one of them.", Annotations: reads("List processes")}, t.processes)
	add(t, &mcp.Tool{Name: "process_output", Description: "Read the last lines of the output of a process.", Annotations: reads("Output of a process")}, t.output)
	add(t, &mcp.Tool{Name: "process_stop", Description: "Stop a process: SIGTERM, then SIGKILL after ten seconds.", Annotations: changes("Stop a process", true, true, false)}, t.stop)
}

// readyCheck is how long one request waits for a process.
const readyCheck = 200 * time.Millisecond

func (t *tools) start(ctx context.Context, req *mcp.CallToolRequest, id string, in *startArgs) (*mcp.CallToolResult, error) {
	start := &api.ProcessRequest{Command: in.Command, Argv: in.Argv, Code: in.Code, Language: in.Language, Cwd: in.Cwd, Env: in.Env, User: in.User, Stdin: in.Stdin, Lease: t.sessions.Lease(id, in.Name)}
	if in.Restart != "" {
		start.Restart = &api.Restart{Policy: in.Restart}
	}
	if in.ReadyLine != "" || in.ReadyPort != 0 {
		start.Ready = &api.Ready{}
		if in.ReadyLine != "" {
			start.Ready.Line = &in.ReadyLine
		}
		if in.ReadyPort != 0 {
			start.Ready.Port = &in.ReadyPort
		}
	}
	p, _, err := t.client.StartProcess(ctx, id, in.Name, start)
	if err != nil {
		return nil, err
	}
	for start.Ready != nil && !p.Ready && p.State != "ended" && err == nil {
		p, err = t.client.Process(ctx, id, in.Name, readyCheck)
	}
	if err != nil {
		return nil, err
	}
	return process(&p), nil
}

// process describes a process; an end other than by itself with status 0 is an error.
func process(p *api.Process) *mcp.CallToolResult {
	line := fmt.Sprintf("process %s: %s", p.ID, p.State)
	if p.State == "running" && p.Ready {
		line += ", ready"
	}
	if p.PID != 0 && p.State != "ended" && p.State != "waiting" {
		line += fmt.Sprintf(", pid %d", p.PID)
	}
	line += fmt.Sprintf(", started %d times", p.Starts)
	if p.Reason != "" {
		line += ", " + p.Reason
	}
	failed := false
	if p.Result != nil {
		line += ", " + ending(p.Result)
		failed = p.Result.Status == "start_failed"
	}
	result := text("%s", line)
	result.IsError = failed
	return result
}

func (t *tools) processes(ctx context.Context, _ *mcp.CallToolRequest, id string, in *processesArgs) (*mcp.CallToolResult, error) {
	if in.Name != "" {
		p, err := t.client.Process(ctx, id, in.Name, 0)
		if err != nil {
			return nil, err
		}
		result := process(&p)
		result.IsError = false // the question about it has succeeded
		return result, nil
	}
	list, err := t.client.Processes(ctx, id)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := range list {
		if content, ok := process(&list[i]).Content[0].(*mcp.TextContent); ok {
			fmt.Fprintf(&out, "%s: %s\n", content.Text, strings.Join(list[i].Argv, " "))
		}
	}
	if out.Len() == 0 {
		return text("no processes"), nil
	}
	return text("%s", out.String()), nil
}

func (t *tools) output(ctx context.Context, _ *mcp.CallToolRequest, id string, in *outputArgs) (*mcp.CallToolResult, error) {
	lines := in.Lines
	if lines <= 0 {
		lines = 100
	}
	body, err := t.client.Logs(ctx, id, in.Name, client.LogOptions{Lines: &lines, Stream: in.Stream})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	all := t.outputs.newStream()
	if _, err := io.Copy(all, body); err != nil {
		return nil, fmt.Errorf("read the output: %w", err)
	}
	shown, _ := all.text(4 * answerLimit)
	if shown == "" {
		shown = "no output yet"
	}
	return text("%s", shown), nil
}

// inputStream is standard input that ends after its text: at once, or when the stream ends.
type inputStream struct {
	text  *strings.Reader
	eof   bool
	leave <-chan struct{}
}

// Read returns the text, and then waits.
func (y *inputStream) Read(p []byte) (int, error) {
	if n, err := y.text.Read(p); err == nil {
		return n, nil
	}
	if y.eof {
		return 0, io.EOF
	}
	<-y.leave
	return 0, client.ErrDetached
}

// How long process_write collects output, in seconds.
const (
	defaultWait = 1
	maxWait     = 60
)

// lateWrite is how long process_write waits after that for a program to take its input.
const lateWrite = 5 * time.Second

func (t *tools) input(ctx context.Context, _ *mcp.CallToolRequest, id string, in *inputArgs) (*mcp.CallToolResult, error) {
	wait := in.WaitSeconds
	if wait <= 0 {
		wait = defaultWait
	}
	until, cancel := context.WithTimeout(ctx, time.Duration(min(wait, maxWait)*float64(time.Second)))
	defer cancel()
	out, errs := t.outputs.newStream(), t.outputs.newStream()
	stdio := client.Stdio{Stdin: &inputStream{text: strings.NewReader(in.Text), eof: in.End, leave: until.Done()}, Stdout: out, Stderr: errs}
	attach := until // the end of the input is sent, and then only the time ends the stream
	if !in.End {    // what is left of the input when the time is over is sent for a little longer: the program may not read
		var stop context.CancelFunc
		attach, stop = context.WithTimeout(ctx, time.Duration(min(wait, maxWait)*float64(time.Second))+lateWrite)
		defer stop()
	}
	r, err := t.client.Attach(attach, id, in.Name, client.AttachOptions{Write: true, TakeOver: true}, stdio, nil)
	switch {
	case err == nil:
		return t.outcome(r, out, errs), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, client.ErrDetached), errors.Is(err, context.DeadlineExceeded):
	default:
		return nil, err
	}
	shown, _ := out.text(answerLimit)
	also, _ := errs.text(answerLimit)
	result := text("written; use process_output for later output")
	if !in.End && errors.Is(err, context.DeadlineExceeded) {
		result = text("not all of the text was written: the process does not read its standard input")
		result.IsError = true
	}
	for _, part := range []string{"stdout:\n" + shown, "stderr:\n" + also} {
		if !strings.HasSuffix(part, ":\n") {
			result.Content = append(result.Content, &mcp.TextContent{Text: part})
		}
	}
	return result, nil
}

func (t *tools) stop(ctx context.Context, _ *mcp.CallToolRequest, id string, in *processArgs) (*mcp.CallToolResult, error) {
	p, err := t.client.StopProcess(ctx, id, in.Name)
	if err != nil {
		return nil, err
	}
	result := process(&p)
	result.IsError = false
	return result, nil
}
