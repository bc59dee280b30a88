// SPDX-License-Identifier: Apache-2.0

// Package api_test holds what a real boxd is asked, and what it answers, against the description that it serves.
package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// contract is a boxd and the description it serves.
type contract struct {
	*boxtest.Daemon
	t    *testing.T
	doc  *openapi3.T
	seen map[string]bool // "GET /healthz 200"
}

// begin starts a boxd and reads its description, as a stranger would.
func begin(t *testing.T, seen map[string]bool, configuration string) *contract {
	t.Helper()
	c := &contract{Daemon: boxtest.Start(t, configuration), t: t, seen: seen}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://boxd/v1/openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	a := c.exchange(req, 0)
	if c.doc, err = openapi3.NewLoader().LoadFromData(a.body); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask is a request, by its route and what comes into it.
type ask struct {
	route string // "GET /v1/sessions/{id}"
	s, p  string // the ids in its path
	query string
	body  string
	head  http.Header
	uid   uint32 // who asks; 0 is root
	// odd says that the description knows, too, that the request is wrong. Otherwise the request has to be as
	// described, whatever boxd says to it.
	odd bool
}

// answer is what comes back.
type answer struct {
	status int
	head   http.Header
	body   []byte
}

// gets makes a request, which must be answered with a status. The request and the answer are what the description says.
func (c *contract) gets(status int, a ask) answer {
	c.t.Helper()
	route := c.route(a.route)
	name := fmt.Sprintf("%s %s?%s %s", a.route, a.s, a.query, a.body)
	input := &openapi3filter.RequestValidationInput{
		Request: c.request(a), PathParams: map[string]string{"id": a.s, "p": a.p, "principal": a.p, "skill": a.p, "workspace": a.p, "image": a.p, "drive": a.p, "port": a.p}, Route: route,
		Options: &openapi3filter.Options{RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true, MultiError: true},
	}
	if err := openapi3filter.ValidateRequest(c.t.Context(), input); (err != nil) != a.odd {
		c.t.Errorf("%s: odd is %v, and the description says of it: %v", name, a.odd, err)
	}
	got := c.exchange(c.request(a), a.uid)
	if got.status != status {
		c.t.Fatalf("%s: %d, want %d: %s", name, got.status, status, got.body)
	}
	c.checkAnswer(name, input, got)
	c.seen[fmt.Sprintf("%s %d", a.route, status)] = true
	return got
}

// checkAnswer holds an answer against the description.
func (c *contract) checkAnswer(name string, input *openapi3filter.RequestValidationInput, got answer) {
	c.t.Helper()
	options := &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true}
	if kind := got.head.Get("Content-Type"); !strings.Contains(kind, "json") || strings.Contains(kind, "ndjson") {
		options.ExcludeResponseBody = true // it is text; lines of JSON have a check of their own
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.head, Body: io.NopCloser(bytes.NewReader(got.body)), Options: options,
	}
	if err := openapi3filter.ValidateResponse(c.t.Context(), response); err != nil {
		c.t.Errorf("%s is answered %d, and the description says of that: %v\n%s", name, got.status, err, got.body)
	}
	if got.status == http.StatusNoContent && len(got.body) > 0 {
		c.t.Errorf("%s: 204 with %q", name, got.body)
	}
}

// kinds are the types of problems by the status they come with.
func kinds() map[int]string {
	return map[int]string{
		400: "invalid", 401: "unauthenticated", 403: "denied", 404: "not_found", 405: "invalid", 409: "conflict", 429: "exhausted", 500: "internal", 501: "unsupported", 503: "unavailable",
	}
}

// refused makes a request that must be refused for a field, and returns what is said about it.
func (c *contract) refused(status int, field string, a ask) api.Problem {
	c.t.Helper()
	got := c.gets(status, a)
	return c.problem(status, field, got)
}

func (c *contract) problem(status int, field string, got answer) api.Problem {
	c.t.Helper()
	var p api.Problem
	if err := json.Unmarshal(got.body, &p); err != nil {
		c.t.Fatalf("%s: %v", got.body, err)
	}
	switch later := got.head.Get("Retry-After") != ""; {
	case p.Status != status || p.Type != api.ProblemType+kinds()[status] || p.Field != field:
		c.t.Errorf("got %s, want %d about %q", got.body, status, field)
	case p.Title == "" || p.Detail == "" || got.head.Get("Content-Type") != "application/problem+json":
		c.t.Errorf("%v: %s", got.head, got.body)
	case field != "" && status == http.StatusBadRequest && p.Allowed == "":
		c.t.Errorf("it does not say what is allowed: %s", got.body)
	case p.Allowed == "" && p.Hint == "":
		c.t.Errorf("it does not say what can be done: %s", got.body)
	case later != (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable):
		c.t.Errorf("Retry-After is %v with %d", later, status)
	}
	return p
}

// reads reads the body of an answer.
func (c *contract) reads(got answer, v any) {
	c.t.Helper()
	if err := json.Unmarshal(got.body, v); err != nil {
		c.t.Fatalf("%s: %v", got.body, err)
	}
}

// route is the operation of a request, without a router: what is sent is meant for it.
func (c *contract) route(name string) *routers.Route {
	c.t.Helper()
	method, path, _ := strings.Cut(name, " ")
	item := c.doc.Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		c.t.Fatalf("%s is not described", name)
	}
	return &routers.Route{Spec: c.doc, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)}
}

func (c *contract) request(a ask) *http.Request {
	c.t.Helper()
	method, path, _ := strings.Cut(a.route, " ")
	target := "http://boxd" + strings.NewReplacer("{id}", url.PathEscape(a.s), "{p}", url.PathEscape(a.p), "{principal}", url.PathEscape(a.p), "{skill}", url.PathEscape(a.p), "{workspace}", url.PathEscape(a.p), "{image}", url.PathEscape(a.p), "{drive}", url.PathEscape(a.p), "{port}", url.PathEscape(a.p)).Replace(path)
	if a.query != "" {
		target += "?" + a.query
	}
	var body io.Reader
	if a.body != "" {
		body = strings.NewReader(a.body)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, target, body)
	if err != nil {
		c.t.Fatal(err)
	}
	if a.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, a.head)
	return req
}

// exchange sends a request on a connection of its own.
func (c *contract) exchange(req *http.Request, uid uint32) answer {
	c.t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: dialer(c.Socket, uid)}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return answer{resp.StatusCode, resp.Header, nil}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, body}
}

// otherUID is a user whom the socket's group lets in.
const (
	otherUID = 4242
	otherGID = 65534
)

// dialer connects to a socket as some user: the kernel takes note of who a thread is when it connects.
func dialer(socket string, uid uint32) func(context.Context, string, string) (net.Conn, error) {
	connect := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	return func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		if uid == 0 {
			return connect(ctx)
		}
		done := make(chan struct{})
		go func() { // a thread that has been another ends with its goroutine
			defer close(done)
			runtime.LockOSThread()
			_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
			_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, otherGID, otherGID, otherGID)
			_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
			if e1 != 0 || e2 != 0 || e3 != 0 {
				err = fmt.Errorf("become another user: %w, %w, %w", e1, e2, e3)
				return
			}
			conn, err = connect(ctx)
		}()
		<-done
		return conn, err
	}
}

// missing lists what is described by name and has not been seen.
func (c *contract) missing() (list []string) {
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if name := fmt.Sprintf("%s %s %s", method, path, status); status != "default" && !c.seen[name] {
					list = append(list, name)
				}
			}
		}
	}
	slices.Sort(list)
	return list
}
