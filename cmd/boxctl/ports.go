// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
)

// forwardCommand forwards local connections to a port of a box.
func (a *app) forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "forward BOX WHERE:PORT", Short: "Forward a local port or socket to a port in a box", Args: usage(cobra.ExactArgs(2)),
		Long: `forward listens on this host and forwards each connection to PORT on the loopback interface of the
box, in every network mode. It prints the address it listens on, and ends with the box or when it
is interrupted.

WHERE is a port of 127.0.0.1 (0 takes any free port), a loopback address and a port, for example
[::1]:8080, or the path of a Unix socket. PORT without WHERE uses the same port number on this host.

All users of this host can connect to a loopback port. Only you can connect to a Unix socket.`,
		Example: `  boxctl forward web 8080:80
  boxctl forward web ./web.sock:8000`,
		RunE: func(cmd *cobra.Command, args []string) error {
			where, port, err := parseForward(args[1])
			if err != nil {
				return &usageError{err: err}
			}
			return a.forward(cmd.Context(), args[0], where, port)
		},
	}
}

// previewCommand makes the URL of a preview.
func (a *app) previewCommand() *cobra.Command {
	var lifetime string
	cmd := &cobra.Command{
		Use: "preview BOX PORT", Short: "Create a URL that shows a port of a box in a browser", Args: usage(cobra.ExactArgs(2)),
		Long: `preview prints a URL for a browser on this host. It shows the server that listens on PORT in the
box, over HTTP and WebSocket, under its own host name. The URL contains a token: every user who has
the URL can see that port, and nothing else, until it expires, the box ends, or you lose access to
the box.

boxd must serve HTTP on the loopback interface (daemon.http in box.toml). If it does not, use
boxctl forward.`,
		Example: `  boxctl preview work 8000
  boxctl preview --lifetime 1h work 5173`,
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return &usageError{err: fmt.Errorf("invalid port %q: must be 1 to 65535", args[1])}
			}
			t, err := c.PreviewPort(cmd.Context(), args[0], uint16(port), lifetime)
			switch {
			case err != nil:
				return err
			case a.json:
				return a.printJSON(t)
			case t.URL == "":
				return errNoHTTP
			}
			fmt.Fprintln(a.stdout, t.URL)
			return nil
		}),
	}
	cmd.Flags().StringVar(&lifetime, "lifetime", "", "`TIME` how long the URL works, for example 1h (default 15m)")
	return cmd
}

var errNoHTTP = errors.New("boxd serves no HTTP on loopback (daemon.http of box.toml): use boxctl forward to reach the port")

// portPlace is where forward listens.
type portPlace struct{ network, address string }

// parseForward reads WHERE:PORT.
func parseForward(text string) (at portPlace, port uint16, err error) {
	where, number, two := cutLast(text)
	if !two {
		where, number = text, text
	}
	wrong := fmt.Errorf("invalid port %q: must be PORT, [ADDRESS:]PORT:PORT with a loopback address, or PATH:PORT", text)
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return at, 0, wrong
	}
	if strings.ContainsRune(where, '/') {
		return portPlace{"unix", where}, uint16(n), nil
	}
	host, here := "127.0.0.1", where
	if strings.ContainsRune(where, ':') {
		if host, here, err = net.SplitHostPort(where); err != nil {
			return at, 0, wrong
		}
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return at, 0, wrong
	}
	if _, err := strconv.ParseUint(here, 10, 16); err != nil {
		return at, 0, wrong
	}
	return portPlace{"tcp", net.JoinHostPort(host, here)}, uint16(n), nil
}

func cutLast(text string) (before, after string, found bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

func (a *app) forward(ctx context.Context, id string, where portPlace, port uint16) error {
	c := a.client()
	defer c.Close()
	if _, err := c.Session(ctx, id); err != nil { // do not listen for a box that does not exist
		return err
	}
	ln, err := listen(ctx, where)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Fprintln(a.stdout, ln.Addr())
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for {
		near, err := ln.Accept()
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, client.NotFound) {
				return cause
			}
			if ctx.Err() != nil {
				return nil // it was interrupted
			}
			return err
		}
		wg.Go(func() {
			defer near.Close()
			far, err := c.OpenPort(ctx, id, port)
			if err != nil {
				if errors.Is(err, client.NotFound) {
					cancel(err)
				} else if ctx.Err() == nil {
					fmt.Fprintf(a.stderr, "boxctl: %v\n", err)
				}
				return
			}
			defer far.Close()
			relayPort(ctx, near, far)
		})
	}
}

// listen listens; a Unix socket is accessible to its user only.
func listen(ctx context.Context, at portPlace) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, at.network, at.address)
	if err != nil || at.network != "unix" {
		return ln, err
	}
	if err := os.Chmod(at.address, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// linger is how long one direction may stay open after the other has ended.
const linger = 2 * time.Minute

// relayPort copies in both directions until both have ended, or ctx has.
func relayPort(ctx context.Context, near net.Conn, far client.PortConn) {
	defer context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})()
	sent := make(chan struct{})
	go func() { // ends with either connection
		defer close(sent)
		_, _ = io.Copy(far, near)
		_ = far.CloseWrite()
	}()
	_, _ = io.Copy(near, far)
	if half, ok := near.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = near.SetReadDeadline(time.Now().Add(linger))
	<-sent
}
