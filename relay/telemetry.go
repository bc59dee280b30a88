// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// Telemetry is where calls are recorded. Each field may be nil, and then records nothing.
type Telemetry struct {
	// Refused counts a request of a principal that a rule has refused; it may be nil.
	Refused func(principal string)
	Events  *events.Log
	Errors  *events.Recent
	Audit   *audit.Log
	Metrics *Metrics
	Traces  *trace.Tracer
	Waived  []string // what an operator waives, in words; shown by status and doctor
}

// Outcome is the outcome of a call.
type Outcome struct {
	Status  int          // of the response; 0: Reply and Fail have sent none
	Body    any          // that was sent, or the result of a stream
	Problem *api.Problem // nil: none
}

// Outcome returns the outcome of the call so far.
func (c *Call) Outcome() Outcome {
	c.noteMu.Lock()
	defer c.noteMu.Unlock()
	return c.outcome
}

func (c *Call) observe(v any) {
	if c.Observe != nil {
		c.Observe(v)
	}
}

// recordEnd records how a stream has ended.
func (c *Call) recordEnd(result *api.ExecResult, p *api.Problem) {
	c.noteMu.Lock()
	c.outcome.Problem = p
	if result != nil {
		c.outcome.Body = result
	}
	c.noteMu.Unlock()
	c.notifySending()
}

func (c *Call) notifySending() {
	if c.Sending != nil {
		c.Sending()
	}
}

// recordResponse records a response.
func (c *Call) recordResponse(code int, body any) {
	c.noteMu.Lock()
	c.outcome.Status, c.outcome.Body = code, body
	if p, ok := body.(*api.Problem); ok {
		c.outcome.Problem = p
	}
	c.noteMu.Unlock()
	c.notifySending()
}
