// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// configuration is that of a boxd whose boxes use the world's name server.
const configuration = "[network]\nresolvers = [\"" + dns4 + "\"]\n"

func egress(id string, rules ...string) api.SessionRequest {
	return api.SessionRequest{ID: id, Profile: "network_basic", NetworkRules: rules}
}

// in runs a line of bash in a box and returns all its output.
func in(t *testing.T, d *boxtest.Daemon, id, line string) string {
	t.Helper()
	r := d.Result(t, id, api.ExecRequest{Argv: []string{"bash", "-c", line}})
	return r.Stdout + r.Stderr
}

// reach connects, and returns the server's greeting or the error.
func reach(t *testing.T, d *boxtest.Daemon, id, to string, port int) string {
	t.Helper()
	return in(t, d, id, fmt.Sprintf("exec 3<>/dev/tcp/%s/%d && read -r line <&3 && echo \"$line\"", to, port))
}

func TestABoxReachesTheInternetAndNothingElse(t *testing.T) {
	w := newWorld(t)
	own, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "[::]:8080") // a service on all addresses of the host
	must(t, err)
	defer own.Close()
	d := boxtest.Start(t, configuration)
	s := d.NewSession(t, egress("one"))
	if s.Network != "egress" || strings.Join(s.NetworkRules, ",") != "0.0.0.0/0 tcp,::/0 tcp" {
		t.Errorf(`s.Network = %q, s.NetworkRules = %q, want s.Network == "egress" and strings.Join(s.NetworkRules, ",") == "0.0.0.0/0 tcp,::/0 tcp"`,
			s.Network, s.NetworkRules)
	}
	d.NewSession(t, egress("two"))
	for to, as := range map[string]string{public4: host4, public6: host6} {
		if printed := reach(t, d, "one", to, 80); !strings.HasPrefix(printed, "tcp ") || !strings.Contains(printed, as) {
			t.Errorf("%s: %q: want the peer address %s", to, printed, as)
		}
	}
	if printed := in(t, d, "one", "cat /etc/resolv.conf"); printed != "nameserver "+dns4+"\n" {
		t.Errorf(`resolv.conf: printed = %q, want "nameserver " + dns4 + "\n"`, printed)
	}
	if printed := reach(t, d, "one", dns4, 53); !strings.HasPrefix(printed, "dns ") {
		t.Errorf(`the name server: printed = %q, want printed starting with "dns "`, printed)
	}
	if printed := in(t, d, "one", "exec 3<>/dev/udp/"+dns4+"/53; echo x >&3; dd bs=512 count=1 status=none <&3"); !strings.HasPrefix(printed, "udp "+host4) {
		t.Errorf(`the name server by UDP: printed = %q, want printed starting with "udp " + host4`, printed)
	}
	for _, c := range []struct {
		to   string
		port int
	}{
		{cloud4, 80},
		{cloud6, 80},
		{"10.99.0.1", 80},
		{dns4, 80},
		{"172.20.0.1", 80},
		{"192.168.7.7", 80},
		{"100.64.1.1", 80},
		{"198.18.0.1", 80},
		{"64:ff9b::a9fe:a9fe", 80},
		{"2002:a9fe:a9fe::1", 80},
		{"::ffff:169.254.169.254", 80},
		{"2852039166", 80},
		{"0xa9fea9fe", 80},
		{"0251.0376.0251.0376", 80},
		{"45.33.0.1", 80}, // a neighbour with a public address
		{"2600:9999::1", 80},
		{host4, 8080},
		{host6, 8080},
		{"10.231.64.0", 8080},
		{"10.231.64.2", 8080},
		{"fd62:6f78:6400::", 8080},
		{"10.231.64.3", 8080},
	} {
		printed := reach(t, d, "one", c.to, c.port)
		if !strings.Contains(printed, "Connection refused") && !strings.Contains(printed, "No route to host") && !strings.Contains(printed, "Permission denied") && !strings.Contains(printed, "Network is unreachable") {
			t.Errorf("%s port %d: %q", c.to, c.port, printed)
		}
	}
	d.NewSession(t, egress("near", "45.33.0.1/32", "2600:9999::/64", "0.0.0.0/0"))
	for _, to := range []string{"45.33.0.1", "2600:9999::1", public4} {
		if printed := reach(t, d, "near", to, 80); !strings.HasPrefix(printed, "tcp ") {
			t.Errorf(`a neighbour with a rule: to = %s, printed = %q, want printed starting with "tcp "`, to, printed)
		}
	}
	must(t, d.DeleteSession(t.Context(), "near"))
	if printed := in(t, d, "one", "exec 3<>/dev/udp/"+public4+"/80; echo x >&3; dd bs=512 count=1 status=none <&3"); strings.HasPrefix(printed, "udp") || printed == "" {
		t.Errorf(`UDP without a rule: printed = %q, want printed not starting with "udp" and printed != ""`, printed)
	}
	if printed := in(t, d, "one", "exec 3<>/dev/tcp/127.0.0.1/8080"); !strings.Contains(printed, "Connection refused") {
		t.Errorf(`the loopback is the host's: printed = %q, want printed containing "Connection refused"`, printed)
	}
	if n := len(w.links()); n != 2 {
		t.Errorf("%d links of two boxes", n)
	}
	for _, id := range []string{"one", "two"} {
		must(t, d.DeleteSession(t.Context(), id))
	}
	if left := w.links(); len(left) > 0 {
		t.Errorf("left: left = %q, want len(left) == 0", left)
	}
}
