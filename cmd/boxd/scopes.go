// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/systemd"
)

// scopesSocket is the name of boxd-scopes.socket's socket in the runtime directory.
const scopesSocket = "scopes.sock"

// firstPassed is the descriptor of the only socket that systemd passes (sd_listen_fds(3)).
const firstPassed = 3

// openScopes returns how to reach the maker of scopes: by the socket of its unit, as boxd.service has no access to the
// service manager, or, if boxd also starts its keeper, a part of this process.
func openScopes(ctx context.Context, cfg *Config, program func() string, log *slog.Logger) (dial driver.DialScopes, end func()) {
	if cfg.Daemon.Keeper == keeperExternal {
		path := filepath.Join(cfg.Daemon.RuntimeDir, scopesSocket)
		return driver.DialUnit(path), func() {}
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx)) // boxes end after ctx
	server := &driver.ScopeServer{Scopes: systemd.NewScopes(life), Program: program, Log: log}
	var all sync.WaitGroup
	dial = func(context.Context) (*fdpass.Conn, error) {
		conn, far, err := fdpass.Pair(fdpass.MaxInline)
		if err == nil {
			all.Go(func() { server.ServeConn(life, far) })
		}
		return conn, err
	}
	return dial, func() {
		server.Scopes.Close()
		stop()
		all.Wait()
	}
}

// serveScopes makes scopes for boxd.service, until ctx ends: it is boxd-scopes.service.
func serveScopes(ctx context.Context) error {
	if listens, err := unix.GetsockoptInt(firstPassed, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
		return fmt.Errorf("descriptor %d is not the socket of boxd-scopes.socket: systemd starts boxd -scopes", firstPassed)
	}
	unix.CloseOnExec(firstPassed)
	listener, err := fdpass.NewListener(firstPassed)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find boxkeeper: %w", err)
	}
	scopes := systemd.NewScopes(ctx)
	defer scopes.Close()
	keeper := filepath.Join(filepath.Dir(own), "boxkeeper")
	log := slog.New(systemd.Open(systemd.DefaultConfig(), os.Stderr))
	return (&driver.ScopeServer{Scopes: scopes, Program: func() string { return keeper }, Log: log}).Serve(ctx, listener)
}
