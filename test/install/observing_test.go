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
	boxtest.Eventually(t, "the journal has the whole story", func() bool {
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
			t.Errorf("an entry lacks what it should have: %v", e)
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
		t.Fatalf("the token is %q", made)
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
		t.Errorf("with its token: %+v", r)
	}
	if r := by(made[0] + "x"); r.code != 125 || !strings.Contains(r.stderr, "authentication failed: missing, unknown") {
		t.Errorf("with another: %+v", r)
	}
}
