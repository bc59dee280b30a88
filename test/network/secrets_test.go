// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// use is a program in a box that has placeholders. It executes the lines of its input and answers each with a line: ask HOST PATH
// HEADER VALUE [BODY] verifies the server; blind does not; swap upgrades the connection.
const use = `
import base64, http.client, os, shlex, socket, ssl, sys
def ask(kind, host, path, header, value, body=None):
    c = ssl.create_default_context()
    if kind == "blind": c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if "(" in value: value = "Basic " + base64.b64encode(("me:" + os.environ["API_KEY"]).encode()).decode()
    value, path = os.path.expandvars(value), os.path.expandvars(path)
    if kind == "swap":
        s = c.wrap_socket(socket.create_connection((host, 443)), server_hostname=host)
        f = s.makefile("rwb")
        f.write(("GET /swap HTTP/1.1\r\nHost: %s\r\nConnection: upgrade\r\nUpgrade: echo\r\n%s: %s\r\n\r\n" % (host, header, value)).encode()); f.flush()
        while f.readline().strip(): pass
        f.write(b"hello\n"); f.flush()
        return f.readline().decode().strip() + " " + f.readline().decode().strip()
    h = http.client.HTTPSConnection(host, context=c)
    names = {header: value}
    if kind == "other": names["Host"] = "www.allowed.example"
    h.request("POST" if body else "GET", path, os.path.expandvars(body) if body else None, names)
    r = h.getresponse()
    return "%d %s %s" % (r.status, r.read().decode().strip(), r.getheader("X-Echo"))
for line in sys.stdin:
    try: print(ask(*shlex.split(line)))
    except Exception as e: print("error:", e)
`

