// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/actionrpc"
	"github.com/boxd-dev/boxd/relay/e2b"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor/volumes"
	"github.com/boxd-dev/boxd/systemd"
)

// front is where clients connect: the sockets of boxd, and the gate that authenticates callers.
type front struct {
	gate      *access.Gate
	state     *os.Root           // where the gate stores grants
	skills    *skills.Store      // skills of callers
	drives    *volumes.Drives    // drives of callers
	previews  *access.PreviewKey // signs tokens of previews
	sockets   *systemd.Sockets   // that boxd serves, its own or the service manager's
	activated bool               // by the service manager, which starts boxd for the next client
	token     string             // that LangBot must send; "": none
	langBot   *actionrpc.Server  // serves LangBot; nil: it is off
	tls       *tls.Config        // for E2B clients over TLS; nil: there are none
	sandbox   *e2b.Server        // serves E2B clients; nil: E2B is off
	https     []net.Listener     // for callers on other hosts
	ours      *tls.Config        // of https
}

// openFront opens all parts of the front.
func openFront(ctx context.Context, cfg *Config, log *slog.Logger) (*front, error) {
	f, err := openSockets(ctx, &cfg.Daemon, log)
	if err != nil {
		return nil, err
	}
	tellIdle(cfg, log)
	if err = f.openHTTPS(ctx, &cfg.Daemon, log); err == nil {
		err = f.openFleet(ctx, cfg, log)
	}
	if err == nil {
		f.gate, f.state, err = openGate(cfg, log)
	}
	if err == nil {
		err = f.openLangBot(ctx, cfg, log)
	}
	if err == nil {
		err = f.openE2B(ctx, cfg, log)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if f.previews, err = access.OpenPreviewKey(f.state); err != nil {
		f.Close()
		return nil, err
	}
	if f.skills, err = skills.Open(cfg.Daemon.StateDir, cfg.Skills, log); err != nil {
		f.Close()
		return nil, err
	}
	if f.drives, err = volumes.OpenDrives(cfg.Daemon.StateDir, cfg.Drives, log); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// idleExit returns how long boxd must be idle before it exits; 0: it does not. LangBot and the agent of a fleet stay
// connected, and E2B clients are not counted.
func (w *front) idleExit(cfg *Config) time.Duration {
	if !w.activated || len(w.sockets.LangBot)+len(w.sockets.E2B) > 0 || w.sockets.Fleet != nil {
		return 0
	}
	return time.Duration(cfg.Daemon.IdleExit)
}

// openSockets takes the sockets that the service manager holds, and makes the others.
func openSockets(ctx context.Context, cfg *Daemon, log *slog.Logger) (*front, error) {
	sockets, err := systemd.Listeners()
	if err != nil {
		return nil, err
	}
	w := &front{sockets: sockets, activated: sockets.API != nil}
	if !w.activated {
		sockets.API, err = listen(ctx, cfg.Socket, cfg.SocketGroup, log)
	}
	if err == nil && cfg.HTTP != "" && len(sockets.HTTP) == 0 {
		sockets.HTTP, err = listenTCP(ctx, "daemon.http", cfg.HTTP, "enable boxd-http.socket instead, and leave daemon.http out")
	}
	if err == nil && w.activated {
		err = closedSocket(sockets.API.Addr().String())
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	for _, ln := range sockets.HTTP {
		if relay.ListensAt(ln, cfg.HTTPS) {
			continue
		}
		if !isLoopback(ln.Addr().String()) {
			w.Close()
			return nil, fmt.Errorf("socket %v: must be a loopback address, since tokens are sent in the clear, or that of daemon.https", ln.Addr())
		}
		log.Info("boxd serves HTTP on the loopback", "address", ln.Addr().String(), "token_needed", !cfg.HTTPInsecure)
	}
	return w, nil
}

// openHTTPS opens the listener for callers on other hosts, unless the service manager holds it among those for HTTP.
func (w *front) openHTTPS(ctx context.Context, cfg *Daemon, log *slog.Logger) (err error) {
	if cfg.HTTPS == "" {
		return nil
	}
	if w.ours, err = (access.TLSFiles{Certificate: cfg.Certificate, PrivateKey: cfg.PrivateKey, ClientCA: cfg.ClientCA}).Config(log); err != nil {
		return fmt.Errorf("daemon.%w", err)
	}
	s := w.sockets
	byTLS := func(ln net.Listener) bool { return relay.ListensAt(ln, cfg.HTTPS) }
	for _, ln := range s.HTTP {
		if byTLS(ln) {
			w.https = append(w.https, ln)
		}
	}
	s.HTTP = slices.DeleteFunc(s.HTTP, byTLS)
	if len(w.https) == 0 {
		if w.https, err = listenTCP(ctx, "daemon.https", cfg.HTTPS, "give boxd-http.socket another ListenStream="+cfg.HTTPS); err != nil {
			return err
		}
		w.activated = false // no service manager would start boxd for clients of this socket
	}
	log.Info("boxd serves HTTPS", "address", w.https[0].Addr().String(), "client_certificates", cfg.ClientCA != "")
	return nil
}

// listenTCP opens the socket that a key names; alternative is what to do if boxd's own unit may not.
func listenTCP(ctx context.Context, key, address, alternative string) ([]net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%s: %w: boxd's unit forbids the socket; %s", key, err, alternative)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return []net.Listener{ln}, nil
}

// others serves LangBot and E2B until ctx ends or stop is called, which waits for the end.
func (w *front) others(ctx context.Context, seen *notes) (stop func()) {
	leaveLangBot, leaveE2B := w.serveLangBot(ctx, seen), w.serveE2B(ctx, seen)
	return func() {
		leaveLangBot()
		leaveE2B()
	}
}

// closedSocket refuses a socket that every user of the host can open: its group decides who may use boxd.
func closedSocket(path string) error {
	if !filepath.IsAbs(path) {
		return nil // no file
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("socket %s: every user of this host can open it (mode %#o): must be SocketMode=0660, for the members of its group", path, info.Mode().Perm())
	}
	return nil
}

// Close closes the front.
func (w *front) Close() {
	if w.drives != nil {
		w.drives.Close()
	}
	if w.skills != nil {
		w.skills.Close()
	}
	if w.state != nil {
		w.state.Close()
	}
	for _, ln := range w.https {
		ln.Close()
	}
	w.sockets.Close()
}

// openFleet opens the socket for gateways, unless the service manager holds one.
func (w *front) openFleet(ctx context.Context, cfg *Config, log *slog.Logger) (err error) {
	f := &cfg.Fleet
	if f.Socket != "" && w.sockets.Fleet == nil {
		if w.sockets.Fleet, err = listen(ctx, f.Socket, cfg.Daemon.SocketGroup, log); errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("fleet.socket: %w: enable boxd-fleet.socket instead, and leave fleet.socket out", err)
		}
		if err != nil {
			return err
		}
	}
	if w.sockets.Fleet != nil {
		log.Info("boxd serves gateways of a fleet", "address", w.sockets.Fleet.Addr().String(), "node", f.NodeName(), "gateways", len(f.Gateways))
	}
	return nil
}

// listen makes a socket. Every user who can open it can use boxd, so it belongs to a group.
func listen(ctx context.Context, path, group string, log *slog.Logger) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := removeOld(path); err != nil {
		return nil, err
	}
	old := unix.Umask(0o177)
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := openSocket(path, group, log); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// removeOld removes the socket of a dead boxd. Another boxd may run with another state directory.
func removeOld(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: path is not a socket (%v)", path, info.Mode())
	}
	if conn, err := net.Dial("unix", path); err == nil { //nolint:noctx // answers or refuses at once
		conn.Close()
		return fmt.Errorf("socket %s is in use by another boxd", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return nil
}

func openSocket(path, name string, log *slog.Logger) error {
	group, err := user.LookupGroup(name)
	if err != nil {
		log.Warn("only root can use the socket", "socket", path, "group", name, "error", err)
		return nil
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return fmt.Errorf("socket group: %w", err)
	}
	if err := os.Lchown(path, 0, gid); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return os.Chmod(path, 0o660)
}
