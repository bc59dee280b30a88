// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// house is a fleet on this host: a NATS server, some private boxd with their agents, and a gateway.
type house struct {
	t         testing.TB
	dir       string
	nats      *server.Server
	others    []*server.Server // of its cluster
	nodes     []*host
	gate      *program
	address   string                       // of the gateway
	ca        *boxtest.Authority           // of the gateway and of NATS; nil: no TLS
	issuer    *boxtest.NATSIssuer          // of credentials for NATS; nil: none are used
	via       map[string]string            // addresses by which nodes reach NATS, if not its own
	start     func(name, dir string) *host // another node, whose agent keeps its state in a directory of that name
	e2b       string                       // address of the gateway for E2B clients, which all nodes then serve; "": none
	bot       string                       // address of the gateway for LangBot, which all nodes then serve; "": none
	snapshots string                       // the [snapshots] table of the gateway; "": none
	images    string                       // the [images] table of the gateway; nodes but n3 let it import images; "": none
	skills    string                       // the [skills] table of the gateway; "": none
	drives    string                       // the [drives] table of the gateway; "": none
	outputs   string                       // the [outputs] table of the gateway; "": none
	traces    string                       // the [traces] table of all nodes and of the gateway; "": none
	more      map[string]string            // what box.toml of a node has besides
	listen    map[string]string            // fleet.listen of nodes
	tokens    string                       // the file of tokens
	token     string                       // of the principal ci, an operator at the gateway and a user on nodes
	// Other tokens: user of another principal; viewer and few of ci, one with a lower role and one for the routes of /v1/fleet only.
	user, viewer, few string
}

// host is a node.
type host struct {
	name  string
	log   string // file of its agent
	boxd  *boxtest.Daemon
	agent *program
}

// program is a program that runs beside the test; its log is shown if the test fails.
type program struct {
	t    testing.TB
	args []string
	log  string
	cmd  *exec.Cmd
}

func startProgram(t testing.TB, log string, args ...string) *program {
	t.Helper()
	p := &program{t: t, args: args, log: log}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("log of boxfleet %s:\n%s", args[0], text)
		}
	})
	return p
}

func (p *program) start() {
	p.t.Helper()
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	p.cmd = exec.Command(filepath.Join(boxtest.Programs(p.t), "boxfleet"), p.args...)
	p.cmd.Stderr = f
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill kills the program with SIGKILL.
func (p *program) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.cmd = nil
}

// reload makes the program reload its configuration.
func (p *program) reload() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
}

// natsTimeout is the timeout for any operation of a NATS server.
const natsTimeout = 5 * time.Minute

// connect connects to a NATS server until the test ends.
func connect(t testing.TB, address string, more ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(address, append(more, nats.Timeout(natsTimeout))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// anyPort makes startNATS choose a port, on which the server can be started again.
const anyPort = -1

// startNATS starts a NATS server with JetStream; accounts is the part of its configuration for accounts and permissions.
func startNATS(t testing.TB, dir string, port int, accounts string) *server.Server {
	t.Helper()
	if port == anyPort {
		port = int(netip.MustParseAddrPort(boxtest.FreeAddress(t, "127.0.0.1")).Port())
	}
	options := &server.Options{}
	if accounts != "" {
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(accounts), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if options, err = server.ProcessConfigFile(file); err != nil {
			t.Fatal(err)
		}
	}
	options.Host, options.Port, options.NoLog, options.NoSigs = "127.0.0.1", port, true, true
	options.JetStream, options.StoreDir, options.SyncAlways = true, dir, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(natsTimeout) {
		t.Fatal("the NATS server does not start")
	}
	return s
}

// build starts a fleet of that many nodes.
func build(t testing.TB, nodes int) *house {
	t.Helper()
	return buildOn(t, nodes, "")
}

// login returns the NATS address for a user, whose password is its name.
func (h *house) login(user string) string {
	return "nats://" + user + ":" + user + "@" + h.nats.Addr().String()
}

// buildOn is like build, with NATS accounts.
func buildOn(t testing.TB, nodes int, accounts string) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t)}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, accounts)
	return h.fill(nodes)
}

// buildListening is like build, with addresses of nodes where gateways connect to them; "": any.
func buildListening(t testing.TB, nodes int, listen map[string]string) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), listen: listen}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	return h.fill(nodes)
}

