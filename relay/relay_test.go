// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet returns a server with an empty supervisor, for tests that need none, and its log.
func quiet() (*Server, *bytes.Buffer) {
	var log bytes.Buffer
	to := slog.New(slog.NewTextHandler(&log, nil))
	return New(Config{Gate: openGate(to)}, new(supervisor.Supervisor), to), &log
}

// openGate returns the gate of a boxd without any rules, tokens and grants.
func openGate(log *slog.Logger) *access.Gate {
	state, err := access.Prepare(&access.GateConfig{Access: access.Config{DefaultRole: access.User}}, access.LookupHost(), "")
	if err != nil {
		panic(err)
	}
	return access.NewGate(state, new(access.Grants), log)
}

func TestEveryRouteHasARole(t *testing.T) {
	t.Parallel()
	for _, r := range routes(nil) {
		if r.Role != unauthenticated && (r.Role < access.Viewer || r.Role > access.Admin) || r.Handle == nil {
			t.Errorf("%q is for role %d", r.Pattern, r.Role)
		}
		if strings.Contains(r.Pattern, "{id}") && !slices.Contains(strings.Fields(r.Query), "owner") {
			t.Errorf("%q is about a session, and an admin cannot name its owner", r.Pattern)
		}
	}
	if len(Patterns()) != len(routes(nil)) {
		t.Error("the patterns are not those of the routes")
	}
}

func TestNobodyWithoutCredentialsTakesARoute(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	for _, r := range routes(nil) {
		method, path, _ := strings.Cut(r.Pattern, " ")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, strings.NewReplacer("{id}", "x", "{p}", "y", "{principal}", "z").Replace(path), nil))
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: w.Code = %d, w.Body = %s, want w.Code == 403", r.Pattern, w.Code, w.Body)
		}
	}
}

// as returns a request of the caller who.
func as(ctx context.Context, owner access.Principal, method, target string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, target, nil)
	return r.WithContext(context.WithValue(r.Context(), peerKey{}, peerAddr{limits: conns.NewLimits(), self: &owner}))
}

func TestARouteWithoutARoleIsClosed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		role access.Role
		is   access.Role
		want int
	}{
		{0, access.Admin, 403},
		{0, 0, 403},
		{0, access.User, 403},
		{unauthenticated, 0, 200},
		{access.User, access.User, 200},
		{access.User, access.Viewer, 403},
		{access.Admin, access.Operator, 403},
		{access.Admin, access.Admin, 200},
	} {
		s, _ := quiet()
		s.routes = []Route{line("GET /", tc.role, "", func(*Call) (any, error) { return api.Health{}, nil })}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, as(t.Context(), access.Principal{Name: "uid:1", Role: tc.is}, http.MethodGet, "/"))
		if w.Code != tc.want {
			t.Errorf("role %v, caller %v: %d, want %d", tc.role, tc.is, w.Code, tc.want)
		}
	}
}

