// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// restoreVariable is a variable of test/vm/guest.sh: printing a line that begins with it gives the other machine, which was cut off,
// its power again.
const restoreVariable = "BOXD_TEST_RESTORE"

// The two machines, by the addresses that test/vm/guest.sh gives them.
const (
	firstMachine = "198.51.100.1"
	adminAddress = firstMachine + ":8080" // what an administrator does by ssh
)

// hosts is what both machines add to /etc/hosts.
const hosts = firstMachine + " nats1 fleet.example.org\n"

// fleetPage is the page of the fleet that the package installs.
const fleetPage = "boxd-fleet/fleet.md"

// The guide promises that a host is lost after 15 seconds. The gateway checks claims every two; the rest is for a slow machine.
const (
	lostAfter = 15 * time.Second
	lostBy    = lostAfter + 2*time.Second + 13*time.Second
)

// bootID returns the id of this machine's boot.
func bootID(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// administrator runs on the first machine, and does what has to be done on the second when its test requests it.
type administrator struct {
	t     *testing.T
	boots chan string       // the boot id of the second machine, once its node is set up and after each boot
	gone  chan struct{}     // closed: its test has failed
	files map[string]string // for the second machine, by path
	// Closed when the files are there; when that machine is to be cut off; when its work is done.
	given, cut, over chan struct{}
}

func administer(t *testing.T) *administrator {
	t.Helper()
	a := &administrator{t: t, boots: make(chan string, 2), gone: make(chan struct{}), given: make(chan struct{}), cut: make(chan struct{}), over: make(chan struct{})}
	mux := http.NewServeMux()
	for path, when := range map[string]chan struct{}{"/files": a.given, "/cut": a.cut, "/over": a.over} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-when:
				_ = json.NewEncoder(w).Encode(a.files)
			case <-r.Context().Done():
			}
		})
	}
	mux.HandleFunc("POST /boot", func(_ http.ResponseWriter, r *http.Request) {
		id, _ := io.ReadAll(r.Body)
		a.boots <- string(id)
	})
	mux.HandleFunc("POST /gone", func(http.ResponseWriter, *http.Request) { close(a.gone) })
	l, err := net.Listen("tcp", adminAddress)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return a
}

// boot waits for the id of the second machine's boot.
func (a *administrator) boot(what string) string {
	a.t.Helper()
	select {
	case id := <-a.boots:
		return id
	case <-a.gone:
		a.t.Fatalf("the test of the second machine has failed before %s", what)
	case <-time.After(10 * time.Minute):
		a.t.Fatalf("ten minutes without %s", what)
	}
	return ""
}

// errand sends a request to the administrator, and waits for its answer.
func adminRequest(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://"+adminAddress+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("the first machine: %v", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the first machine: resp.Status = %s, err = %v, want no error and resp.StatusCode == 200",
			resp.Status, err)
	}
	return text
}

// permissions returns what the guide lets the user of a node publish and subscribe to.
func permissions(t *testing.T, node string) (publish, subscribe []string) {
	t.Helper()
	text := section(t, fleetPage, "NATS")
	list := func(name string) (subjects []string) {
		_, rest, _ := strings.Cut(text, name+": ")
		rest, _, _ = strings.Cut(rest, "]")
		decode(t, rest+"]", &subjects)
		for i, s := range subjects {
			subjects[i] = strings.NewReplacer("boxd_nodes.a", "boxd_nodes."+node, "fleet.n.a.", "fleet.n."+node+".", "_INBOX_node_a.", "_INBOX_node_"+node+".").Replace(s)
		}
		return subjects
	}
	return list("publish"), list("subscribe")
}

// pairOf is the fleet of two machines, seen from the first.
type pairOf struct {
	t         *testing.T
	authority *boxtest.Authority
	issuer    *boxtest.NATSIssuer
	key       string // public, of the gateway
	token     string // of ci
	client    *client.Client
}

// nats starts a NATS server with TLS, accounts and credentials.
func (p *pairOf) nats() {
	p.t.Helper()
	certificate, key := p.authority.Server("nats1")
	file := filepath.Join(p.t.TempDir(), "nats.conf")
	put(p.t, map[string]string{file: p.issuer.Config + fmt.Sprintf("tls { cert_file: %q, key_file: %q }\n", certificate, key)})
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	options.Host, options.Port, options.NoLog, options.NoSigs = "0.0.0.0", 4222, true, true
	options.JetStream, options.StoreDir, options.SyncAlways = true, p.t.TempDir(), true
	s, err := server.NewServer(options)
	if err != nil {
		p.t.Fatal(err)
	}
	s.Start()
	p.t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(boxtest.Longest) {
		p.t.Fatal("the server of NATS does not start")
	}
}

