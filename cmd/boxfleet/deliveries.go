// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// What the fleet has and a node may lack, images, skills and drives, is delivered to it when a session needs it: once for all who need it
// at a time, and to its end, also if the one who needed it first has gone.

// sessionSpec is what a request says of what its session is to have.
type sessionSpec struct {
	Image  string   `json:"image"`
	Skills []string `json:"skills"`
	Drives []string `json:"drives"` // names, or NAME@VERSION
	had    bool     // a session has them: a node may still have a version that the fleet has no more

	Workspace string      `json:"workspace"` // named ones are on one node, and are not sent
	Inputs    []api.Input `json:"inputs"`
}

// needs is what a session has to have of what the fleet has, with the digests of that.
type needs struct {
	image, digest string            // "": none of the fleet's
	skills        map[string]string // digests by name
	drives        []neededDrive
	workspaces    []string // which one node has
}

// need is one thing that a session has to have.
type need struct {
	key string                            // what it is, with its digest
	has func(c *call, n *nodeState) error // sees to it that a node has it, in the name of its owner
}

// each lists what a session of an owner has to have.
func (g *gateway) each(want *needs, owner string) (list []need) {
	if want.image != "" {
		list = append(list, need{"image " + want.image + " " + want.digest, func(c *call, n *nodeState) error { return g.hasImage(c, n, want.image, want.digest) }})
	}
	for _, name := range slices.Sorted(maps.Keys(want.skills)) {
		digest := want.skills[name]
		list = append(list, need{"skill " + skillKey(owner, name) + " " + digest, func(c *call, n *nodeState) error { return g.hasSkill(c, n, name, digest) }})
	}
	for i := range want.drives {
		d := &want.drives[i]
		list = append(list, need{d.key(owner), func(c *call, n *nodeState) error { return g.hasDrive(c, n, d) }})
	}
	return list
}

// Of how many skills, and of how many drives, of a session it is looked up whether the fleet has them. A node takes no more.
const (
	maxNeeded = 256
	maxMounts = 16
)

// Bounds of a delivery.
const (
	deliveryTimeout = 15 * time.Minute
	queuedTimeout   = 2 * time.Second // for which one who waits for room waits for a delivery, too
)

// delivery is something that is sent to a node just now.
type delivery struct {
	done chan struct{}
	err  error // once it is done
}

// resolve looks up what the fleet has of what a session is to have. route is what the caller asks for: for who may not it is nothing, and
// a node says so.
func (g *gateway) resolve(c *call, route string, spec *sessionSpec) (want *needs, err error) {
	want = &needs{}
	if c.may(route, access.User) != nil {
		return want, nil //nolint:nilerr // see above
	}
	want.workspaces = spec.neededWorkspaces()
	ctx := c.r.Context()
	if spec.Image != "" && spec.Image != "host" && g.cfg.Images > 0 {
		k, err := g.storedImage(ctx, spec.Image)
		if err != nil {
			return nil, err
		}
		if k != nil {
			want.image, want.digest = spec.Image, k.Digest
		}
	}
	if len(spec.Skills) <= maxNeeded && g.cfg.Skills > 0 {
		want.skills, err = g.neededSkills(ctx, c.pass.Name, spec.Skills)
	}
	if err == nil && len(spec.Drives) <= maxMounts && g.cfg.Drives > 0 {
		want.drives, err = g.neededDrives(ctx, c.pass.Name, spec)
	}
	return want, err
}

// neededSkills are the digests, by name, of those skills of an owner that the fleet has.
func (g *gateway) neededSkills(ctx context.Context, owner string, names []string) (map[string]string, error) {
	digests := map[string]string{}
	if len(names) == 0 {
		return digests, nil
	}
	s, err := g.readSkills(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, known := digests[name]; known {
			continue
		}
		k, err := s.skill(ctx, owner, name)
		if err != nil {
			return nil, err
		}
		if k != nil {
			digests[name] = k.Digest
		}
	}
	return digests, nil
}

// provide sees to it that a node has what a session needs. An error is why the node cannot have it, or not yet.
func (g *gateway) provide(ctx context.Context, c *call, n *nodeState, want *needs) error {
	own := c.as(c.pass.Name)                        // its token is for what it has asked for
	for _, one := range g.each(want, c.pass.Name) { //nolint:contextcheck // calls have it
		if err := g.deliver(ctx, own, n.Name+" "+one.key, func(c *call) error { return one.has(c, n) }); err != nil {
			return err
		}
		g.note(one.key, n.Name)
	}
	return nil
}

// passOn passes a request on to the first node that has, or takes, what it needs.
func (g *gateway) passOn(c *call, place *placement, want *needs) error {
	node, err := g.provideAny(c, place, want)
	if err != nil {
		return err
	}
	return g.pass(c, node, nil)
}

