// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/images"
)

// gateConfig returns the gate's configuration. Whether a token is needed is fixed at startup, with the socket.
func gateConfig(c *Config, started *Daemon) *access.GateConfig {
	return &access.GateConfig{Access: c.Access, Principals: c.Principals, Open: started.HTTPInsecure, Fleet: c.Fleet, Revoked: started.ClientCRL}
}

// openGate makes the gate; the directory is where it stores grants.
func openGate(cfg *Config, log *slog.Logger) (*access.Gate, *os.Root, error) {
	state, err := prepareGate(cfg, &cfg.Daemon, access.Credentials(), log)
	if err == nil {
		err = resolvePolicies(cfg, state, func(err error) error {
			log.Warn("a policy has unknown users", "error", err)
			return nil
		})
	}
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.OpenRoot(filepath.Join(cfg.Daemon.StateDir, statedir.Daemon))
	if err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	store, err := access.OpenGrants(dir, time.Now)
	if err != nil { // then there are no temporary roles
		log.Error("all grants are lost: their record is damaged", "error", err)
	}
	return access.NewGate(state, store, log), dir, nil
}

func prepareGate(cfg *Config, started *Daemon, credentials string, log *slog.Logger) (*access.State, error) {
	state, err := access.Prepare(gateConfig(cfg, started), access.LookupHost(), credentials)
	if err != nil {
		return nil, err
	}
	for _, line := range state.Loud {
		log.Warn("access control needs attention", "detail", line)
	}
	return state, nil
}

// resolvePolicies resolves the users and groups of policies. A policy whose users do not exist is refused when a
// configuration is checked or reloaded. At startup it is only logged: a removed account must not keep boxd from serving
// all others.
func resolvePolicies(cfg *Config, state *access.State, noMatch func(error) error) error {
	none, err := cfg.ResolvePrincipals(state.Person)
	if none != nil {
		err = errors.Join(err, noMatch(none))
	}
	return err
}

// matchesNobody returns an error for rules about users and groups that this host does not have: an error when a
// configuration is checked, and a warning when boxd starts.
func matchesNobody(state *access.State) (err error) {
	for _, line := range state.Loud {
		if strings.HasPrefix(line, "principals.") {
			err = errors.Join(err, errors.New(line))
		}
	}
	return err
}

// refuse is for resolvePolicies where a policy without users is an error.
func refuse(err error) error { return err }

// applyTo returns a function that applies a configuration: all of it or nothing.
func applyTo(sup *supervisor.Supervisor, gate *access.Gate, started *Config, log *slog.Logger) func(*Config) error {
	return func(next *Config) error {
		tellIdle(next, log)
		state, err := prepareGate(next, &started.Daemon, access.Credentials(), log)
		if err == nil {
			err = resolvePolicies(next, state, refuse)
		}
		if err == nil {
			err = sup.SetConfig(next.Config)
		}
		if err == nil {
			gate.Use(state)
			sup.Revoke(gate.IsOut)
		}
		return err
	}
}

// tellIdle logs settings that have no effect.
func tellIdle(cfg *Config, log *slog.Logger) {
	for _, line := range cfg.idle() {
		log.Warn("a setting has no effect", "detail", line)
	}
}

// sweep removes data of an earlier boxd from the stores of skills, drives and images that is no longer used.
func sweep(ctx context.Context, in *front, imgs *images.Store, log *slog.Logger) {
	if err := in.skills.Sweep(); err != nil {
		log.Warn("cannot remove unused skills", "error", err)
	}
	if err := in.drives.Sweep(); err != nil {
		log.Warn("cannot remove unused drives", "error", err)
	}
	if err := imgs.Sweep(ctx); err != nil {
		log.Warn("cannot remove unused images", "error", err)
	}
}
