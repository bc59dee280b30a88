// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Bounds of what is kept of each stream of a managed process.
const (
	defaultOutput = quantity.MiB
	minOutput     = 4 * quantity.KiB
	maxOutput     = 16 * quantity.MiB
)

// processSpec merges a request with the session and its profile, as is done for every execution.
func (v *Supervisor) processSpec(s *Session, req *ProcessRequest) (*process.Spec, error) {
	if err := policy.ValidateID(req.ID); err != nil {
		return nil, err
	}
	exec := req.Exec
	if req.StdinData != nil {
		exec.Stdin = req.StdinData
	}
	exec.StdinPipe = req.Stdin || req.Terminal != nil
	if exec.StdinPipe && len(exec.Stdin) > 0 {
		return nil, fault.Field("stdin", fmt.Sprintf("%d bytes", len(exec.Stdin)), "one that is written to, or this")
	}
	cmd, script, clamped, err := v.command(s, &exec, req.Managed)
	if err != nil {
		return nil, err
	}
	cmd.Durable = true
	if req.Managed {
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
	spec := &process.Spec{
		ID: req.ID, Command: *cmd, Script: script, Input: exec.Stdin, EnvNames: slices.Sorted(maps.Keys(exec.Env)), Lease: req.Lease,
		Labels: req.Labels, Clamped: clamped, Request: requestFields(req, &exec),
	}
	if req.Restart != nil {
		spec.Restart = *req.Restart
	}
	if req.Stop != nil {
		spec.Stop = *req.Stop
	}
	spec.Ready = req.Ready
	return spec, spec.Resolve()
}

// requestFields are the fields of a request as they are compared with those of another: by what was asked
// for, not by what came of it. A terminal may have another size each time.
func requestFields(req *ProcessRequest, exec *ExecRequest) map[string]string {
	fields := map[string]string{}
	for name, value := range map[string]any{
		"argv": exec.Argv, "command": exec.Command, "code": exec.Code, "language": exec.Language, "env": exec.Env, "cwd": exec.Dir,
		"timeout": exec.Timeout, "cpus": exec.Limits.CPUs, "memory": exec.Limits.Memory, "pids": exec.Limits.Pids, "output_limit": exec.OutputLimit,
		"stdin": []string{fmt.Sprint(exec.StdinPipe), string(exec.Stdin)}, "terminal": req.Terminal != nil, "restart": req.Restart, "ready": req.Ready, "stop": req.Stop,
		"lease": req.Lease, "output": req.Output, "labels": req.Labels, "managed": req.Managed,
	} {
		if v := reflect.ValueOf(value); !v.IsValid() || v.IsZero() || v.Kind() == reflect.Map && v.Len() == 0 {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil { // of such values there is none
			text = []byte(fmt.Sprint(value))
		}
		sum := sha256.Sum256(text)
		fields[name] = hex.EncodeToString(sum[:16])
	}
	return fields
}

// longestTimeout leaves room for the times that are added to one.
const longestTimeout = quantity.Duration(365 * 24 * time.Hour)

// timeout is how long a program may take: a managed process as long as it asks for, or for ever.
func (s *Session) timeout(profile string, asked *quantity.Duration, managed bool) (time.Duration, []policy.Clamp, error) {
	switch {
	case !managed:
		return s.profile.ExecTimeout(profile, asked)
	case asked == nil:
		return 0, nil, nil
	case *asked <= 0 || *asked > longestTimeout:
		return 0, nil, fault.Field("timeout", *asked, fmt.Sprintf("more than 0, at most %v", longestTimeout))
	}
	return time.Duration(*asked), nil, nil
}
