// SPDX-License-Identifier: Apache-2.0

// LangBot's actions on skills, in the one store: each Workspace has its own there, whatever its generation.

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

	"github.com/boxd-dev/boxd/skills"
)

// root is where LangBot is told that skills are. Nothing is there: a path says which skill is meant, and stays the same
// while its tree in the store does not. It is in a directory that is never lent.
const root = "/run/boxd/langbot-skills/tenants"

// Lend takes the mounts of a Workspace's skills out of what a session is to have besides, and says which skills they
// are: boxd mounts those itself. A path of another Workspace's is refused, and so is one that is below a skill.
func Lend(spec *boxSpec, principal, namespace string) error {
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

// lendNamed gives a session the one skill that it names, where LangBot wants that; without a name there is nothing to
// give. It reports whether the Workspace has it.
func lendNamed(spec *boxSpec, from *skills.Store, principal, namespace string) bool {
	r := &SkillRequest{Principal: principal, Namespace: namespace}
	spec.SkillsOf = r.owner()
	if spec.SkillName == "" {
		return true
	}
	if k, err := from.Get(r.owner(), spec.SkillName); err != nil || k.BuiltIn {
		return false
	}
	spec.Skills = []skillMount{{Name: spec.SkillName, At: workspacePath + "/.skills/" + spec.SkillName, ReadOnly: true}}
	return true
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// Skills are those of all Workspaces.
type Skills struct {
	Store *skills.Store
	Boxes *Boxes
	// Earlier are those that there were before boxd; nil: there are none.
	Earlier *Earlier
}

// SkillRequest is one of a Workspace.
type SkillRequest struct {
	Data      map[string]json.RawMessage
	Principal string // whose LangBot is
	Namespace string // of the Workspace
	Work      string // LangBot's default workspace, "" if it is not known
	Old       string // where LangBot's own runtime has kept skills, "" if it is not known
	Files     *Uploads
}

// owner is whose the skills are in the store. No principal has such a name.
func (r *SkillRequest) owner() string { return r.Principal + "/" + r.Namespace }

// root is the directory of the Workspace's skills, as LangBot is told.
func (r *SkillRequest) root() string { return root + "/" + r.Namespace }

// maxText is how much text a list has.
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

	SourcePath *string `json:"source_path,omitempty"` // of one that is not installed yet
}

// stamp is a time as LangBot writes it in skills.
type stamp time.Time

// MarshalJSON writes it.
func (s stamp) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(s).UTC().Format(`"2006-01-02T15:04:05.000000+00:00"`)), nil
}

func (r *SkillRequest) skill(k *skills.Skill) *Skill {
	return &Skill{
		Name: k.Name, DisplayName: k.DisplayName, Description: k.Description, Instructions: k.Instructions, PackageRoot: r.root() + "/" + k.Name,
		EntryFile: cmp.Or(k.Entry, skills.ManifestFile), PythonProject: k.Python, CreatedAt: stamp(k.Created), UpdatedAt: stamp(k.Updated),
	}
}

// refused is every failure of the actions that LangBot's runtime catches itself.
func refused(err error) error {
	if e, ok := errors.AsType[*refusal](err); ok {
		return refusalf("BoxValidationError", "%s", e.Text)
	}
	return refusalf("BoxValidationError", "%s", err.Error())
}

func refuseSkill(text string, args ...any) error {
	return refusalf("BoxValidationError", text, args...)
}

// get is a skill of the Workspace's own: those that boxd brings are not LangBot's.
func (s *Skills) get(r *SkillRequest, name string) (*skills.Skill, error) {
	k, err := s.Store.Get(r.owner(), name)
	if err == nil && k.BuiltIn {
		err = skillNotFound(name)
	}
	return &k, err
}

func skillNotFound(name string) error {
	return fault.Errorf(fault.NotFound, "Skill %q not found", name).WithHint("list skills with list_skills")
}

// List lists all, the newest first.
func (s *Skills) List(ctx context.Context, r *SkillRequest) (any, error) {
	s.Earlier.take(ctx, s, r)
	list, size := []*Skill{}, 0
	for _, k := range s.Store.List(r.owner()) {
		if k.BuiltIn {
			continue
		}
		whole, err := s.get(r, k.Name)
		if err != nil {
			continue // it has gone meanwhile, or cannot be read: the others can
		}
		if size += len(whole.Instructions) + len(whole.Description) + len(whole.DisplayName); size > maxText {
			return nil, refusalf("ValueError", "Skill listing exceeds the configured text limit")
		}
		list = append(list, r.skill(whole))
	}
	return map[string]any{"skills": list}, nil
}

// Get describes one, or says that there is none.
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

// asked is what a request says of a skill.
func (r *SkillRequest) asked() (*SkillRequest, error) {
	raw, given := r.Data["skill"]
	fields, ok := objectOf(raw)
	switch {
	case !given:
		return nil, refuseSkill("'skill'")
	case !ok:
		return nil, refuseSkill("skill must be an object")
	}
	return &SkillRequest{Data: fields}, nil
}

// texts are those that a skill is to have. With empty ones it keeps what it has.
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
	in, err := r.asked()
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
	var k skills.Skill
	if from = strings.TrimSpace(from); from == "" {
		k, err = s.Store.Create(r.owner(), name, &t, skills.Loose)
	} else {
		k, err = s.register(ctx, r, from, &skills.As{Name: name, Texts: t})
	}
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"skill": r.skill(&k)}, nil
}

// Update gives a skill other texts.
func (s *Skills) Update(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.name()
	if err != nil {
		return nil, refused(err)
	}
	in, err := r.asked()
	if err != nil {
		return nil, err
	}
	if _, err := s.get(r, name); err != nil {
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
	if err == nil && at != "" && path.Clean(strings.TrimSpace(at)) != r.root()+"/"+name {
		err = refuseSkill("Updating package_root is not supported; recreate the skill to import a different package")
	}
	if err != nil {
		return nil, refused(err)
	}
	t, err := in.texts(true)
	if err != nil {
		return nil, refused(err)
	}
	k, err := s.Store.Update(r.owner(), name, &t, "", skills.Loose)
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"skill": r.skill(&k)}, nil
}

// Delete deletes a skill.
func (s *Skills) Delete(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.name()
	if err == nil {
		_, err = s.get(r, name)
	}
	if err == nil {
		err = s.Store.Delete(r.owner(), name)
	}
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"deleted": name}, nil
}
