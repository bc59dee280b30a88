// SPDX-License-Identifier: Apache-2.0

// Package process stands in until the real one is there.
package process

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

var errStub = errors.New("stub")

// State of a process.
type State string

// StateEnded is the last one.
const StateEnded State = "ended"

// Size of a terminal.
type Size struct{ Rows, Cols uint16 }

// Restart policy.
type Restart struct {
	Policy          string
	Delay, MaxDelay *time.Duration
	Limit           *int
	Window          *time.Duration
}

// Ready condition.
type Ready struct {
	Line    *string
	Port    *int
	Command []string
	Timeout *time.Duration
}

// Stop is how.
type Stop struct {
	Signal string
	Grace  *time.Duration
}

// StreamState of a stream.
type StreamState struct{ Bytes, From int64 }

// Info of a process.
type Info struct {
	ID        string
	State     State
	Ready     bool
	PID       uint32
	Starts    int
	Argv      []string
	Dir       string
	EnvNames  []string
	Terminal  *Size
	Stdin     bool
	Timeout   time.Duration
	Restart   Restart
	Stop      Stop
	Lease     *time.Duration
	Readers   int
	Writer    bool
	Output    [2]StreamState
	StartedAt time.Time
	EndedAt   time.Time
	NextStart time.Time
	ExpiresAt time.Time
	Reason    string
	Labels    map[string]string
	Clamped   []policy.Clamp
}

// AttachOptions of an attachment.
type AttachOptions struct {
	From                      *[2]int64
	Write, TakeOver, Lossless bool
}

// Process is one.
type Process struct{}

// Info describes it.
func (p *Process) Info() Info { return Info{} }

// Wait waits.
func (p *Process) Wait(context.Context) (*isolation.Exit, error) { return nil, errStub }

// Started waits.
func (p *Process) Started(context.Context) error { return errStub }

// Stop stops.
func (p *Process) Stop(context.Context) error { return errStub }

// Signal signals.
func (p *Process) Signal(syscall.Signal) error { return errStub }

// Resize resizes.
func (p *Process) Resize(rows, cols uint16) error { return errStub }

// Renew renews.
func (p *Process) Renew() {}

// Attach attaches.
func (p *Process) Attach(context.Context, AttachOptions) (*Attachment, error) { return nil, errStub }

// Attachment is one reader.
type Attachment struct{}

// Next piece.
func (a *Attachment) Next(context.Context) (output.Chunk, error) { return output.Chunk{}, errStub }

// Position of it.
func (a *Attachment) Position() [2]int64 { return [2]int64{} }

// Taken bytes of stdin.
func (a *Attachment) Taken() int64 { return 0 }

// Writer is it.
func (a *Attachment) Writer() bool { return false }

// Write to stdin.
func (a *Attachment) Write(ctx context.Context, offset int64, p []byte) error { return errStub }

// CloseWrite ends stdin.
func (a *Attachment) CloseWrite() error { return errStub }

// Lost tells.
func (a *Attachment) Lost() <-chan struct{} { return nil }

// Close it.
func (a *Attachment) Close() {}
