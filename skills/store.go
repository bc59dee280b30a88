// SPDX-License-Identifier: Apache-2.0

// Package skills stores packages of instructions that agents load (agentskills.io): each principal's own, beside those that come
// with boxd. A package is an immutable file tree; a change of a skill makes another tree, and atomically replaces the record that
// names it. Nothing of a package is ever executed here.
package skills

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Dir is the directory of the store, in the state directory.
const Dir = statedir.SkillStore

// Directories of the store, beside the scratch directory: one for each principal with records and trees.
const (
	namesDir  = "names"
	treesDir  = statedir.StoreTrees
	ownerFile = "owner.json"
)

// builtinKey is the directory of the skills that come with boxd; no principal's directory has this name.
const builtinKey = statedir.BuiltInOwner

// maxStages is how many imports run at once: each has an archive and its content on disk.
const maxStages = 4

// stageTimeout is how long an import waits for its turn.
const stageTimeout = time.Minute

// Store is the store. It is safe for concurrent use.
type Store struct {
	cfg    Config
	log    *slog.Logger
	root   *os.Root
	now    func() time.Time
	stages places.Limit

	mu     sync.Mutex        // guards the fields below, and the records
	spaces map[string]*space // by key
	leases map[string]int    // of trees, by their path relative to the store
}

// space has the skills of one principal.
type space struct {
	key    string
	group  string // the LangBot that it is a Workspace of; "": none
	broken bool   // some of it is unreadable: nothing of it is removed
	skills map[string]*Skill
}

// Skill is a package in the store.
type Skill struct {
	Name         string
	Called       string // name in its document, which LangBot knows it by; Name, if there is no valid one
	DisplayName  string
	Description  string
	License      string
	Needs        string // compatibility: what it needs of its surroundings
	AllowedTools string
	Metadata     map[string]string
	Instructions string // set by Get only
	Entry        string // file with the instructions: SKILL.md, or skill.md if made elsewhere
	Digest       string // of all files: "sha256:…"
	Origin       string // where it was imported from, "" if it was made here
	Bytes        int64
	Entries      int
	Python       bool // a Python project's files are at its top
	BuiltIn      bool
	Created      time.Time
	Updated      time.Time
	Advice       []string // allowed but not recommended

	tree string // its directory, below the principal's trees
}

