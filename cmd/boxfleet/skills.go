// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// The skills of a fleet are the archives that their owners have installed them from, in JetStream. A node gets one, in the name of its
// owner, when it is asked for the first session with it. What somebody has changed on a node is not replaced.

// skillBucket is the store of skills.
const skillBucket = "boxd_skills"

// Bounds of the records of skills: how many an owner has, and as many of removed ones, and of how many versions each has digests.
const (
	maxSkills   = 1024
	maxVersions = 64
)

// storedSkill is a skill and where it is in which archive. An archive can have several.
type storedSkill struct {
	api.Skill
	Owner    string       `json:"owner"`
	Path     string       `json:"path"`           // in the archive, as preview calls it
	Subdir   string       `json:"subdir"`         // that was searched
	Before   []string     `json:"before"`         // digests of versions of before, which nodes may still have
	Gone     bool         `json:"gone,omitempty"` // it was removed: only its name, its owner and Before are true
	Archive  archived     `json:"archive"`
	revision uint64       // of its record
	before   *storedSkill // that it replaces; nil: none
}

// skillKey is the key of the record of a skill. Names of skills have no spaces.
func skillKey(owner, name string) string { return claimKey(owner, "skill "+name) }

func noSkills(err error) error { return noStore("skills", err) }

// skillStore has the skills of the fleet.
type skillStore struct {
	*archiveStore
	perOwner int64 // bytes of archives
}

// readSkills opens the store of skills as it is. There is none before something was stored.
func (g *gateway) readSkills(ctx context.Context) (*skillStore, error) {
	s, err := g.readArchives(ctx, skillBucket, "skills")
	if s == nil {
		return nil, err
	}
	return &skillStore{s, g.cfg.OwnerSkills}, nil
}

// openSkills opens the store of skills to write to it.
func (g *gateway) openSkills(ctx context.Context) (*skillStore, error) {
	s, err := g.openArchives(ctx, skillBucket, "skills", g.cfg.Skills)
	if err != nil {
		return nil, noSkills(err)
	}
	return &skillStore{s, g.cfg.OwnerSkills}, nil
}

