// SPDX-License-Identifier: Apache-2.0

// LangBot's actions on skills, in the shared store: each Workspace has its own there, for all its generations.

package actionrpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/skills"
)

// root is where LangBot is told that skills are. Nothing exists there: a path names a skill, and stays the same while
// its tree in the store changes. It is in a directory that is never mounted.
const root = "/run/boxd/langbot-skills/tenants"

// takeSkillMounts takes the mounts of a Workspace's skills out of a session's extra mounts, and records which skills they are: boxd
// mounts those itself. A path of another Workspace is refused, and so is one below a skill.
func takeSkillMounts(spec *boxSpec, principal, namespace string) error {
	r := &SkillRequest{Principal: principal, Namespace: namespace}
	spec.SkillsOf = r.owner()
	var rest []mountSpec
	for _, m := range spec.ExtraMounts {
		at := path.Clean(m.HostPath)
		if !within(at, root) {
			rest = append(rest, m)
			continue
		}
		if m.Mode == modeNone {
			continue
		}
		name, ok := strings.CutPrefix(at, r.root()+"/")
		if !ok || skills.CheckLooseName(name) != nil {
			return refuseSkill("host_path %s is no skill of this Workspace", m.HostPath)
		}
		spec.Skills = append(spec.Skills, skillMount{Name: name, At: path.Clean(m.MountPath), ReadOnly: m.Mode == modeReadOnly})
	}
	spec.ExtraMounts = rest
	return nil
}

// takeNamedSkills gives a session the one skill that it names, where LangBot wants it; without a name there is nothing to
// give. It reports whether the Workspace has the skill.
func takeNamedSkills(spec *boxSpec, from *skills.Store, principal, namespace string) bool {
	r := &SkillRequest{Principal: principal, Namespace: namespace}
	spec.SkillsOf = r.owner()
	if spec.SkillName == "" {
		return true
	}
	name := from.Called(r.owner(), spec.SkillName)
	if name == "" {
		return false
	}
	spec.Skills = []skillMount{{Name: name, At: workspacePath + "/.skills/" + spec.SkillName, ReadOnly: true}}
	return true
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// Skills serves the skills of all Workspaces.
type Skills struct {
	Store *skills.Store
	Boxes *Boxes
	// Earlier imports those from before boxd; nil: there are none.
	Earlier *Earlier
}

// SkillRequest is a request of a Workspace.
type SkillRequest struct {
	Data      map[string]json.RawMessage
	Principal string // LangBot's principal
	Namespace string // of the Workspace
	Work      string // LangBot's default workspace, "" if unknown
	Old       string // where LangBot's own runtime kept skills, "" if unknown
	Files     *wire.Uploads
}

// owner is the owner of the skills in the store. No principal has such a name.
func (r *SkillRequest) owner() string { return r.Principal + "/" + r.Namespace }

// root is the directory of the Workspace's skills, as LangBot is told.
func (r *SkillRequest) root() string { return root + "/" + r.Namespace }

// maxText is the maximum total of text in a list, in bytes.
const maxText = 16 << 20

// Skill is LangBot's Skill.
type Skill struct {
	Name          string `json:"name"`
	DisplayName   string `json:"display_name"`
	Description   string `json:"description"`
	Instructions  string `json:"instructions"`
	PackageRoot   string `json:"package_root"`
	EntryFile     string `json:"entry_file"`
	PythonProject bool   `json:"python_project"`
	CreatedAt     stamp  `json:"created_at"`
	UpdatedAt     stamp  `json:"updated_at"`

	SourcePath *string `json:"source_path,omitempty"` // of a skill that is not installed yet
}

// stamp is a time in LangBot's format for skills.
type stamp time.Time

// MarshalJSON formats it.
func (s stamp) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(s).UTC().Format(`"2006-01-02T15:04:05.000000+00:00"`)), nil
}

func (r *SkillRequest) skill(k *skills.Skill) *Skill {
	return &Skill{
		Name: k.Called, DisplayName: k.DisplayName, Description: k.Description, Instructions: k.Instructions, PackageRoot: r.root() + "/" + k.Name,
		EntryFile: cmp.Or(k.Entry, skills.ManifestFile), PythonProject: k.Python, CreatedAt: stamp(k.Created), UpdatedAt: stamp(k.Updated),
	}
}

// refused is every failure of the actions whose errors LangBot's own runtime catches.
func refused(err error) error {
	if e, ok := errors.AsType[*wire.Refusal](err); ok {
		return wire.Refusef("BoxValidationError", "%s", e.Text)
	}
	return wire.Refusef("BoxValidationError", "%s", err.Error())
}

func refuseSkill(text string, args ...any) error {
	return wire.Refusef("BoxValidationError", text, args...)
}

// get returns a skill of the Workspace's own by the name in its document, the newest of several, as LangBot's own runtime does;
// boxd's built-in skills are hidden from LangBot.
func (s *Skills) get(r *SkillRequest, name string) (*skills.Skill, error) {
	in := s.Store.Called(r.owner(), name)
	if in == "" {
		return nil, skillNotFound(name)
	}
	return s.at(r, in)
}

// at returns a skill of the Workspace's own by its directory, which is its name in the store.
func (s *Skills) at(r *SkillRequest, dir string) (*skills.Skill, error) {
	k, err := s.Store.Get(r.owner(), dir)
	if err == nil && k.BuiltIn {
		err = skillNotFound(dir)
	}
	return &k, err
}