// provideAny sees to it that a node has what is needed: the first that takes it.
func (g *gateway) provideAny(c *call, place *placement, want *needs) (node string, err error) {
	if place.only, err = g.workspacesNode(c, want.workspaces); err != nil {
		return "", err
	}
	place.near = g.near(want, c.pass.Name)
	list, reason := choose(place, g.known(), "", nil)
	if len(list) == 0 {
		return "", full(reason)
	}
	var refused []error
	for i := range list {
		err := g.provide(c.r.Context(), c, &list[i], want)
		if err == nil {
			return list[i].Name, nil
		}
		refused = append(refused, err)
	}
	return "", noNode(list, refused)
}

// maxNoted is of how many things a gateway remembers which nodes have them.
const maxNoted = 1024

// note remembers that a node has something. It may not have it any more when that counts: it is asked again.
func (g *gateway) note(key, node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.noted == nil {
		g.noted = map[string]map[string]bool{}
	}
	if g.noted[key] == nil {
		for other := range g.noted {
			if len(g.noted) >= maxNoted { // one of them, which may be of a version that nobody needs any more
				delete(g.noted, other)
			}
		}
		g.noted[key] = map[string]bool{}
	}
	g.noted[key][node] = true
}

// near is the share of what a session needs that each node was seen to have.
func (g *gateway) near(want *needs, owner string) map[string]float64 {
	all := g.each(want, owner)
	g.mu.Lock()
	defer g.mu.Unlock()
	near := map[string]float64{}
	for _, one := range all {
		for node := range g.noted[one.key] {
			near[node] += 1 / float64(len(all))
		}
	}
	return near
}

// replaced is the error for what is another one than when the request was looked at.
func replaced(what, name string) error {
	return fault.Errorf(fault.Unavailable, "the %s %s of the fleet has changed meanwhile", what, fault.Show(name)).WithHint("try again")
}

// deliver does something once for all who ask for it at a time, and waits for that.
func (g *gateway) deliver(ctx context.Context, c *call, key string, do func(*call) error) error {
	for {
		d, first := g.join(ctx, c, key, do)
		select {
		case <-d.done:
		case <-ctx.Done():
			return fault.Errorf(fault.Unavailable, "it is being sent what the session needs").WithHint("try again")
		}
		if d.err == nil || first || fault.KindOf(d.err) != fault.Denied { // a refusal of somebody else is not one of this caller
			return d.err
		}
	}
}

func (g *gateway) join(ctx context.Context, c *call, key string, do func(*call) error) (d *delivery, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.sends[key]; d != nil {
		return d, false
	}
	d = &delivery{done: make(chan struct{})}
	if ctx.Err() != nil {
		return d, true // nobody waits for it: it is not begun
	}
	if g.sends == nil {
		g.sends = map[string]*delivery{}
	}
	g.sends[key] = d
	baseCtx, cancel := context.WithTimeout(g.baseCtx, deliveryTimeout)
	detached := &call{pass: c.pass, r: c.r.Clone(baseCtx)} //nolint:contextcheck // it goes on without the caller
	g.work.Go(func() {
		defer cancel()
		err := do(detached)
		g.mu.Lock()
		delete(g.sends, key)
		g.mu.Unlock()
		d.err = err
		close(d.done)
	})
	return d, true
}

// untaken is why a node has not taken something, and until when it is not sent again: callers who wait for room try every half second.
type untaken struct {
	err   error
	until time.Time
}

// How long a node is not sent again what it has not taken: if that may pass soon, and otherwise.
const (
	retrySoon  = 5 * time.Second
	retryLater = time.Minute
)

