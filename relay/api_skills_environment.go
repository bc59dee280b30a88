// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// skillEnvironment makes the virtual environment of an active skill, unless it exists.
func skillEnvironment(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.SkillEnvironmentRequest
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	e, err := sessionfiles.MakeEnvironment(c.Context(), s, c.Path.Skill, &sessionfiles.EnvironmentRequest{Env: in.Env, Timeout: in.Timeout})
	if err != nil {
		return nil, err
	}
	out := api.SkillEnvironment{Path: e.Path, Python: e.Python, Made: e.Made}
	if e.Made {
		return Created{Body: out}, nil
	}
	return out, nil
}
