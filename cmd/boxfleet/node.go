// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// nodeConfig is what of box.toml the agent needs.
type nodeConfig struct {
	Fleet  access.Fleet `toml:"fleet"`
	Daemon struct {
		StateDir string `toml:"state_dir"`
	} `toml:"daemon"`
	E2B struct {
		Fleet bool `toml:"fleet"`
	} `toml:"e2b"`
	LangBot struct {
		Fleet bool `toml:"fleet"`
	} `toml:"langbot"`
	IDs struct {
		Count int `toml:"count"`
	} `toml:"ids"`
}

// bootTimeout is how long the agent waits for boxd to answer.
const bootTimeout = time.Minute

func node(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("boxfleet node", flag.ContinueOnError)
	socket := flags.String("socket", client.DefaultSocket, "`path` of the socket of boxd, whose box.toml has the table [fleet]")
	state := flags.String("state", "/var/lib/boxfleet", "`directory` for the generations of this node's sessions")
	replicas := flags.Int("replicas", 0, "`copies` of JetStream buckets when they are created; 0: 3 if NATS is a cluster, otherwise 1")
	if err := parse(flags, args); err != nil {
		return err
	}
	boxd := client.New(*socket)
	defer boxd.Close()
	agent, err := configuredAgent(ctx, boxd, &agentOptions{Socket: *socket, State: *state, Replicas: *replicas, Log: log})
	if err != nil {
		return err
	}
	ready(log)
	return agent.Run(ctx)
}

// configuredAgent makes an agent with what boxd has in its configuration.
func configuredAgent(ctx context.Context, boxd *client.Client, c *agentOptions) (*agent, error) {
	cfg, err := askBoxd(ctx, boxd, c.Log)
	if err != nil {
		return nil, err
	}
	c.Fleet, c.Disk, c.IDRanges, c.E2B, c.LangBot = cfg.Fleet, cfg.Daemon.StateDir, cfg.IDs.Count, cfg.E2B.Fleet, cfg.LangBot.Fleet
	if c.Fleet.Socket == "" { // boxd says nothing of the socket that systemd holds for it
		c.Fleet.Socket = filepath.Join(filepath.Dir(c.Socket), "fleet.sock")
	}
	c.Ask = func(ctx context.Context) (access.Fleet, error) {
		now, err := readConfig(ctx, boxd)
		if err != nil {
			return access.Fleet{}, err
		}
		return now.Fleet, nil
	}
	return newAgent(c)
}

// askBoxd asks boxd for its configuration, until it answers: so there is one reader of box.toml, its drop-ins and its variables.
func askBoxd(ctx context.Context, boxd *client.Client, log *slog.Logger) (*nodeConfig, error) {
	for end := time.Now().Add(bootTimeout); ; {
		cfg, err := readConfig(ctx, boxd)
		if err == nil {
			return cfg, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("ask boxd for its configuration: %w", err)
		}
		log.Warn("cannot read the configuration of boxd; trying again", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// readConfig asks boxd once.
func readConfig(ctx context.Context, boxd *client.Client) (*nodeConfig, error) {
	answer, err := boxd.Configuration(ctx)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, s := range answer.Settings {
		if strings.HasPrefix(s.Key, "fleet.") || s.Key == "daemon.state_dir" || s.Key == "e2b.fleet" || s.Key == "langbot.fleet" || s.Key == "ids.count" {
			fmt.Fprintf(&text, "%s = %s\n", s.Key, s.Value)
		}
	}
	cfg := &nodeConfig{}
	if _, err := toml.Decode(text.String(), cfg); err != nil {
		return nil, fmt.Errorf("the configuration of boxd: %w", err)
	}
	return cfg, nil
}
