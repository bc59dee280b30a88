// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// docker are the rules that dockerd writes when it starts, for either address family.
const docker = `*filter
:FORWARD DROP
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -i docker0 -j RETURN
COMMIT
`

// firewalls returns those that many hosts run besides boxd: how each is started, restarted, and removed.
func firewalls() []firewall {
	both := func(do string) string { return "for ip in iptables ip6tables; do " + do + "\ndone" }
	return []firewall{
		{
			"firewalld", "inet firewalld",
			"mkdir -p /run/systemd/system/firewalld.service.d && printf '[Service]\\nTimeoutStartSec=infinity\\n' >/run/systemd/system/firewalld.service.d/patience.conf && systemctl unmask firewalld && systemctl start firewalld && timeout 600 bash -c 'until firewall-cmd --state; do sleep 1; done'",
			"firewall-cmd --reload",
			"firewall-cmd --permanent --delete-policy=boxd-out; firewall-cmd --permanent --delete-zone=boxd; systemctl stop firewalld; systemctl mask firewalld",
		},
		{
			"ufw", "ip filter", "ufw --force enable", "ufw reload",
			// Its own commands take minutes in an emulated machine.
			"sed -i s/^ENABLED=yes/ENABLED=no/ /etc/ufw/ufw.conf; " + both("$ip -P INPUT ACCEPT; $ip -P FORWARD ACCEPT; $ip -F; $ip -X"),
		},
		{
			"Docker", "ip filter", both("$ip-restore <<'RULES'\n" + docker + "RULES\n"),
			both("$ip -F DOCKER-FORWARD; $ip -A DOCKER-FORWARD -j DOCKER-CT; $ip -A DOCKER-FORWARD -i docker0 -j ACCEPT"),
			both("$ip -P FORWARD ACCEPT; for t in filter nat; do $ip -t $t -F; $ip -t $t -X; done"),
		},
	}
}

type firewall struct{ name, table, start, reload, end string }

// Addresses outside the host.
const (
	public4, public6 = "11.22.33.44", "2a00:1111::44"
	outside          = `set -e
ip netns add there
ip link add up0 type veth peer name down0 netns there
ip addr add 45.33.0.2/24 dev up0
ip addr add 2600:9999::2/64 dev up0 nodad
ip link set up0 up
ip -n there addr add 45.33.0.1/24 dev down0
ip -n there addr add 2600:9999::1/64 dev down0 nodad
ip -n there addr add ` + public4 + `/32 dev lo
ip -n there addr add ` + public6 + `/128 dev lo nodad
ip -n there link set lo up
ip -n there link set down0 up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip route add default via 45.33.0.1
ip -6 route add default via 2600:9999::1`
)

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// newOutside creates a network that boxes can reach via this host, with a server in it.
func newOutside(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { // the links are deleted with it
		sh(t, "ip netns del there; sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
	})
	sh(t, outside)
	server := exec.Command("ip", "netns", "exec", "there", "python3", "-m", "http.server", "80", "--bind", "::")
	server.Stdout, server.Stderr = nil, nil
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	for _, a := range []string{public4, public6} {
		boxtest.Eventually(t, "the server outside answers at "+a, func() bool { return strings.Contains(asked("bash", "-c", get(5, a)), "200") })
	}
}

// get requests a page from a server, and prints the first line of the answer. It waits only a few seconds: a firewall that is
// reloading its rules drops the first packets, and TCP retransmits at growing intervals.
func get(seconds int, a string) string {
	return `timeout ` + strconv.Itoa(seconds) + ` bash -c 'exec 3<>/dev/tcp/` + a + `/80 && printf "GET / HTTP/1.0\r\n\r\n" >&3 && head -n 1 <&3'`
}

func asked(argv ...string) string {
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	return string(out)
}

// ruleset returns the kernel's packet filter without boxd's tables and without counters.
func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "-s", "list", "ruleset").Output() // explanations of iptables tables are on standard error
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for table := range strings.SplitSeq(string(out), "\n}\n") {
		if !strings.HasPrefix(strings.TrimSpace(table), "table inet boxd-") {
			others = append(others, table)
		}
	}
	// Rules of xtables have counters even so.
	return regexp.MustCompile(`counter packets \d+ bytes \d+`).ReplaceAllString(strings.Join(others, "\n}\n"), "counter")
}

