// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxWait is how long a request may wait for the end of a process.
const maxWait = 10 * time.Minute

// listProcesses lists the processes of a session.
func listProcesses(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	list := api.ProcessList{Processes: []api.Process{}}
	for _, p := range s.Processes() {
		list.Processes = append(list.Processes, describeProcess(c, s, p))
	}
	return list, nil
}

// startProcess starts a process, or finds the one of that id.
func startProcess(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var r api.ProcessRequest
	if err := c.decodeBody(&r, MaxBody); err != nil {
		return nil, err
	}
	req, err := processRequestOf(c.Path.Process, &r)
	if err != nil {
		return nil, err
	}
	p, isNew, err := s.StartProcess(c.Context(), req)
	if err != nil {
		return nil, err
	}
	if isNew {
		return Answer{Status: http.StatusCreated, Body: describeProcess(c, s, p)}, nil
	}
	return describeProcess(c, s, p), nil
}

// getProcess describes a process, after its end if the request waits for that.
func getProcess(c *Call) (any, error) {
	s, p, err := c.Process()
	if err != nil {
		return nil, err
	}
	text := c.R.URL.Query().Get("wait")
	if text == "" {
		return detailed(c, s, p)
	}
	wait, err := quantity.ParseDuration(text)
	if err != nil || time.Duration(wait) > maxWait {
		return nil, fault.Field("wait", text, "a duration such as 30s, at most "+quantity.Duration(maxWait).String())
	}
	timeoutCtx, cancel := context.WithTimeout(c.Context(), time.Duration(wait))
	defer cancel()
	_, _ = p.Wait(timeoutCtx) // the answer has the state
	if err := c.Context().Err(); err != nil {
		return nil, err
	}
	return detailed(c, s, p)
}

// deleteProcess ends and forgets a process.
func deleteProcess(c *Call) (any, error) {
	s, p, err := c.usedProcess()
	if err != nil {
		return nil, err
	}
	return noContent{}, s.RemoveProcess(c.Context(), p)
}

// stopProcess ends a process with its configured signal and grace.
func stopProcess(c *Call) (any, error) {
	s, p, err := c.usedProcess()
	if err != nil {
		return nil, err
	}
	if c.R.ContentLength != 0 {
		return nil, fault.Field("body", fault.Word("given"), "empty").WithText("body: must be empty; stop.signal and stop.grace are set when the process is created")
	}
	if err := p.Stop(c.Context()); err != nil {
		return nil, err
	}
	return detailed(c, s, p)
}

// signalProcess sends a signal.
func signalProcess(c *Call) (any, error) {
	_, p, err := c.usedProcess()
	if err != nil {
		return nil, err
	}
	var r api.SignalRequest
	if err := c.decodeBody(&r, maxSmallBody); err != nil {
		return nil, err
	}
	sig := unix.SignalNum(r.Signal)
	if sig == 0 {
		return nil, fault.Field("signal", r.Signal, "the name of a signal, such as SIGHUP")
	}
	return noContent{}, p.Signal(sig)
}

// resizeProcess changes the size of a terminal.
func resizeProcess(c *Call) (any, error) {
	_, p, err := c.usedProcess()
	if err != nil {
		return nil, err
	}
	var size api.Terminal
	if err := c.decodeBody(&size, maxSmallBody); err != nil {
		return nil, err
	}
	if err := checkTerminal("", &size); err != nil {
		return nil, err
	}
	if p.Info().Terminal == nil {
		return nil, fault.Errorf(fault.Conflict, "process %s has no terminal", fault.Show(c.Path.Process)).WithHint("start it with a terminal (boxctl start -t)")
	}
	return noContent{}, p.Resize(size.Rows, size.Cols)
}

// renewProcess renews the lease of a process.
func renewProcess(c *Call) (any, error) {
	s, p, err := c.Process()
	if err != nil {
		return nil, err
	}
	p.Renew()
	return describeProcess(c, s, p), nil
}

// describeProcess describes a process without its output.
func describeProcess(c *Call, s *session.Session, p *process.Process) api.Process {
	a, err := describeWith(c, s, p, s.ProcessEnd)
	if err != nil {
		c.Log.Warn("cannot report the end of a process", "session", s.ID, "process", a.ID, "error", err)
	}
	return a
}

// detailed describes a process, with its output if it has ended.
func detailed(c *Call, s *session.Session, p *process.Process) (any, error) {
	return describeWith(c, s, p, s.ProcessResult)
}

func describeWith(c *Call, s *session.Session, p *process.Process, end func(context.Context, *process.Process) (*session.Result, error)) (api.Process, error) {
	info := p.Info()
	if info.State != process.StateEnded {
		return processAnswer(s.ID, info, nil), nil
	}
	r, err := end(c.Context(), p) // does not block
	if err != nil {
		return processAnswer(s.ID, info, nil), err
	}
	result := execAnswer(s.ID, r, "")
	return processAnswer(s.ID, info, &result), nil
}

// streamProcess attaches a client to a process.
func streamProcess(c *Call) (any, error) {
	s, p, err := c.usedProcess()
	if err == nil {
		err = p.Attachable() // before the upgrade, for an ordinary response
	}
	if err != nil {
		return nil, err
	}
	return nil, c.Stream(func(o *streamOpening) error { return o.Process(c.Context(), s, p) })
}
