// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/supervisor/environments"
)

// Environment makes the virtual environment of a skill that a session has, unless it is there.
func Environment(c *route.Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	var in api.SkillEnvironmentRequest
	if err := c.DecodeBody(&in, route.MaxSessionBody); err != nil {
		return nil, err
	}
	e, err := environments.Make(c.Context(), s, c.Path.Skill, &environments.Request{Env: in.Env, Timeout: in.Timeout})
	if err != nil {
		return nil, err
	}
	out := api.SkillEnvironment{Path: e.Path, Python: e.Python, Made: e.Made}
	if e.Made {
		return route.Created{Body: out}, nil
	}
	return out, nil
}
