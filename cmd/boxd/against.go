// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// running is what a running boxd has reported: its configuration and all its sessions.
type running struct {
	Settings []api.Setting     `json:"settings"`
	Sessions []json.RawMessage `json:"sessions"`
}

// againstFile is against for a file, with its output on standard output.
func againstFile(cfg *Config, state *access.State, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return against(cfg, state, f, os.Stdout)
}

// against writes to out what a configuration would change for a running boxd, and take away from owners of sessions there.
func against(cfg *Config, state *access.State, in io.Reader, out io.Writer) error {
	var now running
	if err := json.NewDecoder(in).Decode(&now); err != nil {
		return fmt.Errorf("what runs: %w", err)
	}
	next, err := cfg.Values()
	if err != nil {
		return err
	}
	lines := changed(now.Settings, next)
	removed, err := lostAccess(cfg, state, now.Sessions)
	for _, line := range append(lines, removed...) {
		if _, werr := fmt.Fprintln(out, line); werr != nil {
			return errors.Join(err, werr)
		}
	}
	return err
}

func changed(was []api.Setting, is []ConfigValue) (lines []string) {
	values := map[string]string{}
	for _, s := range was {
		values[s.Key] = s.Value
	}
	for _, v := range is {
		switch old, ok := values[v.Key]; {
		case !ok:
			lines = append(lines, fmt.Sprintf("new: %s = %s", v.Key, v.Text))
		case old != v.Text:
			lines = append(lines, fmt.Sprintf("changed: %s = %s, was %s", v.Key, v.Text, old))
		}
		delete(values, v.Key)
	}
	for _, s := range was {
		if _, stays := values[s.Key]; stays {
			lines = append(lines, fmt.Sprintf("gone: %s = %s", s.Key, s.Value))
		}
	}
	return lines
}

// lostAccess returns which owners a reload would shut out or rename, and which sessions would end when boxd restarts.
func lostAccess(cfg *Config, state *access.State, sessions []json.RawMessage) (lines []string, err error) {
	var seen []string
	for _, text := range sessions {
		var s api.Session
		var settings policy.Settings
		if err := errors.Join(json.Unmarshal(text, &s), json.Unmarshal(text, &settings)); err != nil {
			return lines, fmt.Errorf("what runs: %w", err)
		}
		settings.Workspace, settings.EnvNames = s.WorkspaceName, nil
		if !slices.Contains(seen, s.Owner) {
			seen = append(seen, s.Owner)
			lines = append(lines, ofOwner(state, principal(&s))...)
		}
		by := map[string]policy.Mechanism{}
		for limit, m := range s.Enforcement {
			by[limit] = policy.Mechanism(m)
		}
		if _, err := cfg.Recheck(&settings, by); err != nil {
			lines = append(lines, fmt.Sprintf("ends when boxd restarts: session %q of %s: %v", s.ID, s.Owner, err))
		}
	}
	return lines, nil
}

// ofOwner returns what happens to the owner of a session.
func ofOwner(state *access.State, who access.Principal) (lines []string) {
	if state.IsOut(who) {
		lines = append(lines, fmt.Sprintf("loses access: %s; processes end", who.Name))
	}
	if name, ok := state.Renamed(who); ok {
		lines = append(lines, fmt.Sprintf("renamed: %s becomes %s and loses access to the sessions, workspaces, drives and skills of %s, which only administrators reach", who.Name, name, who.Name))
	}
	return lines
}

// principal returns the owner of a session, with the groups that the user has on this host.
func principal(s *api.Session) access.Principal {
	p := access.Principal{Name: s.Owner, UID: s.OwnerUID}
	u, err := user.LookupId(strconv.FormatUint(uint64(s.OwnerUID), 10))
	if err != nil {
		return p
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err == nil {
		p.GID = uint32(gid)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return p
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			p.Groups = append(p.Groups, uint32(n))
		}
	}
	return p
}
