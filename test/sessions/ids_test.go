// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// oddIDs returns unusual but valid ids.
func oddIDs() []string {
	return []string{
		"/", "//", ".", "..", "...", "a/../b", "../../etc/passwd", "%2f", "%2F", "%00", "%", "%zz", " ", "a b", " lead", "trail ", "a+b", "a?b=c", "a#b", "a;b",
		"日本", "é", "e\u0301", "😀", "\u202e", "\ufffd", "a\\x2db", `"quoted"`, "'", "`id`", "$(id)", "-rf", "--", "~", "*", "exec", "stream", "sessions",
		"box@1.service", strings.Repeat("x", 256), strings.Repeat("é", 128),
	}
}

func TestOddIDsReachExactlyOneSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	ids := oddIDs()
	for i, id := range ids {
		s := d.NewSession(t, api.SessionRequest{ID: id})
		if s.ID != id {
			t.Errorf("%q was made as %q", id, s.ID)
		}
		d.Sh(t, id, "echo "+strconv.Itoa(i)+" > mine")
	}
	if got := sessions(t, d); !slices.Equal(got, ids) {
		t.Errorf("the list is %q, want %q", got, ids)
	}
	for i, id := range ids {
		s, err := d.Session(t.Context(), id)
		if err != nil || s.ID != id {
			t.Errorf("%q is %q, %v, want no error and s.ID == id", id, s.ID, err)
		}
		if got := d.Sh(t, id, "cat mine"); got != strconv.Itoa(i)+"\n" {
			t.Errorf("%q has the file of %s", id, got)
		}
	}
	onlyKeysOnDisk(t, d)
	for i, id := range ids {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if got := sessions(t, d); !slices.Equal(got, ids[i+1:]) {
			t.Fatalf("the end of %q leaves %q", id, got)
		}
	}
	d.NothingLeft(before)
}

// onlyKeysOnDisk checks that every name below the state directory is one that boxd generates: no id appears there.
func onlyKeysOnDisk(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	ours := regexp.MustCompile(`^(lock|daemon|daemon/previews\.json|sessions|workspaces|sessions/[0-9a-f]{32}\.json|workspaces/[0-9a-f]{32}(/mine)?|usage|usage/[0-9-]{10}\.json|audit|audit/audit-[0-9]+\.log|spaces|removed|removed/[A-Z2-7]{26}(/.*)?|named-workspaces|host-quotas(\.lock)?|images|images/names|images/scratch|drives|drives/scratch|skills|skills/scratch|skills/builtin(/.*)?|((sessions|usage|daemon)/)?\.new-[A-Z2-7]{26})$`) // the last: a file that is being written
	err := filepath.WalkDir(d.State, func(path string, _ fs.DirEntry, err error) error {
		if name := strings.TrimPrefix(strings.TrimPrefix(path, d.State), "/"); name != "" && !ours.MatchString(name) {
			t.Errorf("%q is in the state directory", name)
		}
		if errors.Is(err, fs.ErrNotExist) { // being removed
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// notIDs returns invalid session ids, in JSON notation.
func notIDs() map[string]string {
	return map[string]string{
		"NUL":            `"a\u0000b"`,
		"newline":        `"a\nb"`,
		"tab":            `"\t"`,
		"escape":         `"\u001b[2J"`,
		"delete":         `"\u007f"`,
		"C1":             `"\u0085"`,
		"too long":       strconv.Quote(strings.Repeat("x", 257)),
		"far too long":   strconv.Quote(strings.Repeat("x", 10000)),
		"long in bytes":  strconv.Quote(strings.Repeat("é", 129)),
		"invalid UTF-8":  "\"a\xffb\"",
		"cut UTF-8":      "\"a\xc3\"",
		"surrogate":      "\"\xed\xa0\x80\"",
		"half character": `"\ud83d"`,
	}
}

func TestWhatIsNoIDIsRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for name, id := range notIDs() {
		a := d.Raw(t, "POST", "/v1/sessions", `{"id":`+id+`}`)
		if p := a.Problem(t); p.Status != http.StatusBadRequest || p.Field != "id" || p.Allowed == "" || len(a.Body) > 1000 {
			t.Errorf(`%s: p = %+v, want p.Status == 400 and p.Field == "id" and p.Allowed != "" and len(a.Body) <= 1000`,
				name, p)
		}
		a = d.Raw(t, "POST", "/v1/exec", `{"session":{"id":`+id+`},"exec":{"argv":["true"]}}`)
		if p := a.Problem(t); p.Status != http.StatusBadRequest || !strings.HasSuffix(p.Field, "id") {
			t.Errorf(`%s: p = %+v, want p.Status == 400 and p.Field ending with "id"`, name, p)
		}
	}
	// In a path ids are percent-encoded, and an id may be missing altogether.
	segments := []string{"", "a%00b", "%0a", "%1b%5b2J", "%7f", "%c2%85", "%ff", "a%c3", strings.Repeat("x", 257), url.PathEscape(strings.Repeat("é", 129))}
	for _, s := range segments {
		for _, tc := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/exec"}, {"GET", "/exec/stream"}} {
			body := map[string]string{"POST": `{"argv":["true"]}`}[tc[0]]
			a := d.Raw(t, tc[0], "/v1/sessions/"+s+tc[1], body)
			if p := a.Problem(t); p.Status != http.StatusBadRequest || p.Field != "id" {
				t.Errorf(`%s %q%s: p = %+v, want p.Status == 400 and p.Field == "id"`, tc[0], s, tc[1], p)
			}
		}
	}
	if got := sessions(t, d); len(got) > 0 {
		t.Errorf("sessions %q", got)
	}
}

// An id in a path is the same in every valid percent-encoding.
func TestOneIDHasManySpellingsInAPath(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: ".."})
	d.NewSession(t, api.SessionRequest{ID: "a/b"})
	for path, want := range map[string]string{
		"..": "..", "%2e%2e": "..", ".%2E": "..", "a%2Fb": "a/b", "a%2fb": "a/b", "%61%2f%62": "a/b",
	} {
		a := d.Raw(t, "GET", "/v1/sessions/"+path, "")
		var s api.Session
		if err := json.Unmarshal(a.Body, &s); err != nil || a.Code != http.StatusOK || s.ID != want {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want no error and a.Code == 200 and s.ID == want",
				path, a.Code, a.Body)
		}
	}
	for _, path := range []string{"a/b", "a%252Fb", "%252e%252e", ".", "a//b", "x/../a%2Fb"} {
		a := d.Raw(t, "GET", "/v1/sessions/"+path, "")
		if a.Problem(t); a.Code != http.StatusNotFound {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 404", path, a.Code, a.Body)
		}
	}
}