// skills answers what is about the skills of the fleet.
func (g *gateway) skills(c *call, path []string) error {
	owner, err := c.owner()
	if err != nil {
		return err
	}
	name, route := "", c.r.Method+" /v1/skills"
	switch {
	case len(path) == 1 && path[0] == "install":
		route += "/install"
	case len(path) == 1:
		if name, err = url.PathUnescape(path[0]); err != nil {
			return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
		}
		route += "/{skill}"
	}
	do, ok := map[string]func(*call, *skillStore, string, string) error{
		"GET /v1/skills":            listSkills,
		"POST /v1/skills/install":   g.installSkills,
		"GET /v1/skills/{skill}":    g.showSkill,
		"DELETE /v1/skills/{skill}": removeSkill,
	}[route]
	if !ok || g.cfg.Skills == 0 || len(path) > 1 {
		return onNodes(c)
	}
	minRole := access.User
	if c.r.Method == http.MethodGet {
		minRole = access.Viewer
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	var s *skillStore
	if c.r.Method == http.MethodPost {
		s, err = g.openSkills(c.r.Context())
	} else {
		s, err = g.readSkills(c.r.Context())
	}
	if err != nil {
		return err
	}
	return do(c, s, owner, name)
}

// all reads the skills of all owners, the newest first.
func (s *skillStore) all(ctx context.Context) ([]*storedSkill, error) {
	if s == nil {
		return nil, nil
	}
	entries, err := s.list(ctx)
	if err != nil {
		return nil, noSkills(err)
	}
	all := make([]*storedSkill, len(entries))
	for i, entry := range entries {
		all[i] = &storedSkill{}
		if all[i].revision, err = readRecord(entry, all[i]); err != nil {
			return nil, noSkills(err)
		}
	}
	slices.SortFunc(all, func(a, b *storedSkill) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
	return all, nil
}

// skill reads a skill; nil: there is none.
func (s *skillStore) skill(ctx context.Context, owner, name string) (*storedSkill, error) {
	k, err := s.record(ctx, owner, name)
	if err != nil || k == nil || k.Gone {
		return nil, err
	}
	return k, nil
}

// record is skill for one that was removed, too.
func (s *skillStore) record(ctx context.Context, owner, name string) (k *storedSkill, err error) {
	if s == nil {
		return nil, nil //nolint:nilnil // there is none, and nothing has failed
	}
	k = &storedSkill{}
	if k.revision, err = s.get(ctx, skillKey(owner, name), k); err != nil {
		return nil, noSkills(err)
	}
	if k.revision == 0 {
		return nil, nil //nolint:nilnil // the same
	}
	return k, nil
}

func listSkills(c *call, s *skillStore, owner, _ string) error {
	all, err := s.all(c.r.Context())
	if err != nil {
		return err
	}
	list := api.SkillList{Skills: []api.Skill{}}
	for _, k := range all {
		if k.Owner == owner && !k.Gone {
			list.Skills = append(list.Skills, k.Skill)
		}
	}
	reply(c.w, http.StatusOK, list)
	return nil
}

func noSkill(name string) error {
	return fault.Errorf(fault.NotFound, "the fleet has no skill %s of yours", fault.Show(name)).WithHint("list skills: boxctl skills ls")
}

// showSkill has a node show a skill that has it: the record has no instructions.
func (g *gateway) showSkill(c *call, s *skillStore, owner, name string) error {
	k, err := s.skill(c.r.Context(), owner, name)
	if err == nil && k == nil {
		err = noSkill(name)
	}
	if err != nil {
		return err
	}
	own := c.as(owner)
	own.r = c.r.Clone(c.r.Context())
	own.r.URL.RawQuery = "" // the owner is who asks
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool { return n.lost })
	for i := range nodes[:min(len(nodes), maxSelect)] {
		skill := &api.Skill{}
		if ok, err := g.get(own, &nodes[i], "/v1/skills/"+url.PathEscape(name), skill); err == nil && ok && skill.Digest == k.Digest {
			return g.pass(own, nodes[i].Name, nil)
		}
	}
	reply(c.w, http.StatusOK, k.Skill) // without its instructions
	return nil
}

// maxSelect is how many nodes are asked for a skill that is to be shown.
const maxSelect = 8

// removeSkill removes a skill from the fleet. Nodes keep theirs.
func removeSkill(c *call, s *skillStore, owner, name string) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), storeTimeout)
	defer cancel()
	k, err := s.skill(ctx, owner, name)
	if err == nil && k == nil {
		err = noSkill(name)
	}
	if err != nil {
		return err
	}
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	err = s.remove(ctx, func() error {
		if err := s.forgetOldest(ctx, owner, all); err != nil {
			return err
		}
		tombstone := &storedSkill{Skill: api.Skill{Name: name, UpdatedAt: time.Now().UTC()}, Owner: owner, Before: k.versions(), Gone: true}
		return s.write(ctx, tombstone, k.revision)
	}, k.Archive)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the skill %s has changed meanwhile", fault.Show(name)).WithHint("try again")
	case err != nil:
		return noSkills(err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// forgetOldest removes the oldest record of a removed skill of an owner who has as many as may be. all are the newest first.
func (s *skillStore) forgetOldest(ctx context.Context, owner string, all []*storedSkill) error {
	tombstones := slices.DeleteFunc(all, func(k *storedSkill) bool { return k.Owner != owner || !k.Gone })
	if len(tombstones) < maxSkills {
		return nil
	}
	oldest := tombstones[len(tombstones)-1]
	if err := s.records.Delete(ctx, skillKey(owner, oldest.Name), jetstream.LastRevision(oldest.revision)); err != nil && !conflict(err) {
		return err
	}
	return nil
}

// versions are the digests that nodes may have of a skill, the newest first.
func (k *storedSkill) versions() []string {
	all := slices.Clone(k.Before)
	if !k.Gone {
		all = append([]string{k.Digest}, slices.DeleteFunc(all, func(digest string) bool { return digest == k.Digest })...)
	}
	return all[:min(len(all), maxVersions)]
}

// write writes a record anew, which has that revision; 0: there is none.
func (s *skillStore) write(ctx context.Context, k *storedSkill, revision uint64) (err error) {
	k.revision, err = s.put(ctx, skillKey(k.Owner, k.Name), k, revision)
	return err
}

// installSkills stores an archive when a node has found what skills are in it. It is sent to nodes when they need it.
func (g *gateway) installSkills(c *call, s *skillStore, owner, _ string) error {
	query := c.r.URL.Query()
	for _, name := range []string{"url", "session", "path"} {
		if query.Get(name) != "" {
			return fault.Field(name, query.Get(name), "left out at a gateway, which needs the archive itself").WithHint("download it, and install the file")
		}
	}
	ctx := c.r.Context()
	var chosen []*storedSkill
	err := g.receive(c, s.archiveStore, &receiving{
		owner: owner, maxBytes: s.perOwner, tooLarge: func() error { return s.tooMuch(owner, false) },
		inspect: func(u *upload) (err error) {
			chosen, err = g.preview(c.as(owner), s, u.archived, query)
			return err
		},
		fits: func(u *upload) error { return s.fits(ctx, u, chosen, query.Get("replace")) },
		put: func() error {
			for _, k := range chosen {
				if err := s.putSkill(ctx, k); err != nil {
					return err // others of the archive may be there: what is not needed is swept
				}
			}
			return nil
		},
		forget: func(ctx context.Context) (err error) {
			for _, k := range chosen {
				err = errors.Join(err, s.records.Delete(ctx, skillKey(k.Owner, k.Name), jetstream.LastRevision(k.revision)))
			}
			return err
		},
	})
	if err != nil {
		return noSkills(err)
	}
	list := api.SkillList{Skills: []api.Skill{}}
	for _, k := range chosen {
		list.Skills = append(list.Skills, k.Skill)
	}
	reply(c.w, http.StatusOK, list)
	return nil
}

func (s *skillStore) tooMuch(owner string, beside bool) error {
	return fault.Errorf(fault.Exhausted, "the archives of the skills of %s would have more than %v%s, the limit", fault.Show(owner), quantity.Size(s.perOwner), uploaded(beside)).WithHint("remove skills; the operator of the gateway can raise [skills] owner_size")
}

// fits refuses skills that there are already, or for which there is no room. Those that are replaced are noted as before.
func (s *skillStore) fits(ctx context.Context, u *upload, chosen []*storedSkill, replace string) error {
	owner := u.owner
	others, err := u.others(ctx)
	if err != nil {
		return err
	}
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	live, stored := len(chosen), map[string]int64{chosen[0].Archive.ID: chosen[0].Archive.Size}
	for _, k := range all {
		if k.Owner != owner {
			continue
		}
		delete(others, k.Archive.ID) // it is there now
		if i := slices.IndexFunc(chosen, func(o *storedSkill) bool { return o.Name == k.Name }); i >= 0 {
			if !k.Gone && (replace == "" || replace == "false") {
				return fault.Errorf(fault.Conflict, "the fleet has a skill %s already", fault.Show(k.Name)).WithHint("replace it: boxctl skills install --replace")
			}
			chosen[i].before = k
			continue
		}
		if !k.Gone {
			live++
			stored[k.Archive.ID] = k.Archive.Size
		}
	}
	if live > maxSkills {
		return fault.Errorf(fault.Exhausted, "%s would have more than %d skills in the fleet", fault.Show(owner), maxSkills).WithHint("remove some: boxctl skills rm")
	}
	if size, beside := together(stored, others); size > s.perOwner {
		return s.tooMuch(owner, beside)
	}
	return nil
}

// preview has a node say what skills an archive has, and returns those that are chosen.
func (g *gateway) preview(c *call, s *skillStore, a archived, query url.Values) ([]*storedSkill, error) {
	params := url.Values{"replace": {"true"}} // whether there is one already is not the node's to say
	for _, name := range []string{"select", "subdir", "digest"} {
		if query.Has(name) {
			params.Set(name, query.Get(name))
		}
	}
	var found api.SkillCandidates
	if err := g.onAny(func(n *nodeState) error {
		return g.sendArchive(c, n, s.archiveStore, a, "/v1/skills/preview?"+params.Encode(), &found)
	}); err != nil {
		return nil, err
	}
	paths := map[string]bool{} // that were asked for, and whether they are there
	if query.Get("select") != "" {
		for path := range strings.SplitSeq(query.Get("select"), ",") {
			paths[strings.Trim(path, "/")] = false
		}
	}
	selects := len(paths) > 0
	var chosen []*storedSkill
	for i := range found.Candidates {
		x := &found.Candidates[i]
		if _, listed := paths[x.Path]; selects && !listed {
			continue
		}
		paths[x.Path] = true
		if slices.ContainsFunc(chosen, func(k *storedSkill) bool { return k.Name == x.Skill.Name }) {
			return nil, fault.Errorf(fault.Conflict, "the archive has several skills %s", fault.Show(x.Skill.Name)).WithHint("choose one: boxctl skills install --select PATH")
		}
		for _, p := range x.Problems {
			return nil, fault.Errorf(fault.Invalid, "the skill at %s cannot be installed: %s %s", fault.Show(x.Path), p.Key, p.Text).WithHint("boxctl skills preview says what is wrong with it")
		}
		skill := api.Skill{Name: x.Skill.Name, DisplayName: x.Skill.Name, Description: x.Skill.Description, EntryFile: "SKILL.md", Digest: x.Skill.Digest, Bytes: x.Skill.Bytes, Entries: x.Skill.Entries, Advice: x.Skill.Advice, CreatedAt: time.Now().UTC(), UpdatedAt: time.Now().UTC()}
		chosen = append(chosen, &storedSkill{Skill: skill, Owner: c.pass.Name, Path: x.Path, Subdir: query.Get("subdir"), Archive: a})
	}
	digest := query.Get("digest")
	missing := slices.Contains(slices.Collect(maps.Values(paths)), false)
	switch {
	case len(chosen) == 0 || missing:
		return nil, fault.Field("select", query.Get("select"), "paths of skills of the archive").WithHint("boxctl skills preview lists them")
	case len(chosen) > 1 && (!selects || digest != ""):
		return nil, fault.Field("select", query.Get("select"), "the paths of the skills, as the archive has several; with a digest, one of them").WithHint("boxctl skills preview lists them")
	case digest != "" && digest != chosen[0].Digest:
		return nil, fault.Field("digest", digest, chosen[0].Digest+", that of the skill")
	}
	return chosen, nil
}

// putSkill makes a skill known, in the place of the one before it, which must not have changed.
func (s *skillStore) putSkill(ctx context.Context, k *storedSkill) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var err error
	switch before := k.before; {
	case before == nil:
		err = s.write(ctx, k, 0)
	case before.Gone:
		k.Before = before.versions()
		err = s.write(ctx, k, before.revision)
	default:
		k.Before, k.CreatedAt = before.versions(), before.CreatedAt
		err = s.remove(ctx, func() error { return s.write(ctx, k, before.revision) }, before.Archive)
	}
	if conflict(err) {
		return fault.Errorf(fault.Conflict, "the skill %s has changed meanwhile", fault.Show(k.Name)).WithHint("try again")
	}
	return err
}

