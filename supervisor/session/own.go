// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"runtime"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// InternalExec are the terms of a program of boxd's own, which does in a box what a caller has asked boxd for. The caller's
// environment, directory and limits are nothing to it.
type InternalExec struct {
	Tool    string // of policy.Tools: what the owner of the session must be allowed
	Timeout time.Duration
	Output  uint64 // bytes of the beginning of each stream that are kept
	Single  bool   // it has one processor at a time, and so few threads: it stays, and the session has a limit of these
}

// most processors for a program of boxd's own: it is there for moments.
const ownProcessors = 4

func (c *Context) own(req *ExecRequest) (*process.Spec, error) {
	if err := c.Policy.May(req.Internal.Tool); err != nil {
		return nil, err
	}
	processors := min(ownProcessors, runtime.NumCPU())
	if req.Internal.Single {
		processors = 1
	}
	spec := &process.Spec{Input: req.Stdin, Command: isolation.Command{
		Argv: req.Argv, Env: []string{"GOMAXPROCS=" + strconv.Itoa(processors)}, Dir: cmp.Or(req.Dir, isolation.Workspace), ScriptArg: -1, Timeout: req.Internal.Timeout,
		Output: isolation.Output{Head: req.Internal.Output},
	}}
	if len(req.Stdin) > 0 {
		spec.Command.Stdin = isolation.StdinFile
	}
	return spec, nil
}
