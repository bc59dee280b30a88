// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Values of the payloads.
const (
	networkOn       = "on"
	networkOff      = "off"
	modeReadWrite   = "rw"
	modeReadOnly    = "ro"
	modeNone        = "none"
	workspacePath   = "/workspace"
	defaultImage    = "rockchin/langbot-sandbox:latest"
	maxSkillName    = 64
	defaultTimeout  = 30
	defaultMemory   = 512
	defaultPids     = 128
	minMemory       = 32
	hostMessage     = "host_path must be an absolute host path"
	mountMessage    = "mount_path must be an absolute path inside the sandbox"
	longestHostPath = 4096
)

// mountSpec is a host directory mounted in a session.
type mountSpec struct {
	HostPath  string `json:"host_path"`
	MountPath string `json:"mount_path"`
	Mode      string `json:"mode"`
}

// boxSpec requests a session, and optionally a command in it. Its fields are those of LangBot's BoxSpec.
type boxSpec struct {
	Cmd         string
	Workdir     string
	TimeoutSec  int64
	Network     string
	SessionID   string
	Env         map[string]string
	Image       string
	ExtraMounts []mountSpec
	SkillName   string

	SpecFields

	// Skills are the skills of the Workspace among ExtraMounts; SkillsOf is the Workspace in the store.
	Skills   []skillMount
	SkillsOf string
}

// skillMount is a skill for a session.
type skillMount struct {
	Name string
	At   string // where LangBot wants it in the box

	ReadOnly  bool // nothing is written to it
	Elsewhere bool // it could not be put there, and is at its own place
}

// payloadReader reads the fields of a model, and collects what is wrong with them.
type payloadReader struct {
	fields map[string]json.RawMessage
	at     string // prefix of field names
	wrong  []string
}

func (r *payloadReader) bad(field, what string) { r.wrong = append(r.wrong, r.at+field+"\n  "+what) }

// rule refuses a value with LangBot's message.
func (r *payloadReader) rule(field string, ok bool, message string) {
	if !ok {
		r.bad(field, "Value error, "+message)
	}
}

// value reads a field as LangBot's runtime coerces it. It returns def if the field is missing, and wrong, with an
// error recorded, if it is of another kind.
func value[T any](r *payloadReader, field string, def, wrong T, coerce func(json.RawMessage) (T, bool), kind string) T {
	raw, given := r.fields[field]
	if !given {
		return def
	}
	v, ok := coerce(raw)
	if !ok {
		r.bad(field, "Input should be a valid "+kind)
		return wrong
	}
	return v
}

func (r *payloadReader) text(field, otherwise string) string {
	return value(r, field, otherwise, "", wire.StringOf, "string")
}

// optional reads a string that may be null.
func (r *payloadReader) optional(field string) *string {
	if wire.IsNull(r.fields[field]) {
		return nil
	}
	return new(strings.TrimSpace(r.text(field, "")))
}

func (r *payloadReader) whole(field string, otherwise int64) int64 {
	return value(r, field, otherwise, otherwise, wire.CoerceInt, "integer")
}

func (r *payloadReader) number(field string, otherwise float64) float64 {
	return value(r, field, otherwise, otherwise, wire.CoerceFloat, "number")
}

func (r *payloadReader) truth(field string, otherwise bool) bool {
	return value(r, field, otherwise, false, wire.CoerceBool, "boolean")
}

func (r *payloadReader) oneOf(field, otherwise string, allowed ...string) string {
	s := r.text(field, otherwise)
	if _, given := r.fields[field]; given && !slices.Contains(allowed, s) {
		r.bad(field, "Input should be '"+strings.Join(allowed, "' or '")+"'")
	}
	return s
}

func (r *payloadReader) texts(field string) map[string]string {
	all := map[string]string{}
	raw, given := r.fields[field]
	if !given {
		return all
	}
	object, ok := wire.ObjectOf(raw)
	if !ok {
		r.bad(field, "Input should be a valid dictionary")
	}
	for name, raw := range object {
		s, ok := wire.StringOf(raw)
		if !ok {
			r.bad(field+"."+name, "Input should be a valid string")
		}
		all[name] = s
	}
	return all
}

func (r *payloadReader) list(field string) (items []json.RawMessage) {
	if raw, given := r.fields[field]; given && (json.Unmarshal(raw, &items) != nil || wire.IsNull(raw)) {
		r.bad(field, "Input should be a valid list")
	}
	return items
}

// error returns what was wrong, in the class that clients look for.
func (r *payloadReader) error(model string) error {
	if len(r.wrong) == 0 {
		return nil
	}
	slices.Sort(r.wrong) // maps have no order
	return wire.Refusef("BoxValidationError", "%s", wire.ProblemText(model, r.wrong))
}

var windows = regexp.MustCompile(`^[A-Za-z]:[\\/]|^\\\\`)

// absoluteHost reports whether a path is absolute, here or on Windows.
func absoluteHost(path string) bool {
	return len(path) <= longestHostPath && (strings.HasPrefix(path, "/") || windows.MatchString(path))
}

func absolute(path string) bool { return strings.HasPrefix(path, "/") }