func network(t *testing.T, d *boxtest.Daemon) api.Check {
	t.Helper()
	doctor, err := d.Doctor(t.Context())
	require(t, err)
	at := slices.IndexFunc(doctor.Checks, func(c api.Check) bool { return c.Name == "box network" })
	if at < 0 {
		t.Fatalf("boxctl doctor has no check of networks: doctor = %+v, want at >= 0", doctor)
	}
	return doctor.Checks[at]
}

// If a firewall refuses forwarding, doctor names the blocking chain and the rule that lets boxes through; with that rule boxes
// have their network, also after the firewall restarts. boxd changes nothing of the firewall's.
func TestBoxesNextToOtherFirewalls(t *testing.T) {
	requireSystemd(t)
	for _, program := range []string{"firewall-cmd", "ufw", "iptables", "nft", "ip", "python3"} {
		boxtest.RequireProgram(t, program)
	}
	newOutside(t)
	d := boxtest.Start(t)
	// The kernel may take longer to load its modules than doctor waits.
	boxtest.Eventually(t, "boxes can have a network without any firewall", func() bool { return network(t, d).Level == "ok" })
	for _, f := range firewalls() {
		t.Run(f.name, func(t *testing.T) { f.nextTo(t, d) })
	}
	d.Stop()
	if left := sh(t, "nft list tables; ip -o link"); strings.Contains(left, "boxd-") || strings.Contains(left, ": bx") {
		t.Errorf("boxd has left\n%s", left)
	}
}

func (f *firewall) nextTo(t *testing.T, d *boxtest.Daemon) {
	plain := ruleset(t)
	defer func() { _ = asked("bash", "-c", f.end) }()
	sh(t, f.start)
	theirs := ruleset(t)
	if theirs == plain {
		t.Fatal("the firewall has added no rules")
	}
	create := func(id string) {
		t.Helper()
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: id, Profile: "network_basic"})
		require(t, err)
	}
	reaches := func(id, line string) bool {
		t.Helper()
		r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"bash", "-c", line}})
		require(t, err)
		return strings.Contains(r.Stdout, "200")
	}
	create("before")
	for _, a := range []string{public4, public6} {
		if reaches("before", get(2, a)) {
			t.Errorf("%s is reached: the test shows nothing", a)
		}
	}
	c := network(t, d)
	if c.Level != "warn" || !strings.Contains(c.Detail, "of table "+f.table+" drops packets from boxes") || c.Hint == "" {
		t.Fatalf(`doctor: c = %+v, want c.Level == "warn" and c.Detail containing "of table " + f.table + " drops packets from boxes" and c.Hint != ""`,
			c)
	}
	t.Logf("doctor: %s\n%s", c.Detail, c.Hint)
	if now := ruleset(t); now != theirs {
		t.Errorf("boxd has changed\n%s\nto\n%s", theirs, now)
	}
	sh(t, "set -e\n"+c.Hint)
	if c = network(t, d); c.Level != "ok" {
		t.Errorf(`after the commands of the hint: c = %+v, want c.Level == "ok"`, c)
	}
	works := func(when string) {
		t.Helper()
		for _, a := range []string{public4, public6} {
			boxtest.Eventually(t, a+" is reached "+when, func() bool { return reaches("before", get(5, a)) })
		}
	}
	works("by a box that was there before")
	sh(t, f.reload)
	works("after " + f.reload)
	told := ruleset(t)
	create("after")
	boxtest.Eventually(t, "a box that is made afterwards has a network", func() bool { return reaches("after", get(5, public4)) })
	require(t, d.DeleteSession(t.Context(), "before"))
	require(t, d.DeleteSession(t.Context(), "after"))
	if now := ruleset(t); now != told {
		t.Errorf("wanted these rules\n%s\ngot\n%s", told, now)
	}
}
