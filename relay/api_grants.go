// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/events"
)

// listGrants lists the grants.
func listGrants(c *Call) (any, error) {
	list := api.GrantList{Grants: []api.Grant{}}
	for _, g := range c.Gate.Grants().List() {
		list.Grants = append(list.Grants, grant(&g))
	}
	return list, nil
}

// giveGrant gives a role to a principal.
func giveGrant(c *Call) (any, error) {
	var req api.GrantRequest
	if err := c.decodeBody(&req, maxSmallBody); err != nil {
		return nil, err
	}
	var role access.Role
	if err := role.UnmarshalText([]byte(req.Role)); err != nil || role == 0 {
		return nil, fault.Field("role", req.Role, fault.OneOf(access.Roles()...))
	}
	principal := c.principalNamed(req.Principal)
	if !c.Gate.Knows(principal) {
		return nil, fault.Field("principal", req.Principal, "a user of this host, uid:N, or the name of a table [principals.NAME] of box.toml")
	}
	g, err := c.Gate.Grants().Give(principal, role, time.Duration(req.For), c.Caller.Name)
	if err != nil {
		return nil, err
	}
	c.Events.Add(c.Context(), events.Event{Type: events.GrantChanged, Owner: g.Principal, Principal: g.By, Reason: g.Role.String(), Detail: "granted until " + g.Until.UTC().Format(time.RFC3339)})
	return Created{Body: grant(&g)}, nil
}

// revokeGrant ends the grant of a principal, and its calls in progress that need it.
func revokeGrant(c *Call) (any, error) {
	principal := c.principalNamed(c.Path.Principal)
	if err := c.Gate.Grants().Revoke(principal); err != nil {
		return nil, err
	}
	c.Events.Add(c.Context(), events.Event{Type: events.GrantChanged, Owner: principal, Principal: c.Caller.Name, Reason: "revoked"})
	return noContent{}, nil
}

func grant(g *access.Grant) api.Grant {
	return api.Grant{Principal: g.Principal, Role: g.Role.String(), By: g.By, CreatedAt: g.Created.UTC(), Until: g.Until.UTC()}
}
