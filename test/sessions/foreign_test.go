// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/api"
)

func decode[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	if a.Code >= http.StatusBadRequest {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	return v
}

func TestTwoPrincipalsMayHaveTheSameID(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	mine := create(t, d, api.SessionRequest{ID: "s1"})
	succeeds(t, d, "s1", sh("echo root > whose"))
	theirs := asOther(
		t, d,
		request("GET", "/v1/sessions/s1", ""),
		request("GET", "/v1/sessions", ""),
		request("POST", "/v1/sessions", `{"id":"s1"}`),
		request("POST", "/v1/sessions/s1/exec", `{"command":"cat whose; echo other > whose; id -u"}`),
		request("GET", "/v1/sessions", ""),
	)
	if theirs[0].Code != http.StatusNotFound || len(decode[api.SessionList](t, theirs[1]).Sessions) != 0 {
		t.Errorf("before: %s, %s", theirs[0].Body, theirs[1].Body)
	}
	s := decode[api.Session](t, theirs[2])
	if theirs[2].Code != http.StatusCreated || s.Owner != "uid:4242" || s.OwnerUID != otherUID || s.PID == mine.PID || s.IDBase == mine.IDBase {
		t.Errorf("%+v", s)
	}
	if r := decode[api.ExecResult](t, theirs[3]); r.Stdout != "1000\n" || !strings.Contains(r.Stderr, "whose") {
		t.Errorf("%s", show(r))
	}
	if list := decode[api.SessionList](t, theirs[4]).Sessions; len(list) != 1 || list[0].PID != s.PID {
		t.Errorf("%+v", list)
	}
	if got := succeeds(t, d, "s1", sh("cat whose")); got != "root\n" {
		t.Errorf("root's session has %q", got)
	}
	if a := asOther(t, d, request("DELETE", "/v1/sessions/s1", "")); a[0].Code != http.StatusNoContent {
		t.Errorf("%s", a[0].Body)
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != mine.PID {
		t.Errorf("root's session: %+v, %v", now, err)
	}
}

func TestRootSeesAndActsForOthers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "mine"})
	theirs := decode[api.Session](t, asOther(t, d, request("POST", "/v1/sessions", `{"id":"theirs"}`))[0])
	own, err := d.Sessions(t.Context(), false)
	if err != nil || len(own) != 1 || own[0].ID != "mine" {
		t.Errorf("%+v, %v", own, err)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{"mine", "theirs"}) {
		t.Errorf("all are %q", got)
	}
	if _, err := d.Session(t.Context(), "theirs"); err == nil {
		t.Error("root has a session of another without naming the owner")
	}
	d.Owner = "uid:4242"
	defer func() { d.Owner = "" }()
	if s, err := d.Session(t.Context(), "theirs"); err != nil || s.PID != theirs.PID {
		t.Errorf("%+v, %v", s, err)
	}
	if got := succeeds(t, d, "theirs", sh("echo hello")); got != "hello\n" {
		t.Errorf("%q", got)
	}
	if err := d.Delete(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	d.Owner = ""
	if got := sessions(t, d); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("all are %q", got)
	}
}

func TestOthersDoNotActForRoot(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "mine"})
	for i, a := range asOther(
		t, d,
		request("GET", "/v1/sessions?all=true", ""),
		request("GET", "/v1/sessions/mine?owner=uid:0", ""),
		request("DELETE", "/v1/sessions/mine?owner=uid%3A0", ""),
		request("POST", "/v1/sessions/mine/exec?owner=uid:0", `{"argv":["true"]}`),
		request("GET", "/v1/sessions/mine/exec/stream?owner=uid:0", "", upgrade()...),
	) {
		if p := a.problem(t); p.Status != http.StatusForbidden || p.Field != "all" && p.Field != "owner" {
			t.Errorf("request %d: %+v", i, p)
		}
	}
	// To name oneself is no privilege.
	if a := asOther(t, d, request("GET", "/v1/sessions?all=false", ""), request("GET", "/v1/sessions/none?owner=uid:4242", "")); a[0].Code != http.StatusOK || a[1].Code != http.StatusNotFound {
		t.Errorf("%s, %s", a[0].Body, a[1].Body)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("all are %q", got)
	}
}

// upgrade is the header of a request for a WebSocket.
func upgrade() []string {
	return []string{"Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}
}

// A session of somebody else and one that does not exist are the same on every route: the answers
// differ in the id alone, which is what the caller has sent.
func TestAForeignSessionIsLikeAMissingOne(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	const foreign, missing = "session-of-root", "session-of-none"
	create(t, d, api.SessionRequest{ID: foreign})
	tried := 0
	for _, pattern := range relay.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") {
			continue
		}
		for _, body := range []string{"", `{"argv":["true"]}`, `{"argv":[]}`, `{"nonsense":1}`, `{`} {
			var header []string
			if strings.HasSuffix(path, "/stream") {
				header = upgrade()
			}
			requests := []string{}
			for _, id := range []string{foreign, missing} {
				requests = append(requests, request(method, strings.ReplaceAll(path, "{id}", id), body, header...))
			}
			a := asOther(t, d, requests...)
			for i := range a {
				a[i].Header.Del("Date")
				a[i].Header.Del("X-Request-Id") // each has its own
				if a[i].Code < http.StatusBadRequest {
					t.Errorf("%s with %q: %d %s", pattern, body, a[i].Code, a[i].Body)
				}
			}
			a[0].Body = bytes.ReplaceAll(a[0].Body, []byte(foreign), []byte(missing))
			if diff := cmp.Diff(a[1], a[0]); diff != "" {
				t.Errorf("%s with %q tells a foreign session from a missing one (-missing +foreign):\n%s", pattern, body, diff)
			}
			tried++
		}
	}
	if tried < 20 {
		t.Errorf("only %d requests were tried", tried)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{foreign}) {
		t.Errorf("all are %q", got)
	}
	if a := raw(t, d, "GET", "/v1/sessions/"+foreign, ""); !bytes.Contains(a.Body, []byte(fmt.Sprintf("%q", foreign))) {
		t.Errorf("%s", a.Body)
	}
}
