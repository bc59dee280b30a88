// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// gatewayConfig is fleet.toml.
type gatewayConfig struct {
	Gateway struct {
		Name        string `toml:"name"`        // of [fleet.gateways.NAME] in the box.toml of nodes
		Key         string `toml:"key"`         // file that boxfleet key has made
		Listen      string `toml:"listen"`      // address
		Certificate string `toml:"certificate"` // file (PEM); "": no TLS, on loopback alone
		PrivateKey  string `toml:"private_key"`
		ClientCA    string `toml:"client_ca"`  // file (PEM) of who signs certificates of callers; "": they show none
		ClientCRL   string `toml:"client_crl"` // file (PEM) of certificates that these have revoked; "": none
		State       string `toml:"state_dir"`
	} `toml:"gateway"`
	NATS struct {
		Servers     []string `toml:"servers"`
		Credentials string   `toml:"credentials"`
		CA          string   `toml:"ca"`
		Replicas    int      `toml:"replicas"`
	} `toml:"nats"`
	E2B struct {
		Listen string `toml:"listen"` // address; "": clients of E2B are not served
		Domain string `toml:"domain"` // sandboxes' ports are PORT-ID.DOMAIN; "": localhost with the port of Listen
	} `toml:"e2b"`
	LangBot   langBotConfig `toml:"langbot"`
	Snapshots storeSizes    `toml:"snapshots"`
	Skills    storeSizes    `toml:"skills"`
	Drives    storeSizes    `toml:"drives"`
	Outputs   storeSizes    `toml:"outputs"`
	Images    struct {
		Size quantity.Size `toml:"size"` // bytes of the archives of all; 0: none are kept
	} `toml:"images"`
	Traces     trace.Config           `toml:"traces"`
	Access     access.Config          `toml:"access"`
	Principals map[string]access.Rule `toml:"principals"`
}

// storeSizes bounds what the gateway keeps of owners.
type storeSizes struct {
	Size      quantity.Size `toml:"size"`       // bytes of the archives of all; 0: none are kept
	OwnerSize quantity.Size `toml:"owner_size"` // bytes of those of an owner; 0: as many as of all
}

// Bounds of what a caller can make the gateway hold.
const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 5 * time.Second
)

