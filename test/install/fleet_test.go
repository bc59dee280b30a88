// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// The units of the fleet.
const (
	fleetSocket  = "boxd-fleet.socket"
	fleetNode    = "boxfleet-node.service"
	fleetGateway = "boxfleet-gateway.service"
)

// natsAccounts are the accounts of the fleet guide, with passwords.
const natsAccounts = `accounts {
  fleet {
    jetstream: enabled
    users: [
      {user: gateway, password: gateway, permissions: {publish: ["fleet.>", "$JS.>", "$KV.>", "_INBOX_gateway_main.>"], subscribe: ["fleet.>", "$JS.>", "$KV.>", "_INBOX_gateway_main.>"]}}
      {user: a, password: a, permissions: {publish: ["fleet.g.>", "_INBOX_gateway_main.>", "$JS.API.>", "$JS.ACK.>", "$KV.boxd_nodes.a", "$KV.boxd_claims.>"], subscribe: ["fleet.n.a.>", "_INBOX_node_a.>"]}}
    ]
  }
}`

// startNATS starts a NATS server until the end of the test, and returns its port.
func startNATS(t *testing.T) int {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(natsAccounts), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.Host, options.Port, options.NoLog, options.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	options.JetStream, options.StoreDir, options.SyncAlways = true, t.TempDir(), true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(boxtest.Longest) {
		t.Fatal("the NATS server does not start")
	}
	var port int
	if _, err := fmt.Sscanf(s.Addr().String(), "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	return port
}

// fleetCtl runs boxctl with the gateway as its server; it must succeed.
func fleetCtl(t *testing.T, token string, args ...string) string {
	t.Helper()
	return run(t, append([]string{"env", "BOXD_SOCKET=http://127.0.0.1:5440", "BOXD_TOKEN=" + token, "boxctl"}, args...)...)
}

// The fleet package makes this host a gateway and its only node, with the commands of the guide. Its confined units do their
// work, can be restarted without disturbing a box, and leave nothing when the package is purged.
func TestThePackageOfTheFleetMakesANodeAndAGateway(t *testing.T) {
	fleet := pkg(t, "boxd-fleet.deb")
	installed(t, this)
	a := live(t)
	port := startNATS(t)
	t.Cleanup(func() {
		for _, unit := range []string{fleetNode, fleetGateway} {
			if t.Failed() {
				t.Logf("%s", try(t, "systemctl", "status", "--no-pager", "--full", "--lines=25", unit).stdout)
			}
		}
		run(t, "systemctl", "disable", "--now", fleetSocket)
		apt(t, "purge", "boxd-fleet")
		run(t, "systemctl", "stop", service)
		for _, path := range []string{"/etc/boxfleet", "/var/lib/boxfleet", "/var/lib/boxfleet-gateway", "/usr/bin/boxfleet"} {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("%s exists after a purge: err = %v, want os.IsNotExist(err)", path, err)
			}
		}
		a.unharmed(t, "the end of the fleet")
	})
	apt(t, "install", fleet)
	for _, unit := range []string{fleetNode, fleetGateway} {
		if got := state(t, unit); got != "inactive" {
			t.Errorf(`installed, %s is %s, want got == "inactive"`, unit, got)
		}
	}
	const page = "boxd-fleet/fleet.md"

	// The gateway.
	gateway, node := prompts(t, page, "A gateway"), prompts(t, page, "A node")
	if len(gateway) != 2 || len(node) != 1 {
		t.Fatalf("commands of the page: gateway = %q, node = %q, want len(gateway) == 2 and len(node) == 1",
			gateway, node)
	}
	key := follows(t, gateway[0])
	key = key[strings.LastIndexByte(key, '\n')+1:]
	if err := os.WriteFile("/etc/boxfleet/gateway.toml", fmt.Appendf(nil, "[nats]\nservers = [\"nats://gateway:gateway@127.0.0.1:%d\"]\n[principals.ci]\nrole = \"operator\"\n", port), 0o644); err != nil {
		t.Fatal(err)
	}
	follows(t, gateway[1])
	token, lines, _ := strings.Cut(run(t, "boxctl", "token", "new", "ci", "ci"), "\n")
	tokens, err := os.OpenFile("/etc/boxfleet/tokens", os.O_WRONLY|os.O_APPEND, 0) // while it runs
	if err != nil {
		t.Fatal(err)
	}
	_, err = tokens.WriteString(lines)
	if err := errors.Join(err, tokens.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "reload", fleetGateway)

	// The node.
	put(t, map[string]string{"/etc/boxd/box.toml.d/70-fleet.toml": fmt.Sprintf(`
[fleet]
name = "a"
servers = ["nats://a:a@127.0.0.1:%d"]
[fleet.gateways.main]
key = %q
role = "operator"
principals = ["ci"]
[principals.ci]
role = "operator"
`, port, key)})
	follows(t, node[0])
	boxtest.Eventually(t, "the node is ready", func() bool {
		return strings.Contains(try(t, "env", "BOXD_SOCKET=http://127.0.0.1:5440", "BOXD_TOKEN="+token, "boxctl", "fleet", "nodes").stdout, "ready")
	})
	a.unharmed(t, "the beginning of the fleet")
	if got := fleetCtl(t, token, "run", "--", "sh", "-c", "uname -n; id -u"); !strings.Contains(got, "1000") {
		t.Errorf(`a program of the fleet prints %q, want got containing "1000"`, got)
	}
	fleetCtl(t, token, "create", "--ttl", "1h", "ours")
	fleetCtl(t, token, "start", "ours", "count", "--", "sh", "-c", "echo $$; sleep 100000")
	var first string
	boxtest.Eventually(t, "the program has printed its PID", func() bool {
		first = fleetCtl(t, token, "logs", "ours", "count")
		return first != ""
	})
	if got := fleetCtl(t, token, "fleet", "ls"); !strings.Contains(got, "ours") || !strings.Contains(got, "ci") {
		t.Errorf(`fleet ls: got %s, want got containing "ours" and got containing "ci"`, got)
	}

	// Each of the three is restarted, by an administrator or after it was killed.
	for _, again := range []struct {
		what string
		argv []string
	}{
		{"a restart of the node", []string{"restart", fleetNode}},
		{"a restart of the gateway", []string{"restart", fleetGateway}},
		{"a restart of boxd", []string{"restart", service}},
		{"the death of the node", []string{"kill", "--signal=KILL", fleetNode}},
		{"the death of the gateway", []string{"kill", "--signal=KILL", fleetGateway}},
	} {
		boxtest.Systemctl(t, again.argv...)
		boxtest.Eventually(t, "the fleet serves after "+again.what, func() bool {
			return try(t, "env", "BOXD_SOCKET=http://127.0.0.1:5440", "BOXD_TOKEN="+token, "boxctl", "exec", "ours", "--", "true").code == 0
		})
		if got := fleetCtl(t, token, "logs", "ours", "count"); got != first {
			t.Errorf("after %s the program is another: %q, before %q", again.what, got, first)
		}
	}
	for _, unit := range []string{fleetNode, fleetGateway} {
		if got := boxtest.UnitProperty(t, unit, "NRestarts"); got != "0" && got != "1" { // a manual restart resets the counter
			t.Errorf("%s was started again %s times", unit, got)
		}
	}
	fleetCtl(t, token, "rm", "ours")
	run(t, "systemctl", "stop", fleetNode)
	boxtest.Eventually(t, "boxctl fleet nodes lists no node as ready", func() bool {
		return !strings.Contains(fleetCtl(t, token, "fleet", "nodes"), "ready")
	})
	if r := try(t, "env", "BOXD_SOCKET=http://127.0.0.1:5440", "BOXD_TOKEN="+token, "boxctl", "run", "--wait", "0s", "--", "true"); r.code == 0 || !strings.HasPrefix(r.stderr, "boxctl: ") {
		t.Errorf(`without a node: r = %+v, want r.code != 0 and r.stderr starting with "boxctl: "`, r)
	}
}
