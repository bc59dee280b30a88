// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// journalctl BOXD_SESSION=x shows the history of a box, each entry with a message id, which the catalog explains.
func TestTheJournalTellsOfABox(t *testing.T) {
	installed(t, this)
	boxctl(t, "create", "told")
	boxctl(t, "exec", "told", "--", "true")
	boxctl(t, "rm", "told")
	want := []string{"session started", "execution ended", "session ended"}
	var entries []map[string]any
	boxtest.Eventually(t, "the journal has all entries of the box", func() bool {
		entries = nil
		text := run(t, "journalctl", "--output=json", "--no-pager", "BOXD_SESSION=told")
		found := map[string]bool{}
		for line := range strings.Lines(text) {
			var e map[string]any
			if json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			entries = append(entries, e)
			for _, w := range want {
				message, _ := e["MESSAGE"].(string)
				found[w] = found[w] || strings.Contains(message, w)
			}
		}
		return len(found) > 0 && found[want[0]] && found[want[1]] && found[want[2]]
	})
	for _, e := range entries {
		if id, _ := e["MESSAGE_ID"].(string); len(id) != 32 || e["BOXD_OWNER"] == nil || e["_SYSTEMD_UNIT"] != service {
			t.Errorf("a journal entry lacks fields: %v", e)
		}
	}
	if text := run(t, "journalctl", "--catalog", "--no-pager", "BOXD_SESSION=told"); !strings.Contains(text, "Subject: Box told has started") {
		t.Errorf("the catalog is not there:\n%s", text)
	}
}

// A program outside the group uses HTTP, with a token that systemd has passed to boxd as a credential.
func TestATokenByTheCredentialOfAUnit(t *testing.T) {
	installed(t, this)
	const http = "boxd-http.socket"
	made := strings.SplitN(run(t, "boxctl", "token", "new", "nightly", "ci"), "\n", 2)
	if len(made) != 2 || !strings.HasPrefix(made[0], "boxd_") {
		t.Fatalf(`the token is %q, want len(made) == 2 and made[0] starting with "boxd_"`, made)
	}
	if err := os.MkdirAll("/etc/credstore", 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, map[string]string{
		"/etc/credstore/boxd.tokens": made[1] + "\n", "/etc/boxd/box.toml.d/50-ci.toml": "[principals.ci]\nrole = \"user\"\n",
	})
	run(t, "systemctl", "stop", service)
	run(t, "systemctl", "start", http)
	t.Cleanup(func() {
		run(t, "systemctl", "stop", service, http)
	})
	by := func(token string) result {
		return try(t, as(stranger, "env", "BOXD_SOCKET=http://127.0.0.1:5410", "BOXD_TOKEN="+token, "boxctl", "run", "--", "echo", "hello")...)
	}
	if r := by(made[0]); r.code != 0 || strings.TrimSpace(r.stdout) != "hello" {
		t.Errorf(`with its token: r = %+v, want r.code == 0 and strings.TrimSpace(r.stdout) == "hello"`, r)
	}
	if r := by(made[0] + "x"); r.code != 125 || !strings.Contains(r.stderr, "authentication failed: missing, unknown") {
		t.Errorf(`with another: r = %+v, want r.code == 125 and r.stderr containing "authentication failed: missing, unknown"`,
			r)
	}
}

// boxd is not root, and reads files of root nevertheless, if the configuration names them: at its start, at a reload, and those that are replaced.
func TestFilesThatOnlyRootReads(t *testing.T) {
	installed(t, this)
	const http, dir = "boxd-http.socket", "/srv/boxd-closed"
	made := strings.SplitN(run(t, "boxctl", "token", "new", "nightly", "ci"), "\n", 2)
	if len(made) != 2 {
		t.Fatalf("the token is %q, want len(made) == 2", made)
	}
	boxctl(t, "run", "--", "true") // boxd runs
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
		run(t, "systemctl", "restart", service)
	})
	put(t, map[string]string{dir + "/tokens": "no token at all\n", "/etc/boxd/box.toml.d/60-closed.toml": "[principals.ci]\nrole = \"user\"\n[access]\ntokens = \"" + dir + "/tokens\"\n"})
	if r := try(t, "systemctl", "reload", service); r.code == 0 {
		t.Errorf("a configuration with a broken file is in force: r = %+v, want r.code != 0", r)
	}
	if err := os.WriteFile(dir+"/tokens", []byte(made[1]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	by := func(token string) result {
		return try(t, as(stranger, "env", "BOXD_SOCKET=http://127.0.0.1:5410", "BOXD_TOKEN="+token, "boxctl", "run", "--", "echo", "hello")...)
	}
	run(t, "systemctl", "stop", service)
	run(t, "systemctl", "start", http)
	t.Cleanup(func() { run(t, "systemctl", "stop", service, http) })
	if r := by(made[0]); r.code != 0 || strings.TrimSpace(r.stdout) != "hello" {
		t.Errorf(`with a token file that exists at the start: r = %+v, want r.code == 0 and strings.TrimSpace(r.stdout) == "hello"`,
			r)
	}
	other := strings.SplitN(run(t, "boxctl", "token", "new", "other", "ci"), "\n", 2)
	if err := os.WriteFile(dir+"/tokens", []byte(other[1]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "reload", service)
	boxtest.Eventually(t, "the reload is in force", func() bool { return by(made[0]).code == 125 })
	if r := by(other[0]); r.code != 0 {
		t.Errorf("with a token of a file that was replaced: r = %+v, want r.code == 0", r)
	}
	// Files that the configuration does not name are not opened for any client; and no user but boxd's can send requests.
	ask := `import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("/run/boxd/files.sock")
s.send(json.dumps({"path": sys.argv[1]}).encode())
body, fds, _, _ = socket.recv_fds(s, 65536, 1)
print(len(fds), body.decode())`
	for path, want := range map[string]string{dir + "/tokens": "1 {}", "/etc/shadow": `0 {"why":"boxd-files.service opens only files that the configuration names"}`, "/etc/boxd/box.toml": "1 {}", dir: `0 {"why":"boxd-files.service opens only files that the configuration names"}`} {
		if r := try(t, "setpriv", "--reuid=boxd-daemon", "--regid=boxd-daemon", "--clear-groups", "python3", "-c", ask, path); strings.TrimSpace(r.stdout) != want {
			t.Errorf("opening %s through boxd-files.service: %+v, want %s", path, r, want)
		}
	}
	if r := try(t, as(member, "python3", "-c", ask, dir+"/tokens")...); r.code == 0 {
		t.Errorf("a member of the group asks: r = %+v, want r.code != 0", r)
	}
	run(t, "systemctl", "stop", service)
	boxtest.Eventually(t, "the service ends with boxd, beside it", func() bool { return state(t, "boxd-files.service") == "inactive" })
}
