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
	Name      string `json:"name" jsonschema:"name of the process in its box"`
	Stdin     bool   `json:"stdin,omitempty" jsonschema:"give it a standard input for process_write"`
	Restart   string `json:"restart,omitempty" jsonschema:"when it has ended: no (default), on-failure or always"`
	ReadyLine string `json:"ready_line,omitempty" jsonschema:"return when a line of its output matches this regular expression"`
	ReadyPort int    `json:"ready_port,omitempty" jsonschema:"return when this TCP port of the box accepts connections"`
}

type processArgs struct {
	sessionArg
	Name string `json:"name" jsonschema:"name of the process"`
}

type processesArgs struct {
	sessionArg
	Name string `json:"name,omitempty" jsonschema:"name of a process; left out: all of them"`
}

type outputArgs struct {
	sessionArg
	Name   string `json:"name" jsonschema:"name of the process"`
	Lines  int    `json:"lines,omitempty" jsonschema:"so many of the end; default 100"`
	Stream string `json:"stream,omitempty" jsonschema:"stdout or stderr alone"`
}

type inputArgs struct {
	sessionArg
	Name        string  `json:"name" jsonschema:"name of the process"`
	Text        string  `json:"text" jsonschema:"what it reads; a line needs its newline"`
	End         bool    `json:"end,omitempty" jsonschema:"end its standard input behind that"`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"collect what it writes for so long; default 1, at most 60"`
}

func (t *tools) addStart() {
	add(t, &mcp.Tool{
		Name:        "process_start",
		Description: "Start a program that stays, such as a server: under a name, found again by process_list, process_output and process_stop. Asked again with the same arguments it finds the one that runs.",
		Annotations: changes("Start a process", true, false, t.open),
	}, t.start)
	add(t, &mcp.Tool{
		Name:        "process_write",
		Description: "Write to the standard input of a process that was started with stdin, and return what it writes then.",
		Annotations: changes("Write to a process", true, false, t.open),
	}, t.input)
	add(t, &mcp.Tool{Name: "process_list", Description: "Describe the processes of the box, or one of them.", Annotations: reads("Describe processes")}, t.processes)
	add(t, &mcp.Tool{Name: "process_output", Description: "Read the end of what a process has written.", Annotations: reads("Output of a process")}, t.output)
	add(t, &mcp.Tool{Name: "process_stop", Description: "End a process: asked first, killed after ten seconds.", Annotations: changes("Stop a process", true, true, false)}, t.stop)
}

// readyLook is how long boxd is asked to wait for a process at once.
const readyLook = 200 * time.Millisecond

func (t *tools) start(ctx context.Context, req *mcp.CallToolRequest, id string, in *startArgs) (*mcp.CallToolResult, error) {
	ask := &api.ProcessRequest{Command: in.Command, Argv: in.Argv, Code: in.Code, Language: in.Language, Cwd: in.Cwd, Env: in.Env, Stdin: in.Stdin, Lease: t.sessions.Lease(id, in.Name)}
	if in.Restart != "" {
		ask.Restart = &api.Restart{Policy: in.Restart}
	}
	if in.ReadyLine != "" || in.ReadyPort != 0 {
		ask.Ready = &api.Ready{}
		if in.ReadyLine != "" {
			ask.Ready.Line = &in.ReadyLine
		}
		if in.ReadyPort != 0 {
			ask.Ready.Port = &in.ReadyPort
		}
	}
	p, _, err := t.client.StartProcess(ctx, id, in.Name, ask)
	if err != nil {
		return nil, err
	}
	for ask.Ready != nil && !p.Ready && p.State != "ended" && err == nil {
		p, err = t.client.Process(ctx, id, in.Name, readyLook)
	}
	if err != nil {
		return nil, err
	}
	return process(&p), nil
}

// process describes one; one that has ended otherwise than by itself or with 0 is an error.
func process(p *api.Process) *mcp.CallToolResult {
	line := fmt.Sprintf("process %s: %s", p.ID, p.State)
	if p.State == "running" && p.Ready {
		line += ", ready"
	}
	if p.PID != 0 {
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
		result.IsError = false // it was asked about, not for
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
		shown = "it has written nothing"
	}
	return text("%s", shown), nil
}

// typing is standard input that ends the stream some time after its text, or with it the input.
type typing struct {
	text  *strings.Reader
	end   bool
	leave <-chan struct{}
}

// Read returns the text, and then waits.
func (y *typing) Read(p []byte) (int, error) {
	if n, err := y.text.Read(p); err == nil {
		return n, nil
	}
	if y.end {
		return 0, io.EOF
	}
	<-y.leave
	return 0, client.ErrDetached
}

// Times that process_write collects output, in seconds.
const (
	usualWait = 1
	mostWait  = 60
)

func (t *tools) input(ctx context.Context, _ *mcp.CallToolRequest, id string, in *inputArgs) (*mcp.CallToolResult, error) {
	wait := in.WaitSeconds
	if wait <= 0 {
		wait = usualWait
	}
	until, cancel := context.WithTimeout(ctx, time.Duration(min(wait, mostWait)*float64(time.Second)))
	defer cancel()
	out, errs := t.outputs.newStream(), t.outputs.newStream()
	stdio := client.Stdio{Stdin: &typing{text: strings.NewReader(in.Text), end: in.End, leave: until.Done()}, Stdout: out, Stderr: errs}
	attach := ctx
	if in.End { // the end of the input is sent, and then only the time ends the stream
		attach = until
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
	result := text("written; process_output shows what comes later")
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
