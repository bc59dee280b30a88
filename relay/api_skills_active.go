// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/fault"
)

// activateSkill adds a skill to a session.
func activateSkill(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	k, isNew, err := c.Sup.Attachments.Activate(c.Context(), s, c.Path.Skill)
	if err != nil {
		return nil, err
	}
	if isNew {
		return Created{Body: skillAnswer(&k)}, nil
	}
	return skillAnswer(&k), nil
}

// deactivateSkill removes a skill from a session.
func deactivateSkill(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	force := c.R.URL.Query().Get("force")
	if force != "" && force != "true" && force != "false" {
		return nil, fault.Field("force", force, "true or false")
	}
	return noContent{}, c.Sup.Attachments.Deactivate(c.Context(), s, c.Path.Skill, force == "true")
}
