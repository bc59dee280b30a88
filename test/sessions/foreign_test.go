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

func decode[T any](t *testing.T, a boxtest.Answer) (v T) {
	t.Helper()
	if a.Code >= http.StatusBadRequest {
		t.Fatalf("a.Code = %d, a.Body = %s, want a.Code < 400", a.Code, a.Body)
	}
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	return v
}

func TestTwoPrincipalsMayHaveTheSameID(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	mine := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "echo root > whose")
	theirs := d.AsUser(t, boxtest.OtherUID,
		boxtest.Request("GET", "/v1/sessions/s1", ""),
		boxtest.Request("GET", "/v1/sessions", ""),
		boxtest.Request("POST", "/v1/sessions", `{"id":"s1"}`),
		boxtest.Request("POST", "/v1/sessions/s1/exec", `{"command":"cat whose; echo other > whose; id -u"}`),
		boxtest.Request("GET", "/v1/sessions", ""))
	if theirs[0].Code != http.StatusNotFound || len(decode[api.SessionList](t, theirs[1]).Sessions) != 0 {
		t.Errorf("before: theirs[0].Body = %s, theirs[1].Body = %s, want theirs[0].Code == 404 and len(decode[api.SessionList](t, theirs[1]).Sessions) == 0",
			theirs[0].Body, theirs[1].Body)
	}
	s := decode[api.Session](t, theirs[2])
	if theirs[2].Code != http.StatusCreated || s.Owner != "uid:4242" || s.OwnerUID != boxtest.OtherUID || s.PID == mine.PID || s.IDBase == mine.IDBase {
		t.Errorf(`s = %+v, want theirs[2].Code == 201 and s.Owner == "uid:4242" and s.OwnerUID == boxtest.OtherUID and s.PID != %v and s.IDBase != %v`,
			s, mine.PID, mine.IDBase)
	}
	if r := decode[api.ExecResult](t, theirs[3]); r.Stdout != "1000\n" || !strings.Contains(r.Stderr, "whose") {
		t.Errorf(`r = %s, want r.Stdout == "1000\n" and r.Stderr containing "whose"`, boxtest.Show(r))
	}
	if list := decode[api.SessionList](t, theirs[4]).Sessions; len(list) != 1 || list[0].PID != s.PID {
		t.Errorf("list = %+v, want len(list) == 1 and list[0].PID == s.PID", list)
	}
	if got := d.Sh(t, "s1", "cat whose"); got != "root\n" {
		t.Errorf(`root's session has %q, want "root\n"`, got)
	}
	if a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("DELETE", "/v1/sessions/s1", "")); a[0].Code != http.StatusNoContent {
		t.Errorf("a[0].Body = %s, want a[0].Code == 204", a[0].Body)
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != mine.PID {
		t.Errorf("root's session: now = %+v, err = %v, want no error and now.PID == %v", now, err, mine.PID)
	}
}

func TestRootSeesAndActsForOthers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "mine"})
	theirs := decode[api.Session](t, d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"theirs"}`))[0])
	own, err := d.Sessions(t.Context(), false)
	if err != nil || len(own) != 1 || own[0].ID != "mine" {
		t.Errorf(`own = %+v, err = %v, want no error and len(own) == 1 and own[0].ID == "mine"`, own, err)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{"mine", "theirs"}) {
		t.Errorf(`all are %q, want []string{"mine", "theirs"}`, got)
	}
	if _, err := d.Session(t.Context(), "theirs"); err == nil {
		t.Error("root gets a foreign session without naming its owner")
	}
	d.Owner = "uid:4242"
	defer func() { d.Owner = "" }()
	if s, err := d.Session(t.Context(), "theirs"); err != nil || s.PID != theirs.PID {
		t.Errorf("s = %+v, err = %v, want no error and s.PID == %v", s, err, theirs.PID)
	}
	if got := d.Sh(t, "theirs", "echo hello"); got != "hello\n" {
		t.Errorf(`got %q, want "hello\n"`, got)
	}
	if err := d.DeleteSession(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	d.Owner = ""
	if got := sessions(t, d); !slices.Equal(got, []string{"mine"}) {
		t.Errorf(`all are %q, want []string{"mine"}`, got)
	}
}

func TestOthersDoNotActForRoot(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "mine"})
	for i, a := range d.AsUser(t, boxtest.OtherUID,
		boxtest.Request("GET", "/v1/sessions?all=true", ""),
		boxtest.Request("GET", "/v1/sessions/mine?owner=uid:0", ""),
		boxtest.Request("DELETE", "/v1/sessions/mine?owner=uid%3A0", ""),
		boxtest.Request("POST", "/v1/sessions/mine/exec?owner=uid:0", `{"argv":["true"]}`),
		boxtest.Request("GET", "/v1/sessions/mine/exec/stream?owner=uid:0", "", boxtest.Upgrade()...)) {
		if p := a.Problem(t); p.Status != http.StatusForbidden || p.Field != "all" && p.Field != "owner" {
			t.Errorf(`request %d: p = %+v, want p.Status == 403 and (p.Field == "all" or p.Field == "owner")`, i, p)
		}
	}
	// Naming oneself as the owner needs no privilege.
	if a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/sessions?all=false", ""), boxtest.Request("GET", "/v1/sessions/none?owner=uid:4242", "")); a[0].Code != http.StatusOK || a[1].Code != http.StatusNotFound {
		t.Errorf("a[0].Body = %s, a[1].Body = %s, want a[0].Code == 200 and a[1].Code == 404", a[0].Body, a[1].Body)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{"mine"}) {
		t.Errorf(`all are %q, want []string{"mine"}`, got)
	}
}

// A foreign session and a missing one get the same answer on every route: the answers differ only in the id, which the caller has
// sent.
func TestAForeignSessionIsLikeAMissingOne(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	const foreign, missing = "session-of-root", "session-of-none"
	d.NewSession(t, api.SessionRequest{ID: foreign})
	tried := 0
	for _, pattern := range relay.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") {
			continue
		}
		for _, body := range []string{"", `{"argv":["true"]}`, `{"argv":[]}`, `{"nonsense":1}`, `{`} {
			var header []string
			if strings.HasSuffix(path, "/stream") {
				header = boxtest.Upgrade()
			}
			requests := []string{}
			for _, id := range []string{foreign, missing} {
				requests = append(requests, boxtest.Request(method, strings.ReplaceAll(path, "{id}", id), body, header...))
			}
			a := d.AsUser(t, boxtest.OtherUID, requests...)
			for i := range a {
				a[i].Header.Del("Date")
				a[i].Header.Del("X-Request-Id") // each has its own
				if a[i].Code < http.StatusBadRequest {
					t.Errorf("%s with %q: a[i].Code = %d, a[i].Body = %s, want a[i].Code >= 400",
						pattern, body, a[i].Code, a[i].Body)
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
		t.Errorf("all are %q, want []string{foreign}", got)
	}
	if a := d.Raw(t, "GET", "/v1/sessions/"+foreign, ""); !bytes.Contains(a.Body, []byte(fmt.Sprintf("%q", foreign))) {
		t.Errorf(`a.Body = %s, want a.Body containing []byte(fmt.Sprintf("%%q", foreign))`, a.Body)
	}
}