// gives installs a file of a unit's user, which is removed with the package.
func gives(t *testing.T, user, mode, from, to string) {
	t.Helper()
	run(t, "install", "-o", user, "-m", mode, from, to)
}

// gateway makes this machine a gateway by the commands of the guide.
func (p *pairOf) gateway() {
	t := p.t
	t.Helper()
	commands := prompts(t, fleetPage, "A gateway")
	if len(commands) != 2 {
		t.Fatalf("commands of the page: commands = %q, want len(commands) == 2", commands)
	}
	out := follows(t, commands[0])
	p.key = out[strings.LastIndexByte(out, '\n')+1:]
	all := []string{"fleet.>", "$JS.>", "$KV.>", "_INBOX_gateway_main.>"} // as the guide says
	credentials := filepath.Join(t.TempDir(), "gateway.creds")
	token, line, _ := strings.Cut(run(t, "boxctl", "token", "new", "ci", "ci"), "\n")
	p.token = token
	tokens := filepath.Join(t.TempDir(), "tokens")
	put(t, map[string]string{credentials: p.issuer.Credentials(time.Hour, all, all), tokens: line})
	certificate, key := p.authority.Server("fleet.example.org")
	gives(t, "boxfleet-gateway", "0600", credentials, "/etc/boxfleet/nats.creds")
	gives(t, "boxfleet-gateway", "0600", tokens, "/etc/boxfleet/tokens")
	gives(t, "boxfleet-gateway", "0600", key, "/etc/boxfleet/tls.key")
	gives(t, "root", "0644", certificate, "/etc/boxfleet/tls.pem")
	gives(t, "root", "0644", p.authority.File, "/etc/boxfleet/nats-ca.pem")
	if err := os.WriteFile("/etc/boxfleet/gateway.toml", []byte(`
[gateway]
name = "main"
listen = "0.0.0.0:5440"
certificate = "/etc/boxfleet/tls.pem"
private_key = "/etc/boxfleet/tls.key"
[nats]
servers = ["tls://nats1:4222"]
credentials = "/etc/boxfleet/nats.creds"
ca = "/etc/boxfleet/nats-ca.pem"
[principals.ci]
role = "operator"
`), 0o644); err != nil {
		t.Fatal(err)
	}
	follows(t, commands[1])
	p.client = client.New("https://fleet.example.org:5440")
	p.client.TLS.CA, p.client.Token = p.authority.File, p.token
	t.Cleanup(p.client.Close)
}

// files returns the files of a node, by path.
func (p *pairOf) files(name string) map[string]string {
	p.t.Helper()
	publish, subscribe := permissions(p.t, name)
	authority, err := os.ReadFile(p.authority.File)
	if err != nil {
		p.t.Fatal(err)
	}
	return map[string]string{
		"/etc/boxd/node.creds":  p.issuer.Credentials(time.Hour, publish, subscribe),
		"/etc/boxd/nats-ca.pem": string(authority),
		"/etc/boxd/box.toml.d/70-fleet.toml": fmt.Sprintf(`
[fleet]
name = %q
servers = ["tls://nats1:4222"]
credentials = "/etc/boxd/node.creds"
ca = "/etc/boxd/nats-ca.pem"
[fleet.gateways.main]
key = %q
role = "user"
principals = ["ci"]
[principals.ci]
role = "user"
`, name, p.key),
	}
}

// makeNode makes this machine a node by the commands of the guide.
func makeNode(t *testing.T, files map[string]string) {
	t.Helper()
	put(t, files)
	for name := range files {
		if strings.HasPrefix(name, "/etc/boxd/n") { // of the credentials and the authority, which the agent reads
			run(t, "chown", "boxfleet-node", name)
		}
	}
	commands := prompts(t, fleetPage, "A node")
	if len(commands) != 1 {
		t.Fatalf("commands of the page: commands = %q, want len(commands) == 1", commands)
	}
	follows(t, commands[0])
}

