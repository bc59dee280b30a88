// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Bounds of a fleet on one host.
const (
	maxDevNodes  = 16
	startTimeout = time.Minute
	endTimeout   = 90 * time.Second // for a boxd to end its boxes, as its unit has it
)

// devPrincipal is who the token of boxfleet dev is.
const devPrincipal = "dev"

// devFleet is a fleet on one host, in one directory: a server of NATS, a gateway, and private boxd with their agents.
type devFleet struct {
	dir     string
	listen  string
	nodes   int
	program string // boxd
	stdout  io.Writer
	log     *slog.Logger

	nats   *server.Server
	public string // key of the gateway
}

func dev(ctx context.Context, args []string, stdout io.Writer, log *slog.Logger) (err error) {
	flags := flag.NewFlagSet("boxfleet dev", flag.ContinueOnError)
	nodes := flags.Int("nodes", 2, "`number` of nodes, each with a boxd of its own")
	listen := flags.String("listen", "127.0.0.1:5440", "`address` of the gateway, on loopback")
	program := flags.String("boxd", "", "`path` of boxd; by default beside boxfleet, or /usr/lib/boxd/boxd")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *nodes < 1 || *nodes > maxDevNodes {
		return fmt.Errorf("-nodes = %d: must be 1 to %d", *nodes, maxDevNodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("boxfleet dev starts boxd, which needs root: use sudo")
	}
	d := &devFleet{listen: *listen, nodes: *nodes, stdout: stdout, log: log}
	if d.program, err = findBoxd(*program); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "boxfleet-dev"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	if err := os.Chmod(d.dir, 0o711); err != nil { // boxes of other users have their workspaces below it
		return err
	}
	return d.run(ctx)
}

func (d *devFleet) remove() error {
	above, err := os.OpenRoot(filepath.Dir(d.dir))
	if err != nil {
		return err
	}
	defer above.Close()
	return above.RemoveAll(filepath.Base(d.dir))
}

// findBoxd finds the program where it is built, or where the package has it.
func findBoxd(path string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, path := range []string{filepath.Join(filepath.Dir(own), "boxd"), "/usr/lib/boxd/boxd"} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("there is no boxd beside boxfleet, nor /usr/lib/boxd/boxd: install the package boxd, or give -boxd PATH")
}

// run runs the fleet until it is interrupted, or until a part of it has ended.
func (d *devFleet) run(interrupted context.Context) error {
	ctx, cancel := context.WithCancelCause(interrupted)
	defer cancel(nil)
	if err := d.startNATS(); err != nil {
		return err
	}
	defer func() {
		d.nats.Shutdown()
		d.nats.WaitForShutdown()
	}()
	config, token, err := d.configure()
	if err != nil {
		return err
	}
	// Agents and gateway end first, then each boxd with its boxes, then NATS.
	var daemons, others sync.WaitGroup
	defer daemons.Wait()
	defer others.Wait()
	defer cancel(nil)
	for i := range d.nodes {
		name := fmt.Sprintf("node%d", i+1)
		socket, err := d.startBoxd(ctx, name, cancel, &daemons)
		if err != nil {
			return err
		}
		others.Go(func() {
			if err := d.agent(ctx, name, socket); err != nil {
				cancel(err)
			}
		})
	}
	others.Go(func() {
		if err := serve(ctx, []string{"-config", config}, d.log); err != nil {
			cancel(err)
		}
	})
	err = d.await(ctx, "the gateway", "http://"+d.listen)
	if err == nil {
		d.printUsage(token)
		<-ctx.Done()
	}
	switch {
	case interrupted.Err() != nil:
		return nil
	case ctx.Err() != nil: // a part has ended
		return context.Cause(ctx)
	}
	return err
}

// configure makes a key, a token and the configuration of the gateway.
func (d *devFleet) configure() (path, token string, err error) {
	key, tokens := filepath.Join(d.dir, "gateway.key"), filepath.Join(d.dir, "tokens")
	private, err := makeKey(key, "")
	if err != nil {
		return "", "", err
	}
	d.public = access.FleetKey(private.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // it is one
	secret, hash := access.NewToken()
	line := fmt.Sprintf("[[token]]\nname = \"dev\"\nsha256 = %q\nprincipal = %q\n", hash, devPrincipal)
	text := fmt.Sprintf(`[gateway]
key = %q
listen = %q
state_dir = %q
[nats]
servers = [%q]
[access]
tokens = %q
[principals.%s]
role = "operator"
[snapshots]
size = "1GiB"
[images]
size = "1GiB"
[skills]
size = "64MiB"
[drives]
size = "1GiB"
[outputs]
size = "64MiB"
`, key, d.listen, filepath.Join(d.dir, "gateway"), d.nats.ClientURL(), tokens, devPrincipal)
	path = filepath.Join(d.dir, "gateway.toml")
	return path, secret, errors.Join(os.WriteFile(tokens, []byte(line), 0o600), os.WriteFile(path, []byte(text), 0o600))
}

func (d *devFleet) startNATS() (err error) {
	d.nats, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: filepath.Join(d.dir, "nats")})
	if err != nil {
		return fmt.Errorf("NATS: %w", err)
	}
	d.nats.Start()
	if !d.nats.ReadyForConnections(startTimeout) {
		d.nats.Shutdown()
		return errors.New("NATS: the server does not start")
	}
	return nil
}