// hasSkill sees to it that a node has a skill of the caller that the fleet has.
func (g *gateway) hasSkill(c *call, n *nodeState, name, digest string) error {
	key := n.Name + " " + skillKey(c.pass.Name, name) + digest
	if err := g.refusalOf(key); err != nil {
		return err
	}
	skill := &api.Skill{}
	ok, err := g.get(c, n, "/v1/skills/"+url.PathEscape(name), skill)
	if err != nil || ok && skill.Digest == digest {
		return err
	}
	s, err := g.readSkills(c.r.Context())
	if err != nil {
		return err
	}
	k, err := s.skill(c.r.Context(), c.pass.Name, name)
	switch {
	case err != nil:
		return err
	case k == nil || k.Digest != digest:
		return replaced("skill", name)
	case ok && !skill.BuiltIn && !slices.Contains(k.Before, skill.Digest):
		return fault.Errorf(fault.Conflict, "its skill %s is another one than the fleet has, %s and not %s", fault.Show(name), skill.Digest, digest).WithHint("remove it on that node, or install it at the gateway")
	}
	var installed api.SkillList
	query := url.Values{"select": {k.Path}, "digest": {k.Digest}, "replace": {"true"}}
	if k.Subdir != "" {
		query.Set("subdir", k.Subdir)
	}
	if err := g.sendArchive(c, n, s.archiveStore, k.Archive, "/v1/skills/install?"+query.Encode(), &installed); err != nil {
		err = fmt.Errorf("it does not have the fleet's skill %s, and does not take it: %w", fault.Show(k.Name), err)
		g.refused(key, err)
		return err
	}
	g.events.add("skill_sent", n.Name, "", k.Name+" of "+k.Owner+" "+k.Digest)
	return nil
}
