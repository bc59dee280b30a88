// SPDX-License-Identifier: Apache-2.0

// Scalebox's control plane, which is E2B's in other words, and the routes of its sandboxes that E2B's do not have.

package e2b

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// scaleboxOperations are Scalebox's control plane.
func scaleboxOperations() []operation {
	return []operation{
		{"POST /v1/sandboxes", routeCreate, access.User, true, false, (*controlCall).createScalebox},
		{"GET /v1/sandboxes", routeList, access.Viewer, false, false, (*controlCall).listScalebox},
		{"GET /v1/sandboxes/{id}", routeGet, access.Viewer, false, false, (*controlCall).getScalebox},
		{"DELETE /v1/sandboxes/{id}", routeDelete, access.User, true, true, (*controlCall).kill},
		{"POST /v1/sandboxes/{id}/timeout", routeChange, access.User, true, false, (*controlCall).timeoutScalebox},
		{"POST /v1/sandboxes/{id}/connect", routeChange, access.User, true, false, (*controlCall).connectScalebox},
		{"POST /v1/sandboxes/{id}/pause", routeFreeze, access.User, true, false, (*controlCall).pauseScalebox},
		{"POST /v1/sandboxes/{id}/resume", routeThaw, access.User, true, false, (*controlCall).connectScalebox},
		{"GET /v1/sandboxes/{id}/metrics", routeGet, access.Viewer, false, false, (*controlCall).metricsScalebox},
	}
}

