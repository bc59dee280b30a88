// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// visit is a program in a box that knows nothing of the proxy. It executes the lines of its input: tls ADDRESS NAME, web ADDRESS
// NAME..., and raw ADDRESS PORT TEXT. For each it prints one line: the answer, or the error.
const visit = `
import shlex, socket, ssl, sys
def get(f, name, path="/x"):
    f.write(("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path, name)).encode()); f.flush()
    status = f.readline().decode().split()
    if not status: return "end"
    size = 0
    while True:
        line = f.readline().decode().strip().lower()
        if line.startswith("content-length:"): size = int(line[15:])
        if not line: break
    return status[1] + " " + f.read(size).decode().strip()
def visit(kind, address, *args):
    if kind == "tls":
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
        if len(args) > 1: c.maximum_version = ssl.TLSVersion.TLSv1_2
        s = c.wrap_socket(socket.create_connection((address, 443)), server_hostname=args[0] or None)
        f = s.makefile("rwb")
        said = get(f, args[0])
        f.write(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); f.flush()
        n = 0
        while True:
            b = f.read(65536)
            if not b: break
            n += len(b)
        return said + (" large" if n > LARGE else " only %d" % n)
    if kind == "web":
        f = socket.create_connection((address, 80)).makefile("rwb")
        return " ".join(get(f, name) for name in args)
    s = socket.create_connection((address, int(args[0])))
    s.sendall(args[1].encode().decode("unicode_escape").encode("latin1"))
    if len(args) > 2: s.shutdown(socket.SHUT_WR)
    said = b""
    while True:
        b = s.recv(65536)
        if not b: break
        said += b
    return repr(said.decode("latin1"))
for line in sys.stdin:
    try: print(visit(*shlex.split(line)))
    except OSError as e: print("error:", e)
`

// visits runs the program with the commands in list, in order, and checks each answer for the expected text.
func visits(t *testing.T, d *boxtest.Daemon, list ...[2]string) {
	t.Helper()
	var lines strings.Builder
	for _, l := range list {
		lines.WriteString(l[0] + "\n")
	}
	printed := strings.Split(in(t, d, "one", "python3 visit.py 2>&1 <<'END'\n"+lines.String()+"END\n"), "\n")
	if len(printed) != len(list)+1 {
		t.Fatalf("%d answers: printed = %q, want len(printed) == len(list) + 1", len(printed)-1, printed)
	}
	for i, l := range list {
		if !strings.Contains(printed[i], l[1]) {
			t.Errorf("%s: %q, want %q", l[0], printed[i], l[1])
		}
	}
}

