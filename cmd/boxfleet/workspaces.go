// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool { return n.lost })
	lists, missing, err := fromEach(g, nodes, func(n *nodeState) ([]map[string]any, error) {
		var list workspaceList
		_, err := g.get(c, n, c.r.URL.RequestURI(), &list)
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

// createWorkspace has a node make a workspace that no node has.
func (g *gateway) createWorkspace(c *call, owner string) error {
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxWorkspaceBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.Field("body", fault.Word("longer"), fmt.Sprintf("at most %d bytes", maxWorkspaceBody))
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "read the body: %w", err).WithHint("send it again")
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
	node := ""
	if want.Name != "" { // otherwise a node says what is wrong
		if node, err = g.workspaceNode(c.as(owner), want.Name); err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
	}
	if node == "" {
		list, none := choose(&want.Placement, g.known(), "", nil)
		if len(list) == 0 {
			return full(none)
		}
		node = list[0].Name
	}
	c.setBody(body)
	return g.pass(c, node, nil)
}

// workspaceNode is the node that has a workspace of the caller.
func (g *gateway) workspaceNode(c *call, name string) (string, error) {
	nodes, unsure := g.known(), []string(nil)
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool {
		if n.lost {
			unsure = append(unsure, n.Name)
		}
		return n.lost
	})
	found, missing, err := fromEach(g, nodes, func(n *nodeState) (string, error) {
		resp, err := g.request(c, n, http.MethodGet, workspaceTarget(name), nil)
		if _, refused := errors.AsType[*nodeRefusal](err); refused { // this gateway does not speak for the caller there, who has nothing there for the fleet
			return "", nil
		}
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			return n.Name, nil
		case http.StatusNotFound, http.StatusForbidden:
			return "", nil
		}
		return "", asFault(resp)
	})
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(node string) bool { return node == "" })
	unsure = append(unsure, missing...)
	slices.Sort(found)
	switch {
	case len(found) > 1:
		return "", fault.Errorf(fault.Conflict, "workspace %s is on several nodes: %s", fault.Show(name), strings.Join(found, ", ")).WithHint("name one of them with the header %s", nodeHeader)
	case len(found) == 1:
		g.note(workspaceKey(c.pass.Name, name), found[0])
		return found[0], nil
	case len(unsure) > 0:
		slices.Sort(unsure)
		return "", fault.Errorf(fault.Unavailable, "no workspace %s on the nodes that answer; these do not, and may have it: %s", fault.Show(name), strings.Join(unsure, ", ")).
			WithHint("try again when they are back, name a node with the header %s, or have the operator remove a node that is gone for good: boxctl fleet forget", nodeHeader)
	}
	return "", noWorkspace(name)
}

func noWorkspace(name string) error {
	return fault.Errorf(fault.NotFound, "no workspace %s", fault.Show(name)).WithHint("boxctl workspaces ls lists them, and boxctl workspaces create makes one")
}

func workspaceTarget(name string) string { return "/v1/workspaces/" + url.PathEscape(name) }

// workspaceKey is the key of a need.
func workspaceKey(owner, name string) string { return "workspace " + claimKey(owner, name) }

// hasWorkspace refuses a node that does not have a workspace of the caller.
func (g *gateway) hasWorkspace(c *call, n *nodeState, name string) error {
	ok, err := g.get(c, n, workspaceTarget(name), &api.Workspace{})
	if err != nil {
		return err
	}
	if !ok {
		g.unnote(workspaceKey(c.pass.Name, name), n.Name)
		return noWorkspace(name)
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

// holders are the nodes that were seen to have a named workspace that a session needs.
func (g *gateway) holders(want *needs, owner string) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	holders := map[string]bool{}
	for _, name := range want.workspaces {
		for node := range g.noted[workspaceKey(owner, name)] {
			holders[node] = true
		}
	}
	return holders
}
