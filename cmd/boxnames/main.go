// SPDX-License-Identifier: Apache-2.0

// Command boxnames is the egress proxy of boxes: their DNS resolver, with the transparent proxy of strict boxes, which
// filters HTTP or TLS by host name (Host, SNI), inserting secrets into requests. It has no privilege: boxd opens its
// sockets in the boxes' networks, and decides what a box may connect to.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// controlFD is the descriptor for boxd: a connection, or the listening socket of a unit.
const controlFD = 3

func main() {
	// Its memory holds secrets of boxes: other processes of its user must not read it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintf(os.Stderr, "boxnames: %v\n", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, log.New(os.Stderr, "boxnames: ", 0)); err != nil {
		fmt.Fprintf(os.Stderr, "boxnames: %v\n", err)
		os.Exit(1)
	}
}

// run serves boxd. Where boxd configures no resolvers, those in resolv.conf(5) at that time are used.
func run(ctx context.Context, l *log.Logger) error {
	cfg := resolverConfig{Upstreams: func() []netip.AddrPort { return readResolvConf("/etc/resolv.conf") }}
	listens, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("descriptor %d is no socket of boxd's: %w", controlFD, err)
	}
	if listens == 0 {
		conn, err := fdpass.FromFD(controlFD, fdpass.MaxInline)
		if err == nil {
			serveBoxd(ctx, conn, cfg, l)
		}
		return err
	}
	return accept(ctx, cfg, l)
}

// accept serves every peer that may connect to the unit's socket, which is only root.
func accept(ctx context.Context, cfg resolverConfig, l *log.Logger) error {
	listener, err := fdpass.NewListener(controlFD)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, listener.Close)()
	for {
		fd, err := listener.Accept()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		conn, err := fdpass.FromFD(fd, fdpass.MaxInline)
		if err != nil {
			return err
		}
		wg.Go(func() { serveBoxd(ctx, conn, cfg, l) })
	}
}

// dnsPort is the port of name servers.
const dnsPort = 53

// maxResolvConf is how much of the file is read, in bytes; a longer file counts as having no
// resolvers.
const maxResolvConf = 64 << 10

// readResolvConf lists the name servers in a resolv.conf(5), at most three, as in the C library.
func readResolvConf(path string) (list []netip.AddrPort) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxResolvConf {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && len(list) < 3 {
			list = append(list, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return list
}
