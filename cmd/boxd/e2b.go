// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/e2b"

	"github.com/boxd-dev/boxd/supervisor"
)

// openE2B opens the socket for E2B clients, unless the service manager holds one.
func (w *front) openE2B(ctx context.Context, cfg *Config, log *slog.Logger) error {
	c := cfg.E2B
	if !c.On(len(w.sockets.E2B) > 0) {
		return nil
	}
	var err error
	if len(w.sockets.E2B) == 0 && c.Listen != "" {
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
	address := ""
	if len(w.sockets.E2B) > 0 {
		address = w.sockets.E2B[0].Addr().String()
	}
	log.Info("boxd serves E2B's protocol", "address", address, "tls", c.TLSListen, "gateways", c.Fleet)
	return nil
}

// checks returns doctor's checks of the front.
func (w *front) checks(cfg *Config) (list []isolation.Check) {
	if cfg.Confined {
		list = append(list, checkConfined())
	}
	if public := cfg.E2B.Public(); public != "" && cfg.E2B.On(len(w.sockets.E2B) > 0) {
		list = append(list, isolation.Check{
			Name: "e2b ports", Level: isolation.CheckWarn, Detail: public + " need no token, only the id of the sandbox",
			Hint: "set e2b.public_ports = false in box.toml, unless this is wanted",
		})
	}
	return list
}

// makeE2B makes the server for E2B clients, if it is enabled. gateways is its handler for requests on the socket of
// gateways, nil if e2b.fleet is false.
func (w *front) makeE2B(cfg *Config, seen *notes, sup *supervisor.Supervisor) (gateways http.Handler) {
	if !cfg.E2B.On(len(w.sockets.E2B) > 0) {
		return nil
	}
	settings := cfg.E2B
	for _, ln := range w.sockets.E2B {
		if !settings.ByTLS(ln) {
			settings.Listen = ln.Addr().String()
		}
	}
	w.sandbox = e2b.New(e2b.Config{Settings: settings, Telemetry: seen.Telemetry, Gate: w.gate, Tokens: w.previews, Sup: sup, Log: seen.log, TLS: w.tls})
	if !settings.Fleet {
		return nil
	}
	return http.HandlerFunc(w.sandbox.ServeGateway)
}

// serveE2B serves E2B clients until ctx ends or stop is called, which waits for the end. If it fails, boxd continues without it.
func (w *front) serveE2B(ctx context.Context, seen *notes) (stop func()) {
	if w.sandbox == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := w.sandbox.Serve(ctx, w.sockets.E2B...); err != nil {
			seen.log.Error("E2B's protocol is no longer served", "error", err)
		}
	})
	return func() {
		cancel()
		servers.Wait()
	}
}