func TestSecretsAreForTheirHostsAlone(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	for _, name := range []string{"api.example.", "free.example.", "deep.api.example."} {
		z.set(name, web4, web6)
	}
	lent := boxtest.TempDir(t)
	t.Setenv("CREDENTIALS_DIRECTORY", lent)
	const value, second = "tIGeR-0123456789-value", "LiOn-9876543210-value"
	must(t, os.WriteFile(filepath.Join(lent, "api.key"), []byte(value+"\n"), 0o440))
	d := boxtest.Start(t, boxtest.Lasting+byName, `
[secrets.api]
credential = "api.key"
hosts = ["API.example", "deep.api.example"]
env = "API_KEY"
authorities = "%DIR%/roots.pem"
[secrets.second]
file = "%DIR%/second"
hosts = ["api.example"]
env = "SECOND"
authorities = "%DIR%/roots.pem"
`)
	must(t, os.WriteFile(filepath.Join(d.Dir, "roots.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webCertificate().Certificate[0]}), 0o600))
	req := egress("one", "*.example")
	req.Secrets = []string{"second", "api"}
	_, _, err := d.CreateSession(t.Context(), &req)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Field != "secrets" || strings.Contains(err.Error(), d.Dir) {
		t.Fatalf(`a secret that is not there: err = %v, want ok == true and e.Field == "secrets" and err without %q`,
			err, d.Dir)
	}
	must(t, os.WriteFile(filepath.Join(d.Dir, "second"), []byte(second), 0o600))
	req.Env = map[string]string{"PIP_CERT": "/own"}
	s := d.NewSession(t, req)
	if !s.NetworkStrict || strings.Join(s.Secrets, " ") != "api second" {
		t.Errorf("secrets %q, strict %v", s.Secrets, s.NetworkStrict)
	}
	env := in(t, d, "one", `echo $API_KEY $SECOND $SSL_CERT_FILE $PIP_CERT; grep -c BEGIN "$CURL_CA_BUNDLE"`)
	f := strings.Fields(env)
	if len(f) != 5 || !strings.HasPrefix(f[0], "boxd-secret-") || f[0] == f[1] || f[2] != "/home/box/.boxd/ca-certificates.crt" || f[3] != "/own" || f[4] == "0" {
		t.Fatalf("in the box: %q", env)
	}
	in(t, d, "one", "cat > use.py <<'END'"+use+"END\n")
	asks := func(list ...[2]string) {
		t.Helper()
		var lines strings.Builder
		for _, l := range list {
			lines.WriteString(l[0] + "\n")
		}
		printed := strings.Split(in(t, d, "one", "python3 use.py 2>&1 <<'END'\n"+lines.String()+"END\n"), "\n")
		if len(printed) != len(list)+1 {
			t.Fatalf("%d answers: printed = %q, want len(printed) == len(list) + 1", len(printed)-1, printed)
		}
		for i, l := range list {
			if !strings.HasPrefix(printed[i], l[1]) {
				t.Errorf("%s: %q, want %q", l[0], printed[i], l[1])
			}
		}
	}
	bearer, mark := "200 "+sum("Bearer "+value)+" - ", f[0]
	asks(
		[2]string{"ask api.example /s Authorization 'Bearer $API_KEY'", bearer + "Bearer " + mark},
		[2]string{"ask api.example /s X-Both '$SECOND,$API_KEY'", "200 " + sum(second+","+value) + " - " + f[1] + "," + mark},
		[2]string{"ask api.example /s Authorization 'Basic (me:key)'", "200 " + sum("Basic bWU6dElHZVItMDEyMzQ1Njc4OS12YWx1ZQ==") + " -"},
		// Not replaced in URLs or bodies; nor for another host, even under an allowed name.
		[2]string{"ask api.example '/s?k=$API_KEY' X-None 1", "200 " + sum("1") + " url "},
		[2]string{"ask api.example /s X-None 1 '$API_KEY'", "200 " + sum("1") + " body "},
		[2]string{"blind free.example /s Authorization 'Bearer $API_KEY'", "200 " + sum("Bearer "+mark) + " - "},
		[2]string{"ask free.example /s Authorization 'Bearer $API_KEY'", "error:"},
		[2]string{"other api.example /s Authorization 'Bearer $API_KEY'", "421 boxd:"},
		// The server's certificate is for another name: nothing is sent.
		[2]string{"ask deep.api.example /s Authorization 'Bearer $API_KEY'", "502 boxd: the certificate of the server is invalid"},
		[2]string{"swap api.example /swap Authorization 'Bearer $API_KEY'", sum("Bearer "+value) + " hello"},
	)
	other := egress("two", "*.example")
	other.Secrets = []string{"api"}
	d.NewSession(t, other)
	if got := strings.TrimSpace(in(t, d, "two", "echo $API_KEY$SECOND")); got == mark || !strings.HasPrefix(got, "boxd-secret-") {
		t.Errorf(`the placeholder of another session: got %q, want got != %q and got starting with "boxd-secret-"`,
			got, mark)
	}

	again := func(after string, want ...[2]string) {
		t.Helper()
		boxtest.Eventually(t, "after "+after+" secrets are inserted into requests", func() bool {
			got := in(t, d, "one", "python3 use.py 2>&1 <<'END'\n"+want[0][0]+"\nEND\n")
			return strings.HasPrefix(got, want[0][1])
		})
		asks(want...)
	}
	own := [2]string{"ask api.example /s Authorization 'Bearer $API_KEY'", bearer}
	must(t, syscall.Kill(program(t, d, "boxnames"), syscall.SIGKILL))
	again("the end of the program", own)
	d.Kill()
	d.Restart()
	again("the end of boxd", own)
	nowhere(t, d, value, second)

	// A changed value, and the removal of a secret, take effect in running sessions.
	must(t, os.Chmod(filepath.Join(lent, "api.key"), 0o600))
	must(t, os.WriteFile(filepath.Join(lent, "api.key"), []byte("another-value"), 0o600))
	text, err := os.ReadFile(d.Config)
	must(t, err)
	first, _, _ := strings.Cut(string(text), "[secrets.second]")
	_, rest, _ := strings.Cut(string(text), "\n[cgroups]")
	must(t, os.WriteFile(d.Config, []byte(first+"\n[cgroups]"+rest), 0o600))
	must(t, syscall.Kill(d.PID(), syscall.SIGHUP))
	again("a reload", [2]string{"ask api.example /s Authorization 'Bearer $API_KEY'", "200 " + sum("Bearer another-value") + " - "},
		[2]string{"ask api.example /s X-Gone " + f[1], "200 " + sum(f[1]) + " - "})
	if got := in(t, d, "one", "echo ${SECOND-none}"); got != "none\n" {
		t.Errorf(`the variable of a removed secret: got %q, want "none\n"`, got)
	}
}

// nowhere searches for values everywhere boxd could have left them.
func nowhere(t *testing.T, d *boxtest.Daemon, values ...string) {
	t.Helper()
	info, err := d.Session(t.Context(), "one")
	must(t, err)
	text, err := json.Marshal(info)
	must(t, err)
	found := map[string][]byte{"the log": []byte(d.Log()), "inspect": text, "the box": []byte(in(t, d, "one", "cat /proc/*/environ /proc/*/cmdline 2>/dev/null; grep -rs . /home/box/.boxd /run/box"))}
	for _, dir := range []string{d.State, filepath.Join(d.Dir, "run")} {
		must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				found[path], err = os.ReadFile(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}))
	}
	for where, data := range found {
		for _, v := range values {
			if bytes.Contains(data, []byte(v)) {
				t.Errorf("%s has a secret", where)
			}
		}
	}
}

// sum returns the digest that the server returns for a header, so that the box does not learn the value.
func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:8])
}

