// SPDX-License-Identifier: Apache-2.0

// Package systemd is how boxd talks to the service manager that started it, if one did.
package systemd

import (
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
)

// SocketName is the name of boxd's socket in boxd.socket (FileDescriptorName=, systemd.socket(5)).
const SocketName = "boxd-api"

// Listener returns the socket the service manager holds for boxd, nil if there is none. It consumes
// the environment variables that name it, so it works once.
func Listener() (net.Listener, error) {
	var found net.Listener
	for _, f := range activation.Files(true) {
		ln, err := net.FileListener(f)
		f.Close() // ln has a copy
		switch {
		case f.Name() != SocketName || found != nil:
			return nil, fmt.Errorf("socket activation: unexpected socket %q, want one %q", f.Name(), SocketName)
		case err != nil:
			return nil, fmt.Errorf("socket activation: %q is no listening socket: %w", SocketName, err)
		case ln.Addr().Network() != "unix": // callers are known by what the kernel says of a Unix socket
			return nil, fmt.Errorf("socket activation: %q is %v, want a Unix socket", SocketName, ln.Addr())
		}
		found = ln
	}
	return found, nil
}

// Ready tells the service manager that boxd serves (sd_notify(3)); without one it does nothing.
func Ready() error { return notify(daemon.SdNotifyReady) }

// Stopping tells the service manager that boxd is on its way out.
func Stopping() error { return notify(daemon.SdNotifyStopping) }

func notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
