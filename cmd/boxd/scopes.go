// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/systemd"
)

// scopesSocket is the name of boxd-scopes.socket's socket in the runtime directory.
const scopesSocket = "scopes.sock"

// openScopes returns how to reach the maker of scopes: by the socket of its unit, as boxd.service has no access to the
// service manager, or, if boxd also starts its keeper, a part of this process.
func openScopes(ctx context.Context, cfg *Config, program func() string, log *slog.Logger) (dial driver.DialScopes, shutdown func()) {
	if cfg.Daemon.Keeper == keeperExternal {
		path := filepath.Join(cfg.Daemon.RuntimeDir, scopesSocket)
		return driver.DialUnit(path), func() {}
	}
	baseCtx, stop := context.WithCancel(context.WithoutCancel(ctx)) // boxes end after ctx
	server := &driver.ScopeServer{Scopes: systemd.NewScopes(baseCtx), Program: program, Log: log}
	var wg sync.WaitGroup
	dial = func(context.Context) (*fdpass.Conn, error) {
		conn, far, err := fdpass.Pair(fdpass.MaxInline)
		if err == nil {
			wg.Go(func() { server.ServeConn(baseCtx, far) })
		}
		return conn, err
	}
	return dial, func() {
		server.Scopes.Close()
		stop()
		wg.Wait()
	}
}