// record is a skill on disk.
type record struct {
	Name    string    `json:"name"`
	Tree    string    `json:"tree"`
	Digest  string    `json:"digest"`
	Origin  string    `json:"origin,omitempty"`
	Bytes   int64     `json:"bytes"`
	Entries int       `json:"entries"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
}

// Open opens the store in a state directory, or creates it. Invalid entries are logged and left alone.
func Open(state string, cfg Config, log *slog.Logger) (*Store, error) {
	root, err := durable.OpenStore(filepath.Join(state, Dir))
	if err != nil {
		return nil, fmt.Errorf("skills: %w", err)
	}
	s := &Store{
		cfg: cfg, log: log, root: root, now: time.Now,
		spaces: map[string]*space{}, leases: map[string]int{},
		stages: places.Limit{All: maxStages, Each: maxStages / 2, Patience: stageTimeout, Of: "skills are being imported", Hint: "try again when one of them is done"},
	}
	if err := s.load(); err != nil {
		root.Close()
		return nil, fmt.Errorf("skills: %w", err)
	}
	if err := s.installAllBuiltIn(); err != nil {
		log.Error("cannot read the built-in skills", "error", err)
	}
	return s, nil
}

// Close closes the store. Leases and stages must have ended.
func (s *Store) Close() { s.root.Close() }

func (s *Store) load() error {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == durable.Scratch {
			continue
		}
		sp := &space{key: e.Name(), skills: map[string]*Skill{}}
		if err := s.loadSpace(sp); err != nil {
			s.log.Error("cannot use the skills of an owner: a record is damaged", "directory", e.Name(), "error", err)
			sp.broken = true
		}
		s.spaces[sp.key] = sp
	}
	return nil
}

func (s *Store) loadSpace(sp *space) error {
	dir, err := s.root.OpenRoot(sp.key + "/" + namesDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := durable.Recover(dir)
	errs := []error{err, s.loadOwner(sp)}
	for _, name := range names {
		var r record
		err := durable.ReadJSON(dir, name, &r)
		if err == nil {
			err = s.loadSkill(sp, &r, name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// loadOwner determines whether a space belongs to a Workspace of LangBot.
func (s *Store) loadOwner(sp *space) error {
	dir, err := s.root.OpenRoot(sp.key)
	if err != nil {
		return err
	}
	defer dir.Close()
	var whose ownerRecord
	err = durable.ReadJSON(dir, ownerFile, &whose)
	sp.group = groupOf(whose.Principal)
	return err
}

func (s *Store) loadSkill(sp *space, r *record, file string) error {
	if durable.NameOf(r.Name) != file || !isolation.ValidTree(r.Tree) {
		return errors.New("it has an invalid name or tree")
	}
	k := &Skill{
		Name: r.Name, Digest: r.Digest, Origin: r.Origin, Bytes: r.Bytes, Entries: r.Entries,
		Created: r.Created, Updated: r.Updated, BuiltIn: sp.key == builtinKey, tree: r.Tree,
	}
	doc, err := s.describe(sp, k)
	if err != nil {
		return err
	}
	k.setTexts(doc)
	sp.skills[k.Name] = k
	return nil
}

// describe reads the document of a skill, and determines its file.
func (s *Store) describe(sp *space, k *Skill) (*manifest, error) {
	dir, err := s.root.OpenRoot(k.path(sp))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	doc, entry, err := document(dir)
	if err == nil {
		k.Entry, k.Python = entry, python(dir)
	}
	return doc, err
}

// setTexts copies the texts of a document.
func (k *Skill) setTexts(doc *manifest) {
	if k.Called = k.Name; CheckLooseName(doc.Text(keyName)) == nil {
		k.Called = doc.Text(keyName)
	}
	k.DisplayName = cmp.Or(doc.Text(keyDisplayName), k.Called)
	k.Description, k.License = doc.Text(keyDescription), doc.Text(keyLicense)
	k.Needs, k.AllowedTools = doc.Text(keyCompatibility), doc.Text(keyAllowedTools)
	k.Metadata, k.Advice = doc.Metadata(), doc.advice()
}

// path returns the directory of a skill, relative to the store.
func (k *Skill) path(sp *space) string { return path.Join(sp.key, treesDir, k.tree) }

// Key returns the name of a principal's directory: no principal's name is in a path.
func Key(owner string) string { return statedir.OwnerDir(owner) }

// find returns a skill that a principal can use, and its space. The lock is held.
func (s *Store) find(owner, name string) (*space, *Skill, error) {
	for _, key := range []string{Key(owner), builtinKey} {
		if sp := s.spaces[key]; sp != nil && sp.skills[name] != nil {
			return sp, sp.skills[name], nil
		}
	}
	return nil, nil, NotFound(name)
}

// NotFound returns the error for a skill that does not exist.
func NotFound(name string) error {
	f := fault.Errorf(fault.NotFound, "Skill %q not found", shorten(name)).WithHint("list skills: boxctl skills ls")
	f.Field, f.Value = "skill", shorten(name)
	return f
}

func shorten(name string) string {
	const limit = 100
	if len(name) > limit {
		return strings.ToValidUTF8(name[:limit], "") + "…"
	}
	return name
}

// List lists the skills that a principal can use, newest first, without instructions.
func (s *Store) List(owner string) []Skill {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Skill{}
	for _, key := range []string{builtinKey, Key(owner)} {
		if sp := s.spaces[key]; sp != nil {
			for name, k := range sp.skills {
				all[name] = *k
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Skill) int {
		return cmp.Or(b.Updated.Compare(a.Updated), cmp.Compare(a.Name, b.Name))
	})
}

// Called returns the name of the skill of a principal's own that its document calls so, the newest of several; "" if there is none.
func (s *Store) Called(owner, called string) (name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[Key(owner)]
	if sp == nil {
		return ""
	}
	for _, k := range sp.skills {
		if k.Called != called {
			continue
		}
		if name == "" || k.before(sp.skills[name]) {
			name = k.Name
		}
	}
	return name
}

// before reports whether a skill precedes another one in a list.
func (k *Skill) before(other *Skill) bool {
	return cmp.Or(other.Updated.Compare(k.Updated), cmp.Compare(k.Name, other.Name)) < 0
}

// Get describes one skill, with its instructions.
func (s *Store) Get(owner, name string) (Skill, error) {
	sp, k, done, err := s.use(owner, name)
	if err != nil {
		return Skill{}, err
	}
	defer done()
	doc, err := s.describe(sp, &k)
	if err != nil {
		return Skill{}, fmt.Errorf("skill %s: %w", name, err)
	}
	k.Instructions = doc.Body
	return k, nil
}

// use finds a skill and keeps its tree until done is called.
func (s *Store) use(owner, name string) (sp *space, k Skill, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, found, err := s.find(owner, name)
	if err != nil {
		return nil, Skill{}, nil, err
	}
	at := found.path(sp)
	s.leases[at]++
	return sp, *found, func() { s.release(at) }, nil
}