func TestConnectionsAreForTheNamesThatAreAllowed(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	for name, to := range map[string][]string{
		"www.allowed.example.": {web4, web6}, "also.allowed.example.": {web4}, "far.example.": {webOther4}, "plain.example.": {web4},
		"forbidden.example.": {web4}, "silent.example.": {public4},
	} {
		z.set(name, to...)
	}
	d := boxtest.Start(t, boxtest.Lasting+byName)
	z.ttl = 1800 // addresses stay allowed for as long as this takes
	req := egress("one", "*.allowed.example", "far.example tcp 443", "plain.example any 80 443 8080", "silent.example tcp 443", webOther4+"/32 tcp 80")
	req.NetworkStrict = new(true)
	if s := d.NewSession(t, req); !s.NetworkStrict {
		t.Error("the session does not have network_strict")
	}
	in(t, d, "one", "cat > visit.py <<'END'\nLARGE = "+strconv.Itoa(largeAnswer-1)+visit+"END\n")
	in(t, d, "one", "for n in www.allowed.example also.allowed.example far.example plain.example silent.example; do getent ahosts $n; done")
	const denied = "alert access denied"
	visits(t, d,
		// By name, over both IP families, and with the oldest and the newest version of TLS.
		[2]string{"tls www.allowed.example www.allowed.example", "200 web www.allowed.example www.allowed.example /x large"},
		[2]string{"tls " + web6 + " www.allowed.example", "200 web www.allowed.example www.allowed.example /x large"},
		[2]string{"tls " + web4 + " ALSO.allowed.example 1.2", "/x large"},
		[2]string{"web www.allowed.example www.allowed.example also.allowed.example", "200 web www.allowed.example - /x 200 web also.allowed.example - /x"},
		// A name that is not allowed, at an allowed address; an allowed name at another address; no name.
		[2]string{"tls " + web4 + " forbidden.example", denied},
		[2]string{"tls " + web4 + " far.example", denied},
		[2]string{"tls " + webOther4 + " www.allowed.example", denied},
		[2]string{"tls " + web4 + " ''", denied},
		[2]string{"tls " + web4 + " " + web4, denied},
		[2]string{"web " + web4 + " forbidden.example", "403 "},
		[2]string{"web " + web4 + " far.example", "403 "},
		[2]string{"web " + web4 + " " + web4, "403 "},
		[2]string{"web " + web4 + " www.allowed.example forbidden.example", "200 web www.allowed.example - /x 403 "},
		// Two names in one request, requests within requests, neither HTTP nor TLS, and a client that sends nothing.
		[2]string{"raw " + web4 + ` 80 'GET / HTTP/1.1\r\nHost: www.allowed.example\r\nHost: forbidden.example\r\n\r\n'`, "400 "},
		[2]string{"raw " + web4 + ` 80 'GET http://forbidden.example/ HTTP/1.1\r\nHost: www.allowed.example\r\n\r\n'`, "403 "},
		[2]string{"raw " + web4 + ` 80 'GET / HTTP/1.0\r\n\r\n'`, "403 "},
		[2]string{"raw " + web4 + ` 80 'CONNECT www.allowed.example:80 HTTP/1.1\r\nHost: www.allowed.example\r\n\r\n'`, "403 "},
		[2]string{"raw " + web4 + ` 80 'POST /count HTTP/1.1\r\nHost: www.allowed.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: forbidden.example\r\n\r\n'`, ""},
		[2]string{"raw " + web4 + ` 80 'SSH-2.0-x\r\n'`, "400 "},
		[2]string{"raw " + web4 + ` 443 'SSH-2.0-x\r\n'`, "x15"},
		[2]string{"raw " + web4 + ` 443 '\x16\x03\x01' end`, ""},
		// A CIDR rule allows an address, whatever the name.
		[2]string{"web " + webOther4 + " whoever.example", "200 web whoever.example - /x"},
	)
	// The proxy's own address, and protocols that it cannot inspect.
	for _, to := range []string{"127.0.0.1", "::1"} {
		if got := reach(t, d, "one", to, 843); !refused(got) {
			t.Errorf("with network_strict, %s: got %q, want refused(got)", to, got)
		}
	}
	if got := in(t, d, "one", "exec 3<>/dev/udp/"+web4+"/443; echo x >&3; dd bs=512 count=1 status=none <&3"); !refused(got) {
		t.Errorf("QUIC: got %q, want refused(got)", got)
	}
	if got := reach(t, d, "one", public4, 80); !refused(got) {
		t.Errorf("a port that no rule has: got %q, want refused(got)", got)
	}
	deniedOf(t, d, "one", "a connection to "+web4+" port 443 for forbidden.example is allowed by no rule; network_rules with \"forbidden.example tcp 443\" would allow it",
		"a connection to "+web4+" port 443 for far.example, which did not resolve to it", "port 443 has no host name (SNI, HTTP Host)",
		"a connection to "+web4+" port 80 for forbidden.example is allowed by no rule", "a connection to "+web4+" port 80 for \""+web4+"\" has no host name")

	again := func(after string) {
		t.Helper()
		boxtest.Eventually(t, "after the end of "+after+" connections go on", func() bool {
			got := in(t, d, "one", "echo tls "+web4+" www.allowed.example | python3 visit.py 2>&1")
			if !strings.Contains(got, "large") && !strings.Contains(got, "error:") {
				t.Errorf(`meanwhile: got %q, want got containing "large" or got containing "error:"`, got)
			}
			return strings.Contains(got, "large")
		})
		visits(t, d, [2]string{"tls " + web4 + " forbidden.example", denied}, [2]string{"tls " + webOther4 + " www.allowed.example", denied})
	}
	must(t, unix.Kill(program(t, d, "boxnames"), unix.SIGKILL))
	again("the program")
	d.Kill()
	d.Restart()
	again("boxd")

	_, err := d.ChangeSession(t.Context(), "one", &api.SessionChange{NetworkRules: []string{"far.example"}})
	must(t, err)
	visits(t, d, [2]string{"tls www.allowed.example www.allowed.example", "error:"}, [2]string{"tls far.example far.example", "large"}, [2]string{"tls " + webOther4 + " www.allowed.example", denied})
}

func TestNetworkStrictNeedsRulesByName(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, byName, "[profiles.fixed]\nnetwork = \"egress\"\nnetwork_rules = [\"www.allowed.example\"]\nnetwork_strict = true\nlocked = [\"network_strict\"]\n")
	for what, req := range map[string]api.SessionRequest{
		"no names":      {Network: new("egress"), NetworkStrict: new(true)},
		"it is locked":  {Profile: "fixed", NetworkStrict: new(false)},
		"not any names": {Profile: "fixed", NetworkRules: []string{public4 + "/32 tcp"}},
	} {
		_, _, err := d.CreateSession(t.Context(), &req)
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Field != "network_strict" {
			t.Errorf(`%s: err = %v, want ok == true and e.Field == "network_strict"`, what, err)
		}
	}
}
