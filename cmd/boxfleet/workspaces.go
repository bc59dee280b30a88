// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A named workspace is on one node, and sessions that use it are made there. The gateway keeps no list: it asks all nodes. Where one of them does
// not answer, a workspace that no other has is not missing: a new one in its place would be empty.

// maxWorkspaceBody is the largest request for a workspace, in bytes.
const maxWorkspaceBody = 64 << 10

// workspaceList is the answer of GET /v1/workspaces of the fleet: that of each node, with its name in each workspace.
type workspaceList struct {
	Workspaces []map[string]any `json:"workspaces"`
	Missing    []string         `json:"missing_nodes,omitempty"` // that have not answered
}

// workspaces answers what is about named workspaces.
func (g *gateway) workspaces(c *call, path []string) error {
	owner, err := c.owner()
	if err != nil {
		return err
	}
	route, minRole := c.r.Method+" /v1/workspaces"+strings.Repeat("/{workspace}", len(path)), access.User
	if c.r.Method == http.MethodGet {
		minRole = access.Viewer
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	switch {
	case len(path) == 1:
		name, err := url.PathUnescape(path[0])
		if err != nil {
			return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
		}
		node, err := g.workspaceNode(c.as(owner), name)
		if err != nil {
			return err
		}
		return g.pass(c, node, nil)
	case c.r.Method == http.MethodGet:
		return g.listWorkspaces(c)
	case c.r.Method == http.MethodPost:
		return g.createWorkspace(c, owner)
	}
	return onNodes(c)
}

// listWorkspaces asks every node for its workspaces.
func (g *gateway) listWorkspaces(c *call) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	one := c.within(ctx)
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool { return n.lost })
	lists, missing, err := fromEach(g, nodes, func(n *nodeState) ([]map[string]any, error) {
		var list workspaceList
		_, err := g.get(one, n, c.r.URL.RequestURI(), &list)
		for _, w := range list.Workspaces {
			w["node"] = n.Name
		}
		return list.Workspaces, err
	})
	if err != nil {
		return err
	}
	out := workspaceList{Workspaces: append([]map[string]any{}, slices.Concat(lists...)...), Missing: missing}
	slices.Sort(out.Missing)
	slices.SortFunc(out.Workspaces, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["name"], "\x00", a["node"]), fmt.Sprint(b["name"], "\x00", b["node"]))
	})
	reply(c.w, http.StatusOK, out)
	return nil
}

// createWorkspace has a node make a workspace that no node has: the next one if one does not take it.
func (g *gateway) createWorkspace(c *call, owner string) error {
	data, err := c.readBody(maxWorkspaceBody)
	if err != nil {
		return err
	}
	fields := map[string]json.RawMessage{}
	var want struct {
		Name      string    `json:"name"`
		Placement placement `json:"placement"`
	}
	if err := errors.Join(json.Unmarshal(data, &fields), json.Unmarshal(data, &want)); err != nil {
		return fault.Errorf(fault.Invalid, "the request for a workspace cannot be decoded: %w", err).WithHint("see /v1/openapi.json of a node, and docs/guide/fleet.md for placement")
	}
	delete(fields, "placement")
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if want.Name != "" { // otherwise a node says what is wrong
		node, err := g.workspaceNode(c.as(owner), want.Name)
		if err == nil { // which says that it has it
			c.setBody(body)
			return g.pass(c, node, nil)
		}
		if fault.KindOf(err) != fault.NotFound {
			return err
		}
	}
	list, none := choose(&want.Placement, g.known(), "", nil)
	if len(list) == 0 {
		return full(none)
	}
	var refused []error
	for i := range list {
		done, err := g.makeWorkspace(c, &list[i], body)
		if done || err == nil {
			return err
		}
		refused = append(refused, err)
	}
	return noNode(list, refused)
}

// makeWorkspace asks a node for a workspace. done: it has answered for good, or may have made it.
func (g *gateway) makeWorkspace(c *call, n *nodeState, body []byte) (done bool, err error) {
	c.span.setNode(n.Name)
	resp, err := g.request(c, n, http.MethodPost, c.r.URL.RequestURI(), body)
	if err != nil {
		_, refused := errors.AsType[*nodeRefusal](err)
		return !refused && !errors.Is(err, errNoResponder), unreached(n.Name, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return false, asFault(resp)
	case http.StatusCreated:
	default:
		return true, asFault(resp)
	}
	var made map[string]any
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxRequest)).Decode(&made); err != nil {
		return true, unreached(n.Name, err)
	}
	made["node"] = n.Name
	reply(c.w, http.StatusCreated, made)
	return true, nil
}

