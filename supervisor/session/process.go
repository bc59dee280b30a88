// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// ProcessRequest asks for a process.
type ProcessRequest struct {
	ID        string
	Exec      ExecRequest
	Terminal  *process.Size
	Stdin     bool
	Direct    bool // its stdin, stdout and stderr are handed out, see process.TakeStdio
	StdinData []byte
	// Unlisted makes it private to its caller: it has no ID, and is in no list. It ends with the ctx of StartProcess or by
	// RemoveProcess, which the caller must call. Its output is streamed to the caller, with nothing omitted.
	Unlisted bool
	Awaited  bool // from its first byte on it waits for its caller to attach as a lossless reader
	Managed  bool // it has no default timeout, and Output says how much output is kept
	Restart  *process.Restart
	Ready    *process.Ready
	Stop     *process.Stop
	Lease    *time.Duration
	Output   *quantity.Size // how much of the end of each stream is kept
	Labels   map[string]string
}

// Limits of what is kept of each stream of a managed process.
const (
	defaultOutput = quantity.MiB
	minOutput     = 4 * quantity.KiB
	maxOutput     = 16 * quantity.MiB
)

// Process validates a request and merges it with the settings of its session, as Plan does for every execution.
func (c *Context) Process(req *ProcessRequest) (*process.Spec, error) {
	id := req.ID
	if req.Unlisted {
		id = policy.NewID()
	}
	if err := policy.ValidateID(id); err != nil {
		return nil, err
	}
	exec := req.Exec
	if req.StdinData != nil {
		exec.Stdin = req.StdinData
	}
	pipe := req.Stdin || req.Terminal != nil
	if pipe && len(exec.Stdin) > 0 {
		return nil, fault.Field("stdin", fmt.Sprintf("%d bytes", len(exec.Stdin)), "either data or a stream").WithText("stdin: data cannot be combined with a process whose stdin stays open")
	}
	spec, err := c.Plan(&exec, req.Managed)
	if err != nil {
		return nil, err
	}
	cmd := &spec.Command
	cmd.Durable, cmd.Wait, cmd.Direct = true, req.Awaited || req.Unlisted, req.Direct
	if pipe {
		cmd.Stdin = isolation.StdinPipe
	}
	if req.Direct && req.Output != nil {
		return nil, fault.Field("output", *req.Output, "left out with stdio = \"direct\"")
	}
	switch {
	case exec.Spool != nil && req.Output != nil:
		return nil, fault.Field("output", *req.Output, "left out with spool, which says how much is kept")
	case req.Unlisted:
		cmd.Output = isolation.Output{Tail: uint64(followWindow)}
	case req.Managed && exec.Spool != nil:
		cmd.Output = isolation.Output{Tail: uint64(*exec.Spool)}
	case req.Managed:
		keep := defaultOutput
		if req.Output != nil {
			keep = *req.Output
		}
		if keep < minOutput || keep > maxOutput {
			return nil, fault.Field("output", keep, fmt.Sprintf("%v to %v", minOutput, maxOutput))
		}
		cmd.Output = isolation.Output{Tail: uint64(keep)}
	}
	cmd.Terminal = (*isolation.Terminal)(req.Terminal)
	if limit := time.Duration(c.Config.Exec.MaxInteractive); cmd.Terminal != nil && limit > 0 && (cmd.Timeout == 0 || cmd.Timeout > limit) {
		if exec.Timeout != nil {
			spec.Clamped = append(spec.Clamped, policy.Clamp{Field: "timeout", Asked: exec.Timeout.String(), Got: quantity.Duration(limit).String(), By: "exec.max_interactive"})
		}
		cmd.Timeout = limit
	}
	spec.ID, spec.EnvNames, spec.Lease, spec.Labels = id, slices.Sorted(maps.Keys(exec.Env)), req.Lease, req.Labels
	spec.Managed, spec.Unlisted, spec.Ready = req.Managed, req.Unlisted, req.Ready
	if !req.Unlisted { // those are never requested again
		spec.Request = requestFields(req, &exec, pipe)
	}
	if req.Restart != nil {
		spec.Restart = *req.Restart
	}
	if req.Stop != nil {
		spec.Stop = *req.Stop
	}
	return spec, spec.Resolve()
}

// requestFields returns the fields of a request for comparison with another: as requested, not as resolved. The size of a
// terminal does not matter.
func requestFields(req *ProcessRequest, exec *ExecRequest, pipe bool) map[string]string {
	fields := map[string]string{}
	for name, value := range map[string]any{
		"argv": exec.Argv, "command": exec.Command, "code": exec.Code, "language": exec.Language, "env": exec.Env, "cwd": exec.Dir, "cwd_must_exist": exec.Existing,
		"timeout": exec.Timeout, "cpus": exec.Limits.CPUs, "memory": exec.Limits.Memory, "pids": exec.Limits.Pids, "rlimits": exec.Rlimits, "output_limit": exec.OutputLimit, "merge_output": exec.MergeOutput, "user": exec.User, "spool": exec.Spool,
		"stdin": pipe, "stdin_data": string(exec.Stdin), "terminal": req.Terminal != nil, "stdio": req.Direct, "restart": req.Restart, "ready": req.Ready, "stop": req.Stop,
		"lease": req.Lease, "output": req.Output, "labels": req.Labels, "managed": req.Managed,
	} {
		if text, ok := value.(string); ok {
			value = []byte(text) // otherwise all invalid UTF-8 would compare equal
		}
		if v := reflect.ValueOf(value); !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0 {
			continue
		}
		text, err := json.Marshal(value)
		if bytes.Contains(text, []byte(`\ufffd`)) { // otherwise all invalid UTF-8 would compare equal
			text = fmt.Appendf(nil, "%q", reflect.Indirect(reflect.ValueOf(value)).Interface())
		}
		if err != nil { // no such value exists
			text = []byte(fmt.Sprint(value))
		}
		sum := sha256.Sum256(text)
		fields[name] = hex.EncodeToString(sum[:16])
	}
	return fields
}