func TestSecretsThatCannotBeUsedAreRefused(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, byName, `
[profiles.loose]
network = "egress"
network_rules = ["api.example"]
locked = ["network_strict"]
`+fmt.Sprintf(secretOf, "a", "KEY")+fmt.Sprintf(secretOf, "b", "KEY"))
	rules := []string{"api.example"}
	for what, c := range map[string]struct {
		req   api.SessionRequest
		field string
	}{
		"no network":       {api.SessionRequest{Secrets: []string{"a"}}, "secrets"},
		"not strict":       {api.SessionRequest{Network: new("egress"), NetworkRules: rules, NetworkStrict: new(false), Secrets: []string{"a"}}, "network_strict"},
		"it is locked":     {api.SessionRequest{Profile: "loose", Secrets: []string{"a"}}, "network_strict"},
		"not reached":      {api.SessionRequest{Network: new("egress"), NetworkRules: []string{"*.api.example", "api.example tcp 80"}, Secrets: []string{"a"}}, "secrets[0]"},
		"by cidr alone":    {api.SessionRequest{Network: new("egress"), Secrets: []string{"a"}}, "secrets[0]"},
		"not known":        {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: []string{"a", "c"}}, "secrets[1]"},
		"one variable":     {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: []string{"a", "b"}}, "secrets[1]"},
		"variable is set":  {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: []string{"a"}, Env: map[string]string{"KEY": "x"}}, "env"},
		"it is not there":  {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: []string{"a"}}, "secrets"},
		"others can read":  {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: []string{"b"}}, "secrets"},
		"too many of them": {api.SessionRequest{Network: new("egress"), NetworkRules: rules, Secrets: strings.Fields("a b c d e f g h i")}, "secrets"},
	} {
		must(t, os.WriteFile(filepath.Join(d.Dir, "b"), []byte("0123456789"), 0o644))
		_, _, err := d.CreateSession(t.Context(), &c.req)
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Field != c.field {
			t.Errorf("%s: err = %v, want ok == true and e.Field == c.field", what, err)
		}
	}
}

const secretOf = "[secrets.%[1]s]\nfile = \"%%DIR%%/%[1]s\"\nhosts = [\"api.example\"]\nenv = %[2]q\n"
