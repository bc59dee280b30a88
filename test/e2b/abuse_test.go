// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// withKey gives a principal one key more.
func (h *host) withKey(t *testing.T, name, principal, more string) {
	t.Helper()
	h.keys[name], h.entries[name] = newKey(name, principal, more)
	h.reload(t)
	boxtest.Eventually(t, "the key "+name+" holds", func() bool {
		status, _, _ := h.asks(t, name, "GET", "/v2/nothing", "")
		return status != http.StatusUnauthorized
	})
}

// reload has boxd read its keys again.
func (h *host) reload(t *testing.T) {
	t.Helper()
	h.writeTokens(t)
	if err := syscall.Kill(h.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// api sends a request to boxd's own API.
func (h *host) api(t *testing.T, who, method, path, body string) boxtest.Answer {
	t.Helper()
	return h.Raw(t, method, path, body, "Authorization: Bearer "+h.keys[who])
}

// A key that allows less than the tokens of a sandbox lead to does not get them, whichever way it asks, and a sandbox does not go
// on by one that allows less than before.
func TestAKeyGetsNoMoreThanItAllows(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	h.withKey(t, "narrow", "agent", `routes = ["GET /v1/sessions*", "POST /v1/sessions", "PATCH /v1/sessions*", "POST /v1/sessions/{id}/freeze"]`)
	for _, who := range []string{"viewer", "listing", "narrow"} {
		for _, path := range []string{"/sandboxes/" + sb.ID, "/v1/sandboxes/" + sb.ID, "/v1/sandboxes", "/v2/sandboxes"} {
			status, text, _ := h.asks(t, who, "GET", path, "")
			if status != http.StatusOK || !strings.Contains(text, sb.ID) || strings.Contains(text, sb.Token) || strings.Contains(text, sb.Traffic) {
				t.Errorf("%s GET %s: %d %s", who, path, status, text)
			}
		}
		for _, path := range []string{"/sandboxes", "/v2/sandboxes", "/sandboxes/" + sb.ID + "/connect", "/v2/sandboxes/" + sb.ID + "/connect", "/v1/sandboxes/" + sb.ID + "/connect", "/sandboxes/" + sb.ID + "/resume"} {
			if status, text, _ := h.asks(t, who, "POST", path, "{}"); status != http.StatusForbidden {
				t.Errorf("%s POST %s: %d %s", who, path, status, text)
			}
		}
	}
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID, ""); !strings.Contains(text, sb.Token) {
		t.Errorf("a key that allows everything: %d %s", status, text)
	}
	if status, text, _ := h.asks(t, "narrow", "POST", "/sandboxes/"+sb.ID+"/timeout", `{"timeout":600}`); status != http.StatusNoContent {
		t.Errorf("what it allows: %d %s", status, text)
	}
	if status, text, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...); status != http.StatusOK {
		t.Errorf("it has taken the sandbox from those who may use it: %d %s", status, text)
	}
	name := h.entries["agent"]
	h.entries["agent"] = name + "routes = [\"GET /v1/sessions*\"]\n"
	h.reload(t)
	boxtest.Eventually(t, "the key allows less", func() bool {
		status, _, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...)
		return status == http.StatusUnauthorized
	})
}

// What somebody calls a session of his own, and writes on it, neither hides another's sandbox nor leads to anything of another.
func TestASandboxIsNotTakenForAnothers(t *testing.T) {
	h := start(t, boxtest.Kept)
	sb := h.create(t, "agent", `{}`)
	forged, err := json.Marshal(map[string]any{"id": sb.ID, "labels": map[string]string{"e2b.template": "base", "e2b.key": "agent"}, "ttl": "0s"})
	if err != nil {
		t.Fatal(err)
	}
	if a := h.api(t, "other", "POST", "/v1/sessions", string(forged)); a.Code != http.StatusCreated {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	var his struct{ EnvdAccessToken string }
	status, text, _ := h.asks(t, "other", "GET", "/sandboxes/"+sb.ID, "")
	if err := json.Unmarshal([]byte(text), &his); err != nil || status != http.StatusOK || his.EnvdAccessToken == "" || his.EnvdAccessToken == sb.Token {
		t.Fatalf("%d %s", status, text)
	}
	for range 3 { // whoever comes first
		h.Stop()
		h.Restart()
		if status, text, _ := h.sends(t, "POST", "/process.Process/List", "{}", append(sb.of("49983"), "Content-Type", "application/json")...); status != http.StatusOK {
			t.Errorf("its own token: %d %s", status, text)
		}
		if status, text, _ := h.sends(t, "POST", "/process.Process/List", "{}", "E2b-Sandbox-Id", sb.ID, "X-Access-Token", his.EnvdAccessToken, "Content-Type", "application/json"); status != http.StatusUnauthorized {
			t.Errorf("a session that names another's key: %d %s", status, text)
		}
	}
	if status, text, _ := h.asks(t, "other", "DELETE", "/sandboxes/"+sb.ID, ""); status != http.StatusNoContent {
		t.Fatalf("his own: %d %s", status, text)
	}
	if status, text, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...); status != http.StatusOK {
		t.Errorf("after his has ended: %d %s", status, text)
	}
}