// known adds the names of the first machine to /etc/hosts.
func known(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("/etc/hosts")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/hosts", append(text, "\n"+hosts...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// requirePair leaves a test out that is not in one of two machines, and installs the packages otherwise.
func requirePair(t *testing.T) {
	t.Helper()
	if os.Getenv(restoreVariable) == "" {
		boxtest.Missing(t, "two machines with a network between them (go run ./test/run -fleet)")
	}
	installed(t, this)
	apt(t, "install", pkg(t, "boxd-fleet.deb"))
	known(t)
	t.Cleanup(func() {
		for _, unit := range []string{fleetNode, fleetGateway} {
			if t.Failed() {
				t.Logf("%s", try(t, "systemctl", "status", "--no-pager", "--full", "--lines=25", unit).stdout)
			}
		}
	})
}

// Two machines, each with the packages installed by the commands of the guide, are a fleet over a network with TLS: both are listed and get
// sessions, programs run there and not here, files and output come back unchanged, and a session is moved with its files. When the
// second machine loses its power, its sessions are lost in the promised time and nobody makes them again. When it is back, the fleet
// has it again without a command, with the session that was stopped; the one that ran has ended with its boot.
func TestTwoMachinesAreAFleet(t *testing.T) {
	requirePair(t)
	a := administer(t)
	p := &pairOf{t: t, authority: boxtest.NewAuthority(t), issuer: boxtest.NewNATSIssuer(t)}
	p.nats()
	p.gateway()
	a.files = p.files("b")
	close(a.given)
	makeNode(t, p.files("a"))
	there := a.boot("its node")
	p.ready("a", "b")
	if got := p.boxctl("fleet", "nodes", "--format", "{{.name}} {{.state}}"); got != "a ready\nb ready" {
		t.Errorf(`the nodes are %q, want "a ready\nb ready"`, got)
	}
	here := bootID(t)
	if there == here {
		t.Fatalf("both machines have the boot %s", here)
	}
	p.spreads()
	p.carries(here, there)

	// The second machine has a session that runs and one that was stopped.
	p.makes("running", "b")
	p.puts("running", "file", []byte("running"))
	p.makes("stopped", "b")
	content := random(t, 100_000)
	p.puts("stopped", "file", content)
	if _, err := p.client.StopSession(t.Context(), "stopped"); err != nil {
		t.Fatal(err)
	}
	before := p.claims()
	close(a.cut)
	p.loses("running", "stopped")
	for _, id := range []string{"running", "stopped"} {
		if now := p.claims()[id]; now.Node != "b" || now.Generation != before[id].Generation {
			t.Errorf(`the claim was %+v and is %+v, want now.Node == "b" and now.Generation == before[id].Generation`,
				before[id], now)
		}
	}
	p.makes("meanwhile", "")
	if at := p.claims()["meanwhile"].Node; at != "a" {
		t.Errorf("without the second machine a session is on %q", at)
	}

	fmt.Printf("\n%s\n", os.Getenv(restoreVariable))
	again := a.boot("its second boot")
	p.ready("a", "b")
	if again == there {
		t.Fatalf("the second machine still has the boot %s", there)
	}
	p.returns(again, content)
	close(a.over)
	p.client.Close()
}

// boxctl runs boxctl with the gateway as its server, as the guide says; it must succeed.
func (p *pairOf) boxctl(args ...string) string {
	p.t.Helper()
	return run(p.t, append([]string{"env", "BOXD_SOCKET=https://fleet.example.org:5440", "BOXD_TOKEN=" + p.token, "BOXD_TLS_CA=" + p.authority.File, "boxctl"}, args...)...)
}

// ready waits until these nodes take sessions.
func (p *pairOf) ready(names ...string) {
	p.t.Helper()
	var said error
	boxtest.Eventually(p.t, fmt.Sprintf("the nodes %q are ready", names), func() bool {
		list, err := p.client.FleetNodes(p.t.Context())
		if said == nil && err != nil {
			said = err
			p.t.Logf("the answer of the gateway is %v", err)
		}
		ready := 0
		for i := range list {
			if list[i].State == api.FleetNodeReady && list[i].Claims != "" && slices.Contains(names, list[i].Name) {
				ready++
			}
		}
		return ready == len(names)
	})
}

// claims returns where sessions are, by id.
func (p *pairOf) claims() map[string]api.FleetClaim {
	p.t.Helper()
	list, err := p.client.FleetSessions(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	by := map[string]api.FleetClaim{}
	for _, c := range list {
		by[c.ID] = c
	}
	return by
}

// asks makes a request to the gateway, and returns its status and answer.
func (p *pairOf) asks(method, path string, body any) (int, string) {
	p.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, "https://fleet.example.org:5440"+path, bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.authority.Roots(), MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// makes creates a session, on a node if one is named.
func (p *pairOf) makes(id, node string) {
	p.t.Helper()
	placement := map[string]any{"spread": true}
	if node != "" {
		placement = map[string]any{"node": node}
	}
	if code, text := p.asks("POST", "/v1/sessions", map[string]any{"id": id, "placement": placement}); code != http.StatusCreated {
		p.t.Fatalf("create %s: code = %d, text = %s, want code == 201", id, code, text)
	}
}

// puts writes a file of a session.
func (p *pairOf) puts(id, path string, content []byte) {
	p.t.Helper()
	if _, err := p.client.PutFile(p.t.Context(), id, client.PutFile{Path: path}, bytes.NewReader(content)); err != nil {
		p.t.Fatalf("%s of %s: %v", path, id, err)
	}
}

// has checks that a session has a file with this content.
func (p *pairOf) has(id, path string, content []byte) {
	p.t.Helper()
	f, err := p.client.OpenFile(p.t.Context(), id, path, 0)
	if err != nil {
		p.t.Errorf("%s of %s: %v", path, id, err)
		return
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		p.t.Errorf("%s of %s has %d bytes that are not the %d that were written, %v", path, id, len(got), len(content), err)
	}
}

// boot returns the id of the boot of the machine on which a session's programs run.
func (p *pairOf) boot(id string) string {
	p.t.Helper()
	r, err := p.client.Exec(p.t.Context(), id, &api.ExecRequest{Argv: []string{"cat", "/proc/sys/kernel/random/boot_id"}})
	if err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		p.t.Fatalf("a program in %s: r = %+v, err = %v, want no error and r.ExitCode != nil and *r.ExitCode == 0",
			id, r, err)
	}
	return strings.TrimSpace(r.Stdout)
}

// random returns bytes of all kinds.
func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// spreads checks that both machines get sessions that name no node.
func (p *pairOf) spreads() {
	p.t.Helper()
	on := map[string]int{}
	for i := range 4 {
		p.makes(fmt.Sprint("spread-", i), "")
	}
	for id, c := range p.claims() {
		on[c.Node]++
		p.boxctl("rm", id)
	}
	if on["a"] == 0 || on["b"] == 0 || on["a"]+on["b"] != 4 {
		p.t.Errorf(`sessions by node: on = %v, want on["a"] != 0 and on["b"] != 0 and on["a"] + on["b"] == 4`, on)
	}
}

// carries checks that programs of a session run on the second machine, that what they read and write is not changed on the way, and that
// the session can be moved to the first with its files.
func (p *pairOf) carries(here, there string) {
	t := p.t
	t.Helper()
	p.makes("work", "b")
	if got := p.boot("work"); got != there {
		t.Errorf("a program on the second machine sees the boot %q; its own is %q, and %q is here", got, there, here)
	}
	sent := random(t, 300_000)
	var back bytes.Buffer
	r, err := p.client.ExecStream(t.Context(), "work", &api.ExecRequest{Argv: []string{"tee", "copy"}}, client.Stdio{Stdin: bytes.NewReader(sent), Stdout: &back}, nil)
	if err != nil || r.Status != "exited" || !bytes.Equal(back.Bytes(), sent) {
		t.Errorf("%d bytes were returned of %d, or differ; %+v, %v", back.Len(), len(sent), r, err)
	}
	p.has("work", "copy", sent)
	file := random(t, 300_000)
	p.puts("work", "file", file)
	p.has("work", "file", file)

	p.boxctl("fleet", "move", "--node", "a", "work")
	if c := p.claims()["work"]; c.Node != "a" || c.State != api.FleetClaimLive {
		t.Errorf(`moved, it is %+v, want c.Node == "a" and c.State == api.FleetClaimLive`, c)
	}
	if got := p.boot("work"); got != here {
		t.Errorf("moved, a program sees the boot %q, not %q", got, here)
	}
	p.has("work", "copy", sent)
	p.has("work", "file", file)
	p.boxctl("rm", "work")
}

// loses waits until sessions are lost, and checks that it takes as long as the guide says, and that they can neither be used nor
// created meanwhile.
func (p *pairOf) loses(ids ...string) {
	t := p.t
	t.Helper()
	var heard time.Time // when the gateway has got the last announcement of the second machine
	boxtest.Eventually(t, "the sessions are lost", func() bool {
		list, err := p.client.FleetNodes(t.Context())
		now := time.Now()
		if at := slices.IndexFunc(list, func(n api.FleetNodeState) bool { return n.Name == "b" }); err == nil && at >= 0 {
			heard = now.Add(-time.Duration(list[at].SeenSeconds * float64(time.Second)))
		}
		claims := p.claims()
		return !slices.ContainsFunc(ids, func(id string) bool { return claims[id].State != api.FleetClaimLost })
	})
	for _, id := range ids {
		elapsed := p.claims()[id].Since.Sub(heard)
		t.Logf("%s is lost %.1f s after the last announcement of its machine", id, elapsed.Seconds())
		if elapsed < lostAfter-time.Second || elapsed > lostBy {
			t.Errorf("%s is lost after %v, not %v", id, elapsed, lostAfter)
		}
		for _, ask := range []struct{ method, path string }{{"POST", "/v1/sessions"}, {"GET", "/v1/sessions/" + id}, {"POST", "/v1/sessions/" + id + "/exec"}} {
			if code, text := p.asks(ask.method, ask.path, map[string]any{"id": id}); code != http.StatusConflict || !strings.Contains(text, "lost since") {
				t.Errorf(`%s %s: code = %d, text = %s, want code == 409 and text containing "lost since"`,
					ask.method, ask.path, code, text)
			}
		}
	}
}

// returns checks what the second machine has after it lost its power: its stopped session with the file of it. Its other session has ended.
func (p *pairOf) returns(boot string, content []byte) {
	t := p.t
	t.Helper()
	boxtest.Eventually(t, "the stopped session is ready again, and the one that ran has ended", func() bool {
		claims := p.claims()
		_, runs := claims["running"]
		return !runs && claims["stopped"].State == api.FleetClaimLive
	})
	if s, err := p.client.Session(t.Context(), "stopped"); err != nil || s.State != "stopped" {
		t.Errorf(`it is %+v, %v, want no error and s.State == "stopped"`, s, err)
	}
	if _, err := p.client.StartSession(t.Context(), "stopped"); err != nil {
		t.Fatal(err)
	}
	p.has("stopped", "file", content)
	if got := p.boot("stopped"); got != boot {
		t.Errorf("its programs see the boot %q, not %q", got, boot)
	}
	if s, err := p.client.Session(t.Context(), "running"); !errors.Is(err, client.NotFound) {
		t.Errorf("the session that ran is %+v, %v, want err is client.NotFound", s, err)
	}
	p.makes("new", "b") // and it takes others
	if got := p.boot("new"); got != boot {
		t.Errorf("a new session sees the boot %q, not %q", got, boot)
	}
	for id := range p.claims() {
		p.boxctl("rm", id)
	}
}

// The second machine: it is set up as the first test says, is powered off when that requests it, and then does nothing more: its
// units start with it.
func TestTheSecondMachineOfAFleet(t *testing.T) {
	first := os.Getenv(promisedVariable)
	if first != "" {
		if id := bootID(t); id == first {
			t.Fatalf("the machine still has the boot %s", first)
		}
		boxtest.Eventually(t, "the agent runs", func() bool { return state(t, fleetNode) == "active" })
	} else {
		requirePair(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_, _ = http.Post("http://"+adminAddress+"/gone", "", nil) //nolint:bodyclose // the test is over
		}
	})
	boxtest.Eventually(t, "the first machine answers", func() bool {
		conn, err := net.Dial("tcp", adminAddress)
		return err == nil && conn.Close() == nil
	})
	if first == "" {
		var files map[string]string
		decode(t, string(adminRequest(t, "GET", "/files", "")), &files)
		makeNode(t, files)
		run(t, "sync") // what the administrator has written, some minutes ago
		adminRequest(t, "POST", "/boot", bootID(t))
		adminRequest(t, "GET", "/cut", "")
		fmt.Printf("\n%s %s\n", os.Getenv(cutVariable), bootID(t))
		<-time.After(5 * time.Minute)
		t.Fatal("the machine was not powered off")
	}
	adminRequest(t, "POST", "/boot", bootID(t))
	adminRequest(t, "GET", "/over", "")
}
