// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/mcp"
)

// getInstructions returns the instructions for a model: what a session offers and forbids.
func getInstructions(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	session := sessionAnswer(s.Info())
	profile := profileOf(c, session.Profile)
	return api.Instructions{Session: session.ID, Profile: session.Profile, Instructions: mcp.WriteInstructions(mcp.FactsOf(&session, &profile))}, nil
}

// plannedInstructions returns what a session of a profile, made for the caller, would offer and forbid.
func plannedInstructions(c *Call) (any, error) {
	want := sessionRequestOf(&api.SessionRequest{Profile: c.R.URL.Query().Get("profile")})
	made := c.Sup.PlanSession(c.Context(), c.Caller, want)
	plan := planAnswer(c.Context(), c.Log, made)
	if plan.Session == nil {
		return nil, made.Refused
	}
	facts := &mcp.Facts{Box: *plan.Session, Profile: profileOf(c, plan.Session.Profile), Enforcement: plan.Enforcement, Refused: plan.Refused}
	return api.Instructions{Profile: plan.Session.Profile, Instructions: mcp.WriteInstructions(facts)}, nil
}

// profileOf returns the current profile of a name; a zero one, without times, if it no longer exists.
func profileOf(c *Call, name string) api.Profile {
	all, _ := c.Sup.Profiles()
	return api.Profile(all[name])
}
