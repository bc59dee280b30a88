// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Skill is a package of instructions for agents (agentskills.io).
type Skill struct {
	Name          string            `json:"name"`
	DisplayName   string            `json:"display_name"`
	Description   string            `json:"description"`
	License       string            `json:"license,omitempty"`
	Compatibility string            `json:"compatibility,omitempty"`
	AllowedTools  string            `json:"allowed_tools,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Instructions  string            `json:"instructions,omitempty" show:"never"` // left out of lists
	EntryFile     string            `json:"entry_file"`
	Digest        string            `json:"digest"` // of all files: "sha256:…"
	Origin        string            `json:"origin,omitempty"`
	Bytes         int64             `json:"bytes"`
	Entries       int               `json:"entries"`
	Python        bool              `json:"python_project,omitempty"`
	BuiltIn       bool              `json:"built_in,omitempty"`
	CreatedAt     time.Time         `json:"created_at"`
	UpdatedAt     time.Time         `json:"updated_at"`
	Advice        []string          `json:"advice,omitempty"` // what is allowed, and not recommended
}

// SkillList lists skills, the newest first.
type SkillList struct {
	Skills []Skill `json:"skills"`
}

// SkillRequest asks for a skill to be made of texts.
type SkillRequest struct {
	Name          string            `json:"name"`
	DisplayName   string            `json:"display_name,omitempty"`
	Description   string            `json:"description"`
	License       string            `json:"license,omitempty"`
	Compatibility string            `json:"compatibility,omitempty"`
	AllowedTools  string            `json:"allowed_tools,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty" max:"64"`
	Instructions  string            `json:"instructions,omitempty" show:"never"`
}

// SkillChange asks for other texts of a skill. What is left out stays, "" takes a text away.
type SkillChange struct {
	DisplayName   *string           `json:"display_name,omitempty"`
	Description   *string           `json:"description,omitempty"`
	License       *string           `json:"license,omitempty"`
	Compatibility *string           `json:"compatibility,omitempty"`
	AllowedTools  *string           `json:"allowed_tools,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty" max:"64"` // all of it
	Instructions  *string           `json:"instructions,omitempty" show:"never"`
	IfMatch       string            `json:"if_match,omitempty"` // the digest that the skill must have
}

// SkillIndexRequest asks for a text that tells a model which skills there are.
type SkillIndexRequest struct {
	Names    []string `json:"names,omitempty" max:"1000"` // default: all
	Location string   `json:"location,omitempty"`         // the directory under which they are mounted
}

// SkillIndex is that text. Missing are skills that were asked for and are not there.
type SkillIndex struct {
	Text    string   `json:"text" show:"never"`
	Missing []string `json:"missing,omitempty"`
}

// SkillEntry is one of a directory of a skill.
type SkillEntry struct {
	Path       string `json:"path"` // from the top of the skill
	Name       string `json:"name"`
	Type       string `json:"type"` // "file" or "directory"
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
}

// SkillEntries lists a directory of a skill.
type SkillEntries struct {
	Path      string       `json:"path"`
	Entries   []SkillEntry `json:"entries"`
	Truncated bool         `json:"truncated,omitempty"`
}

// SkillFile is a file of a skill.
type SkillFile struct {
	Path       string `json:"path"`
	Content    string `json:"content" show:"never"`
	Encoding   string `json:"encoding"` // "utf-8", or "base64" of what is none
	Executable bool   `json:"executable,omitempty"`
	Digest     string `json:"digest"` // of the skill
}

// SkillFileWrite asks for a content to become that of a file of a skill.
type SkillFileWrite struct {
	Path       string `json:"path"`
	Content    string `json:"content" show:"never"`
	Encoding   string `json:"encoding,omitempty"` // of content: "utf-8" (the default) or "base64"
	Executable bool   `json:"executable,omitempty"`
	IfMatch    string `json:"if_match,omitempty"` // the digest that the skill must have
}

// SkillCandidate is a skill that an archive or directory has, and what keeps it from being installed.
type SkillCandidate struct {
	Path     string         `json:"path"` // from the root of the archive, "." for the root
	Skill    SkillDraft     `json:"skill"`
	Problems []SkillProblem `json:"problems,omitempty"`
}

// SkillDraft is what a candidate would be.
type SkillDraft struct {
	Name         string   `json:"name"`
	Description  string   `json:"description"`
	Instructions string   `json:"instructions,omitempty" show:"never"`
	Digest       string   `json:"digest"`
	Bytes        int64    `json:"bytes"`
	Entries      int      `json:"entries"`
	Advice       []string `json:"advice,omitempty"`
}

// SkillProblem is one thing that is wrong with a SKILL.md.
type SkillProblem struct {
	Key  string `json:"key,omitempty"` // of its front matter
	Text string `json:"text"`
}

// SkillCandidates lists what an archive or directory has.
type SkillCandidates struct {
	Candidates []SkillCandidate `json:"candidates"`
}

// SessionSkill is a skill of a session. Missing is one that was to be there, and is not: it has no target.
type SessionSkill struct {
	Name       string    `json:"name"`
	Target     string    `json:"target,omitempty"` // its directory in the box
	Digest     string    `json:"digest,omitempty"` // of the version that is mounted
	Since      time.Time `json:"since"`
	Attributes []string  `json:"attributes,omitempty"` // of the mount, read back from the kernel: "ro", "nosuid", "nodev", "nosymfollow"
	Missing    bool      `json:"missing,omitempty"`
}

// SkillEnvironmentRequest asks for a virtual environment of Python for a skill of a session.
type SkillEnvironmentRequest struct {
	Env     map[string]string  `json:"env,omitempty" max:"256"` // of pip, beside that of the session: PIP_INDEX_URL, PIP_FIND_LINKS and the like
	Timeout *quantity.Duration `json:"timeout,omitempty"`       // nil: as long as an execution of the session's profile may run
}

// SkillEnvironment is one that is there.
type SkillEnvironment struct {
	Path   string `json:"path"`   // in the box; its programs are in bin
	Python string `json:"python"` // the version
	Made   bool   `json:"made"`   // by this request; else it was there
}
