// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/quantity"
)

// incoming is a tree that will become a skill.
type incoming struct {
	at       string // path relative to the store
	skill    Skill
	replaces string // the tree that the skill must have; "": it must not exist
	any      bool   // whatever tree it has
}

// prepare applies the last change to a tree and describes it.
func (s *Store) prepare(at, name string, change func(dir *os.Root) error) (*incoming, error) {
	dir, err := s.root.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if change != nil {
		if err := change(dir); err != nil {
			return nil, err
		}
	}
	w, err := s.seal(dir)
	if err != nil {
		return nil, err
	}
	doc, entry, err := document(dir)
	if err != nil {
		return nil, fmt.Errorf("skill %s: %w", name, err)
	}
	n := &incoming{at: at, skill: Skill{Name: name, Entry: entry, Digest: w.digest, Bytes: w.bytes, Entries: w.entries, Python: python(dir)}}
	n.skill.setTexts(doc)
	n.skill.Instructions = doc.Body
	return n, nil
}

// commit makes trees the skills of a principal: all or none.
func (s *Store) commit(owner string, list []*incoming) ([]Skill, error) {
	return s.commitTo(Key(owner), owner, list)
}

func (s *Store) commitTo(key, owner string, list []*incoming) ([]Skill, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[key]
	if sp == nil {
		sp = &space{key: key, group: groupOf(owner), skills: map[string]*Skill{}}
	}
	err := s.allow(sp, list)
	if err == nil {
		err = s.reconcile(sp, owner)
	}
	if err != nil {
		return nil, err
	}
	now := s.now().UTC()
	undo := func(done []*incoming) {
		for _, n := range done {
			_ = s.root.RemoveAll(n.skill.path(sp)) // as far as possible: Sweep removes the rest
		}
	}
	for i, n := range list {
		k := &n.skill
		k.tree = statedir.NewTree(k.Digest)
		k.Updated, k.BuiltIn = now, sp.key == builtinKey
		if k.Created.IsZero() {
			k.Created = now
		}
		if err := s.root.Rename(n.at, k.path(sp)); err != nil {
			undo(list[:i])
			return nil, fmt.Errorf("install skill %s: %w", k.Name, err)
		}
	}
	for i, n := range list {
		if err := s.write(sp, &n.skill); err != nil {
			for _, done := range list[:i+1] {
				s.restore(sp, done.skill.Name)
			}
			undo(list)
			return nil, err
		}
	}
	created := make([]Skill, len(list))
	for i, n := range list {
		if old := sp.skills[n.skill.Name]; old != nil {
			defer s.forget(old.path(sp))
		}
		created[i] = n.skill
		stored := n.skill
		stored.Instructions = ""
		sp.skills[stored.Name] = &stored
	}
	return created, nil
}

// allow checks new skills against the limits.
func (s *Store) allow(sp *space, list []*incoming) error {
	count, total := len(sp.skills), int64(0)
	for _, k := range sp.skills {
		total += k.Bytes
	}
	for _, n := range list {
		old := sp.skills[n.skill.Name]
		switch {
		case n.any:
		case old == nil && n.replaces != "":
			return fault.Errorf(fault.Conflict, "Skill %q was deleted meanwhile", n.skill.Name).WithHint("create it again")
		case old != nil && n.replaces == "":
			return nameTaken(n.skill.Name)
		case old != nil && n.replaces != old.tree:
			return fault.Errorf(fault.Conflict, "Skill %q was changed meanwhile", n.skill.Name).WithHint("read it again")
		}
		if old != nil {
			total -= old.Bytes
			n.skill.Created = old.Created
		} else {
			count++
		}
		total += n.skill.Bytes
	}
	if sp.key == builtinKey {
		return nil
	}
	if count > s.cfg.Max {
		return full("skills.max", fmt.Sprint(len(sp.skills)), fmt.Sprint(s.cfg.Max))
	}
	if total > int64(s.cfg.MaxTotal) {
		return full("skills.max_total", quantity.Size(total).String(), s.cfg.MaxTotal.String())
	}
	if sp.group == "" {
		return nil
	}
	for _, other := range s.spaces { // of the same LangBot
		if other.group == sp.group && other != sp {
			count += len(other.skills)
			for _, k := range other.skills {
				total += k.Bytes
			}
		}
	}
	if count > s.cfg.LangBotMax {
		return full("skills.langbot_max", fmt.Sprint(s.cfg.LangBotMax), fmt.Sprint(s.cfg.LangBotMax))
	}
	if total > int64(s.cfg.LangBotMaxTotal) {
		return full("skills.langbot_max_total", quantity.Size(total).String(), s.cfg.LangBotMaxTotal.String())
	}
	return nil
}

func full(key, used, limit string) error {
	f := fault.Errorf(fault.Exhausted, "no room for more skills: %s of %s", used, limit).WithHint("delete some skills").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: key, Used: used, Allowed: limit, Setting: key + " in box.toml"})
	f.Field, f.Allowed = "skill", limit
	return f
}

// reconcile makes the directory of a principal, if it has none. The lock is held.
func (s *Store) reconcile(sp *space, owner string) error {
	key := sp.key
	if s.spaces[key] == sp && !sp.broken {
		return nil
	}
	for _, dir := range []string{key, key + "/" + namesDir, key + "/" + treesDir} {
		if err := s.root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	dir, err := s.root.OpenRoot(key)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := durable.SyncJSON(dir, ownerFile, ownerRecord{owner}); err != nil {
		return err
	}
	s.spaces[key] = sp
	return nil
}

// ownerRecord says who owns a directory.
type ownerRecord struct {
	Principal string `json:"principal"`
}

// groupOf returns the LangBot of an owner that is one of its Workspaces, "" if it is none: names of principals have no /.
func groupOf(owner string) string {
	group, _, is := strings.Cut(owner, "/")
	if !is {
		return ""
	}
	return group
}

// dissolve removes the directory of a Workspace that has no skills left. The lock is held.
func (s *Store) dissolve(key string) {
	sp := s.spaces[key]
	if sp == nil || sp.group == "" || sp.broken || len(sp.skills) > 0 {
		return
	}
	for at := range s.leases {
		if strings.HasPrefix(at, key+"/") {
			return
		}
	}
	// In one step, or the next boxd finds half of it.
	away := path.Join(durable.Scratch, key+"-"+strings.ToLower(rand.Text()))
	err := s.root.Rename(key, away)
	if err == nil {
		err = s.root.RemoveAll(away) // or the next boxd does
	}
	if err != nil {
		s.log.Warn("cannot remove the directory of a workspace without skills", "directory", key, "error", err)
	}
	delete(s.spaces, key)
}

// write writes the record of a skill.
func (s *Store) write(sp *space, k *Skill) error {
	dir, err := s.root.OpenRoot(sp.key + "/" + namesDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return durable.SyncJSON(dir, durable.NameOf(k.Name), &record{
		Name: k.Name, Tree: k.tree, Digest: k.Digest, Origin: k.Origin, Bytes: k.Bytes, Entries: k.Entries, Created: k.Created, Updated: k.Updated,
	})
}

// restore writes the old record of a skill again, or removes the record if there was none.
func (s *Store) restore(sp *space, name string) {
	var err error
	if old := sp.skills[name]; old != nil {
		err = s.write(sp, old)
	} else {
		err = s.root.Remove(path.Join(sp.key, namesDir, durable.NameOf(name)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Error("cannot restore a skill's record", "skill", name, "error", err)
	}
}
