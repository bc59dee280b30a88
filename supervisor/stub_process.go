// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/process"
)

var errStub = errors.New("stub")

// ProcessRequest asks for a process.
type ProcessRequest struct {
	ID        string
	Exec      ExecRequest
	Terminal  *process.Size
	Stdin     bool
	StdinData []byte
	Managed   bool
	Restart   *process.Restart
	Ready     *process.Ready
	Stop      *process.Stop
	Lease     *time.Duration
	Output    *quantity.Size
	Labels    map[string]string
}

// StartProcess starts.
func (v *Supervisor) StartProcess(ctx context.Context, s *Session, req *ProcessRequest) (p *process.Process, isNew bool, err error) {
	return nil, false, errStub
}

// Process finds.
func (v *Supervisor) Process(s *Session, id string) (*process.Process, error) { return nil, errStub }

// Processes lists.
func (v *Supervisor) Processes(s *Session) []*process.Process { return nil }

// RemoveProcess removes.
func (v *Supervisor) RemoveProcess(ctx context.Context, s *Session, p *process.Process) error {
	return errStub
}

// ProcessResult waits.
func (v *Supervisor) ProcessResult(ctx context.Context, s *Session, p *process.Process) (*Result, error) {
	return nil, errStub
}
