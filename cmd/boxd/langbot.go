// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/relay/actionrpc"
	"github.com/boxd-dev/boxd/supervisor"
)

// openLangBot opens the socket for LangBot, unless the service manager holds one, and reads LangBot's token.
func (w *front) openLangBot(ctx context.Context, cfg *Config, log *slog.Logger) error {
	c := cfg.LangBot
	if !c.On(len(w.sockets.LangBot) > 0) {
		return nil
	}
	var err error
	if len(w.sockets.LangBot) == 0 && c.Listen != "" {
		if w.sockets.LangBot, err = listenTCP(ctx, "langbot.listen", c.Listen, "enable boxd-langbot.socket instead, and leave langbot.listen out"); err != nil {
			return err
		}
	}
	for _, ln := range w.sockets.LangBot {
		if err := c.Closed(ln.Addr().String()); err != nil {
			return err
		}
	}
	if w.token, err = c.ReadToken(); err != nil {
		return err
	}
	if _, ok := w.gate.Named(c.Principal); !ok {
		return fmt.Errorf("langbot.principal = %q: there is no table [principals.%s]", c.Principal, c.Principal)
	}
	for _, what := range w.waived(cfg) {
		log.Warn("sessions of LangBot lack a protection", "detail", what)
	}
	address := ""
	if len(w.sockets.LangBot) > 0 {
		address = w.sockets.LangBot[0].Addr().String()
	}
	log.Info("boxd serves LangBot", "address", address, "token_needed", w.token != "", "principal", c.Principal, "gateways", c.Fleet)
	return nil
}

// waived returns what the operator has waived for LangBot's sessions.
func (w *front) waived(cfg *Config) []string {
	if !cfg.LangBot.AllowSoftStorage || !cfg.LangBot.On(len(w.sockets.LangBot) > 0) {
		return nil
	}
	return []string{"langbot.allow_soft_storage_limits = true: the kernel does not limit the storage of LangBot's workspaces and skills; one of them can fill the disk"}
}

// makeLangBot makes the server for LangBot, if it is enabled. gateways is its handler for requests on the socket of gateways, nil if
// langbot.fleet is false.
func (w *front) makeLangBot(cfg *Config, seen *notes, sup *supervisor.Supervisor) (gateways http.Handler) {
	if !cfg.LangBot.On(len(w.sockets.LangBot) > 0) {
		return nil
	}
	w.langBot = actionrpc.New(actionrpc.Config{Settings: cfg.LangBot, Telemetry: seen.Telemetry, Token: w.token, Gate: w.gate, Sup: sup, Skills: w.skills, Log: seen.log, Marker: actionrpc.Marker(filepath.Join(cfg.Daemon.StateDir, statedir.Daemon, actionrpc.MarkerFile)), Taken: filepath.Join(cfg.Daemon.StateDir, statedir.Daemon, "langbot-skills-taken")})
	if !cfg.LangBot.Fleet {
		return nil
	}
	return http.HandlerFunc(w.langBot.ServeGateway)
}

// serveLangBot serves LangBot until ctx ends or stop is called, which waits for the end. If it fails, boxd continues without
// it.
func (w *front) serveLangBot(ctx context.Context, seen *notes) (stop func()) {
	if w.langBot == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := w.langBot.Serve(ctx, w.sockets.LangBot...); err != nil {
			seen.log.Error("LangBot is no longer served", "error", err)
		}
	})
	return func() {
		cancel()
		servers.Wait()
	}
}
