// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// greet starts a server that sends a greeting to each client.
func greet(t *testing.T, network, at string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), network, at)
	must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "the host's")
			c.Close()
		}
	}()
}

// Only boxes of a profile that says so share the host's network, whoever the caller is; they cannot change it, and reach no
// abstract sockets there if the kernel supports that. It is reported everywhere.
func TestTheNetworkOfTheHostIsForProfilesThatSaySo(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	newWorld(t)
	greet(t, "tcp4", "127.0.0.1:7001")
	abstract := fmt.Sprintf("@boxd-test-%d", os.Getpid())
	greet(t, "unix", abstract)
	d := boxtest.Start(t, configuration+boxtest.Lasting+"[profiles.near]\nnetwork = \"host\"\n[profiles.ready]\nnetwork = \"host\"\nwarm = 1\n")
	for _, profile := range []string{"default", "network_basic"} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "x", Profile: profile, Network: new("host")})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusForbidden || e.Field != "network" || !strings.Contains(e.Hint, "does not allow the host network") {
			t.Errorf(`profile %s: err = %v, want ok == true and e.Status == 403 and e.Field == "network" and e.Hint containing "does not allow the host network"`,
				profile, err)
		}
	}
	if s := d.NewSession(t, api.SessionRequest{ID: "alone", Profile: "near", Network: new("off")}); s.Network != "off" {
		t.Errorf(`without a network: s = %+v, want s.Network == "off"`, s)
	}
	if printed := reach(t, d, "alone", "127.0.0.1", 7001); !strings.Contains(printed, "Connection refused") {
		t.Errorf(`without a network: printed = %q, want printed containing "Connection refused"`, printed)
	}
	for _, profile := range []string{"near", "ready"} {
		if s := d.NewSession(t, api.SessionRequest{ID: profile, Profile: profile}); s.Network != "host" || s.Traffic != nil || len(s.NetworkRules) > 0 {
			t.Errorf(`s = %+v, want s.Network == "host" and s.Traffic == nil and len(s.NetworkRules) == 0`, s)
		}
		look := func(when string) {
			t.Helper()
			for _, at := range []string{"127.0.0.1 7001", public4 + " 80", cloud4 + " 80"} {
				var host string
				var port int
				_, _ = fmt.Sscan(at, &host, &port)
				if printed := reach(t, d, profile, host, port); !strings.HasPrefix(printed, "the host's") && !strings.HasPrefix(printed, "tcp ") {
					t.Errorf(`%s, %s: printed = %q, want printed starting with "the host's" or printed starting with "tcp "`,
						when, at, printed)
				}
			}
		}
		look("at the beginning")
		d.Kill()
		d.Restart()
		look("with another boxd")
		for what, line := range map[string]string{
			"a link":       `python3 -c 'import socket,fcntl; s=socket.socket(); fcntl.ioctl(s, 0x8914, b"lo".ljust(16,b"\0")+b"\0"*24)'`,
			"raw":          `python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'`,
			"packets":      `python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'`,
			"port 81":      `python3 -c 'import socket; socket.socket().bind(("127.0.0.1", 81))'`,
			"a setting":    `echo 0 2>&1 >/proc/sys/net/ipv4/ip_forward`,
			"another mark": `python3 -c 'import socket; socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1)'`,
		} {
			if printed := in(t, d, profile, line); !strings.Contains(printed, "Operation not permitted") && !strings.Contains(printed, "Permission denied") && !strings.Contains(printed, "Read-only") {
				t.Errorf(`%s: printed = %q, want printed containing "Operation not permitted" or printed containing "Permission denied" or printed containing "Read-only"`,
					what, printed)
			}
		}
		printed := in(t, d, profile, `python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect("\0`+abstract[1:]+`"); print(s.recv(20))'`)
		if refused := strings.Contains(printed, "Operation not permitted"); refused != isolation.CanScopeSockets() {
			t.Errorf("the host's abstract socket: %q; the kernel can keep it: isolation.CanScopeSockets() = %v, want refused == isolation.CanScopeSockets()",
				printed, isolation.CanScopeSockets())
		}
		if printed := in(t, d, profile, `python3 -c 'import socket; l=socket.socket(socket.AF_UNIX); l.bind("\0own-`+abstract[1:]+`"); l.listen(); socket.socket(socket.AF_UNIX).connect(l.getsockname()); print("own")'`); printed != "own\n" {
			t.Errorf(`an abstract socket of its own: printed = %q, want "own\n"`, printed)
		}
		if conn, err := d.OpenPort(t.Context(), profile, 7001); err == nil {
			conn.Close()
			t.Error("a port of the host is forwarded")
		} else if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusConflict {
			t.Errorf("a port of the host: err = %v, want ok == true and e.Status == 409", err)
		}
	}
	doctor, err := d.Doctor(t.Context())
	must(t, err)
	if !slices.ContainsFunc(doctor.Checks, func(c api.Check) bool {
		return c.Name == "host network" && c.Level == "warn" && strings.HasSuffix(c.Detail, ": near, ready")
	}) {
		t.Errorf("boxctl doctor does not report it: %+v", doctor)
	}
	for _, id := range []string{"alone", "near", "ready"} {
		must(t, d.DeleteSession(t.Context(), id))
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", "127.0.0.1:7001"); err != nil {
		t.Errorf("the host's own loopback afterwards: %v", err)
	} else {
		_, _ = bufio.NewReader(c).ReadString('\n')
		c.Close()
	}
}