// workspaceNode is the node that has a workspace of the caller. A node on which the caller may do nothing has none of its workspaces.
func (g *gateway) workspaceNode(c *call, name string) (string, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	one := c.within(ctx)
	var unsure []string
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool {
		if n.lost {
			unsure = append(unsure, n.Name)
		}
		return n.lost
	})
	found, missing, err := fromEach(g, nodes, func(n *nodeState) (string, error) {
		ok, err := g.get(one, n, "/v1/workspaces/"+url.PathEscape(name), &api.Workspace{})
		switch {
		case fault.KindOf(err) == fault.Denied:
			return "", nil
		case err != nil || !ok:
			return "", err
		}
		return n.Name, nil
	})
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(node string) bool { return node == "" })
	unsure = append(unsure, missing...)
	slices.Sort(found)
	slices.Sort(unsure)
	switch {
	case len(found) > 1:
		return "", fault.Errorf(fault.Conflict, "workspace %s is on several nodes: %s", fault.Show(name), strings.Join(found, ", ")).
			WithHint("remove or copy one of them: requests for /v1/workspaces with the header %s: NODE are for that of this node", nodeHeader)
	case len(found) == 1:
		return found[0], nil
	case len(unsure) > 0:
		return "", fault.Errorf(fault.Unavailable, "no workspace %s on the nodes that answer; these do not, and may have it: %s", fault.Show(name), strings.Join(unsure, ", ")).
			WithHint("try again when they are back, or have the operator remove a node that is gone for good: boxctl fleet forget")
	}
	return "", fault.Errorf(fault.NotFound, "no workspace %s", fault.Show(name)).WithHint("boxctl workspaces ls lists them, and boxctl workspaces create makes one")
}

// workspacesNode is the node that has all of some workspaces of the caller; "": there are none.
func (g *gateway) workspacesNode(c *call, names []string) (node string, err error) {
	own := c.as(c.pass.Name) // its token is for what it has asked for
	for i, name := range names {
		at, err := g.workspaceNode(own, name)
		if err != nil {
			return "", err
		}
		if i > 0 && at != node {
			return "", fault.Errorf(fault.Conflict, "workspace %s is on node %s, and %s on node %s", fault.Show(names[0]), node, fault.Show(name), at).
				WithHint("a session uses workspaces of one node: take a copy of one there, by boxctl fleet snapshot --with-workspace")
		}
		node = at
	}
	return node, nil
}

// keeps refuses a workspace of a name that another node has: a session is to end here and leave it.
func (g *gateway) keeps(c *call, owner, node string) error {
	path := strings.Split(strings.TrimPrefix(c.r.URL.EscapedPath(), "/"), "/") // v1 sessions ID keep
	if c.r.Method != http.MethodPost || c.e2b != nil || len(path) != 4 || path[3] != "keep" {
		return nil
	}
	var want api.WorkspaceKept
	if data, err := c.peekBody(maxWorkspaceBody); err != nil || json.Unmarshal(data, &want) != nil || want.Workspace == "" || c.may("POST /v1/sessions/{id}/keep", access.User) != nil {
		return nil //nolint:nilerr // the node says what is wrong
	}
	switch at, err := g.workspaceNode(c.as(owner), want.Workspace); {
	case fault.KindOf(err) == fault.NotFound:
		return nil
	case err != nil:
		return err
	case at != node:
		return fault.Errorf(fault.Conflict, "there is a workspace %s on node %s", fault.Show(want.Workspace), at).WithHint("keep it under another name")
	}
	return nil
}

// neededWorkspaces are the named workspaces that a session uses or reads.
func (s *sessionSpec) neededWorkspaces() (names []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	add(s.Workspace)
	for _, in := range s.Inputs[:min(len(s.Inputs), maxMounts)] {
		add(in.Workspace)
	}
	return names
}
