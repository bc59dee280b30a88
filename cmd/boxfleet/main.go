// SPDX-License-Identifier: Apache-2.0

// Command boxfleet makes a fleet of hosts that run boxd, on NATS JetStream.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// version is set by the linker.
var version = "devel"

const usage = `usage:
  boxfleet node   connect this host's boxd to the fleet of [fleet] in its box.toml
  boxfleet serve  run a gateway that serves all nodes
  boxfleet key    create the key of a gateway, or print its public half
  boxfleet dev    run a fleet on this host, to try it
  boxfleet -version
Each takes -help.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "boxfleet: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("a command is missing: must be node, serve, key or dev; boxfleet -help says more")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	switch args[0] {
	case "node":
		return node(ctx, args[1:], log)
	case "serve":
		return serve(ctx, args[1:], log)
	case "key":
		return key(args[1:])
	case "dev":
		return dev(ctx, args[1:], os.Stdout, log)
	case "-version", "--version":
		fmt.Println("boxfleet", version) //nolint:forbidigo // what was asked for
		return nil
	case "-help", "--help", "-h", "help":
		fmt.Println(usage) //nolint:forbidigo // what was asked for
		return nil
	}
	return fmt.Errorf("unknown command %q: must be node, serve, key or dev; boxfleet -help says more", args[0])
}

// parse reads the flags of a command, which takes nothing else.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: %s takes flags only", flags.Arg(0), flags.Name())
	}
	return nil
}

// key makes a key, unless there is one, and prints what goes into box.toml.
func key(args []string) error {
	flags := flag.NewFlagSet("boxfleet key", flag.ContinueOnError)
	path := flags.String("file", defaultKey, "`file` of the private key; created if missing")
	owner := flags.String("owner", "", "`user` that owns the file if it is created, for example boxfleet-gateway of the package; requires root")
	if err := parse(flags, args); err != nil {
		return err
	}
	private, err := readKey(*path)
	if errors.Is(err, os.ErrNotExist) {
		private, err = makeKey(*path, *owner)
	}
	if err != nil {
		return err
	}
	fmt.Println(access.FleetKey(private.Public().(ed25519.PublicKey))) //nolint:forbidigo,forcetypeassert // what was asked for; it is one
	return nil
}

const keyType = "PRIVATE KEY"

// defaultKey is the file of a gateway's private key.
const defaultKey = "/etc/boxfleet/gateway.key"

// ready tells systemd, if it has started this, that it serves. A service manager that cannot be told waits, and gives up.
func ready(log *slog.Logger) {
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		log.Error("cannot tell the service manager that boxfleet is ready", "error", err)
	}
}

func makeKey(path, owner string) (ed25519.PrivateKey, error) {
	uid, gid := -1, -1
	if owner != "" {
		u, err := user.Lookup(owner)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		if _, err := fmt.Sscan(u.Uid+" "+u.Gid, &uid, &gid); err != nil {
			return nil, fmt.Errorf("key: user %s: %w", owner, err)
		}
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if err := errors.Join(pem.Encode(f, &pem.Block{Type: keyType, Bytes: der}), f.Chown(uid, gid), f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("key: %w", errors.Join(err, os.Remove(path))) // half of one would be taken for one
	}
	return private, nil
}

// maxKey bounds the file of a key, in bytes.
const maxKey = 1 << 16

func readKey(path string) (ed25519.PrivateKey, error) {
	data, err := durable.ReadSecret(path, false, maxKey)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != keyType {
		return nil, fmt.Errorf("key %s: must be created by boxfleet key", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key %s: must be of Ed25519, as boxfleet key makes it", path)
	}
	return private, nil
}
