// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// The agent gets its settings from boxd, and if systemd owns boxd's socket for gateways that is next to the one for callers.
func TestTheAgentGetsItsSettingsFromBoxd(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{"": "fleet.sock", "/elsewhere": "/elsewhere"} {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/config" {
				http.NotFound(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(api.Configuration{Settings: []api.Setting{
				{Key: "fleet.socket", Value: `"` + set + `"`},
				{Key: "fleet.servers", Value: `["nats://127.0.0.1:1"]`},
				{Key: "fleet.name", Value: `"a"`},
				{Key: "fleet.labels.zone", Value: `"west"`},
				{Key: "ids.base", Value: "65536"},
				{Key: "ids.count", Value: "12"},
				{Key: "daemon.state_dir", Value: `"/state"`},
				{Key: "log.level", Value: `"info"`},
			}})
		})}
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(ln) }) // until it is closed
		cfg := agentOptions{Socket: socket, State: filepath.Join(t.TempDir(), "state"), Log: slog.New(slog.DiscardHandler)}
		boxd := client.New(socket)
		if _, err := configuredAgent(t.Context(), boxd, &cfg); err != nil {
			t.Fatal(err)
		}
		boxd.Close()
		if set == "" {
			want = filepath.Join(filepath.Dir(socket), want)
		}
		if cfg.Fleet.Socket != want || !slices.Equal(cfg.Fleet.Servers, []string{"nats://127.0.0.1:1"}) || cfg.Fleet.Labels["zone"] != "west" || cfg.IDRanges != 12 || cfg.Disk != "/state" {
			t.Errorf("cfg = %+v", cfg)
		}
		_ = server.Close() // it ends with the test
		served.Wait()
	}
}