// buildOnThree is like build, with a cluster of three NATS servers; snapshots are the settings of that table.
func buildOnThree(t testing.TB, nodes int, snapshots string) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), snapshots: snapshots}
	var routes []*url.URL
	var ports []int
	for range 3 {
		at := netip.MustParseAddrPort(boxtest.FreeAddress(t, "127.0.0.1"))
		ports = append(ports, int(at.Port()))
		routes = append(routes, &url.URL{Scheme: "nats", Host: at.String()})
	}
	for i, port := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("nats", i), Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, SyncAlways: true,
			StoreDir: filepath.Join(h.dir, fmt.Sprint("nats", i)), Routes: routes, Cluster: server.ClusterOpts{Name: "boxd", Host: "127.0.0.1", Port: port},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		h.others = append(h.others, s)
	}
	h.nats = h.others[0]
	boxtest.Eventually(t, "the servers of NATS have a leader", func() bool {
		return slices.ContainsFunc(h.others, (*server.Server).JetStreamIsLeader)
	})
	return h.fill(nodes)
}

// fill starts nodes and a gateway.
func (h *house) fill(nodes int) *house {
	h.t.Helper()
	t := h.t
	t.Cleanup(func() {
		for _, s := range append(h.others, h.nats) {
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
	servers := func(user string) string {
		list := []string{h.login(user)}
		if h.others != nil {
			list = nil
		}
		for _, s := range h.others {
			list = append(list, "nats://"+s.Addr().String())
		}
		if h.ca != nil {
			list = []string{fmt.Sprintf("tls://localhost:%d", h.nats.Addr().(*net.TCPAddr).Port)}
		}
		return `"` + strings.Join(list, `", "`) + `"`
	}
	key := filepath.Join(h.dir, "key")
	public, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxfleet"), "key", "-file", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	sandboxes, clients, speaks := "", "", `"ci", "other"`
	if h.e2b != "" {
		sandboxes = "[e2b]\nfleet = true\npython_kernel = \"own\"\n[profiles.e2b]\nnetwork = \"off\"\n"
		clients = fmt.Sprintf("[e2b]\nlisten = %q\n", h.e2b)
	}
	if h.bot != "" {
		sandboxes += "[principals.langbot]\nrole = \"user\"\n[langbot]\nfleet = true\n"
		clients += fmt.Sprintf("[principals.langbot]\nrole = \"user\"\n[langbot]\nlisten = %q\ntoken_file = %q\n", h.bot, filepath.Join(h.dir, "langbot.token"))
		h.write("langbot.token", botToken)
		speaks += `, "langbot"`
	}
	h.start = func(name, dir string) *host {
		if h.listen == nil && os.Getenv("BOXD_TEST_FLEET_DIRECT") != "" { // all tests of a fleet, without NATS between gateway and node
			h.listen = map[string]string{}
		}
		if h.listen != nil && h.listen[name] == "" {
			h.listen[name] = boxtest.FreeAddress(t, "127.0.0.1")
		}
		at := servers(name)
		if via := h.via[name]; via != "" {
			at = `"nats://` + via + `"`
		}
		d := boxtest.Start(t, fmt.Sprintf(`
[principals.ci]
role = "user"
[principals.other]
role = "user"
[fleet]
socket = "%%DIR%%/fleet"
name = %q
servers = [%s]
listen = %q
%s
[fleet.labels]
zone = %q
[fleet.gateways.main]
key = %q
role = "user"
principals = [%s]
images = %v
%s
%s
%s
`, name, at, h.listen[name], h.secrets(name), name, strings.TrimSpace(string(public)), speaks, h.images != "" && name != "n3", h.traces, sandboxes, h.more[name]))
		return &host{name: name, boxd: d, log: filepath.Join(h.dir, dir+".log"), agent: startProgram(t, filepath.Join(h.dir, dir+".log"), "node", "-socket", d.Socket, "-state", filepath.Join(h.dir, dir))}
	}
	h.nodes = make([]*host, nodes)
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		h.nodes[i] = h.start(name, name)
	}
	var tokens strings.Builder
	for secret, has := range map[*string]string{
		&h.token: `principal = "ci"`, &h.user: `principal = "other"`,
		&h.viewer: `principal = "ci"` + "\nrole = \"viewer\"", &h.few: `principal = "ci"` + "\nroutes = [\"* /v1/fleet/*\"]",
	} {
		var hash string
		*secret, hash = access.NewToken()
		fmt.Fprintf(&tokens, "[[token]]\nname = %q\nsha256 = %q\n%s\n", hash[:8], hash, has)
	}
	h.tokens = tokens.String()
	h.write("tokens", h.tokens)
	h.address = boxtest.FreeAddress(t, "127.0.0.1")
	listener, certificates := "", ""
	if h.ca != nil {
		certificate, private := h.ca.Server()
		h.write("gateway.crl", string(h.ca.Revoked(time.Hour)))
		listener = fmt.Sprintf("certificate = %q\nprivate_key = %q\nclient_ca = %q\nclient_crl = %q", certificate, private, h.ca.File, filepath.Join(h.dir, "gateway.crl"))
		certificates = `certificates = ["DNS:ci.example.org"]`
	}
	if h.snapshots != "" {
		clients += "\n[snapshots]\n" + h.snapshots + "\n"
	}
	if h.skills != "" {
		clients += "\n[skills]\n" + h.skills + "\n"
	}
	if h.drives != "" {
		clients += "\n[drives]\n" + h.drives + "\n"
	}
	if h.outputs != "" {
		clients += "\n[outputs]\n" + h.outputs + "\n"
	}
	if h.images != "" {
		clients += "\n[images]\n" + h.images + "\n"
	}
	h.write("fleet.toml", fmt.Sprintf(`
[gateway]
key = %q
listen = %q
state_dir = %q
%s
[nats]
servers = [%s]
%s
[access]
tokens = %q
[principals.ci]
role = "operator"
%s
[principals.other]
role = "user"
%s
%s
`, key, h.address, filepath.Join(h.dir, "gateway"), listener, servers("gateway"), h.secrets("gateway"), filepath.Join(h.dir, "tokens"), certificates, h.traces, clients))
	h.gate = startProgram(t, filepath.Join(h.dir, "gateway.log"), "serve", "-config", filepath.Join(h.dir, "fleet.toml"))
	h.ready(nodes)
	return h
}

// secrets returns a node's or gateway's settings for NATS over TLS, with files of that name.
func (h *house) secrets(name string) string {
	h.t.Helper()
	if h.issuer == nil {
		return ""
	}
	authority, err := os.ReadFile(h.ca.File)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(name+".ca", string(authority))
	h.write(name+".creds", h.issuer.Credentials(time.Hour, nil, nil))
	return fmt.Sprintf("credentials = %q\nca = %q", filepath.Join(h.dir, name+".creds"), filepath.Join(h.dir, name+".ca"))
}

func (h *house) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// ready waits until that many nodes accept sessions.
func (h *house) ready(nodes int) {
	h.t.Helper()
	boxtest.Eventually(h.t, fmt.Sprintf("%d nodes are ready", nodes), func() bool {
		var list api.FleetNodeList
		if h.get("GET", "/v1/fleet/nodes", nil, &list) != http.StatusOK {
			return false
		}
		ready := 0
		for _, n := range list.Nodes {
			if n.State == api.FleetNodeReady && n.Claims != "" {
				ready++
			}
		}
		return ready == nodes
	})
}

// base returns the address of the gateway.
func (h *house) base() string {
	return h.scheme("http") + h.address
}

// scheme begins addresses of the gateway, for HTTP or WebSockets.
func (h *house) scheme(name string) string {
	if h.ca != nil {
		name += "s"
	}
	return name + "://"
}

// http makes requests to the gateway.
func (h *house) http() *http.Client {
	h.t.Helper()
	return &http.Client{Transport: h.transport()}
}

func (h *house) transport() http.RoundTripper {
	if h.ca == nil {
		return http.DefaultTransport
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.ca.Roots()}, DisableKeepAlives: true}
}

// client returns a client of the gateway, for ci.
func (h *house) client() *client.Client {
	c := client.New(h.base())
	if h.ca != nil {
		c.TLS.CA = h.ca.File
	}
	c.Token = h.token
	h.t.Cleanup(c.Close)
	return c
}

// get makes a request of ci to the gateway, decodes the answer and returns its status; 0: there was none.
func (h *house) get(method, path string, in, out any) int {
	h.t.Helper()
	return h.as(h.token, method, path, in, out)
}

// as is like get, with another token.
func (h *house) as(token, method, path string, in, out any) int {
	h.t.Helper()
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			h.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.base()+path, &body)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := h.http().Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if out != nil {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil && resp.StatusCode != http.StatusNoContent {
			h.t.Errorf("%s %s: resp.StatusCode = %d, err = %v, want no error or resp.StatusCode == 204",
				method, path, resp.StatusCode, err)
		}
	}
	return resp.StatusCode
}

// placed creates a session anywhere and returns its node.
func (h *house) placed() string {
	h.t.Helper()
	var s struct{ ID string }
	if code := h.get("POST", "/v1/sessions", map[string]any{}, &s); code != http.StatusCreated {
		h.t.Fatalf("code = %d, want 201", code)
	}
	return h.where(s.ID).Node
}

// where returns the claim of a session, with its node and state.
func (h *house) where(id string) (claim api.FleetClaim) {
	h.t.Helper()
	var list api.FleetClaimList
	h.get("GET", "/v1/fleet/sessions", nil, &list)
	for _, c := range list.Sessions {
		if c.ID == id {
			return c
		}
	}
	return claim
}

// on returns the node with a name.
func (h *house) on(name string) *host {
	h.t.Helper()
	for _, n := range h.nodes {
		if n.name == name {
			return n
		}
	}
	h.t.Fatalf("there is no node %q", name)
	return nil
}
