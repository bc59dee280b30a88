// SPDX-License-Identifier: Apache-2.0

// Package systemd talks to the service manager that started boxd, if one did.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// The names of boxd's sockets in their units (FileDescriptorName=, systemd.socket(5)).
const (
	SocketName = "boxd-api"  // boxd.socket
	httpName   = "boxd-http" // boxd-http.socket: over TCP, any number of sockets

	langBotName = "boxd-langbot" // boxd-langbot.socket: the same for LangBot's protocol
	e2bName     = "boxd-e2b"     // boxd-e2b.socket: the same for E2B's protocol
	fleetName   = "boxd-fleet"   // boxd-fleet.socket: a Unix socket for gateways of a fleet
)

// Sockets are the sockets that systemd holds for boxd.
type Sockets struct {
	API     net.Listener   // the Unix socket; nil: there is none
	HTTP    []net.Listener // over TCP, like the next two
	LangBot []net.Listener
	E2B     []net.Listener
	Fleet   net.Listener // a Unix socket; nil: there is none
}

// Close closes all sockets.
func (s *Sockets) Close() {
	for _, ln := range []net.Listener{s.API, s.Fleet} {
		if ln != nil {
			ln.Close()
		}
	}
	for _, ln := range slices.Concat(s.HTTP, s.LangBot, s.E2B) {
		ln.Close()
	}
}

// Listeners returns the sockets that systemd holds for boxd. It consumes the environment variables that name them, so it
// works once.
func Listeners() (*Sockets, error) {
	s := &Sockets{}
	unix := map[string]*net.Listener{SocketName: &s.API, fleetName: &s.Fleet}
	tcp := map[string]*[]net.Listener{httpName: &s.HTTP, langBotName: &s.LangBot, e2bName: &s.E2B}
	var err error
	for _, f := range activation.Files(true) {
		ln, lerr := net.FileListener(f)
		f.Close() // ln has a duplicate
		list, overTCP := tcp[f.Name()]
		one := unix[f.Name()]
		switch {
		case err != nil:
		case !overTCP && (one == nil || *one != nil):
			err = fmt.Errorf("socket activation: unexpected socket %q, want one %q, one %q, and any %q, %q and %q", f.Name(), SocketName, fleetName, httpName, langBotName, e2bName)
		case lerr != nil:
			err = fmt.Errorf("socket activation: %q is not a listening socket: %w", f.Name(), lerr)
		case overTCP && ln.Addr().Network() != "tcp":
			err = fmt.Errorf("socket activation: %q is %v, want TCP", f.Name(), ln.Addr())
		case overTCP:
			*list = append(*list, ln)
			continue
		case ln.Addr().Network() != "unix": // only Unix sockets have callers' credentials from the kernel
			err = fmt.Errorf("socket activation: %q is %v, want a Unix socket", f.Name(), ln.Addr())
		default:
			*one = ln
			continue
		}
		if lerr == nil {
			ln.Close()
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Ready tells systemd that boxd is ready (sd_notify(3)); without systemd it does nothing.
func Ready() error { return notify(daemon.SdNotifyReady) }

// Reloading tells systemd that boxd is reloading its configuration. Ready must follow.
func Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/int64(time.Microsecond)))
}

// Watchdog tells systemd that boxd is alive, twice in each interval after which it would be
// restarted (WatchdogSec=), as long as check succeeds and until ctx ends. Without a watchdog it
// returns at once.
func Watchdog(ctx context.Context, check func(context.Context) error, log *slog.Logger) error {
	limit, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	every := limit / 2
	if every == 0 {
		return nil
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := beat(ctx, every, check); err != nil && ctx.Err() == nil {
			log.Error("boxd is unhealthy; the watchdog of the service manager is not notified", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // both may be
			return nil
		}
	}
}

func beat(ctx context.Context, most time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := check(ctx); err != nil {
		return err
	}
	return notify(daemon.SdNotifyWatchdog)
}

// Stopping tells systemd that boxd is stopping.
func Stopping() error { return notify(daemon.SdNotifyStopping) }

func notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
