// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// manage answers what is about the fleet itself.
func (g *gateway) manage(c *call, path []string) error {
	what := c.r.Method + " " + strings.Join(path, "/")
	if len(path) == 3 && path[0] == "sessions" && path[2] == "move" && c.r.Method == http.MethodPost {
		id, err := url.PathUnescape(path[1])
		if err == nil {
			err = c.may("POST /v1/fleet/sessions/{id}/move", access.User)
		}
		if err != nil {
			return err
		}
		return g.move(c, id)
	}
	if of := g.storeHandler(path); of != nil {
		return of(c, path[1:])
	}
	minRole := access.Operator
	if what == "GET nodes" {
		minRole = access.Viewer
	}
	if err := c.may(c.r.Method+" /v1/fleet/"+strings.Join(path, "/"), minRole); err != nil {
		return err
	}
	if len(path) == 3 && path[0] == "nodes" && path[2] == "cordon" && (c.r.Method == http.MethodPut || c.r.Method == http.MethodDelete) {
		return g.cordon(c, path[1])
	}
	if len(path) == 2 && path[0] == "nodes" && c.r.Method == http.MethodDelete {
		return g.forget(c, path[1])
	}
	switch what {
	case "GET nodes":
		list := api.FleetNodeList{Nodes: []api.FleetNodeState{}}
		for _, n := range g.known() {
			n.Owners = nil // a viewer need not know whose boxes there are
			list.Nodes = append(list.Nodes, api.FleetNodeState{FleetNode: n.FleetNode, SeenSeconds: g.now().Sub(n.at).Seconds(), ClockSeconds: n.offset.Seconds(), Cordon: n.cordon})
		}
		reply(c.w, http.StatusOK, list)
	case "GET events":
		reply(c.w, http.StatusOK, api.FleetEventList{Events: g.events.all()})
	case "GET owners":
		list, err := g.owners(c.r.Context())
		if err != nil {
			return err
		}
		reply(c.w, http.StatusOK, api.FleetOwnerList{Owners: list})
	case "GET sessions":
		claims, _, err := g.table()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
		defer cancel()
		all, err := listClaims(ctx, claims)
		if err != nil {
			return unread(err)
		}
		slices.SortFunc(all, func(a, b *sessionClaim) int { return strings.Compare(a.Owner+"\x00"+a.ID, b.Owner+"\x00"+b.ID) })
		list := api.FleetClaimList{Sessions: []api.FleetClaim{}}
		for _, claim := range all {
			list.Sessions = append(list.Sessions, claim.FleetClaim)
		}
		reply(c.w, http.StatusOK, list)
	default:
		return noRoute(c)
	}
	return nil
}

// storeHandler returns what answers requests for what the fleet keeps of owners; nil: the request is for something else.
func (g *gateway) storeHandler(path []string) func(*call, []string) error {
	if len(path) == 0 {
		return nil
	}
	return map[string]func(*call, []string) error{"snapshots": g.manageSnapshots, "outputs": g.manageOutputs}[path[0]]
}

func noRoute(c *call) error {
	return fault.Errorf(fault.NotFound, "no route %s %s", c.r.Method, fault.Show(c.r.URL.Path)).WithHint("GET /v1/fleet/nodes lists the nodes; docs/guide/fleet.md has all routes")
}

// owners adds up what nodes announce of owners. Of nodes that are lost there are the claims.
func (g *gateway) owners(ctx context.Context) ([]api.FleetOwner, error) {
	sums := map[string]*api.FleetOwner{}
	of := func(owner string) *api.FleetOwner {
		o := sums[owner]
		if o == nil {
			o = &api.FleetOwner{Owner: owner}
			sums[owner] = o
		}
		return o
	}
	lost := map[string]bool{}
	for _, n := range g.known() {
		if n.lost {
			lost[n.Name] = true
			continue
		}
		for _, has := range n.Owners {
			o := of(has.Owner)
			o.Sessions += has.Sessions
			o.CPUs += has.CPUs
			o.Memory += has.Memory
			o.Pids += has.Pids
		}
	}
	claims, _, err := g.table()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := listClaims(ctx, claims)
	if err != nil {
		return nil, unread(err)
	}
	for _, claim := range all {
		if lost[claim.Node] || claim.State == api.FleetClaimLost { // its node may be forgotten
			of(claim.Owner).Lost++
		}
	}
	return sortedOwners(sums), nil
}

