// SPDX-License-Identifier: Apache-2.0

// A session's record on disk: enough for the next boxd to restore it or to clean up after it, and for a person to
// see what was running.

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Record is one session that is to live: it is written before anybody hears of the session, and its end
// begins with the end of the record. No value of its environment is in it, unless it is stopped.
type Record struct {
	ID       string                      `json:"id"`
	Key      string                      `json:"key"`
	Owner    RecordOwner                 `json:"owner"`
	Created  time.Time                   `json:"created"`
	Settings policy.Settings             `json:"settings"`
	Enforced map[string]policy.Mechanism `json:"enforcement"`
	Box      string                      `json:"box,omitempty"`    // key of the box, if that was made ahead of need
	Asleep   bool                        `json:"asleep,omitempty"` // it is frozen because nobody uses it
	// OneShot says that it ends with the call that has made it, and so with the boxd that served that.
	OneShot bool `json:"one_shot,omitempty"`
	// Live are the mounts it was given while it lived.
	Live []policy.LiveMount `json:"live_mounts,omitempty"`
	// Mounting is the change of them that has begun.
	Mounting *policy.MountChange `json:"mounting,omitempty"`
	// Skills are those it has, and those it was to have.
	Skills []policy.ActiveSkill `json:"skills,omitempty"`
	// Drives are those it has, and the versions of them that its programs may use.
	Drives []policy.ActiveDrive `json:"drives,omitempty"`
	// Pushes are results of executions that are still to be taken for a bucket.
	Pushes []session.Push `json:"pushes,omitempty"`
	// Shared is where it has mounts in directories of the host, and what was made there for them.
	Shared *hostMounts `json:"shared,omitempty"`
	// Rested is how long it was stopped in all, but for now.
	Rested time.Duration `json:"rested,omitempty"`
	// Stopped says that it has no box, or is to have none, and what it is started again from.
	Stopped *session.Stopped `json:"stopped,omitempty"`
	// Again is what it is still to be given, since it was started again.
	Again *session.Again `json:"again,omitempty"`
	// Ending says that it is not taken over: its end has begun, and what is Shared is removed after its box.
	Ending bool `json:"ending,omitempty"`
}

// RecordOwner is whose session it is.
type RecordOwner struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Admin  bool     `json:"admin,omitempty"`
	Role   string   `json:"role,omitempty"` // "": an earlier boxd has written it, and Admin tells
}

// RecordOwnerOf is what a record has of a principal.
func RecordOwnerOf(p access.Principal) RecordOwner {
	return RecordOwner{Name: p.Name, UID: p.UID, GID: p.GID, Groups: p.Groups, Admin: p.Is(access.Admin), Role: p.Role.String()}
}

// Principal is who a record has. A role that nobody knows is that of a user.
func (o *RecordOwner) Principal() access.Principal {
	p := access.Principal{Name: o.Name, UID: o.UID, GID: o.GID, Groups: o.Groups, Role: access.User}
	var role access.Role
	switch err := role.UnmarshalText([]byte(o.Role)); {
	case o.Admin:
		p.Role = access.Admin
	case err == nil && role > 0 && role < access.Admin:
		p.Role = role
	}
	return p
}

// Records is the directory of all records.
type Records struct{ root *os.Root }

const suffix = ".json"

// OpenRecords opens the directory of records in a state directory, and makes it if it is not there.
func OpenRecords(state string) (*Records, error) {
	root, err := durable.Directory(filepath.Join(state, "sessions"))
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	return &Records{root}, nil
}

// Close closes the directory.
func (d *Records) Close() { d.root.Close() }

// Write puts a record into the place of the one of the same session.
func (d *Records) Write(r *Record) error { return durable.WriteJSON(d.root, r.Key+suffix, r) }

// Remove removes the record of a session; none is no error.
func (d *Records) Remove(key string) error {
	if err := d.root.Remove(key + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Keys lists the sessions that have a record. What is no record of boxd's is an error that names it.
func (d *Records) Keys() ([]string, error) {
	names, err := durable.Names(d.root)
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(names))
	for _, name := range names {
		key, ok := strings.CutSuffix(name, suffix)
		if !ok || len(key) != isolation.KeyLen {
			return nil, fmt.Errorf("record %s: not one of boxd's; remove it from %s", strconv.Quote(name), d.root.Name())
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Path is where the record of a session is.
func (d *Records) Path(key string) string { return filepath.Join(d.root.Name(), key+suffix) }

// Read reads the record of a session. The error names its file.
func (d *Records) Read(key string) (*Record, error) {
	r := &Record{}
	if err := durable.ReadJSON(d.root, key+suffix, r); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path(key), err)
	}
	if r.Key != key || policy.ValidateID(r.ID) != nil || policy.Key(r.Owner.Name, r.ID) != key || r.Created.IsZero() || r.Box != "" && !isKey(r.Box) || r.Stopped != nil && !r.Stopped.Valid() {
		return nil, fmt.Errorf("%s: not the record of that session", d.Path(key))
	}
	return r, nil
}

// BoxKey names the box of the session.
func (r *Record) BoxKey() string {
	if r.Box != "" {
		return r.Box
	}
	return r.Key
}

// isKey reports whether a text can be the key of a box.
func isKey(key string) bool {
	return len(key) == isolation.KeyLen && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
