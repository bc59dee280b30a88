// SPDX-License-Identifier: Apache-2.0

// Named workspaces belong to a principal, are mounted in as many of its sessions as ask for them, and outlive those. The kernel
// enforces a quota for each.

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// WorkspaceRecord is a workspace as it is on disk. A later boxd may add fields.
type WorkspaceRecord struct {
	Name    string           `json:"name"`
	Owner   string           `json:"owner"` // the name of the principal
	Created time.Time        `json:"created"`
	Quota   quantity.Size    `json:"quota"` // 0: none
	Inodes  int              `json:"inodes"`
	KeptBy  policy.Mechanism `json:"kept_by,omitempty"` // what enforces the quota, as found at creation
	State   string           `json:"state,omitempty"`   // "": complete
	// Changing says that the kernel may still enforce the previous quota.
	Changing bool `json:"changing,omitempty"`
	// From is the box whose workspace becomes this one.
	From string `json:"from,omitempty"`
}

// States of an operation that boxd may die in: the next boxd undoes it, or completes it.
const (
	making   = "making"
	removing = "removing"
	keeping  = "keeping" // completed by the next boxd: nothing is removed
	unread   = "unread"  // never on disk: the record is unreadable, and left alone
)

// Workspace is a workspace with its users.
type Workspace struct {
	WorkspaceRecord
	Used     *isolation.Disk // nil: not counted
	Sessions []string        // their ids
}

// workspace is a workspace in memory.
type workspace struct {
	WorkspaceRecord
	users map[string]string // session ids by their keys
	busy  bool              // being made or removed
	lost  bool              // has a record but no files
}

// WorkspaceParts are what Workspaces work with. They own none of them.
type WorkspaceParts struct {
	Boxes  *driver.Driver
	Ledger *quota.Ledger
	Log    *slog.Logger
	Config func() *policy.Config
}

// Workspaces has all named workspaces. It is safe for concurrent use.
type Workspaces struct {
	WorkspaceParts
	dir   *os.Root
	own   string // directory of sessions' own workspaces
	place string // directory of the named ones' files

	mu  sync.Mutex // guards the fields below
	all map[string]*workspace
}

const suffix = ".json"

// timeout bounds one change. A change that has begun is completed even if its caller is gone.
const timeout = 10 * time.Minute

