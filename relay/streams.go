// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/stream"
	"github.com/boxd-dev/boxd/supervisor"
)

// executeStream runs a program in a session and relays its input and output.
func executeStream(c *call) (any, error) {
	if _, err := c.session(); err != nil {
		return nil, err // before the upgrade, so that it is an ordinary answer
	}
	return nil, c.stream(func(o *stream.Opening) error {
		return o.Exec(c.context(), func(start *api.StreamStart, _ *supervisor.ExecRequest) (*supervisor.Session, func(), error) {
			if start.Session != nil {
				return nil, nil, fault.Field("start.session", fault.Word("given"), "left out: the path names the session")
			}
			s, err := c.session()
			return s, func() {}, err
		})
	})
}

// oneShotStream does the same in a session that lives as long as the stream.
func oneShotStream(c *call) (any, error) {
	return nil, c.stream(func(o *stream.Opening) error {
		return o.Exec(c.context(), func(start *api.StreamStart, req *supervisor.ExecRequest) (*supervisor.Session, func(), error) {
			if start.Exec.ID != "" {
				return nil, nil, fault.Field("start.exec.id", start.Exec.ID, "left out: nobody can come back to an execution that ends with its session")
			}
			if start.Session == nil {
				start.Session = &api.SessionRequest{}
			}
			s, err := c.makeOneShot(start.Session, req)
			if err != nil {
				return nil, nil, err
			}
			return s, func() { c.server.end(s, supervisor.EndOneShot) }, nil
		})
	})
}

// processStream attaches a client to a process.
func processStream(c *call) (any, error) {
	s, p, err := c.process()
	if err == nil {
		err = p.Attachable()
	}
	if err != nil {
		return nil, err
	}
	return nil, c.stream(func(o *stream.Opening) error { return o.Process(c.context(), s, p) })
}

// stream opens a stream, if its caller may have one more.
func (c *call) stream(open func(*stream.Opening) error) error {
	leave, err := c.load.stream()
	if err != nil {
		return err
	}
	defer leave()
	c.server.streams.Add(1)
	defer c.server.streams.Done()
	return open(&stream.Opening{
		W: c.w, R: c.r, Sup: c.server.sup, Log: c.server.log, Reserve: c.load.reserve, Lines: c.load.reserveLine,
		Unsent: func() int { return unsent(c.context()) },
	})
}
