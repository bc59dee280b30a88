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

// InternalExec describes a program of boxd itself, which does in a box what a caller has asked boxd for. It does not use the
// caller's environment, directory and limits.
type InternalExec struct {
	Tool    string // of policy.Tools: the owner of the session must be allowed to use it
	Timeout time.Duration
	Output  uint64 // how many bytes of the beginning of each stream are kept
	Root    bool   // it runs as root of the box, whose root can be written to
	Single  bool   // one CPU at a time, and so few threads, which the session limits: it runs for long
}

// maxInternalCPUs is the most CPUs for a program of boxd itself: it runs only briefly.
const maxInternalCPUs = 4

func (c *Context) planInternal(req *ExecRequest) (*process.Spec, error) {
	if err := c.Policy.May(req.Internal.Tool); err != nil {
		return nil, err
	}
	processors := min(maxInternalCPUs, runtime.NumCPU())
	if req.Internal.Single {
		processors = 1
	}
	spec := &process.Spec{Input: req.Stdin, Command: isolation.Command{
		Argv: req.Argv, Env: []string{"GOMAXPROCS=" + strconv.Itoa(processors)}, Dir: cmp.Or(req.Dir, isolation.Workspace), ScriptArg: -1, Timeout: req.Internal.Timeout,
		Root: req.Internal.Root, Output: isolation.Output{Head: req.Internal.Output},
	}}
	if len(req.Stdin) > 0 {
		spec.Command.Stdin = isolation.StdinFile
	}
	return spec, nil
}