// sessionList is the answer of GET /v1/sessions of the fleet: that of each node, with its name in each session.
type sessionList struct {
	Sessions []map[string]any `json:"sessions"`
	Next     string           `json:"next,omitempty"`          // of a node alone: where it goes on
	Missing  []string         `json:"missing_nodes,omitempty"` // that have not answered
}

// fromEach asks nodes at the same time for a part of a list. missing are those that have not answered. A request that one of them
// finds invalid is refused.
func fromEach[T any](g *gateway, nodes []nodeState, get func(*nodeState) (T, error)) (parts []T, missing []string, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			part, failed := get(&n)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fault.KindOf(failed) == fault.Invalid:
				err = failed
			case failed != nil:
				missing = append(missing, n.Name)
				g.log.Warn("a node does not return its list", "node", n.Name, "error", failed)
			default:
				parts = append(parts, part)
			}
		})
	}
	wg.Wait()
	return parts, missing, err
}

// list asks every node for its sessions. Those that are lost are listed with what the claim says of them.
func (g *gateway) list(c *call) error {
	owner, err := c.owner()
	if err == nil {
		err = c.may("GET /v1/sessions", access.Viewer)
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"after", "limit"} { // no node knows what is on the page of another
		if query := c.r.URL.Query(); query.Has(name) {
			return fault.Field(name, query.Get(name), "left out, as a gateway lists all sessions at once")
		}
	}
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool { return n.lost })
	lists, missing, err := fromEach(g, nodes, func(n *nodeState) ([]map[string]any, error) { return g.sessionsOf(c, n) })
	if err != nil {
		return err
	}
	out := sessionList{Sessions: append([]map[string]any{}, slices.Concat(lists...)...), Missing: missing}
	claims, _, err := g.table()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	known, err := listClaims(ctx, claims)
	if err != nil {
		return unread(err)
	}
	on := map[[2]string]*sessionClaim{}
	for _, claim := range known {
		on[[2]string{claim.Owner, claim.ID}] = claim
	}
	out.Sessions = slices.DeleteFunc(out.Sessions, func(s map[string]any) bool { // one that is being moved is on two nodes
		owner, _ := s["owner"].(string)
		id, _ := s["id"].(string)
		claim := on[[2]string{owner, id}]
		return claim != nil && claim.State == api.FleetClaimMoving && s["node"] == claim.To
	})
	for _, claim := range known {
		if claim.State == api.FleetClaimLost && claim.Owner == owner {
			out.Sessions = append(out.Sessions, map[string]any{"id": claim.ID, "owner": claim.Owner, "state": api.FleetClaimLost, "node": claim.Node, "lost_at": claim.Since, "reason": claim.Reason})
		}
	}
	slices.Sort(out.Missing)
	slices.SortFunc(out.Sessions, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["owner"], "\x00", a["id"]), fmt.Sprint(b["owner"], "\x00", b["id"]))
	})
	reply(c.w, http.StatusOK, out)
	return nil
}

// Bounds of a list of one node, which may find no end.
const (
	maxPages  = 64
	maxListed = 64 << 20 // bytes of a page
)

// sessionsOf asks a node for all pages of its list.
func (g *gateway) sessionsOf(c *call, n *nodeState) (all []map[string]any, err error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), streamTimeout)
	defer cancel()
	one := c.within(ctx)
	target := *c.r.URL
	for range maxPages {
		list, err := g.page(one, n, target.RequestURI())
		if err != nil {
			return nil, err
		}
		for _, s := range list.Sessions {
			s["node"] = n.Name
		}
		if all = append(all, list.Sessions...); list.Next == "" {
			return all, nil
		}
		query := target.Query()
		query.Set("after", list.Next)
		target.RawQuery = query.Encode()
	}
	return nil, fmt.Errorf("its list of sessions exceeds %d pages", maxPages)
}

func (g *gateway) page(c *call, n *nodeState, target string) (list sessionList, err error) {
	resp, err := g.request(c, n, http.MethodGet, target, nil)
	if err != nil {
		return list, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return list, asFault(resp)
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxListed)).Decode(&list)
	return list, err
}