func TestPathsAreTakenAsTheyAre(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	for _, tc := range []struct{ method, path, pattern, id, process string }{
		{"GET", "/healthz", "GET /healthz", "", ""},
		{"HEAD", "/healthz", "GET /healthz", "", ""},
		{"POST", "/healthz", "", "", ""},
		{"GET", "/healthz/", "", "", ""},
		{"GET", "//healthz", "", "", ""},
		{"GET", "/./healthz", "", "", ""},
		{"GET", "/v1/../healthz", "", "", ""},
		{"GET", "/v1/%73tatus", "", "", ""},
		{"GET", "/", "", "", ""},
		{"GET", "/v1/sessions", "GET /v1/sessions", "", ""},
		{"HEAD", "/v1/sessions/s1", "GET /v1/sessions/{id}", "s1", ""},
		{"DELETE", "/v1/sessions/s1", "DELETE /v1/sessions/{id}", "s1", ""},
		{"PUT", "/v1/sessions/s1", "", "", ""},
		{"GET", "/v1/sessions/", "GET /v1/sessions/{id}", "", ""},
		{"GET", "/v1/sessions/s1/", "", "", ""},
		{"GET", "/v1/sessions//exec/stream", "GET /v1/sessions/{id}/exec/stream", "", ""},
		{"GET", "/v1/sessions/%2F", "GET /v1/sessions/{id}", "/", ""},
		{"GET", "/v1/sessions/%2f%2F", "GET /v1/sessions/{id}", "//", ""},
		{"GET", "/v1/sessions/..", "GET /v1/sessions/{id}", "..", ""},
		{"GET", "/v1/sessions/%2E%2E", "GET /v1/sessions/{id}", "..", ""},
		{"POST", "/v1/sessions/./exec", "POST /v1/sessions/{id}/exec", ".", ""},
		{"POST", "/v1/sessions/a%2F..%2Fb/exec", "POST /v1/sessions/{id}/exec", "a/../b", ""},
		{"POST", "/v1/sessions/a/../b/exec", "", "", ""},
		{"GET", "/v1/sessions/%252f", "GET /v1/sessions/{id}", "%2f", ""},
		{"GET", "/v1/sessions/exec", "GET /v1/sessions/{id}", "exec", ""},
		{"GET", "/v1/sessions/a+b%20c", "GET /v1/sessions/{id}", "a+b c", ""},
		{"GET", "/v1/sessions/%F0%9F%98%80", "GET /v1/sessions/{id}", "😀", ""},
		{"GET", "/v1/sessions/s1/processes", "GET /v1/sessions/{id}/processes", "s1", ""},
		{"PUT", "/v1/sessions/s1/processes/p1", "PUT /v1/sessions/{id}/processes/{p}", "s1", "p1"},
		{"HEAD", "/v1/sessions/s1/processes/p1", "GET /v1/sessions/{id}/processes/{p}", "s1", "p1"},
		{"POST", "/v1/sessions/s1/processes/p1", "", "", ""},
		{"GET", "/v1/sessions/s1/processes/", "GET /v1/sessions/{id}/processes/{p}", "s1", ""},
		{"GET", "/v1/sessions/s1/processes/..", "GET /v1/sessions/{id}/processes/{p}", "s1", ".."},
		{"GET", "/v1/sessions//processes/", "GET /v1/sessions/{id}/processes/{p}", "", ""},
		{"GET", "/v1/sessions/%2F/processes/a%2Fb%2F..", "GET /v1/sessions/{id}/processes/{p}", "/", "a/b/.."},
		{"GET", "/v1/sessions/%2Fprocesses/%7Bp%7D", "", "", ""},
		{"GET", "/v1/sessions/s1/processes/%F0%9F%98%80/stream", "GET /v1/sessions/{id}/processes/{p}/stream", "s1", "😀"},
		{"GET", "/v1/sessions/s1/processes/logs/logs", "GET /v1/sessions/{id}/processes/{p}/logs", "s1", "logs"},
		{"POST", "/v1/sessions/s1/processes/stop/stop", "POST /v1/sessions/{id}/processes/{p}/stop", "s1", "stop"},
		{"POST", "/v1/sessions/s1/processes/p1/stop/", "", "", ""},
		{"GET", "/v1/sessions/s1/process/p1", "", "", ""},
	} {
		rt, ids := s.find(httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil))
		if want := (Path{Session: tc.id, Process: tc.process}); rt.Pattern != tc.pattern || ids != want {
			t.Errorf("%s %s is %q of %q, want %q of %q", tc.method, tc.path, rt.Pattern, ids, tc.pattern, want)
		}
	}
}

func TestAWrongMethodIsToldTheRightOnes(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	for _, tc := range []struct{ method, path, allow string }{
		{"POST", "/healthz", "GET"},
		{"PUT", "/v1/sessions", "GET, POST"},
		{"BREW", "/v1/sessions/x", "GET, PATCH, DELETE"},
		{"GET", "/v1/sessions/x/exec", "POST"},
		{"HEAD", "/v1/exec", "POST"},
		{"GET", "/v1/nothing", ""},
		{"DELETE", "/v1/sessions/x/", ""},
		{"BREW", "/v1/sessions/x/processes/y", "PUT, GET, DELETE"},
		{"GET", "/v1/sessions/x/processes/y/stop", "POST"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, as(t.Context(), access.Principal{Name: "uid:1", Role: access.User}, tc.method, tc.path))
		want := http.StatusMethodNotAllowed
		if tc.allow == "" {
			want = http.StatusNotFound
		}
		var p api.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != want || p.Status != want || w.Header().Get("Allow") != tc.allow || p.Allowed != tc.allow {
			t.Errorf(`%s %s: w.Code = %d, w.Header() = %v, w.Body = %s, want no error and w.Code == %v and p.Status == %v and w.Header().Get("Allow") == %v and p.Allowed == tc.allow`,
				tc.method, tc.path, w.Code, w.Header(), w.Body, want, want, tc.allow)
		}
	}
}

