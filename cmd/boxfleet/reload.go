// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"reflect"

	"github.com/boxd-dev/boxd/supervisor/access"
)

// reloader puts a changed configuration of a gateway in force: its callers, their tokens, the lists of revoked certificates and
// the key. Certificates are read again by themselves.
type reloader struct {
	path    string
	started *gatewayConfig
	gate    *access.Gate
	gateway *gateway
	log     *slog.Logger
}

// run reads the configuration again whenever it is told to, until ctx ends.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		if err := r.reload(); err != nil {
			r.log.Error("the configuration is invalid; keeping the old one", "error", err)
			continue
		}
		r.log.Info("the configuration is in force", "file", r.path)
	}
}

// reload is all or nothing.
func (r *reloader) reload() error {
	next, err := readGateway(r.path)
	if err != nil {
		return err
	}
	key, err := readKey(next.Gateway.Key)
	if err != nil {
		return err
	}
	state, err := prepareGate(next, r.log)
	if err != nil {
		return err
	}
	r.gateway.useKey(key)
	r.gate.Use(state)
	was, is := r.started.Gateway, next.Gateway
	was.Key, was.ClientCRL = is.Key, is.ClientCRL
	if was != is || !reflect.DeepEqual(r.started.NATS, next.NATS) || r.started.Traces != next.Traces || r.started.E2B != next.E2B || r.started.LangBot != next.LangBot || r.started.Snapshots != next.Snapshots || r.started.Images != next.Images || r.started.Skills != next.Skills || r.started.Drives != next.Drives || r.started.Outputs != next.Outputs {
		r.log.Warn("changed keys of tables other than [access] and [principals] take effect when boxfleet is restarted")
	}
	return nil
}
