// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func aDriveStore(t *testing.T, perOwner int64) *driveStore {
	t.Helper()
	g := aGateway(startServer(t), &clock{})
	g.cfg.Drives, g.cfg.OwnerDrives = 1<<20, perOwner
	s, err := g.openDrives(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func versionOf(digest string) *storedVersion {
	return &storedVersion{DriveVersion: api.DriveVersion{Digest: digest}, Archive: archived{ID: "a" + digest, Size: 10}}
}

// fill makes the next version of a drive.
func (s *driveStore) fill(t *testing.T, owner, name, digest, last string) (*storedDrive, error) {
	t.Helper()
	k, err := s.fits(t.Context(), &upload{s: s.archiveStore, owner: owner}, name, versionOf(digest), last)
	if err == nil {
		err = s.putVersion(t.Context(), k)
	}
	return k, err
}

func (k *storedDrive) numbers() (list []int) {
	for i := range k.Versions {
		list = append(list, k.Versions[i].Version)
	}
	return list
}

// Version numbers are never used again, also after the drive was removed. The newest versions are kept, with their archives.
func TestVersionsOfADriveOfTheFleet(t *testing.T) {
	t.Parallel()
	s := aDriveStore(t, 1000)
	for i := range maxDriveVersions + 2 {
		if _, err := s.fill(t, "ci", "me/a", fmt.Sprint(i), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := s.drive(t.Context(), "ci", "me/a")
	if want := []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; err != nil || !slices.Equal(k.numbers(), want) {
		t.Fatalf("k.numbers() = %v, err = %v, want no error and k.numbers() == %v", k.numbers(), err, want)
	}
	if known, err := s.known(t.Context()); err != nil || known["a1"] || !known["a2"] || !known["a11"] {
		t.Errorf("archives: known = %v, err = %v", known, err)
	}
	if _, err := s.fill(t, "ci", "me/a", "11", ""); !errors.Is(err, errSameContent) {
		t.Errorf("the same again: err = %v, want err is errSameContent", err)
	}
	if _, err := s.fill(t, "ci", "me/a", "x", "11"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("after another: err = %v, want a fault.Conflict error", err)
	}
	if v := k.version(0); v.Version != 12 || k.version(3).Version != 3 || k.version(2) != nil {
		t.Errorf("v = %+v, want v.Version == 12 and k.version(3).Version == 3 and k.version(2) == nil", v)
	}
	k.Versions = nil
	if err := s.write(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if _, err := s.drive(t.Context(), "ci", "me/a"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a removed version: err = %v, want a fault.NotFound error", err)
	}
	if k, err := s.fill(t, "ci", "me/a", "11", "0"); err != nil || !slices.Equal(k.numbers(), []int{13}) {
		t.Errorf("k.numbers() = %v, err = %v, want no error and k.numbers() == []int{13}", k.numbers(), err)
	}
	if there, removed, err := s.all(t.Context(), "ci"); err != nil || len(there) != 1 || len(removed) != 0 {
		t.Errorf("there = %v, removed = %v, err = %v, want no error and len(there) == 1 and len(removed) == 0",
			there, removed, err)
	}
}

// Drives count against the limit of their owner; of two fills at the same time, one is refused.
func TestFleetDrivesAreWithinTheOwnersQuota(t *testing.T) {
	t.Parallel()
	s := aDriveStore(t, 25)
	for _, of := range [][2]string{{"ci", "me/a"}, {"ci", "me/b"}, {"other", "me/a"}} {
		if _, err := s.fill(t, of[0], of[1], of[0]+of[1], ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"me/a", "me/c"} {
		if _, err := s.fill(t, "ci", name, "x", ""); fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "more than 25B") {
			t.Errorf(`too much in %s: err = %v, want a fault.Exhausted error and err containing "more than 25B"`,
				name, err)
		}
	}
	one, err := s.fits(t.Context(), &upload{s: s.archiveStore, owner: "other"}, "me/a", versionOf("y"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.fill(t, "other", "me/a", "z", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.putVersion(t.Context(), one); fault.KindOf(err) != fault.Conflict {
		t.Errorf("the second of two: err = %v, want a fault.Conflict error", err)
	}
}

// An owner has as many records of removed drives as of others: of more, the oldest goes.
func TestRecordsOfRemovedDrivesAreBounded(t *testing.T) {
	t.Parallel()
	s := aDriveStore(t, 1000)
	removed := func(owner, name string) {
		t.Helper()
		if err := s.write(t.Context(), &storedDrive{Owner: owner, Name: name, Last: 1}); err != nil {
			t.Fatal(err)
		}
	}
	removed("other", "me/0")
	for i := range maxDrives {
		removed("ci", fmt.Sprint("me/", i))
	}
	for _, owner := range []string{"other", "ci"} {
		if err := errors.Join(s.forgetOldest(t.Context(), owner, false), s.forgetOldest(t.Context(), owner, owner == "ci")); err != nil {
			t.Fatal(err)
		}
	}
	if _, list, err := s.all(t.Context(), "ci"); err != nil || len(list) != maxDrives-1 {
		t.Errorf("len(list) = %d, err = %v, want no error and len(list) == maxDrives - 1", len(list), err)
	}
	if k, err := s.record(t.Context(), "ci", "me/0"); err != nil || k != nil {
		t.Errorf("the oldest: k = %+v, err = %v, want no error and k == nil", k, err)
	}
	if k, err := s.record(t.Context(), "other", "me/0"); err != nil || k == nil {
		t.Errorf("another owner's: k = %+v, err = %v, want no error and k != nil", k, err)
	}
}

// A node gets a version that it lacks, once, and must compute the same digest. A node that has other content under that number, or
// a newer version that the fleet does not have, does not get the session.
func TestANodeWithADifferentDriveTakesNoSession(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	h.announce("a", h.id)
	h.g.bulk, h.g.cfg.Drives, h.g.cfg.OwnerDrives = h.g.js, 1<<20, 1<<20
	s, err := h.g.openDrives(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{"sha256:1", "sha256:2"} {
		u, err := s.newUpload(t.Context(), "ci")
		if err == nil {
			err = u.write(t.Context(), strings.NewReader("archive "+digest), 1<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		v := &storedVersion{DriveVersion: api.DriveVersion{Digest: digest}, Archive: u.archived, Into: "in"}
		k, err := s.fits(t.Context(), u, "me/a", v, "")
		if err == nil {
			err = s.putVersion(t.Context(), k)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	there := func(number int, digest string) api.DriveVersion {
		return api.DriveVersion{Version: number, Digest: digest}
	}
	one, two, three := there(1, "sha256:1"), there(2, "sha256:2"), there(3, "sha256:3")
	for what, tc := range map[string]struct {
		ref  string
		has  []api.DriveVersion
		made api.DriveVersion
		sent int
		kind fault.Kind // Internal: it is taken
	}{
		"none":                    {"me/a", nil, two, 1, fault.Internal},
		"it":                      {"me/a", []api.DriveVersion{one, two}, two, 0, fault.Internal},
		"an earlier one":          {"me/a", []api.DriveVersion{there(1, "sha256:x")}, two, 1, fault.Internal},
		"another":                 {"me/a", []api.DriveVersion{there(2, "sha256:x")}, two, 0, fault.Conflict},
		"a newer one of its own":  {"me/a", []api.DriveVersion{two, three}, two, 0, fault.Conflict},
		"the first, with a newer": {"me/a@1", []api.DriveVersion{one, three}, one, 0, fault.Internal},
		"a newer than the first":  {"me/a@1", []api.DriveVersion{two}, one, 1, fault.Internal},
		"another digest":          {"me/a", nil, there(2, "sha256:y"), 1, fault.Unavailable},
		"another number":          {"me/a", nil, there(3, "sha256:2"), 1, fault.Unavailable},
	} {
		sent := 0
		h.g.untaken = nil
		h.answers(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && tc.has == nil {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if r.Method == http.MethodGet {
				reply(w, http.StatusOK, api.Drive{Name: "me/a", Versions: tc.has})
				return
			}
			sent++
			if query := r.URL.Query(); r.URL.EscapedPath() != "/v1/drives/me%2Fa/versions" || query.Get("into") != "in" || !strings.HasSuffix(query.Get("digest"), query.Get("as_version")) {
				t.Errorf("%s: it is sent %v", what, r.URL)
			}
			reply(w, http.StatusCreated, tc.made)
		})
		want, err := h.g.resolve(h.call("ci"), "POST /v1/sessions", &sessionSpec{Drives: []string{tc.ref, "me/none", "wrong", "me/a@x", "me/a@0"}})
		if err != nil || len(want.drives) != 1 {
			t.Fatalf("%s: want = %+v, err = %v, want no error and len(want.drives) == 1", what, want, err)
		}
		n, _ := h.g.node("a")
		for range 2 {
			err := h.g.provide(t.Context(), h.call("ci"), &n, want)
			if (err == nil) != (tc.kind == fault.Internal) || err != nil && fault.KindOf(err) != tc.kind {
				t.Errorf("%s: err = %v, want (err == nil) == (tc.kind == fault.Internal) and (no error or an error of kind %v)",
					what, err, tc.kind)
			}
			if err == nil {
				break // this node forgets what it was sent
			}
		}
		if sent != tc.sent {
			t.Errorf("%s: it is sent %d times", what, sent)
		}
	}
	if want, err := h.g.resolve(h.call("other"), "POST /v1/sessions", &sessionSpec{Drives: []string{"me/a"}}); err != nil || len(want.drives) != 0 {
		t.Errorf("of another owner: want = %+v, err = %v, want no error and len(want.drives) == 0", want, err)
	}
	if _, err := h.g.resolve(h.call("ci"), "POST /v1/sessions", &sessionSpec{Drives: []string{"me/a@7"}}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a version that the fleet does not have: err = %v, want a fault.NotFound error", err)
	}
	if want, err := h.g.resolve(h.call("ci"), "POST /v1/sessions", &sessionSpec{Drives: []string{"me/a@7"}, had: true}); err != nil || len(want.drives) != 0 {
		t.Errorf("a version that a session uses: want = %+v, err = %v, want no error and len(want.drives) == 0", want, err)
	}
	if err := s.write(t.Context(), &storedDrive{Owner: "ci", Name: "me/gone", Last: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.g.resolve(h.call("ci"), "POST /v1/sessions", &sessionSpec{Drives: []string{"me/gone"}}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a removed version: err = %v, want a fault.NotFound error", err)
	}
	if want, err := h.g.resolve(h.call("ci"), "POST /v1/sessions", &sessionSpec{Drives: []string{"me/gone@1"}, had: true}); err != nil || len(want.drives) != 0 {
		t.Errorf("a removed version that a session uses: want = %+v, err = %v, want no error and len(want.drives) == 0",
			want, err)
	}
	late := &needs{drives: []neededDrive{{name: "me/a", version: 2, digest: "sha256:z"}}}
	n, _ := h.g.node("a")
	if err := h.g.provide(t.Context(), h.call("ci"), &n, late); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf(`a version whose content differs by now: err = %v, want a fault.Unavailable error and err containing "changed meanwhile"`,
			err)
	}
}

// A fill that lost against another one does not count; an archive that may exist stays until the next sweep.
func TestAnUploadThatLosesIsDropped(t *testing.T) {
	t.Parallel()
	s := aDriveStore(t, 1000)
	h := &claiming{t: t, g: aGateway(startServer(t), &clock{})}
	for _, tc := range []struct {
		why  error
		left int
	}{{changedDrive("me/a", jetstream.ErrKeyExists), 0}, {noDrives(errors.New("no answer")), 1}} {
		err := h.g.receive(h.call("ci"), s.archiveStore, &receiving{
			owner: "ci", body: strings.NewReader("archive"), maxBytes: 100, inspect: func(*upload) error { return nil }, fits: func(*upload) error { return nil },
			put: func() error { return tc.why },
		})
		if fault.KindOf(err) != fault.KindOf(tc.why) {
			t.Errorf("%v, want %v", err, tc.why)
		}
		if _, uploads, err := s.entries(t.Context()); err != nil || len(uploads) != tc.left {
			t.Errorf("%v: %d uploads, %v", tc.why, len(uploads), err)
		}
	}
}

// The parameters of a request are checked before its body is read.
func TestDriveVersionParametersAreValidated(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		"into=a%2F..%2Fb&if_version=0": "", "if_version=abc": "if_version", "if_version=-1": "if_version",
		"into=" + strings.Repeat("x", maxPath+1): "into", "session=s&path=" + strings.Repeat("x", maxPath+1): "path",
	} {
		query, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		into, err := intoOf(query)
		wrong, _ := errors.AsType[*fault.Error](err)
		if field == "" && (err != nil || into != "b") || field != "" && (wrong == nil || wrong.Kind != fault.Invalid || wrong.Field != field) {
			t.Errorf(`%.40s: into = %q, err = %v, want (field != "" or no error and into == "b") and (field == "" or wrong != nil and wrong.Kind == fault.Invalid and wrong.Field == field)`,
				text, into, err)
		}
	}
}

// If a node has removed a version just before a request for a session with it, the version is sent and the request is repeated
// once.
func TestANodeThatHasJustRemovedAVersionIsAskedAgain(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	h.announce("a", h.id)
	h.g.bulk, h.g.cfg.Drives, h.g.cfg.OwnerDrives = h.g.js, 1<<20, 1<<20
	s, err := h.g.openDrives(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.fill(t, "ci", "me/a", "sha256:1", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, refusals := range []int{1, 2} {
		times := 0
		h.answers(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				reply(w, http.StatusOK, k.answer())
				return
			}
			if times++; times <= refusals {
				reply(w, http.StatusNotFound, api.Problem{Detail: "no version"})
				return
			}
			w.WriteHeader(http.StatusCreated)
		})
		c := h.call("ci")
		id := fmt.Sprint("s", refusals)
		err := h.g.claim(c, &placement{}, &wanted{ID: id, Wait: new(quantity.Duration), sessionSpec: sessionSpec{Drives: []string{"me/a"}}}, map[string]json.RawMessage{"id": json.RawMessage(strconv.Quote(id))})
		answer, _ := c.w.(*httptest.ResponseRecorder)
		if want := map[int]int{1: http.StatusCreated, 2: http.StatusNotFound}[refusals]; err != nil || answer.Code != want || times != 2 {
			t.Errorf("refused %d times: status %d, %d requests, %v", refusals, answer.Code, times, err)
		}
	}
}
