// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
)

// Texts are the descriptive texts of a skill. In a change nil leaves a text as it is, and "" removes it.
type Texts struct {
	DisplayName, Description, Instructions, License, Needs, AllowedTools *string
	Metadata                                                             map[string]string // nil: as it is
}

// Rules say what a written document must satisfy.
type Rules uint8

// The rules.
const (
	Strict Rules = iota // those of agentskills.io
	Loose               // those of clients that allow names of any script, and little or no front matter
)

// check checks a document against the rules; dir is the name of the skill.
func (r Rules) check(doc *manifest, dir string) []Problem {
	if r == Strict {
		return doc.Check(dir)
	}
	if err := CheckLooseName(dir); err != nil {
		return []Problem{{Key: keyName, Text: err.Error()}}
	}
	return nil
}

// wrong returns the refusal of a document, with all its problems.
func wrong(where string, list []Problem) error {
	if len(list) == 0 {
		return nil
	}
	lines := make([]string, len(list))
	for i, p := range list {
		lines[i] = p.String()
	}
	f := fault.Errorf(fault.Invalid, "%s: %s", where, strings.Join(lines, "; ")).WithHint("the rules are in boxd-skills(7)")
	f.Field, f.Allowed = cmp.Or(list[0].Key, ManifestFile), "a SKILL.md by the rules of agentskills.io"
	return f
}

func (t *Texts) apply(doc *manifest) {
	for key, text := range map[string]*string{
		keyDisplayName: t.DisplayName, keyDescription: t.Description, keyLicense: t.License,
		keyCompatibility: t.Needs, keyAllowedTools: t.AllowedTools,
	} {
		if text != nil && *text != doc.Text(key) {
			doc.Set(key, *text)
		}
	}
	if t.Metadata != nil && !maps.Equal(t.Metadata, doc.Metadata()) {
		doc.setMetadata(t.Metadata, slices.Sorted(maps.Keys(t.Metadata)))
	}
	if t.Instructions != nil {
		doc.Body = *t.Instructions
	}
}

// Create makes a skill from texts only.
func (s *Store) Create(owner, name string, t *Texts, r Rules) (Skill, error) {
	var doc manifest
	doc.Set(keyName, name)
	if t.Description != nil {
		doc.Set(keyDescription, *t.Description) // in this order, whatever follows
	}
	t.apply(&doc)
	if err := wrong(ManifestFile, r.check(&doc, name)); err != nil {
		return Skill{}, err
	}
	if err := s.free(owner, name); err != nil { // early; commit checks again
		return Skill{}, err
	}
	return s.build(owner, name, nil, func(dir *os.Root) error { return writeDocument(dir, &doc) })
}

func (s *Store) free(owner, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.spaces[Key(owner)]; sp != nil && sp.skills[name] != nil {
		return nameTaken(name)
	}
	return nil
}

func nameTaken(name string) error {
	f := fault.Errorf(fault.Conflict, "Skill with name %q already exists", name).WithHint("change it, delete it, or replace it: boxctl skills install --replace")
	f.Field, f.Value = "name", name
	return f
}

func writeDocument(dir *os.Root, doc *manifest) error {
	data, err := doc.Bytes()
	if err != nil {
		return fault.Field("instructions", fault.Word("invalid"), "a text that fits into "+ManifestFile).WithText("instructions: %v", err)
	}
	return replaceFile(dir, ManifestFile, data, false)
}

// replaceFile replaces a file: the old one may be shared with another tree.
func replaceFile(dir *os.Root, name string, data []byte, program bool) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.FileMode(0o644)
	if program {
		mode = 0o755
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return cmp.Or(err, f.Close())
}

// build makes a new tree for a skill, from its old one if there is one, and commits it.
func (s *Store) build(owner, name string, from *Skill, change func(dir *os.Root) error) (Skill, error) {
	at, err := durable.NewScratch(s.root)
	if err != nil {
		return Skill{}, err
	}
	defer func() { _ = s.root.RemoveAll(at) }() // it is gone if it has become the skill
	if from != nil {
		if err := s.link(path.Join(Key(owner), treesDir, from.tree), at); err != nil {
			return Skill{}, err
		}
	}
	n, err := s.prepare(at, name, change)
	if err != nil {
		return Skill{}, err
	}
	if from != nil {
		n.replaces, n.skill.Created, n.skill.Origin = from.tree, from.Created, from.Origin
	}
	created, err := s.commit(owner, []*incoming{n})
	if err != nil {
		return Skill{}, err
	}
	return created[0], nil
}

// own finds a skill of the principal that may be changed.
func (s *Store) own(owner, name string) (*Skill, func(), error) {
	_, k, done, err := s.use(owner, name)
	if err != nil {
		return nil, nil, err
	}
	if k.BuiltIn {
		done()
		f := fault.Errorf(fault.Denied, "skill %q is built in and cannot be changed", name).WithHint("create your own with the same name; it is used instead")
		f.Field, f.Value = "skill", name
		return nil, nil, f
	}
	return &k, done, nil
}

func matches(k *Skill, digest string) error {
	if digest == "" || digest == k.Digest {
		return nil
	}
	f := fault.Errorf(fault.Conflict, "skill %q has the digest %s, not %s", k.Name, k.Digest, shorten(digest)).WithHint("read it again: it has changed")
	f.Field, f.Value, f.Allowed = "if_match", shorten(digest), k.Digest
	return f
}

// Update changes the texts of a skill. ifMatch is the digest that it must have, "" any. Other keys of its front matter stay as
// they are.
func (s *Store) Update(owner, name string, t *Texts, ifMatch string, r Rules) (Skill, error) {
	return s.edit(owner, name, ifMatch, func(dir *os.Root, k *Skill) error {
		if r == Loose {
			name = k.Called
		}
		return restate(dir, name, t, r)
	})
}

// restate rewrites the document of a tree with other texts.
func restate(dir *os.Root, name string, t *Texts, r Rules) error {
	doc, entry, err := document(dir)
	if err != nil {
		return err
	}
	if r == Loose && doc.Text(keyName) != name { // the directory's name may have been the name so far
		doc.Set(keyName, name)
	}
	t.apply(doc)
	if err := wrong(ManifestFile, r.check(doc, name)); err != nil {
		return err
	}
	if entry != ManifestFile {
		if err := dir.Remove(entry); err != nil {
			return err
		}
	}
	return writeDocument(dir, doc)
}

// edit makes a new tree of a skill.
func (s *Store) edit(owner, name, ifMatch string, change func(dir *os.Root, k *Skill) error) (Skill, error) {
	k, done, err := s.own(owner, name)
	if err != nil {
		return Skill{}, err
	}
	defer done()
	if err := matches(k, ifMatch); err != nil {
		return Skill{}, err
	}
	return s.build(owner, name, k, func(dir *os.Root) error { return change(dir, k) })
}

// Delete removes a skill. Sessions that have it mounted keep it until they end.
func (s *Store) Delete(owner, name string) error {
	_, done, err := s.own(owner, name)
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, k, err := s.find(owner, name)
	if err != nil || k.BuiltIn {
		return err // another request was first
	}
	if err := s.root.Remove(path.Join(sp.key, namesDir, durable.NameOf(name))); err != nil {
		return fmt.Errorf("delete skill %s: %w", name, err)
	}
	delete(sp.skills, name)
	s.forget(k.path(sp))
	return nil
}
