// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// execStream runs a program in a session and relays its input and output.
func execStream(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err // before the upgrade, for an ordinary response
	}
	return nil, c.Stream(func(o *streamOpening) error {
		return o.Exec(c.Context(), func(start *api.StreamStart, _ *session.ExecRequest) (*session.Session, func(), error) {
			if start.Session != nil {
				return nil, nil, fault.Field("start.session", fault.Word("given"), "left out, as the path names the session")
			}
			return s, func() {}, nil
		})
	})
}

// runStream is execStream in a session that lives as long as the stream.
func runStream(c *Call) (any, error) {
	return nil, c.Stream(func(o *streamOpening) error {
		return o.Exec(c.Context(), func(start *api.StreamStart, req *session.ExecRequest) (*session.Session, func(), error) {
			if start.Exec.ID != "" {
				return nil, nil, fault.Field("start.exec.id", start.Exec.ID, "left out").WithText("exec.id: not allowed for a one-shot execution")
			}
			if start.Session == nil {
				start.Session = &api.SessionRequest{}
			}
			s, err := makeOneShot(c, start.Session, req)
			if err != nil {
				return nil, nil, err
			}
			return s, func() { c.End(s, session.EndOneShot) }, nil
		})
	})
}
