// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/actionrpc"

	"github.com/boxd-dev/boxd/supervisor"
)

// openLangBot opens the socket for LangBot, unless the service manager holds one, and reads the token it shows.
func (w *front) openLangBot(ctx context.Context, cfg *Config, log *slog.Logger) error {
	c := cfg.LangBot
	if !c.On(len(w.bots) > 0) {
		return nil
	}
	if len(w.bots) == 0 {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: the unit of boxd may not open it; enable boxd-langbot.socket instead, and leave langbot.listen out", err)
		}
		if err != nil {
			return fmt.Errorf("langbot.listen: %w", err)
		}
		w.bots = append(w.bots, ln)
	}
	for _, ln := range w.bots {
		if err := c.Closed(ln.Addr().String()); err != nil {
			return err
		}
	}
	var err error
	if w.token, err = c.ReadToken(); err != nil {
		return err
	}
	if _, ok := w.gate.Named(c.Principal); !ok {
		return fmt.Errorf("langbot.principal = %q: there is no table [principals.%s]", c.Principal, c.Principal)
	}
	for _, what := range w.waived(cfg) {
		log.Warn(what)
	}
	log.Info("boxd serves LangBot", "address", w.bots[0].Addr().String(), "token_needed", w.token != "", "principal", c.Principal)
	return nil
}

// waived is what the operator has LangBot's sessions do without.
func (w *front) waived(cfg *Config) []string {
	if !cfg.LangBot.AllowSoftStorage || !cfg.LangBot.On(len(w.bots) > 0) {
		return nil
	}
	return []string{"langbot.allow_soft_storage_limits = true: the kernel does not limit the storage of LangBot's workspaces and skills; one of them can fill the disk"}
}

// langBot serves LangBot until ctx ends or stop is called, which waits for that. boxd goes on without it, should it
// fail.
func (w *front) langBot(ctx context.Context, cfg *Config, seen *notes, sup *supervisor.Supervisor) (stop func()) {
	if len(w.bots) == 0 {
		return func() {}
	}
	server := actionrpc.New(actionrpc.Config{Settings: cfg.LangBot, Telemetry: seen.Telemetry, Token: w.token, Gate: w.gate, Sup: sup, Skills: w.skills, Log: seen.log, Marker: actionrpc.Marker(filepath.Join(cfg.Daemon.StateDir, actionrpc.MarkerFile)), Taken: filepath.Join(cfg.Daemon.StateDir, "langbot-skills-taken")})
	ctx, end := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, w.bots...); err != nil {
			seen.log.Error("LangBot is no longer served", "error", err)
		}
	})
	return func() {
		end()
		serving.Wait()
	}
}