// startBoxd starts the boxd of a node and waits until it is ready. It ends with its boxes when ctx does; where it ends by itself,
// so does the fleet.
func (d *devFleet) startBoxd(ctx context.Context, name string, cancel context.CancelCauseFunc, group *sync.WaitGroup) (socket string, err error) {
	dir := filepath.Join(d.dir, name)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	socket = filepath.Join(dir, "boxd.sock")
	config := filepath.Join(dir, "box.toml")
	text := fmt.Sprintf(`[daemon]
socket = %q
socket_group = "root"
state_dir = %q
runtime_dir = %q
on_stop = "end"
[workspaces]
store_size = "0"
[limits]
best_effort = ["memory", "cpu", "pids", "workspace"]
[fleet]
socket = %q
name = %q
servers = [%q]
[fleet.gateways.main]
key = %q
role = "user"
principals = [%q]
images = true
[principals.%s]
role = "user"
`, socket, filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "fleet.sock"), name, d.nats.ClientURL(), d.public, devPrincipal, devPrincipal)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, d.program, "-config", config) //nolint:gosec // whom the operator has named
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTimeout
	// Ctrl-C is for boxfleet, which ends boxd when its callers are gone; where boxfleet is killed, the kernel tells boxd.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	group.Go(func() {
		runtime.LockOSThread() // whose end Pdeathsig is about: PR_SET_PDEATHSIG(2const)
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err != nil {
			return
		}
		err = cmd.Wait()
		if ctx.Err() == nil {
			output, _ := os.ReadFile(log.Name())
			cancel(fmt.Errorf("the boxd of %s has ended: %w\n%s", name, err, output))
		}
	})
	if err := <-started; err != nil {
		return "", fmt.Errorf("boxd: %w", err)
	}
	return socket, d.await(ctx, "the boxd of "+name, socket)
}

// await waits until somebody at an address is ready.
func (d *devFleet) await(ctx context.Context, what, address string) error {
	limit, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := client.New(address)
	defer c.Close()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := c.Ready(limit)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-limit.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%s is not ready: %w", what, err)
		}
	}
}

// agent runs that of a node, in this process.
func (d *devFleet) agent(ctx context.Context, name, socket string) error {
	boxd := client.New(socket)
	defer boxd.Close()
	agent, err := configuredAgent(ctx, boxd, &agentOptions{Socket: socket, State: filepath.Join(d.dir, name, "agent"), Log: d.log})
	if err != nil {
		return err
	}
	return agent.Run(ctx)
}

// printUsage tells how the fleet is used.
func (d *devFleet) printUsage(token string) {
	fmt.Fprintf(d.stdout, `A fleet of %d nodes on this host, until Ctrl-C. For boxctl, in another terminal:

  export BOXD_SOCKET=http://%s BOXD_TOKEN=%s
  boxctl fleet nodes
  boxctl run -- uname -n

Logs of boxd are in %s. Everything there is removed at the end, with all boxes.
`, d.nodes, d.listen, token, d.dir)
}
