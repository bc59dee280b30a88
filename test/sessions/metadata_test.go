// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// The metadata of a session is in answers about it alone, and in lists on request; sessions can be found by it, and it survives a
// restart of boxd and a stop of the session.
func TestMetadataIsKeptAndFindsSessions(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	want := map[string]string{"task": "17", "a b": "c&d=e", "long": strings.Repeat("ü\n", 1000), "empty": ""}
	made := d.NewSession(t, api.SessionRequest{ID: "a", Metadata: want, Labels: map[string]string{"team": "web", "x": "1"}})
	if !maps.Equal(made.Metadata, want) {
		t.Errorf("made with %d", len(made.Metadata))
	}
	d.NewSession(t, api.SessionRequest{ID: "b", Metadata: map[string]string{"task": "18"}, Labels: map[string]string{"team": "web"}})
	d.NewSession(t, api.SessionRequest{ID: "c"})
	find := func(f client.SessionFilter, ids ...string) {
		t.Helper()
		list, err := d.FindSessions(t.Context(), &f)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, s := range list {
			got = append(got, s.ID)
			if told := s.Metadata != nil; told != (f.WithMetadata && s.ID != "c") || s.ID == "a" && told && !maps.Equal(s.Metadata, want) {
				t.Errorf("%+v: session %s is listed with metadata %q", f, s.ID, s.Metadata)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, ids) {
			t.Errorf("%+v: %q, want %q", f, got, ids)
		}
	}
	check := func() {
		t.Helper()
		if s, err := d.Session(t.Context(), "a"); err != nil || !maps.Equal(s.Metadata, want) {
			t.Errorf("s.Metadata = %q, err = %v, want no error and s.Metadata == %q", s.Metadata, err, want)
		}
		find(client.SessionFilter{}, "a", "b", "c")
		find(client.SessionFilter{WithMetadata: true}, "a", "b", "c")
		find(client.SessionFilter{Labels: map[string]string{"team": "web"}, WithMetadata: true}, "a", "b")
		find(client.SessionFilter{Labels: map[string]string{"team": "web", "x": "1"}}, "a")
		find(client.SessionFilter{Labels: map[string]string{"team": "web", "x": "2"}})
		find(client.SessionFilter{Metadata: map[string]string{"task": want["task"], "a b": "c&d=e", "long": want["long"], "empty": ""}}, "a")
		find(client.SessionFilter{Metadata: map[string]string{"task": "18"}, Labels: map[string]string{"team": "web"}}, "b")
		find(client.SessionFilter{Metadata: map[string]string{"nothing": ""}})
	}
	check()
	d.Kill()
	d.Restart()
	check()
	want["task"] = "19"
	if s, err := d.ChangeSession(t.Context(), "a", &api.SessionChange{Metadata: want}); err != nil || !maps.Equal(s.Metadata, want) {
		t.Errorf("s.Metadata = %q, err = %v, want no error and s.Metadata == %q", s.Metadata, err, want)
	}
	if s, err := d.ChangeSession(t.Context(), "a", &api.SessionChange{Labels: map[string]string{"team": "web", "x": "1"}}); err != nil || !maps.Equal(s.Metadata, want) {
		t.Errorf("a change of something else: s.Metadata = %q, err = %v, want no error and s.Metadata == %q",
			s.Metadata, err, want)
	}
	d.Kill()
	d.Restart()
	check()
	if _, err := d.StopSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check()
	if _, err := d.StartSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check()
	if s, err := d.ChangeSession(t.Context(), "a", &api.SessionChange{Metadata: map[string]string{}}); err != nil || s.Metadata != nil {
		t.Errorf("s.Metadata = %q, err = %v, want no error and s.Metadata == nil", s.Metadata, err)
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "b", Metadata: want})
	boxtest.Refused(t, err, http.StatusConflict, "metadata")
	for _, query := range []string{"label=a", "label==x", "metadata=yes", "metadata==", "label=a%3D1&label=a%3D2"} {
		if a := d.Raw(t, "GET", "/v1/sessions?"+query, ""); a.Code != http.StatusBadRequest {
			t.Errorf("%s: a.Code = %d, want 400", query, a.Code)
		}
	}
	if a := d.Raw(t, "GET", "/v1/sessions?metadata=true&metadata="+url.QueryEscape("task=18"), ""); a.Code != http.StatusOK || !strings.Contains(string(a.Body), `"metadata":{"task":"18"}`) || strings.Contains(string(a.Body), `"id":"a"`) {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 200 and a.Body containing `\"metadata\":{\"task\":\"18\"}` and a.Body without `\"id\":\"a\"`",
			a.Code, a.Body)
	}
	if text := d.Log(); strings.Contains(text, "c&d=e") {
		t.Error("the log has the value of the metadata")
	}
}

// Metadata up to the limit is stored, and no more.
func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	most := map[string]string{}
	for i := range 1024 {
		name := fmt.Sprintf("%04d", i)
		most[name] = strings.Repeat("\x01", 60)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Metadata: most})
	d.Kill()
	d.Restart()
	if s, err := d.Session(t.Context(), "s"); err != nil || !maps.Equal(s.Metadata, most) {
		t.Errorf("len(s.Metadata) = %d, err = %v, want no error and s.Metadata == most", len(s.Metadata), err)
	}
	more := maps.Clone(most)
	more["0000"] += "x"
	_, err := d.ChangeSession(t.Context(), "s", &api.SessionChange{Metadata: more})
	boxtest.Refused(t, err, http.StatusBadRequest, "metadata")
	many := map[string]string{}
	for i := range 1025 {
		many[fmt.Sprint(i)] = ""
	}
	_, err = d.ChangeSession(t.Context(), "s", &api.SessionChange{Metadata: many})
	boxtest.Refused(t, err, http.StatusBadRequest, "metadata")
	if s, err := d.Session(t.Context(), "s"); err != nil || !maps.Equal(s.Metadata, most) {
		t.Errorf("after refused changes: len(s.Metadata) = %d, err = %v, want no error and s.Metadata == most",
			len(s.Metadata), err)
	}
}

// Lists are paged in order of creation, and a page has a bounded amount of metadata.
func TestListsHavePages(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	big := map[string]string{}
	for n := range 2 {
		big[fmt.Sprint(n)] = strings.Repeat("x", 10_000)
	}
	for _, id := range []string{"b", "a", "c.d"} {
		d.NewSession(t, api.SessionRequest{ID: id, Metadata: big})
	}
	page := func(query string, ids ...string) (next string) {
		t.Helper()
		a := d.Raw(t, "GET", "/v1/sessions?"+query, "")
		list := decode[api.SessionList](t, a)
		got := []string{}
		for _, s := range list.Sessions {
			got = append(got, s.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: %q, want %q", query, got, ids)
		}
		return list.Next
	}
	if next := page("", "b", "a", "c.d"); next != "" {
		t.Errorf("after the last page the token is %q", next)
	}
	next := page("limit=2&metadata=true", "b", "a")
	if next = page("limit=1&after="+url.QueryEscape(next), "c.d"); next != "" {
		t.Errorf("after the last session the token is %q", next)
	}
	for _, query := range []string{"limit=0", "limit=x", "limit=10001", "after=x", "after=1", "after=1.", "after=x.y"} {
		if a := d.Raw(t, "GET", "/v1/sessions?"+query, ""); a.Code != http.StatusBadRequest {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 400", query, a.Code, a.Body)
		}
	}
}
