// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/e2b"

	"github.com/boxd-dev/boxd/supervisor"
)

// openE2B opens the socket for clients of E2B, unless the service manager holds one.
func (w *front) openE2B(ctx context.Context, cfg *Config, log *slog.Logger) error {
	c := cfg.E2B
	if !c.On(len(w.sockets.E2B) > 0) {
		return nil
	}
	var err error
	if len(w.sockets.E2B) == 0 {
		if w.sockets.E2B, err = listenTCP(ctx, "e2b.listen", c.Listen, "enable boxd-e2b.socket instead, and leave e2b.listen out"); err != nil {
			return err
		}
	}
	if w.tls, err = c.TLS(log); err != nil {
		return err
	}
	if w.tls != nil && !slices.ContainsFunc(w.sockets.E2B, c.ByTLS) {
		more, err := listenTCP(ctx, "e2b.tls_listen", c.TLSListen, "give boxd-e2b.socket another ListenStream="+c.TLSListen)
		if err != nil {
			return err
		}
		w.sockets.E2B = append(w.sockets.E2B, more...)
	}
	for _, ln := range w.sockets.E2B {
		if w.tls != nil && c.ByTLS(ln) {
			continue
		}
		if err := e2b.Loopback("boxd-e2b.socket: ListenStream", ln.Addr().String()); err != nil {
			return err
		}
	}
	if public := c.Public(); public != "" {
		log.Warn("ports of sandboxes need no token (e2b.public_ports)", "detail", public)
	}
	log.Info("boxd serves E2B's protocol", "address", w.sockets.E2B[0].Addr().String(), "tls", c.TLSListen)
	return nil
}

// checks are what doctor reports of what the front serves.
func (w *front) checks(cfg *Config) []isolation.Check {
	public := cfg.E2B.Public()
	if public == "" || !cfg.E2B.On(len(w.sockets.E2B) > 0) {
		return nil
	}
	return []isolation.Check{{
		Name: "e2b ports", Level: isolation.CheckWarn, Detail: public + " need no token, only the id of the sandbox",
		Hint: "set e2b.public_ports = false in box.toml, unless this is wanted",
	}}
}

// e2b serves clients of E2B until ctx ends or stop is called, which waits for that. boxd goes on without it, should it fail.
func (w *front) e2b(ctx context.Context, cfg *Config, seen *notes, sup *supervisor.Supervisor) (stop func()) {
	if len(w.sockets.E2B) == 0 {
		return func() {}
	}
	settings := cfg.E2B
	for _, ln := range w.sockets.E2B {
		if !settings.ByTLS(ln) {
			settings.Listen = ln.Addr().String()
		}
	}
	server := e2b.New(e2b.Config{Settings: settings, Telemetry: seen.Telemetry, Gate: w.gate, Tokens: w.previews, Sup: sup, Log: seen.log, TLS: w.tls})
	ctx, end := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, w.sockets.E2B...); err != nil {
			seen.log.Error("E2B's protocol is no longer served", "error", err)
		}
	})
	return func() {
		end()
		serving.Wait()
	}
}