func TestQueriesAreTakenExactlyOrNot(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	ok := func(*Call) (any, error) { return api.Health{}, nil }
	s.routes = []Route{line("GET /", access.User, "all", ok), line("GET /two", access.User, "owner wait", ok), line("GET /none", access.User, "", ok)}
	for target, want := range map[string]int{
		"/": 200, "/?all=true": 200, "/?all": 200, "/?ALL=true": 400, "/?al=true": 400, "/?all=true&all=false": 400, "/?all=%zz": 400, "/?all=true&owner=x": 400,
		"/two": 200, "/two?wait=1s": 200, "/two?wait=1s&owner=x": 200, "/two?owner=x": 200, "/two?wait=1s&wait=2s": 400, "/two?all=true": 400,
		"/two?owner%20wait=x": 400, "/none": 200, "/none?=": 400, "/none?owner=x": 400,
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, as(t.Context(), access.Principal{Name: "uid:1", Role: access.User}, http.MethodGet, target))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", target, w.Code, w.Body, want)
		}
	}
}

func TestEveryKindOfFaultHasAnAnswer(t *testing.T) {
	t.Parallel()
	s, log := quiet()
	for _, tc := range []struct {
		err    error
		status int
		kind   string
		detail string
	}{
		{fault.Field("id", "x", "y"), 400, "invalid", `id = "x": must be y`},
		{fault.Errorf(fault.NotFound, "no session"), 404, "not_found", "no session"},
		{fault.Errorf(fault.Conflict, "differs"), 409, "conflict", "differs"},
		{fault.Errorf(fault.Denied, "locked"), 403, "denied", "locked"},
		{fault.Errorf(fault.Exhausted, "full"), 429, "exhausted", "full"},
		{fault.Errorf(fault.Unsupported, "later"), 501, "unsupported", "later"},
		{fault.Errorf(fault.Unavailable, "stopping"), 503, "unavailable", "stopping"},
		{fmt.Errorf("open /var/lib/boxd/x: %w", fs.ErrPermission), 500, "internal", "boxd failed; its log has the reason"},
		{fmt.Errorf("start: %w", &isolation.StepError{Step: isolation.StepMask, Item: "kcore", Errno: 13}), 500, "internal", `start: mask "kcore": permission denied`},
	} {
		p := s.common.problem(t.Context(), tc.err)
		if p.Status != tc.status || p.Type != api.ProblemType+tc.kind || p.Detail != tc.detail || p.Title == "" {
			t.Errorf(`%v: p = %+v, want p.Status == %v and p.Type == api.ProblemType + tc.kind and p.Detail == %v and p.Title != ""`,
				tc.err, p, tc.status, tc.detail)
		}
		if shown := errors.As(tc.err, new(*isolation.StepError)); (p.Failure != nil) != shown {
			t.Errorf("%v: failure %+v", tc.err, p.Failure)
		}
	}
	if !strings.Contains(log.String(), "/var/lib/boxd/x") {
		t.Errorf(`the log lacks the cause that the answer hides: log = %s, want log.String() containing "/var/lib/boxd/x"`,
			log)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if p := s.common.problem(gone, fmt.Errorf("x: %w", context.Canceled)); p.Status != http.StatusServiceUnavailable {
		t.Errorf("a request that was canceled: p = %+v, want p.Status == 503", p)
	}
	// Canceled by none of our contexts: a defect, not an answer.
	if p := s.common.problem(t.Context(), context.Canceled); p.Status != http.StatusInternalServerError {
		t.Errorf("p = %+v, want p.Status == 500", p)
	}
}

func TestFullAndUnavailableSayWhenToComeBack(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	for kind, want := range map[fault.Kind]string{fault.Exhausted: "1", fault.Unavailable: "1", fault.Invalid: ""} {
		w := httptest.NewRecorder()
		c := &Call{Deps: s.common, W: w, R: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)}
		c.Fail(t.Context(), fault.Errorf(kind, "x"))
		var p api.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf(`%s: err = %v, want no error and w.Header().Get("Content-Type") == "application/problem+json"`,
				w.Body, err)
		}
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q", kind, got)
		}
	}
}

// A boxd that is shutting down does not report as missing what it has already released.
func TestABoxdThatIsShuttingDownReportsNothingMissing(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	s.routes = []Route{line("GET /", unauthenticated, "", func(*Call) (any, error) { return nil, fault.Errorf(fault.NotFound, "no session") })}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for ctx, want := range map[context.Context]int{t.Context(): http.StatusNotFound, over: http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, as(ctx, access.Principal{}, http.MethodGet, "/"))
		if w.Code != want {
			t.Errorf("%d, not %d: %s", w.Code, want, w.Body)
		}
	}
}