// readSpec reads a BoxSpec. Unknown fields are ignored.
func readSpec(fields map[string]json.RawMessage) (*boxSpec, error) {
	r := &payloadReader{fields: fields}
	s := &boxSpec{
		Cmd: strings.TrimSpace(r.text("cmd", "")), TimeoutSec: r.whole("timeout_sec", defaultTimeout), Network: r.oneOf("network", networkOff, networkOff, networkOn),
		SessionID: strings.TrimSpace(r.text("session_id", "")), Env: r.texts("env"), Image: r.text("image", defaultImage), SpecFields: SpecFields{
			HostPath: r.optional("host_path"), HostPathMode: r.oneOf("host_path_mode", modeReadWrite, modeNone, modeReadOnly, modeReadWrite), MountPath: strings.TrimSpace(r.text("mount_path", workspacePath)),
			Persistent: r.truth("persistent", false), CPUs: r.number("cpus", 1), MemoryMB: r.whole("memory_mb", defaultMemory), PidsLimit: r.whole("pids_limit", defaultPids),
			ReadOnlyRootfs: r.truth("read_only_rootfs", true), WorkspaceQuotaMB: r.whole("workspace_quota_mb", 0),
		},
	}
	s.Workdir = cmp.Or(strings.TrimSpace(r.text("workdir", "")), s.MountPath)
	if name := r.optional("skill_name"); name != nil {
		s.SkillName = *name
	}
	if _, given := fields["session_id"]; !given {
		r.bad("session_id", "Field required")
	} else {
		r.rule("session_id", s.SessionID != "", "session_id must not be empty")
	}
	r.rule("workdir", absolute(s.Workdir), "workdir must be an absolute path inside the sandbox")
	r.rule("timeout_sec", s.TimeoutSec > 0, "timeout_sec must be greater than 0")
	r.rule("host_path", s.HostPath == nil || absoluteHost(*s.HostPath), hostMessage)
	r.rule("mount_path", absolute(s.MountPath), mountMessage)
	r.rule("skill_name", skillName(s.SkillName), "skill_name can only contain up to 64 letters, numbers, hyphens and underscores")
	r.rule("cpus", s.CPUs > 0, "cpus must be greater than 0")
	r.rule("memory_mb", s.MemoryMB >= minMemory, "memory_mb must be at least 32")
	r.rule("pids_limit", s.PidsLimit >= 1, "pids_limit must be at least 1")
	r.rule("workspace_quota_mb", s.WorkspaceQuotaMB >= 0, "workspace_quota_mb must be greater than or equal to 0")
	for i, raw := range r.list("extra_mounts") {
		s.ExtraMounts = append(s.ExtraMounts, r.mount(i, raw))
	}
	if len(r.wrong) == 0 && s.HostPath != nil && s.HostPathMode != modeNone {
		inside := s.Workdir == s.MountPath || strings.HasPrefix(s.Workdir, strings.TrimRight(s.MountPath, "/")+"/")
		r.rule("workdir", inside, "workdir must stay under mount_path when host_path is provided")
	}
	return s, r.error("BoxSpec")
}

func (r *payloadReader) mount(i int, raw json.RawMessage) mountSpec {
	fields, ok := wire.ObjectOf(raw)
	m := &payloadReader{fields: fields, at: "extra_mounts." + strconv.Itoa(i) + "."}
	if !ok {
		r.bad("extra_mounts", "Input should be a valid dictionary")
		return mountSpec{}
	}
	mount := mountSpec{HostPath: strings.TrimSpace(m.text("host_path", "")), MountPath: strings.TrimSpace(m.text("mount_path", "")), Mode: m.oneOf("mode", modeReadWrite, modeNone, modeReadOnly, modeReadWrite)}
	m.rule("host_path", absoluteHost(mount.HostPath), hostMessage)
	m.rule("mount_path", absolute(mount.MountPath), mountMessage)
	r.wrong = append(r.wrong, m.wrong...)
	return mount
}

func skillName(s string) bool {
	return utf8.RuneCountInString(s) <= maxSkillName && strings.IndexFunc(s, func(c rune) bool {
		return c != '-' && c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c)
	}) < 0
}

// mounts returns the extra mounts of a mode, sorted.
func (s *boxSpec) mounts(mode string) []mountSpec {
	var list []mountSpec
	for _, m := range s.ExtraMounts {
		if m.Mode == mode && !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b mountSpec) int {
		return cmp.Or(cmp.Compare(a.MountPath, b.MountPath), cmp.Compare(a.HostPath, b.HostPath), cmp.Compare(a.Mode, b.Mode))
	})
	return list
}

// blockedPath reports whether LangBot's runtime never mounts a host directory, by its name alone. The keeper checks what
// it really is.
func blockedPath(path string) bool {
	for _, dir := range []string{"/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/var/run"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return strings.Trim(path, "/") == ""
}

// processSpec requests a managed process. Its fields are those of LangBot's BoxManagedProcessSpec.
type processSpec struct {
	ID       string
	Command  string
	Args     []string
	Env      map[string]string
	Cwd      string
	MemoryMB int64
}

// readProcess reads a BoxManagedProcessSpec.
func readProcess(raw json.RawMessage) (*processSpec, error) {
	fields, ok := wire.ObjectOf(raw)
	r := &payloadReader{fields: fields}
	if !ok {
		r.bad("spec", "Input should be a valid dictionary")
		return nil, r.error("BoxManagedProcessSpec")
	}
	p := &processSpec{
		ID: r.text("process_id", wire.DefaultProcess), Command: strings.TrimSpace(r.text("command", "")), Env: r.texts("env"),
		Cwd: strings.TrimSpace(r.text("cwd", workspacePath)), MemoryMB: r.whole("memory_mb", 0), Args: []string{},
	}
	for _, raw := range r.list("args") {
		s, ok := wire.StringOf(raw)
		if !ok {
			r.bad("args", "Input should be a valid string")
		}
		p.Args = append(p.Args, s)
	}
	r.rule("command", p.Command != "", "command must not be empty")
	r.rule("cwd", absolute(p.Cwd), "cwd must be an absolute path inside the sandbox")
	r.rule("memory_mb", p.MemoryMB >= 0, "memory_mb must be greater than or equal to 0")
	return p, r.error("BoxManagedProcessSpec")
}
