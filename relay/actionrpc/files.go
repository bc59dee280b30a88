// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"path"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/skills"
)

// defaultLimit is how many entries of a directory are listed by default.
const defaultLimit = 200

// skillEntry is one entry of a directory.
type skillEntry struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Dir  bool   `json:"is_dir"`
	Size *int64 `json:"size"` // nil for a directory
}

// named returns the skill's name as answers about files have it.
func named(name string) map[string]string { return map[string]string{"name": name} }

// Files lists a directory of a skill.
func (s *Skills) Files(_ context.Context, r *SkillRequest) (any, error) {
	name, err := r.name()
	if err != nil {
		return nil, refused(err)
	}
	at, _, err := r.optional("path", ".")
	if err != nil {
		return nil, refused(err)
	}
	hidden := false
	if raw := r.Data["include_hidden"]; !wire.IsNull(raw) {
		hidden, _ = wire.CoerceBool(raw)
	}
	limit := int64(defaultLimit)
	if raw := r.Data["max_entries"]; !wire.IsNull(raw) {
		n, ok := wire.CoerceInt(raw)
		if !ok || n < 1 {
			return nil, refuseSkill("max_entries must be a positive integer")
		}
		limit = min(n, skills.MaxListed)
	}
	k, err := s.get(r, name)
	if err != nil {
		return nil, refused(err)
	}
	found, more, err := s.Store.Files(r.owner(), k.Name, at, hidden, int(limit))
	if err != nil {
		return nil, refused(err)
	}
	list := []skillEntry{}
	for _, e := range found {
		x := skillEntry{Path: e.Path, Name: e.Name, Dir: e.Dir}
		if !e.Dir {
			x.Size = &e.Size
		}
		list = append(list, x)
	}
	return map[string]any{"skill": named(name), "base_path": path.Clean(at), "entries": list, "truncated": more}, nil
}

// ReadFile reads a file of a skill.
func (s *Skills) ReadFile(_ context.Context, r *SkillRequest) (any, error) {
	k, at, err := s.file(r)
	if err != nil {
		return nil, refused(err)
	}
	f, err := s.Store.ReadFile(r.owner(), k.Name, at)
	if err == nil && !utf8.Valid(f.Data) {
		err = refuseSkill("Skill file %s is not valid UTF-8 text", f.Path)
	}
	if err != nil {
		return nil, refused(err)
	}
	return map[string]any{"skill": named(k.Called), "path": f.Path, "content": string(f.Data)}, nil
}

// writeFile writes a text file of a skill. An executable file stays executable.
func (s *Skills) writeFile(_ context.Context, r *SkillRequest) (any, error) {
	k, at, err := s.file(r)
	if err != nil {
		return nil, refused(err)
	}
	text, _, err := r.optional("content", "")
	if err != nil {
		return nil, refused(err)
	}
	old, err := s.Store.ReadFile(r.owner(), k.Name, at)
	program := err == nil && old.Program
	if _, err := s.Store.WriteFile(r.owner(), k.Name, &skills.File{Path: at, Data: []byte(text), Program: program}, "", skills.Loose); err != nil {
		return nil, refused(err)
	}
	return map[string]any{"skill": named(k.Called), "path": path.Clean(at), "bytes_written": len(text)}, nil
}

// file returns the skill and the file that a request names.
func (s *Skills) file(r *SkillRequest) (k *skills.Skill, at string, err error) {
	name, err := r.name()
	if err != nil {
		return nil, "", err
	}
	if at, err = r.text("path"); err != nil {
		return nil, "", err
	}
	k, err = s.get(r, name)
	return k, at, err
}