func readGateway(path string) (*gatewayConfig, error) {
	cfg := &gatewayConfig{Traces: trace.DefaultConfig(), Access: access.Config{DefaultRole: access.User, Tokens: "/etc/boxfleet/tokens"}}
	cfg.Gateway.Name, cfg.Gateway.Key, cfg.Gateway.Listen, cfg.Gateway.State = "main", defaultKey, "127.0.0.1:5440", "/var/lib/boxfleet-gateway"
	cfg.LangBot.Principal = "langbot"
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	meta, err := toml.Decode(string(text), cfg)
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return nil, fmt.Errorf("%s: line %d: %s", path, parse.Position.Line, parse.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: line %d: unknown key %q%s", path, fault.LineOf(string(text), unknown[0]...), unknown[0].String(), langBotKeys(unknown[0]))
	}
	if err := cfg.validateListen("gateway.listen", cfg.Gateway.Listen); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := cfg.validateE2B(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if key, err := cfg.validateLangBot(); err != nil {
		return nil, fmt.Errorf("%s: line %d: %w", path, fault.LineOf(string(text), "langbot", key), err)
	}
	if err := cfg.validateTLS(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if r := cfg.NATS.Replicas; r < 0 || r > 5 {
		return nil, fmt.Errorf("%s: nats.replicas = %d: must be 1 to 5, or 0: 3 if NATS is a cluster, otherwise 1", path, r)
	}
	for table, s := range map[string]storeSizes{"snapshots": cfg.Snapshots, "skills": cfg.Skills, "drives": cfg.Drives, "outputs": cfg.Outputs} {
		if s.OwnerSize > s.Size {
			return nil, fmt.Errorf("%s: %s.owner_size = %v: must be at most %s.size, %v", path, table, s.OwnerSize, table, s.Size)
		}
	}
	nats := access.Fleet{Servers: cfg.NATS.Servers, Credentials: cfg.NATS.Credentials, CA: cfg.NATS.CA}
	if err := errors.Join(nats.Validate(), cfg.Traces.Validate(), access.ValidateRules(cfg.Access, cfg.Principals)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

// validateListen looks at an address of the gateway.
func (c *gatewayConfig) validateListen(key, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s = %q: must be an address with a port", key, address)
	}
	if ip := net.ParseIP(host); c.Gateway.Certificate == "" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%s = %q: must be a loopback address without gateway.certificate, since tokens would be sent in the clear", key, address)
	}
	return nil
}

func (c *gatewayConfig) validateE2B() error {
	if d := c.E2B.Domain; d != "" && !wire.ValidDomain(d) {
		return fmt.Errorf("e2b.domain = %q: must be a host name, with a port if it is not 80 or 443, such as localhost:5441", d)
	}
	if c.E2B.Listen == "" {
		return nil
	}
	return c.validateListen("e2b.listen", c.E2B.Listen)
}

// validateTLS looks at the files of the listener, whose errors are about this file's keys.
func (c *gatewayConfig) validateTLS() error {
	g := &c.Gateway
	switch {
	case (g.Certificate == "") != (g.PrivateKey == ""):
		return errors.New("gateway.certificate, gateway.private_key: must both be files, or both be empty")
	case g.ClientCA != "" && g.Certificate == "":
		return fmt.Errorf("gateway.client_ca = %q: must be empty without gateway.certificate: callers show certificates by TLS alone", g.ClientCA)
	}
	if g.ClientCRL != "" && g.ClientCA == "" {
		return fmt.Errorf("gateway.client_crl = %q: must be empty without gateway.client_ca, which it depends on", g.ClientCRL)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Principals)) {
		if len(c.Principals[name].Certificates) > 0 && g.ClientCA == "" {
			return fmt.Errorf("principals.%s.certificates: must be empty without gateway.client_ca, which they need", name)
		}
	}
	return nil
}

func serve(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("boxfleet serve", flag.ContinueOnError)
	path := flags.String("config", "/etc/boxfleet/gateway.toml", "configuration `file` of the gateway")
	if err := parse(flags, args); err != nil {
		return err
	}
	cfg, err := readGateway(*path)
	if err != nil {
		return err
	}
	key, err := readKey(cfg.Gateway.Key)
	if err != nil {
		return err
	}
	gate, state, err := openGate(cfg, log)
	if err != nil {
		return err
	}
	defer state.Close()
	traces, err := trace.NewTracer(&cfg.Traces, trace.Source{Service: "boxfleet", Version: version, Instance: cfg.Gateway.Name}, log)
	if err != nil {
		return err
	}
	g, err := newGateway(ctx, &gatewayOptions{
		Name: cfg.Gateway.Name, Key: key, Gate: gate, Replicas: cfg.NATS.Replicas, Version: version, Log: log, Traces: traces, E2B: cfg.E2B.Listen != "",
		Snapshots: int64(cfg.Snapshots.Size), OwnerSnapshots: int64(cmp.Or(cfg.Snapshots.OwnerSize, cfg.Snapshots.Size)), Images: int64(cfg.Images.Size),
		Skills: int64(cfg.Skills.Size), OwnerSkills: int64(cmp.Or(cfg.Skills.OwnerSize, cfg.Skills.Size)),
		Drives: int64(cfg.Drives.Size), OwnerDrives: int64(cmp.Or(cfg.Drives.OwnerSize, cfg.Drives.Size)),
		Outputs: int64(cfg.Outputs.Size), OwnerOutputs: int64(cmp.Or(cfg.Outputs.OwnerSize, cfg.Outputs.Size)),
		Servers: natsServers{Addresses: cfg.NATS.Servers, Credentials: cfg.NATS.Credentials, CA: cfg.NATS.CA, Name: "gateway_" + cfg.Gateway.Name},
	})
	if err != nil {
		return err
	}
	defer g.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	var background sync.WaitGroup
	defer background.Wait()
	baseCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	again := &reloader{*path, cfg, gate, g, log}
	background.Go(func() { again.run(baseCtx, signals) })
	background.Go(func() { g.Run(baseCtx) })
	answeredCtx, cancelAnswered := context.WithCancel(context.WithoutCancel(ctx)) // requests under way have spans too, but for streams
	defer cancelAnswered()
	if traces != nil {
		background.Go(func() { traces.Run(answeredCtx) })
	}
	return answer(ctx, cfg, g, log)
}

// prepareGate reads what the configuration says of callers.
func prepareGate(cfg *gatewayConfig, log *slog.Logger) (*access.State, error) {
	known, err := access.Prepare(&access.GateConfig{Access: cfg.Access, Principals: cfg.Principals, Revoked: cfg.Gateway.ClientCRL}, access.LookupHost(), access.Credentials())
	if err != nil {
		return nil, err
	}
	for _, line := range known.Loud {
		log.Warn("a rule or token has no effect", "reason", line)
	}
	return known, nil
}

// openGate makes what knows the callers of the gateway, as that of boxd does.
func openGate(cfg *gatewayConfig, log *slog.Logger) (*access.Gate, *os.Root, error) {
	known, err := prepareGate(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(cfg.Gateway.State, 0o700); err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	dir, err := durable.Directory(cfg.Gateway.State)
	if err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	grants, err := access.OpenGrants(dir, time.Now)
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	return access.NewGate(known, grants, log), dir, nil
}

// listener is an address of the gateway, and who answers there.
type listener struct {
	net.Listener
	handler http.Handler
}

// openListener opens an address. Its connections are counted apart from those of others.
func openListener(ctx context.Context, cfg *gatewayConfig, key, address string, handler http.Handler, log *slog.Logger) (*listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	ln = counted{ln, conns.New(callerConnections, allConnections)}
	if cfg.Gateway.Certificate != "" {
		files := access.TLSFiles{Certificate: cfg.Gateway.Certificate, PrivateKey: cfg.Gateway.PrivateKey, ClientCA: cfg.Gateway.ClientCA}
		config, err := files.Config(log)
		if err != nil {
			ln.Close()
			return nil, fmt.Errorf("gateway.%w", err)
		}
		ln = tls.NewListener(ln, config)
	}
	return &listener{ln, handler}, nil
}

// answer serves callers until ctx ends.
func answer(ctx context.Context, cfg *gatewayConfig, g *gateway, log *slog.Logger) error {
	own, err := openListener(ctx, cfg, "gateway.listen", cfg.Gateway.Listen, g, log)
	if err != nil {
		return err
	}
	all, clients := []*listener{own}, ""
	if cfg.E2B.Listen != "" {
		ln, err := openListener(ctx, cfg, "e2b.listen", cfg.E2B.Listen, newE2BFront(g, cfg), log)
		if err != nil {
			own.Close()
			return err
		}
		all, clients = append(all, ln), ln.Addr().String()
	}
	front, bots, err := openLangBot(ctx, cfg, g, log)
	if err != nil {
		for _, ln := range all {
			ln.Close()
		}
		return err
	}
	if bots != nil {
		all = append(all, bots)
		defer front.wait()
	}
	log.Info("boxfleet serves", "version", version, "address", own.Addr().String(), "tls", cfg.Gateway.Certificate != "", "client_certificates", cfg.Gateway.ClientCA != "", "sandboxes", clients, "langbot", cfg.LangBot.Listen)
	ready(log)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(all))
	var servers sync.WaitGroup
	for i, ln := range all {
		servers.Go(func() {
			defer cancel() // one that fails ends the other
			errs[i] = ln.serve(ctx, log)
		})
	}
	servers.Wait()
	return errors.Join(errs...)
}

// serve answers who connects until ctx ends.
func (l *listener) serve(ctx context.Context, log *slog.Logger) error {
	server := &http.Server{
		Handler: l.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withSlot,
	}
	ended := make(chan struct{}) // closed when no request is under way any more, but for streams
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(timeoutCtx) != nil {
			_ = server.Close() // what it has to say helps nobody any more
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
