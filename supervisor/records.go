// SPDX-License-Identifier: Apache-2.0

// A session's record on disk lets the next boxd restore the session or clean up after it, and an administrator see what was
// running.

package supervisor

import (
	"bytes"
	"encoding/json"
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

// Record describes a session that must survive boxd: it is written before any caller learns of the session, and ending it
// begins with removing or marking the record. It has values of the environment only while the session is stopped or is being
// started again.
type Record struct {
	ID       string                      `json:"id"`
	Key      string                      `json:"key"`
	Owner    RecordOwner                 `json:"owner"`
	Created  time.Time                   `json:"created"`
	Settings policy.Settings             `json:"settings"`
	Enforced map[string]policy.Mechanism `json:"enforcement"`
	Box      string                      `json:"box,omitempty"`    // key of the box, if that came from the pool
	Asleep   bool                        `json:"asleep,omitempty"` // frozen because it is idle
	// OneShot says that it ends with the call that created it, and so with the boxd that served that call.
	OneShot bool `json:"one_shot,omitempty"`
	// Live are the mounts added while it lived.
	Live []policy.LiveMount `json:"live_mounts,omitempty"`
	// Mounting is the change of Live that has begun.
	Mounting *policy.MountChange `json:"mounting,omitempty"`
	// Skills are those it has, and the missing ones it should have.
	Skills []policy.ActiveSkill `json:"skills,omitempty"`
	// Drives are those it has, and the versions of them that its programs may still use.
	Drives []policy.ActiveDrive `json:"drives,omitempty"`
	// Pushes are results of executions that are yet to be copied for a bucket.
	Pushes []session.Push `json:"pushes,omitempty"`
	// Shared lists its mounts in host directories, and what was created there for them.
	Shared *hostMounts `json:"shared,omitempty"`
	// Rested is how long it was stopped in all, not counting the present stop.
	Rested time.Duration `json:"rested,omitempty"`
	// Stopped says that it has no box, or is about to lose it, and what it will be started from.
	Stopped *session.Stopped `json:"stopped,omitempty"`
	// Again is what it is yet to be given after it was started again.
	Again *session.Again `json:"again,omitempty"`
	// Ending says that it must not be adopted: its end has begun, and what is Shared is removed after its box.
	Ending bool `json:"ending,omitempty"`
}

// RecordOwner is the owner of a session.
type RecordOwner struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Admin  bool     `json:"admin,omitempty"`
	Role   string   `json:"role,omitempty"` // "": written by an earlier boxd, where Admin decides
}

// RecordOwnerOf converts a principal for a record.
func RecordOwnerOf(p access.Principal) RecordOwner {
	return RecordOwner{Name: p.Name, UID: p.UID, GID: p.GID, Groups: p.Groups, Admin: p.Is(access.Admin), Role: p.Role.String()}
}

// Principal returns the owner as a principal. An unknown role becomes that of a user.
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

// OpenRecords opens the directory of records in a state directory, and creates it if needed.
func OpenRecords(state string) (*Records, error) {
	root, err := durable.Directory(filepath.Join(state, "sessions"))
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	return &Records{root}, nil
}

// Close closes the directory.
func (d *Records) Close() { d.root.Close() }

// Write replaces the record of a session. That of a stopped one is on disk then: after a loss of power nothing else says that its
// files, which may be on another filesystem, are to be kept.
func (d *Records) Write(r *Record) error {
	r = r.inText()
	if r.Stopped == nil {
		return durable.WriteJSON(d.root, r.Key+suffix, r)
	}
	// A boxd that starts writes those of all stopped sessions again, mostly as they are.
	was, err := d.root.ReadFile(r.Key + suffix)
	if err == nil {
		if data, err := json.Marshal(r); err == nil && bytes.Equal(bytes.TrimSpace(was), data) {
			return nil
		}
	}
	return durable.SyncJSON(d.root, r.Key+suffix, r)
}

// Remove removes the record of a session; a missing one is no error.
func (d *Records) Remove(key string) error {
	if err := d.root.Remove(key + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Keys lists the sessions that have a record. A foreign file is an error that names it.
func (d *Records) Keys() ([]string, error) {
	names, err := durable.Recover(d.root)
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

// Path is the path of a session's record.
func (d *Records) Path(key string) string { return filepath.Join(d.root.Name(), key+suffix) }

// Read reads the record of a session. The error names its file.
func (d *Records) Read(key string) (*Record, error) {
	r := &Record{}
	if err := durable.ReadJSON(d.root, key+suffix, r); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path(key), err)
	}
	r.paths(fromText)
	if r.Key != key || policy.ValidateID(r.ID) != nil || policy.Key(r.Owner.Name, r.ID) != key || r.Created.IsZero() || r.Box != "" && !isKey(r.Box) || r.Stopped != nil && !r.Stopped.Valid() {
		return nil, fmt.Errorf("%s: not the record of that session", d.Path(key))
	}
	return r, nil
}

// boxKey is the key of the session's box.
func (r *Record) boxKey() string {
	if r.Box != "" {
		return r.Box
	}
	return r.Key
}

// isKey reports whether a text can be a box key.
func isKey(key string) bool {
	return len(key) == isolation.KeyLen && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
