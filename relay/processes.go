// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/wire"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// maxWait is how long an answer about a process may wait for its end.
const maxWait = 10 * time.Minute

// maxSmallBody is for bodies of a field or two.
const maxSmallBody = 4 << 10

func listProcesses(c *call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	list := api.ProcessList{Processes: []api.Process{}}
	for _, p := range c.server.sup.Processes(s) {
		list.Processes = append(list.Processes, c.describe(s, p))
	}
	return list, nil
}

func startProcess(c *call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var r api.ProcessRequest
	if err := c.decodeBody(&r, maxBody); err != nil {
		return nil, err
	}
	req, err := wire.ProcessRequest(c.path.process, &r)
	if err != nil {
		return nil, err
	}
	p, isNew, err := c.server.sup.StartProcess(c.context(), s, req)
	if err != nil {
		return nil, err
	}
	if isNew {
		return answer{http.StatusCreated, c.describe(s, p)}, nil
	}
	return c.describe(s, p), nil
}

func getProcess(c *call) (any, error) {
	s, p, err := c.process()
	if err != nil {
		return nil, err
	}
	text := c.r.URL.Query().Get("wait")
	if text == "" {
		return c.detailedProcess(s, p)
	}
	wait, err := quantity.ParseDuration(text)
	if err != nil || time.Duration(wait) > maxWait {
		return nil, fault.Field("wait", text, "a duration such as 30s, at most "+quantity.Duration(maxWait).String())
	}
	late, cancel := context.WithTimeout(c.context(), time.Duration(wait))
	defer cancel()
	_, _ = p.Wait(late) // the answer says how far it has come
	if err := c.context().Err(); err != nil {
		return nil, err
	}
	return c.detailedProcess(s, p)
}

func deleteProcess(c *call) (any, error) {
	s, p, err := c.process()
	if err != nil {
		return nil, err
	}
	return noContent{}, c.server.sup.RemoveProcess(c.context(), s, p)
}

func stopProcess(c *call) (any, error) {
	s, p, err := c.process()
	if err != nil {
		return nil, err
	}
	if c.r.ContentLength != 0 {
		return nil, fault.Field("body", fault.Word("given"), "nothing: how a process is stopped is of its request")
	}
	if err := p.Stop(c.context()); err != nil {
		return nil, err
	}
	return c.detailedProcess(s, p)
}

func signalProcess(c *call) (any, error) {
	_, p, err := c.process()
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

func resizeProcess(c *call) (any, error) {
	_, p, err := c.process()
	if err != nil {
		return nil, err
	}
	var size api.Terminal
	if err := c.decodeBody(&size, maxSmallBody); err != nil {
		return nil, err
	}
	if err := wire.CheckTerminal("", &size); err != nil {
		return nil, err
	}
	if p.Info().Terminal == nil {
		return nil, fault.Errorf(fault.Conflict, "process %s has no terminal", fault.Show(c.path.process)).WithHint("it was started with pipes")
	}
	return noContent{}, p.Resize(size.Rows, size.Cols)
}

func renewProcess(c *call) (any, error) {
	s, p, err := c.process()
	if err != nil {
		return nil, err
	}
	p.Renew()
	return c.describe(s, p), nil
}

// describe describes a process without its output.
func (c *call) describe(s *supervisor.Session, p *process.Process) api.Process {
	a, err := c.describeWith(s, p, c.server.sup.ProcessEnd)
	if err != nil {
		c.server.log.Warn("end of a process not told", "session", s.ID, "process", a.ID, "error", err)
	}
	return a
}

// detailedProcess describes a process with the output of one that has ended.
func (c *call) detailedProcess(s *supervisor.Session, p *process.Process) (any, error) {
	return c.describeWith(s, p, c.server.sup.ProcessResult)
}

func (c *call) describeWith(s *supervisor.Session, p *process.Process, end func(context.Context, *supervisor.Session, *process.Process) (*supervisor.Result, error)) (api.Process, error) {
	info := p.Info()
	if info.State != process.StateEnded {
		return wire.Process(s.ID, info, nil), nil
	}
	r, err := end(c.context(), s, p) // does not wait
	if err != nil {
		return wire.Process(s.ID, info, nil), err
	}
	result := wire.ExecResult(s.ID, r, "")
	return wire.Process(s.ID, info, &result), nil
}
