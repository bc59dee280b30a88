// SPDX-License-Identifier: Apache-2.0

// Package api_test checks requests to a real boxd, and its answers, against the API description that it serves.
package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

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

// begin starts a boxd and reads its description, as any client can.
func begin(t *testing.T, seen map[string]bool, configuration string) *contract {
	t.Helper()
	return contractOf(t, seen, boxtest.Start(t, configuration))
}

func contractOf(t *testing.T, seen map[string]bool, d *boxtest.Daemon) *contract {
	t.Helper()
	c := &contract{Daemon: d, t: t, seen: seen}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://boxd/v1/openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	a := c.exchange(req, 0)
	if c.doc, err = openapi3.NewLoader().LoadFromData(a.Body); err != nil {
		t.Fatal(err)
	}
	return c
}

// request is a request, given by its route and parameters.
type request struct {
	route string // "GET /v1/sessions/{id}"
	s, p  string // the ids in its path
	query string
	body  string
	head  http.Header
	uid   uint32 // the caller; 0 is root
	// odd says that the request violates the description, too. Otherwise the request must conform to the description, even if
	// boxd refuses it.
	odd bool
}

// gets makes a request, which must be answered with a status. Request and answer are checked against the description.
func (c *contract) gets(status int, a request) boxtest.Answer {
	c.t.Helper()
	route := c.route(a.route)
	name := fmt.Sprintf("%s %s?%s %s", a.route, a.s, a.query, a.body)
	input := &openapi3filter.RequestValidationInput{
		Request: c.request(a), PathParams: map[string]string{"id": a.s, "p": a.p, "principal": a.p, "skill": a.p, "workspace": a.p, "snapshot": a.p, "image": a.p, "drive": a.p, "port": a.p}, Route: route,
		Options: &openapi3filter.Options{RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true, MultiError: true},
	}
	if err := openapi3filter.ValidateRequest(c.t.Context(), input); (err != nil) != a.odd {
		c.t.Errorf("%s: marked as violating openapi.json: %v, but checking the request says: err = %v, want (err != nil) == a.odd",
			name, a.odd, err)
	}
	got := c.exchange(c.request(a), a.uid)
	if got.Code != status {
		c.t.Fatalf("%s: %d, want %d: %s", name, got.Code, status, got.Body)
	}
	c.checkAnswer(name, input, got)
	c.seen[fmt.Sprintf("%s %d", a.route, status)] = true
	return got
}

// checkAnswer checks an answer against the description.
func (c *contract) checkAnswer(name string, input *openapi3filter.RequestValidationInput, got boxtest.Answer) {
	c.t.Helper()
	options := &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true}
	if kind := got.Header.Get("Content-Type"); !strings.Contains(kind, "json") || strings.Contains(kind, "ndjson") {
		options.ExcludeResponseBody = true // it is text; lines of JSON are checked separately
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.Code, Header: got.Header, Body: io.NopCloser(bytes.NewReader(got.Body)), Options: options,
	}
	if err := openapi3filter.ValidateResponse(c.t.Context(), response); err != nil {
		c.t.Errorf("%s: the answer with status %d does not match openapi.json: %v\n%s", name, got.Code, err, got.Body)
	}
	if got.Code == http.StatusNoContent && len(got.Body) > 0 {
		c.t.Errorf("%s: 204 with %q", name, got.Body)
	}
}

// kinds returns the types of problems, by status.
func kinds() map[int]string {
	return map[int]string{
		400: "invalid", 401: "unauthenticated", 403: "denied", 404: "not_found", 405: "invalid", 409: "conflict", 429: "exhausted", 500: "internal", 501: "unsupported", 503: "unavailable",
	}
}

// refused makes a request that must be refused for a field, and returns the problem.
func (c *contract) refused(status int, field string, a request) api.Problem {
	c.t.Helper()
	got := c.gets(status, a)
	return c.problem(status, field, got)
}

func (c *contract) problem(status int, field string, got boxtest.Answer) api.Problem {
	c.t.Helper()
	var p api.Problem
	if err := json.Unmarshal(got.Body, &p); err != nil {
		c.t.Fatalf("%s: %v", got.Body, err)
	}
	switch later := got.Header.Get("Retry-After") != ""; {
	case p.Status != status || p.Type != api.ProblemType+kinds()[status] || p.Field != field:
		c.t.Errorf("got %s, want %d about %q", got.Body, status, field)
	case p.Title == "" || p.Detail == "" || got.Header.Get("Content-Type") != "application/problem+json":
		c.t.Errorf(`%v: got.Body = %s, want p.Title != "" and p.Detail != "" and got.Header.Get("Content-Type") == "application/problem+json"`,
			got.Header, got.Body)
	case field != "" && status == http.StatusBadRequest && p.Allowed == "":
		c.t.Errorf(`the problem lacks what is allowed: got.Body = %s, want field == "" or status != 400 or p.Allowed != ""`,
			got.Body)
	case p.Allowed == "" && p.Hint == "":
		c.t.Errorf(`the problem lacks a hint: got.Body = %s, want p.Allowed != "" or p.Hint != ""`, got.Body)
	case later != (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable):
		c.t.Errorf("Retry-After is %v with %d", later, status)
	}
	return p
}

// reads decodes the body of an answer.
func (c *contract) reads(got boxtest.Answer, v any) {
	c.t.Helper()
	if err := json.Unmarshal(got.Body, v); err != nil {
		c.t.Fatalf("%s: %v", got.Body, err)
	}
}

// route returns the operation of a request, found without a router: each request is meant for a known one.
func (c *contract) route(name string) *routers.Route {
	c.t.Helper()
	method, path, _ := strings.Cut(name, " ")
	item := c.doc.Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		c.t.Fatalf("%s is not described", name)
	}
	return &routers.Route{Spec: c.doc, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)}
}

func (c *contract) request(a request) *http.Request {
	c.t.Helper()
	method, path, _ := strings.Cut(a.route, " ")
	target := "http://boxd" + strings.NewReplacer("{id}", url.PathEscape(a.s), "{p}", url.PathEscape(a.p), "{principal}", url.PathEscape(a.p), "{skill}", url.PathEscape(a.p), "{workspace}", url.PathEscape(a.p), "{snapshot}", url.PathEscape(a.p), "{image}", url.PathEscape(a.p), "{drive}", url.PathEscape(a.p), "{port}", url.PathEscape(a.p)).Replace(path)
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

// exchange sends a request on a new connection.
func (c *contract) exchange(req *http.Request, uid uint32) boxtest.Answer {
	c.t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: boxtest.Dialer(c.Socket, uid)}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return boxtest.Answer{Code: resp.StatusCode, Header: resp.Header}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return boxtest.Answer{Code: resp.StatusCode, Header: resp.Header, Body: body}
}

// missing lists documented answers that have not been seen.
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