// nameTaken is the refusal of a new skill because there is one of its name, or its directory; err, if that is another error.
func (s *Skills) nameTaken(r *SkillRequest, name string, err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	switch {
	case ok && f.Kind == fault.Conflict && f.Field == "select":
		return refuseSkill("Duplicate target directory selected: %s/%s", r.root(), f.Value)
	case !ok || f.Kind != fault.Conflict || f.Field != "name":
		return err
	case name != "" && s.Store.Called(r.owner(), name) != "":
		return exists(name)
	}
	return refuseSkill("Skill directory already exists: %s/%s", r.root(), f.Value)
}

func exists(name string) error { return refuseSkill("Skill with name %q already exists", name) }

func skillNotFound(name string) error {
	return fault.Errorf(fault.NotFound, "Skill %q not found", name).WithHint("list skills with list_skills")
}

// List lists all skills, the newest first.
func (s *Skills) List(ctx context.Context, r *SkillRequest) (any, error) {
	s.Earlier.take(ctx, s, r)
	list, size := []*Skill{}, 0
	for _, k := range s.Store.List(r.owner()) {
		if k.BuiltIn {
			continue
		}
		whole, err := s.at(r, k.Name)
		if err != nil {
			continue // removed meanwhile, or unreadable: the others are not
		}
		if size += len(whole.Instructions) + len(whole.Description) + len(whole.DisplayName); size > maxText {
			return nil, wire.Refusef("ValueError", "Skill listing exceeds the configured text limit")
		}
		list = append(list, r.skill(whole))
	}
	return map[string]any{"skills": list}, nil
}

// Get describes a skill, or reports that there is none.
func (s *Skills) Get(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.text("name")
	if err != nil {
		return nil, err
	}
	k, err := s.get(r, strings.TrimSpace(name))
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return map[string]any{"skill": nil}, nil
	case err != nil:
		return nil, err
	}
	return map[string]any{"skill": r.skill(k)}, nil
}

// skillData returns what a request says about a skill.
func (r *SkillRequest) skillData() (*SkillRequest, error) {
	raw, given := r.Data["skill"]
	fields, ok := wire.ObjectOf(raw)
	switch {
	case !given:
		return nil, refuseSkill("'skill'")
	case !ok:
		return nil, refuseSkill("skill must be an object")
	}
	return &SkillRequest{Data: fields}, nil
}

// texts returns the texts that a skill is to have. With empty false, empty texts leave it as it is.
func (r *SkillRequest) texts(empty bool) (t skills.Texts, err error) {
	for name, to := range map[string]**string{"display_name": &t.DisplayName, "description": &t.Description, "instructions": &t.Instructions} {
		text, given, err := r.optional(name, "")
		if err != nil {
			return t, err
		}
		if given && (empty || text != "") {
			*to = &text
		}
	}
	return t, nil
}

// Create makes a skill of texts, or of a package in a directory.
func (s *Skills) Create(ctx context.Context, r *SkillRequest) (any, error) {
	in, err := r.skillData()
	if err != nil {
		return nil, err
	}
	name, err := in.text("name")
	if err != nil {
		return nil, refused(err)
	}
	name = strings.TrimSpace(name)
	if err := skills.CheckLooseName(name); err != nil {
		return nil, refused(err)
	}
	t, err := in.texts(false)
	if err != nil {
		return nil, refused(err)
	}
	from, _, err := in.optional("package_root", "")
	if err != nil {
		return nil, refused(err)
	}
	if s.Store.Called(r.owner(), name) != "" {
		return nil, exists(name)
	}
	var k skills.Skill
	if from = strings.TrimSpace(from); from == "" {
		k, err = s.Store.Create(r.owner(), name, &t, skills.Loose)
	} else {
		k, err = s.register(ctx, r, from, &skills.As{Name: name, Texts: t})
	}
	if err != nil {
		return nil, refused(s.nameTaken(r, name, err))
	}
	return map[string]any{"skill": r.skill(&k)}, nil
}

// Update replaces texts of a skill.
func (s *Skills) Update(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.name()
	if err != nil {
		return nil, refused(err)
	}
	in, err := r.skillData()
	if err != nil {
		return nil, err
	}
	was, err := s.get(r, name)
	if err != nil {
		return nil, refused(err)
	}
	other, given, err := in.optional("name", name)
	if err == nil && given && strings.TrimSpace(other) != name {
		err = refuseSkill("Renaming skills is not supported")
	}
	if err != nil {
		return nil, refused(err)
	}
	at, _, err := in.optional("package_root", "")
	if err == nil && at != "" && path.Clean(strings.TrimSpace(at)) != r.root()+"/"+was.Name {
		err = refuseSkill("Updating package_root is not supported; recreate the skill to import a different package")
	}
	if err != nil {
		return nil, refused(err)
	}
	t, err := in.texts(true)
	if err != nil {
		return nil, refused(err)
	}
	k, err := s.Store.Update(r.owner(), was.Name, &t, "", skills.Loose)
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"skill": r.skill(&k)}, nil
}

// Delete deletes a skill.
func (s *Skills) Delete(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.name()
	var k *skills.Skill
	if err == nil {
		k, err = s.get(r, name)
	}
	if err == nil {
		err = s.Store.Delete(r.owner(), k.Name)
	}
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"deleted": name}, nil
}
