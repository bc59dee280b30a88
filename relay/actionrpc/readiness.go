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

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// backend describes boxd as LangBot knows it.
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

// required is the name of the backend that LangBot's own admission demands.
const required = "nsjail"

// checks are those of a required admission, in the order in which errors name them.
var checks = []string{
	"configuration", "required_backend", "workspace_mount", "backend_available", "cgroup_v2", "namespace_isolation", "mount_isolation", "network_isolation",
	"hard_workspace_quota", "hard_skill_storage_quota", "bounded_ephemeral_storage", "inode_quota", "session_cap", "managed_process_cap",
}

// storage are the checks that an operator may waive.
var storage = []string{"hard_workspace_quota", "hard_skill_storage_quota", "bounded_ephemeral_storage", "inode_quota"}

// inspection is the last inspection of a real box, and the configuration that it was made for.
type inspection struct {
	turn  chan struct{} // full during an inspection
	mu    sync.Mutex
	init  *InitConfig // guarded by mu, as are the fields below
	at    time.Time
	proof Proof
	good  *Proof // the last one of a box that started
}

// recent returns the last proof, and whether it is for this configuration and not older than since.
func (e *inspection) recent(initConfig *InitConfig, since time.Time) (Proof, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proof, e.init == initConfig && !e.at.Before(since)
}

// minCache is the minimum age up to which unauthenticated requests are answered from the cache: each inspection starts a box.
const minCache = 5 * time.Second

// prove inspects a real box, or returns a recent proof. Callers that ask during an inspection get its result.
func (s *Server) prove(ctx context.Context, initConfig *InitConfig, unauthenticated bool) Proof {
	cache := initConfig.Policy.ReadinessCache
	if unauthenticated {
		cache = max(cache, minCache)
	}
	e := &s.seen
	now := time.Now()
	if p, ok := e.recent(initConfig, now.Add(-cache)); ok {
		return p
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return Proof{Error: context.Cause(ctx).Error()}
	}
	if p, ok := e.recent(initConfig, now.Add(-cache)); ok { // another caller has inspected a box meanwhile
		return p
	}
	start := time.Now()
	p := s.attest(context.WithoutCancel(ctx), admittedSpec(&initConfig.Policy), initConfig.Work) // others wait for it
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !p.Full:
		if p.Available {
			e.good = new(p)
		}
	case e.good != nil && e.init != nil && e.init.Work == initConfig.Work: // boxes like the inspected one take all room
		p = *e.good
	}
	e.init, e.at, e.proof = initConfig, start, p
	return p
}

// readiness returns the state of all checks. A check is true only if it was verified, or if the operator has waived it.
func (s *Server) readiness(ctx context.Context, unauthenticated bool) readiness {
	initConfig := s.initConfig.Load()
	if !initConfig.Required {
		return s.basicReadiness(initConfig)
	}
	p := s.prove(ctx, initConfig, unauthenticated)
	r := readiness{Mode: "grant_enforced", Backend: backend{Name: new(required), Available: p.Available && initConfig.Ours(), Details: details(&p)}, Unsafe: new(s.cfg.AllowSoftStorage)}
	r.Checks = map[string]bool{
		"configuration": initConfig.Broken == "", "required_backend": initConfig.Ours(), "workspace_mount": p.Work, "backend_available": r.Backend.Available,
		"cgroup_v2": p.Groups, "namespace_isolation": p.Namespaces, "mount_isolation": p.Mounts, "network_isolation": p.Network,
		"hard_workspace_quota": p.Bounded, "inode_quota": p.Bounded, "bounded_ephemeral_storage": p.Ephemeral,
		"hard_skill_storage_quota": false, // boxd counts before it writes; the kernel enforces nothing
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

// basicReadiness is readiness while LangBot's own admission is not required, or LangBot has not said yet whether it is.
func (s *Server) basicReadiness(initConfig *InitConfig) readiness {
	r := readiness{Ready: s.available(), Mode: standard, Backend: backend{Name: &initConfig.Backend}}
	if initConfig.Ours() {
		r.Backend.Name = new(Backend)
	}
	r.Backend.Available, r.Checks = r.Ready, map[string]bool{"backend_available": r.Ready}
	return r
}

// noWork returns why there is no directory for Workspaces, "" if there is one.
func noWork(initConfig *InitConfig) string {
	switch {
	case initConfig.Work != "":
		return ""
	case initConfig.NoWork != "":
		return "Managed sandbox workspace is outside box.local.allowed_mount_roots"
	}
	return "Managed sandbox admission requires box.local.default_workspace"
}

// details returns what was found, whatever the operator has waived.
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

// failed returns the checks that are false.
func (r *readiness) failed() []string {
	return slices.DeleteFunc(slices.Clone(checks), func(name string) bool { return r.Checks[name] })
}

// probe matches the name of a file that cloud LangBot wants a box to read.
var probe = regexp.MustCompile(`^\.langbot-box-volume-probe-[a-f0-9]{32}$`)

// verify has a box read a file that cloud LangBot has put into its workspace, to prove that both see the same directory.
func (s *Server) verify(ctx context.Context, c *call) (any, error) {
	name, err := c.text("marker_name")
	initConfig := s.initConfig.Load()
	switch {
	case err != nil || !probe.MatchString(name):
		return nil, wire.Refusef("BoxReadinessError", "Invalid Box shared Workspace probe basename")
	case initConfig.Work == "":
		return nil, wire.Refusef("BoxReadinessError", "%s", noWork(initConfig))
	}
	data, err := s.boxes.probe(ctx, initConfig.Work, name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	return map[string]any{"marker_name": name, "sha256": hex.EncodeToString(sum[:]), "size": len(data)}, nil
}