// OpenWorkspaces reads the records, and completes what an earlier boxd began; workspaces is the directory of sessions' own ones.
// Restore tells which session uses which, before any request.
func OpenWorkspaces(ctx context.Context, state, workspaces string, parts WorkspaceParts) (*Workspaces, error) {
	dir, err := durable.Directory(filepath.Join(state, "named-workspaces"))
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	s := &Workspaces{WorkspaceParts: parts, dir: dir, own: workspaces, place: filepath.Join(filepath.Dir(workspaces), isolation.SpacesDir), all: map[string]*workspace{}}
	if err := s.load(ctx); err != nil {
		dir.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the records.
func (s *Workspaces) Close() {
	if s != nil { // nil: it could not be opened
		s.dir.Close()
	}
}

func (s *Workspaces) load(ctx context.Context) error {
	names, err := durable.Recover(s.dir)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	seen := map[string]bool{}
	entries, err := os.ReadDir(s.place)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	for _, e := range entries {
		seen[e.Name()] = true
	}
	for _, name := range names {
		key, is := strings.CutSuffix(name, suffix)
		if !is || len(key) != isolation.KeyLen {
			continue // not ours
		}
		sp, err := s.read(name)
		if err != nil {
			s.Log.Error("cannot read the record of a workspace; the record and its files stay as they are", "error", err)
			s.all[key] = &workspace{WorkspaceRecord: WorkspaceRecord{State: unread}, busy: true} // so that its name is taken
			delete(seen, key)
			continue
		}
		sp.lost = !seen[key]
		if sp.State == "" && sp.lost {
			s.Log.Error("the files of a workspace are missing: restore them, or remove the workspace", "workspace", sp.Name, "owner", sp.Owner, "path", filepath.Join(s.place, key))
		}
		s.all[key] = sp
		delete(seen, key)
		if sp.State == keeping {
			s.resumeKeeping(ctx, key, sp)
			continue
		}
		if sp.State != "" {
			if err := s.drop(ctx, key); err != nil {
				s.Log.Error("cannot remove a workspace yet; trying again later", "workspace", sp.Name, "owner", sp.Owner, "error", err)
			}
			continue
		}
		s.resume(ctx, key, sp)
		s.Ledger.Resume(sp.Owner, key, s.reading(key, &sp.WorkspaceRecord))
	}
	for name := range seen { // they may have been removed on purpose
		s.Log.Error("files of a workspace without a record stay as they are", "path", filepath.Join(s.place, name))
	}
	return nil
}

func (s *Workspaces) read(name string) (*workspace, error) {
	sp := &workspace{users: map[string]string{}}
	if err := durable.ReadJSON(s.dir, name, &sp.WorkspaceRecord); err != nil {
		return nil, fmt.Errorf("workspaces: %s: %w", filepath.Join(s.dir.Name(), name), err)
	}
	if policy.ValidSpaceName("name", sp.Name) != nil || policy.SpaceKey(sp.Owner, sp.Name)+suffix != name {
		return nil, fmt.Errorf("workspaces: %s: not the record of that workspace", filepath.Join(s.dir.Name(), name))
	}
	return sp, nil
}

func (s *Workspaces) write(key string, r *WorkspaceRecord) error {
	return durable.SyncJSON(s.dir, key+suffix, r)
}

// drop removes the files of an unused workspace, and then its record.
func (s *Workspaces) drop(ctx context.Context, key string) error {
	if err := s.Boxes.ChangeSpace(ctx, &isolation.ChangeSpace{Key: key, Remove: true}); err != nil {
		return err
	}
	if err := s.dir.Remove(key + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, key)
	return nil
}

// WorkspaceRequest asks for a new workspace; a nil field takes the usual value of sessions.
type WorkspaceRequest struct {
	Name   string
	Quota  *quantity.Size
	Inodes *int
}

// Create makes a workspace of a principal within its policy; host is what this host can enforce.
func (s *Workspaces) Create(ctx context.Context, owner string, effective *policy.EffectivePolicy, host policy.Host, w WorkspaceRequest) (Workspace, error) {
	if err := policy.ValidSpaceName("name", w.Name); err != nil {
		return Workspace{}, err
	}
	cfg := s.Config()
	r := WorkspaceRecord{Name: w.Name, Owner: owner, Created: time.Now(), State: making}
	var err error
	if r.Quota, r.Inodes, err = cfg.SpaceQuota(effective, w.Quota, w.Inodes); err != nil {
		return Workspace{}, err
	}
	if r.Quota > 0 {
		if r.KeptBy, err = cfg.KeptWork(host); err != nil {
			return Workspace{}, err
		}
	}
	key := policy.SpaceKey(owner, w.Name)
	sp := &workspace{WorkspaceRecord: r, users: map[string]string{}, busy: true}
	if err := s.enter(key, sp, cfg.Sessions.MaxWorkspaces); err != nil {
		return Workspace{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err = s.make(ctx, key, r); err != nil {
		err = errors.Join(err, s.drop(ctx, key))
		s.mu.Lock()
		sp.busy = false // so that a failed drop can be retried with Remove
		s.mu.Unlock()
		return Workspace{}, failed(w.Name, err)
	}
	s.Ledger.Resume(owner, key, s.reading(key, &sp.WorkspaceRecord)) // before it can be removed, which stops the count
	s.mu.Lock()
	sp.busy, sp.State = false, ""
	info := s.infoLocked(sp)
	s.mu.Unlock()
	return s.used(info), nil
}

// enter claims a name.
func (s *Workspaces) enter(key string, sp *workspace, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] != nil {
		f := fault.Errorf(fault.Conflict, "you already have a workspace %s", fault.Show(sp.Name)).WithHint("use that one, remove it, or choose another name")
		if s.all[key].State == unread {
			f = fault.Errorf(fault.Conflict, "workspace %s exists, and its record cannot be read", fault.Show(sp.Name)).WithHint("choose another name; the reason is in the log of boxd: journalctl -u boxd")
		}
		f.Field, f.Value = "name", sp.Name
		return f
	}
	n := 0
	for _, o := range s.all {
		if o.Owner == sp.Owner {
			n++
		}
	}
	if n >= limit {
		return fault.Errorf(fault.Exhausted, "you have %d of %d workspaces (sessions.max_workspaces)", n, limit).WithHint("remove one: boxctl workspaces rm NAME").
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max_workspaces", Used: strconv.Itoa(n), Allowed: strconv.Itoa(limit), Setting: "a larger sessions.max_workspaces"})
	}
	s.all[key] = sp
	return nil
}

func (s *Workspaces) make(ctx context.Context, key string, r WorkspaceRecord) error {
	err := s.write(key, &r)
	if err == nil {
		err = s.Boxes.ChangeSpace(ctx, &isolation.ChangeSpace{Key: key, Quota: quotaOf(&r)})
	}
	if err == nil {
		r.State = ""
		err = s.write(key, &r)
	}
	return err
}

// quotaOf returns the quota for the kernel to enforce.
func quotaOf(r *WorkspaceRecord) isolation.Quota {
	if r.KeptBy == "" || r.KeptBy == policy.MechanismNone {
		return isolation.Quota{}
	}
	return isolation.Quota{Bytes: uint64(r.Quota), Inodes: uint64(r.Inodes)}
}

// workspaceNotFound returns the error for a workspace that does not exist, or is another principal's.
func workspaceNotFound(field, name string) error {
	f := fault.Errorf(fault.NotFound, "no workspace %s", fault.Show(name)).WithHint("list your workspaces: boxctl workspaces ls")
	f.Field, f.Value = field, name
	return f
}

// findLocked finds a complete workspace.
func (s *Workspaces) findLocked(field, owner, name string) (*workspace, error) {
	sp := s.all[policy.SpaceKey(owner, name)]
	if sp == nil || sp.State != "" {
		return nil, workspaceNotFound(field, name)
	}
	return sp, nil
}

// Get describes a workspace.
func (s *Workspaces) Get(owner, name string) (Workspace, error) {
	s.mu.Lock()
	sp, err := s.findLocked("name", owner, name)
	if err != nil {
		s.mu.Unlock()
		return Workspace{}, err
	}
	info := s.infoLocked(sp)
	s.mu.Unlock()
	return s.used(info), nil
}

// List describes the workspaces of a principal, by name.
func (s *Workspaces) List(owner string) []Workspace {
	s.mu.Lock()
	list := []Workspace{}
	for _, sp := range s.all {
		if sp.Owner == owner && sp.State == "" {
			list = append(list, s.infoLocked(sp))
		}
	}
	s.mu.Unlock()
	for i := range list {
		list[i] = s.used(list[i])
	}
	slices.SortFunc(list, func(a, b Workspace) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (s *Workspaces) infoLocked(sp *workspace) Workspace {
	return Workspace{WorkspaceRecord: sp.WorkspaceRecord, Sessions: slices.Sorted(maps.Values(sp.users))}
}

// used adds the disk usage, which it asks the disk for.
func (s *Workspaces) used(i Workspace) Workspace {
	i.Used = s.disk(policy.SpaceKey(i.Owner, i.Name), &i.WorkspaceRecord)
	return i
}

// Disk returns the disk usage of a principal's workspace, nil if it is not counted.
func (s *Workspaces) Disk(owner, name string) *isolation.Disk {
	key := policy.SpaceKey(owner, name)
	s.mu.Lock()
	sp := s.all[key]
	if sp == nil {
		s.mu.Unlock()
		return nil
	}
	r := sp.WorkspaceRecord // which Change replaces
	s.mu.Unlock()
	return s.disk(key, &r) // asks the disk, which may take time
}

// disk returns a workspace's disk usage, nil if it is not counted.
func (s *Workspaces) disk(key string, r *WorkspaceRecord) *isolation.Disk {
	if quotaOf(r) == (isolation.Quota{}) {
		return nil
	}
	// statfs on a directory with a project reports that project's usage (statfs(2), quotas of ext4 and xfs).
	var at unix.Statfs_t
	if unix.Statfs(filepath.Join(s.place, key), &at) != nil {
		return nil
	}
	return new(isolation.DiskOf(&at))
}

// Remove removes a workspace that no session uses, with its files.
func (s *Workspaces) Remove(ctx context.Context, owner, name string) error {
	key := policy.SpaceKey(owner, name)
	s.mu.Lock()
	sp := s.all[key]
	err := error(nil)
	was := WorkspaceRecord{}
	switch {
	case sp == nil || sp.busy && sp.State != "":
		err = workspaceNotFound("name", name)
	case sp.busy:
		err = busyNow(name)
	case len(sp.users) > 0:
		f := fault.Errorf(fault.Conflict, "workspace %s is in use by %s", fault.Show(name), users(sp)).WithHint("end those sessions first")
		f.Field, f.Value = "name", name
		err = f
	default:
		was = sp.WorkspaceRecord
		sp.busy, sp.State = true, removing // no session gets it from here on
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	r := sp.WorkspaceRecord
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err = s.write(key, &r); err == nil {
		err = s.drop(ctx, key)
	} else {
		_ = s.write(key, &was) // it may have been replaced before something failed
		r.State = was.State    // this call has removed nothing
	}
	if err != nil {
		s.mu.Lock()
		sp.busy, sp.State = false, r.State // it can be retried; the next boxd does
		s.mu.Unlock()
		return failed(name, err)
	}
	s.Ledger.Stop(key, quota.Reading{Space: true})
	return nil
}
