// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// InitConfig is what LangBot has configured so far. It is immutable: each INIT makes another one.
type InitConfig struct {
	Limits  wire.Limits
	Backend string // "": any
	Work    string // LangBot's default workspace on this host, "" if not sent
	Skills  string // where its own runtime kept skills, "" if not sent
	NoWork  string // why Work is not used; "": it was not sent
	// Required is whether LangBot's own admission is required: then Broken says why its configuration is invalid, "" if
	// it is valid.
	Required bool
	Broken   string
	Policy   Policy // of the admission

	all  map[string]json.RawMessage
	left bool // it was sent to an earlier boxd
}

// DefaultInit returns the configuration before the first INIT.
func DefaultInit() *InitConfig {
	return &InitConfig{Limits: wire.DefaultLimits(), Policy: DefaultPolicy()}
}

// Merge returns the configuration after an INIT with these keys. If that is nil, nothing changes. If there is also an
// error, the INIT is refused because of LangBot's own directories, and everything else holds, the admission above all.
func (t *InitConfig) Merge(fields map[string]json.RawMessage) (*InitConfig, error) {
	n := &InitConfig{all: maps.Clone(t.all), Limits: t.Limits}
	if n.all == nil {
		n.all = map[string]json.RawMessage{}
	}
	maps.Copy(n.all, fields)
	if err := n.limits(); err != nil {
		return nil, err
	}
	n.Backend, _ = wire.StringOf(n.all["backend"])
	n.Backend = strings.ToLower(strings.TrimSpace(n.Backend))
	n.admission(t.Required && !t.left)
	if err := n.local(); err != nil {
		n.Work, n.NoWork = "", err.Error()
		return n, err
	}
	return n, nil
}

// RequiredInit is the configuration before the first INIT if LangBot required its admission of the boxd before this one:
// no Workspace is admitted until that INIT, which decides anew.
func RequiredInit() *InitConfig {
	t := DefaultInit()
	t.Required, t.left = true, true
	return t
}

// FromBefore reports whether the configuration is that of an earlier boxd, and LangBot has sent none to this one yet.
func (t *InitConfig) FromBefore() bool { return t.left }

// Ours reports whether boxd stands in for the backend that LangBot wants.
func (t *InitConfig) Ours() bool {
	return slices.Contains([]string{"", "local", "docker", "nsjail", "boxd"}, t.Backend)
}

func (t *InitConfig) limits() error {
	limits, given, err := wire.ReadLimits(t.all["limits"])
	if err == nil && given {
		t.Limits = limits
	}
	return err
}

// local checks what LangBot sends about its own directories. boxd makes none of them here: mounts.allow decides what a
// session may mount, and a missing directory is made with the first session that mounts it.
func (t *InitConfig) local() error {
	fields, ok := wire.ObjectOf(t.all["local"])
	if !ok {
		return nil
	}
	text := func(name string) string {
		s, _ := wire.StringOf(fields[name])
		return strings.TrimSpace(s)
	}
	root, work := text("host_root"), text("default_workspace")
	if work == "" && root != "" {
		work = "default"
	}
	if work != "" && !path.IsAbs(work) {
		work = path.Join(root, work)
	}
	if path.IsAbs(work) {
		t.Work = path.Clean(work)
	}
	old := cmp.Or(text("skills_root"), "skills")
	if !path.IsAbs(old) {
		old = path.Join(root, old)
	}
	if path.IsAbs(old) {
		t.Skills = old
	}
	var allowed []string
	if raw := fields["allowed_mount_roots"]; json.Unmarshal(raw, &allowed) != nil {
		if s, ok := wire.StringOf(raw); ok {
			allowed = strings.Split(s, ",")
		}
	}
	allowed = slices.DeleteFunc(allowed, func(s string) bool { return strings.TrimSpace(s) == "" })
	if len(allowed) == 0 && root != "" {
		allowed = []string{root}
	}
	if !path.IsAbs(work) || slices.ContainsFunc(allowed, func(s string) bool { return !path.IsAbs(strings.TrimSpace(s)) }) {
		return nil // relative to a LangBot directory that boxd does not know: mounts.allow decides later
	}
	if len(allowed) == 0 {
		return wire.Refusef("BoxValidationError", "box.local.default_workspace cannot be created because no allowed_mount_roots are configured")
	}
	work = path.Clean(work)
	for i, dir := range allowed {
		allowed[i] = path.Clean(strings.TrimSpace(dir))
		if work == allowed[i] || strings.HasPrefix(work, strings.TrimRight(allowed[i], "/")+"/") {
			return nil
		}
	}
	return wire.Refusef("BoxValidationError", "box.local.default_workspace is outside allowed_mount_roots: %s", strings.Join(allowed, ", "))
}

// admission reads LangBot's own admission. Once required it stays so while boxd runs; an unreadable one counts as
// required.
func (t *InitConfig) admission(before bool) {
	policy, required, wrong := ReadPolicy(t.all["admission"])
	_, given := t.all["admission"]
	t.Required, t.Broken, t.Policy = before || required, wrong, policy
	if before && given && !required {
		t.Broken = "Sandbox admission enforcement cannot be disabled without restarting the Box Runtime"
	}
}
