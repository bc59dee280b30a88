// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"sync"
	"time"
)

// backend is what LangBot knows boxd as.
type backend struct {
	Name      *string `json:"name"`
	Available bool    `json:"available"`
	Details   any     `json:"details,omitempty"`
}

// readiness is LangBot's readiness object.
type readiness struct {
	Ready   bool            `json:"ready"`
	Mode    string          `json:"mode"`
	Backend backend         `json:"backend"`
	Checks  map[string]bool `json:"checks"`
	Unsafe  *bool           `json:"unsafe_soft_storage_limits,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// standard is the mode without LangBot's own admission.
const standard = "standard"

// required is the backend that LangBot's own admission asks for by name.
const required = "nsjail"

// checks are those of an admission that is required, in the order in which they are named.
var checks = []string{
	"configuration", "required_backend", "workspace_mount", "backend_available", "cgroup_v2", "namespace_isolation", "mount_isolation", "network_isolation",
	"hard_workspace_quota", "hard_skill_storage_quota", "bounded_ephemeral_storage", "inode_quota", "session_cap", "managed_process_cap",
}

// storage are those of them that an operator may do without.
var storage = []string{"hard_workspace_quota", "hard_skill_storage_quota", "bounded_ephemeral_storage", "inode_quota"}

// evidence is what was last seen of a real box, and for what LangBot had told.
type evidence struct {
	turn  chan struct{} // has room for who looks
	mu    sync.Mutex
	init  *InitConfig // guarded by mu, as all below
	at    time.Time
	proof Proof
	good  *Proof // the last one of a box that was there
}

// recent is what was seen not longer ago than that.
func (e *evidence) recent(initConfig *InitConfig, since time.Time) (Proof, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proof, e.init == initConfig && !e.at.Before(since)
}

// leastCache is how long anybody's questions are answered by what was seen before: each look is a box.
const leastCache = 5 * time.Second

// prove looks at a real box, or has looked not long ago. Who asks while somebody looks has the same answer.
func (s *Server) prove(ctx context.Context, initConfig *InitConfig, anybody bool) Proof {
	cache := initConfig.Policy.ReadinessCache
	if anybody {
		cache = max(cache, leastCache)
	}
	e := &s.seen
	asked := time.Now()
	if p, ok := e.recent(initConfig, asked.Add(-cache)); ok {
		return p
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return Proof{Error: context.Cause(ctx).Error()}
	}
	if p, ok := e.recent(initConfig, asked.Add(-cache)); ok { // somebody has looked meanwhile
		return p
	}
	begin := time.Now()
	p := s.attest(context.WithoutCancel(ctx), shape(&initConfig.Policy), initConfig.Work) // others wait for it
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !p.Full:
		if p.Available {
			e.good = new(p)
		}
	case e.good != nil && e.init != nil && e.init.Work == initConfig.Work: // all room is taken by boxes such as were seen
		p = *e.good
	}
	e.init, e.at, e.proof = initConfig, begin, p
	return p
}

// readiness says what is so. Nothing in it is true that was not found out, but what the operator does without.
func (s *Server) readiness(ctx context.Context, anybody bool) readiness {
	initConfig := s.initConfig.Load()
	if !initConfig.Required {
		return s.plainly(initConfig)
	}
	p := s.prove(ctx, initConfig, anybody)
	r := readiness{Mode: "grant_enforced", Backend: backend{Name: new(required), Available: p.Available && initConfig.Ours(), Details: details(&p)}, Unsafe: new(s.cfg.AllowSoftStorage)}
	r.Checks = map[string]bool{
		"configuration": initConfig.Broken == "", "required_backend": initConfig.Ours(), "workspace_mount": p.Work, "backend_available": r.Backend.Available,
		"cgroup_v2": p.Groups, "namespace_isolation": p.Namespaces, "mount_isolation": p.Mounts, "network_isolation": p.Network,
		"hard_workspace_quota": p.Bounded, "inode_quota": p.Bounded, "bounded_ephemeral_storage": p.Ephemeral,
		"hard_skill_storage_quota": false, // boxd counts before it writes, and no kernel does
		"session_cap":              initConfig.Policy.MaxSessions <= 1, "managed_process_cap": initConfig.Policy.MaxProcesses == 0,
	}
	if s.cfg.AllowSoftStorage {
		for _, name := range storage {
			r.Checks[name] = true
		}
	}
	r.Error = cmp.Or(initConfig.Broken, noWork(initConfig), p.Error)
	r.Ready = len(r.failed()) == 0
	return r
}

// plainly says what is so where LangBot's own admission is not required, or nobody has said yet whether it is.
func (s *Server) plainly(initConfig *InitConfig) readiness {
	r := readiness{Ready: s.available(), Mode: standard, Backend: backend{Name: &initConfig.Backend}}
	if initConfig.Ours() {
		r.Backend.Name = new(Backend)
	}
	r.Backend.Available, r.Checks = r.Ready, map[string]bool{"backend_available": r.Ready}
	return r
}

// noWork is why there is no directory for Workspaces, "" if there is one.
func noWork(initConfig *InitConfig) string {
	switch {
	case initConfig.Work != "":
		return ""
	case initConfig.NoWork != "":
		return "Managed sandbox workspace is outside box.local.allowed_mount_roots"
	}
	return "Managed sandbox admission requires box.local.default_workspace"
}

// details are what was seen, whatever the operator does without.
func details(p *Proof) any {
	seen := map[string]any{
		"available": p.Available, "cgroup_v2": p.Groups, "namespace_isolation": p.Namespaces, "mount_isolation": p.Mounts, "network_isolation": p.Network,
		"hard_workspace_quota": p.Bounded, "inode_quota": p.Bounded, "bounded_ephemeral_storage": p.Ephemeral, "hard_skill_storage_quota": false,
	}
	if p.Unbounded != nil {
		seen["workspace_quota"] = p.Unbounded.Error()
	}
	return seen
}

// failed are the checks that are not so.
func (r *readiness) failed() []string {
	return slices.DeleteFunc(slices.Clone(checks), func(name string) bool { return r.Checks[name] })
}

// probe is a name of a file that cloud LangBot wants to be read.
var probe = regexp.MustCompile(`^\.langbot-box-volume-probe-[a-f0-9]{32}$`)

// verify has a box read a file that cloud LangBot has put into its workspace, to know that both see one directory.
func (s *Server) verify(ctx context.Context, c *call) (any, error) {
	name, err := c.text("marker_name")
	initConfig := s.initConfig.Load()
	switch {
	case err != nil || !probe.MatchString(name):
		return nil, refusalf("BoxReadinessError", "Invalid Box shared Workspace probe basename")
	case initConfig.Work == "":
		return nil, refusalf("BoxReadinessError", "%s", noWork(initConfig))
	}
	data, err := s.boxes.Probe(ctx, initConfig.Work, name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	return map[string]any{"marker_name": name, "sha256": hex.EncodeToString(sum[:]), "size": len(data)}, nil
}