// refused notes why a node has not taken something. What it refuses to one caller it may take from another.
func (g *gateway) refused(key string, err error) {
	pause, kind := retryLater, fault.KindOf(err)
	if kind == fault.Denied {
		return
	}
	limit, _ := errors.AsType[*fault.Error](err)
	if kind == fault.Unavailable || kind == fault.Exhausted && limit.Field == "" { // a limit with a field is of what is stored there
		pause = retrySoon
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.untaken == nil {
		g.untaken = map[string]untaken{}
	}
	g.untaken[key] = untaken{err, g.now().Add(pause)}
}

// refusalOf is why something is not sent again yet; nil: it may be.
func (g *gateway) refusalOf(key string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	maps.DeleteFunc(g.untaken, func(_ string, u untaken) bool { return !now.Before(u.until) })
	return g.untaken[key].err
}

// get gets what a node says of something it may have, into out. ok: it has it.
func (g *gateway) get(c *call, n *nodeState, target string, out any) (ok bool, err error) {
	resp, err := g.request(c, n, http.MethodGet, target, nil)
	if err != nil {
		return false, unreached(n.Name, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return false, nil
	default:
		return false, asFault(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16*maxRequest)).Decode(out); err != nil {
		return false, unreached(n.Name, err)
	}
	return true, nil
}

// noNode is the refusal of what each of some nodes has refused: it may be taken later if one says so, and otherwise it is for good.
func noNode(nodes []nodeState, refused []error) error {
	texts, retry := make([]string, len(refused)), false
	for i, err := range refused {
		kind := fault.KindOf(err)
		retry = retry || kind == fault.Exhausted || kind == fault.Unavailable || kind == fault.Internal
		texts[i] = "node " + nodes[i].Name + ": " + err.Error()
	}
	if retry {
		return full(strings.Join(texts, "; "))
	}
	others := strings.Join(texts[:len(texts)-1], "; ")
	if others != "" {
		others += "; "
	}
	return fmt.Errorf("%snode %s: %w", others, nodes[len(refused)-1].Name, refused[len(refused)-1])
}

// onAny has a node do something: the next one if one cannot, unless the request is wrong for all.
func (g *gateway) onAny(do func(*nodeState) error) error {
	list, none := choose(&placement{}, g.known(), "", nil)
	if len(list) == 0 {
		return full(none)
	}
	var refused []error
	for i := range list {
		err := do(&list[i])
		if err == nil || fault.KindOf(err) == fault.Invalid {
			return err
		}
		refused = append(refused, err)
	}
	return noNode(list, refused)
}

// sendArchive sends an archive to a node, and decodes its answer into out.
func (g *gateway) sendArchive(c *call, n *nodeState, s *archiveStore, a archived, target string, out any) error {
	from := &watched{from: s.read(c.r.Context(), a)}
	resp, err := g.send(c, n, http.MethodPost, target, "application/octet-stream", from)
	if broken := from.broken(); broken != nil {
		err = noStore("archives", broken)
	} else if err != nil {
		err = unreached(n.Name, err)
	}
	if resp != nil {
		defer resp.Body.Close()
	}
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return asFault(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16*maxRequest)).Decode(out); err != nil {
		return unreached(n.Name, err)
	}
	return nil
}

// needed is what the session of a program that leaves none behind has to have, as far as its request says so before it is passed on:
// in a header, for streams, or in a body of at most maxRequest bytes.
func (g *gateway) needed(c *call) (*needs, error) {
	route := c.r.Method + " " + c.r.URL.Path
	if values, err := url.ParseQuery(c.r.Header.Get(api.NeedsHeader)); err == nil && len(values) > 0 {
		return g.resolve(c, route, &sessionSpec{Image: values.Get("image"), Skills: values["skill"], Drives: values["drive"], Workspace: values.Get("workspace"), Inputs: inputsOf(values["input"])})
	}
	if route != "POST /v1/exec" {
		return &needs{}, nil
	}
	var body struct {
		Session struct {
			sessionSpec

			DryRun bool `json:"dry_run"`
		} `json:"session"`
		Exec struct {
			DryRun bool `json:"dry_run"`
		} `json:"exec"`
	}
	if data, err := c.peekBody(maxRequest); err != nil || json.Unmarshal(data, &body) != nil {
		return &needs{}, nil //nolint:nilerr // who reads it all says what is wrong
	}
	if body.Exec.DryRun || body.Session.DryRun { // nothing is sent for it
		return g.resolve(c, route, &sessionSpec{Workspace: body.Session.Workspace, Inputs: body.Session.Inputs})
	}
	return g.resolve(c, route, &body.Session.sessionSpec)
}

func inputsOf(names []string) (list []api.Input) {
	for _, name := range names {
		list = append(list, api.Input{Workspace: name})
	}
	return list
}

// attaches sees to it that a node has the skill, or the version of a drive, that a request adds to a session there.
func (g *gateway) attaches(c *call, owner, node string) error {
	path := strings.Split(strings.TrimPrefix(c.r.URL.EscapedPath(), "/"), "/") // v1 sessions ID skills NAME
	if c.r.Method != http.MethodPut || c.e2b != nil || len(path) != 5 {
		return nil
	}
	name, err := url.PathUnescape(path[4])
	if err != nil {
		return nil //nolint:nilerr // which is said below
	}
	var spec sessionSpec
	var route string
	switch path[3] {
	case "skills":
		spec.Skills, route = []string{name}, "PUT /v1/sessions/{id}/skills/{skill}"
	case "drives":
		if version := c.r.URL.Query().Get("version"); version != "" {
			name += "@" + version
		}
		spec.Drives, route = []string{name}, "PUT /v1/sessions/{id}/drives/{drive}"
	default:
		return nil
	}
	n, ok := g.node(node)
	if !ok || n.lost || c.may(route, access.User) != nil {
		return nil //nolint:nilerr // the same
	}
	own := c.as(owner)
	want, err := g.resolve(own, route, &spec)
	if err != nil {
		return err
	}
	return g.provide(c.r.Context(), own, &n, want)
}