// scaleboxRequest is the body of a request for a sandbox.
type scaleboxRequest struct {
	Template            string            `json:"template"`
	Name                string            `json:"name"`
	Timeout             *int64            `json:"timeout"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"env_vars"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	CPUCount            *float64          `json:"cpu_count"`
	MemoryMB            *int64            `json:"memory_mb"`
	StorageGB           *int64            `json:"storage_gb"`
	ObjectStorage       *objectStorage    `json:"object_storage"`
}

// objectStorage is a bucket that is to be there as a directory.
type objectStorage struct {
	URI        string `json:"uri"`
	MountPoint string `json:"mount_point"`
}

// scaleboxSandbox describes a sandbox.
type scaleboxSandbox struct {
	SandboxID       string            `json:"sandbox_id"`
	TemplateID      string            `json:"template_id"`
	Name            string            `json:"name,omitempty"`
	Status          string            `json:"status"`
	SandboxDomain   string            `json:"sandbox_domain"`
	EnvdAccessToken string            `json:"envd_access_token,omitempty"`
	StartedAt       time.Time         `json:"started_at"`
	CreatedAt       time.Time         `json:"created_at"`
	TimeoutAt       time.Time         `json:"timeout_at"`
	Timeout         int64             `json:"timeout"` // seconds
	CPUCount        int               `json:"cpu_count"`
	MemoryMB        int64             `json:"memory_mb"`
	StorageGB       int64             `json:"storage_gb"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"env_vars"`
}

// wrapped is what every answer of Scalebox's control plane is in.
type wrapped struct {
	Success bool   `json:"success"`
	Data    any    `json:"data,omitempty"`
	Message string `json:"message,omitempty"`
}

// scalebox describes a session as Scalebox does, with its token for whose key allows what that leads to.
func (c *controlCall) scalebox(sess *session.Session) *scaleboxSandbox {
	s, info := c.server, sess.Info()
	l, token := s.listed(&info), ""
	if allows(&c.pass) {
		token = s.token(purposeAccess, sess)
	}
	env := map[string]string{}
	for _, name := range info.Settings.EnvNames {
		env[name] = "" // values are nobody's to read here
	}
	return &scaleboxSandbox{
		SandboxID: l.SandboxID, TemplateID: l.TemplateID, Status: l.State, SandboxDomain: s.scaleboxDomain(c.r.Context()), EnvdAccessToken: token,
		StartedAt: l.StartedAt, CreatedAt: l.StartedAt, TimeoutAt: l.EndAt, Timeout: int64(time.Until(l.EndAt).Round(time.Second) / time.Second),
		CPUCount: l.CPUCount, MemoryMB: l.MemoryMB, StorageGB: l.DiskSizeMB >> 10, Metadata: l.Metadata, EnvVars: env,
	}
}

// scaleboxDomain is where the data plane of Scalebox's sandboxes is, which its clients reach by TLS alone.
func (s *Server) scaleboxDomain(ctx context.Context) string {
	if s.cfg.TLSListen != "" {
		return s.cfg.TLSListen
	}
	return s.domain(ctx)
}

func (c *controlCall) createScalebox() error {
	if err := c.getsTokens(); err != nil {
		return err
	}
	var box scaleboxRequest
	if err := c.body(&box); err != nil {
		return err
	}
	if c.server.cfg.TLSListen == "" {
		return unsupported("Scalebox's protocol", "its clients need TLS, so the operator has to set e2b.tls_listen, e2b.certificate and e2b.key")
	}
	sess, err := c.make(&createRequest{TemplateID: box.Template, Timeout: box.Timeout, Metadata: box.Metadata, EnvVars: box.EnvVars, AllowInternetAccess: box.AllowInternetAccess}, func(req *policy.Request) error {
		return c.scaleboxLimits(req, &box)
	})
	if err != nil {
		return err
	}
	reply(c.w, http.StatusCreated, wrapped{Success: true, Data: c.scalebox(sess)})
	return nil
}

// scaleboxLimits are those that a client of Scalebox asks for.
func (c *controlCall) scaleboxLimits(req *policy.Request, box *scaleboxRequest) error {
	for _, n := range []struct {
		field string
		value *int64
	}{{"memory_mb", box.MemoryMB}, {"storage_gb", box.StorageGB}} {
		if n.value != nil && (*n.value < 1 || *n.value > 1<<30) {
			return fault.Field(n.field, *n.value, "1 or more")
		}
	}
	if box.CPUCount != nil {
		req.CPUs = box.CPUCount
	}
	if box.MemoryMB != nil {
		memory := quantity.Size(*box.MemoryMB) << 20
		req.Memory = &memory
	}
	if box.StorageGB != nil {
		disk := quantity.Size(*box.StorageGB) << 30
		req.WorkspaceQuota = &disk
	}
	if o := box.ObjectStorage; o != nil && o.URI != "" {
		drive, ok := c.server.cfg.drive(o.URI)
		if !ok {
			return refusal(http.StatusNotFound, fmt.Sprintf("object_storage.uri = %s: must be one that the operator maps to a drive in [e2b.object_storage]", fault.Show(o.URI)))
		}
		req.Drives = append(req.Drives, drive)
	}
	return nil
}

func (c *controlCall) listScalebox() error {
	status := c.r.URL.Query().Get("status")
	limit, err := c.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return err
	}
	list := []*scaleboxSandbox{}
	for _, info := range slices.Backward(c.server.cfg.Sup.Sessions(c.pass.Principal, false)) {
		sess, err := c.server.cfg.Sup.Session(c.pass.Principal, info.ID)
		if err != nil || info.Settings.Labels[wire.LabelTemplate] == "" {
			continue
		}
		if one := c.scalebox(sess); status == "" || one.Status == status {
			list = append(list, one)
		}
		if int64(len(list)) == limit {
			break
		}
	}
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: map[string]any{"sandboxes": list}})
	return nil
}

func (c *controlCall) getScalebox() error {
	sess, err := c.session()
	if err != nil {
		return err
	}
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: c.scalebox(sess)})
	return nil
}

func (c *controlCall) timeoutScalebox() error {
	sess, err := c.changedTimeout(false)
	if err != nil {
		return err
	}
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: c.scalebox(sess)})
	return nil
}

func (c *controlCall) connectScalebox() error {
	sess, _, err := c.connected()
	if err != nil {
		return err
	}
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: c.scalebox(sess)})
	return nil
}

func (c *controlCall) pauseScalebox() error {
	sess, err := c.pausedNow()
	if err != nil {
		return err
	}
	if now, err := c.server.cfg.Sup.Session(c.pass.Principal, sess.ID); err == nil { // one that is stopped is another
		sess = now
	}
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: c.scalebox(sess)})
	return nil
}

func (c *controlCall) metricsScalebox() error {
	sess, err := c.session()
	if err != nil {
		return err
	}
	m := c.server.measure(c.r.Context(), sess)
	reply(c.w, http.StatusOK, wrapped{Success: true, Data: map[string]any{
		"timestamp": m.Timestamp, "cpu_used_pct": m.CPUUsedPct, "cpu_count": m.CPUCount, "mem_used": m.MemUsed, "mem_total": m.MemTotal, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal,
	}})
	return nil
}
