// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// node returns the gate of a node that lets one gateway speak for ci and low.
func node(t *testing.T) (h *gateFixture, key ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	h = build(t, "")
	h.config.Fleet = access.Fleet{Name: "a", Gateways: map[string]access.Gateway{
		"main": {Key: access.FleetKey(public), Role: access.User, Principals: []string{"ci", "lo*", "gone"}},
	}}
	h.gate.Use(h.state(""))
	return h, key
}

// ciAssertion returns what a gateway asserts about a request of ci.
func ciAssertion() access.Assertion {
	return access.Assertion{Gateway: "main", Node: "a", Principal: "ci", Role: access.Admin, Method: "GET", Target: "/v1/sessions?all=true"}
}

func shown(t *testing.T, a access.Assertion, key ed25519.PrivateKey, now time.Time) []string {
	t.Helper()
	value, err := a.Sign(key, now)
	if err != nil {
		t.Fatal(err)
	}
	return []string{value}
}

func (h *gateFixture) asserted(value []string) (access.Pass, error) {
	return h.gate.IdentifyAsserted(value, "GET", "/v1/sessions?all=true")
}

// The caller's role and rights are the lowest of the principal's own, the node's for the gateway, and those in the assertion.
func TestAGatewaySpeaksForItsCallers(t *testing.T) {
	t.Parallel()
	h, key := node(t)
	a := ciAssertion()
	a.Token, a.Routes = "night", []string{"GET /v1/*"}
	p, err := h.asserted(shown(t, a, key, time.Now()))
	if err != nil || p.Name != "ci" || p.Role != access.User || p.Rule != "fleet.gateways.main.role" || p.UID != access.NoUser || p.Token != "fleet:main:night" || !p.Until.IsZero() {
		t.Fatalf("p = %+v, err = %v", p, err)
	}
	if !p.Allows("GET /v1/sessions") || p.Allows("POST /v1/sessions") {
		t.Error("the routes of the caller's token are not enforced")
	}
	a.Role = access.Viewer
	if p, err := h.asserted(shown(t, a, key, time.Now())); err != nil || p.Role != access.Viewer {
		t.Errorf("as the gateway gives it: p.Role = %v, err = %v, want no error and p.Role == access.Viewer",
			p.Role, err)
	}
	a.Role, a.Principal = access.Admin, "low"
	if p, err := h.asserted(shown(t, a, key, time.Now())); err != nil || p.Role != access.Viewer || p.Rule != "principals.low" {
		t.Errorf("as the principal has it: %v by %s, %v", p.Role, p.Rule, err)
	}
	if p, err := h.gate.IdentifyAsserted(nil, "GET", "/healthz"); err != nil || !p.Anonymous() {
		t.Errorf("without an identity: p = %+v, err = %v, want no error and p.Anonymous()", p, err)
	}
}

func TestAnInvalidGatewayAssertionIsRefused(t *testing.T) {
	t.Parallel()
	h, key := node(t)
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	changed := func(f func(*access.Assertion)) []string {
		a := ciAssertion()
		f(&a)
		return shown(t, a, key, now)
	}
	good := shown(t, ciAssertion(), key, now)
	used := shown(t, ciAssertion(), key, now)
	if _, err := h.asserted(used); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		value   []string
		kind    fault.Kind
		message string
	}{
		"another key":               {shown(t, ciAssertion(), foreign, now), fault.Unauthenticated, "does not know the gateway"},
		"another gateway":           {changed(func(a *access.Assertion) { a.Gateway = "other" }), fault.Unauthenticated, "does not know the gateway"},
		"a token":                   {bearer("boxd_x"), fault.Unauthenticated, "does not know the gateway"},
		"two of them":               {append(shown(t, ciAssertion(), key, now), good...), fault.Unauthenticated, "does not know the gateway"},
		"cut off":                   {[]string{good[0][:len(good[0])-1]}, fault.Unauthenticated, "does not know the gateway"},
		"no signature":              {[]string{strings.SplitN(good[0], ".", 2)[0] + "."}, fault.Unauthenticated, "does not know the gateway"},
		"another node":              {changed(func(a *access.Assertion) { a.Node = "b" }), fault.Unauthenticated, `"b"`},
		"another method":            {changed(func(a *access.Assertion) { a.Method = "DELETE" }), fault.Unauthenticated, "DELETE"},
		"another request":           {changed(func(a *access.Assertion) { a.Target = "/v1/sessions" }), fault.Unauthenticated, "/v1/sessions"},
		"a second time":             {used, fault.Unauthenticated, "not used before"},
		"of before":                 {shown(t, ciAssertion(), key, now.Add(-access.AssertionLife-time.Second)), fault.Unauthenticated, "after the start of boxd"},
		"of later":                  {shown(t, ciAssertion(), key, now.Add(time.Hour)), fault.Unauthenticated, "not after the time of this node"},
		"somebody it has not":       {changed(func(a *access.Assertion) { a.Principal = "out" }), fault.Denied, "fleet.gateways.main.principals"},
		"somebody the node has not": {changed(func(a *access.Assertion) { a.Principal = "gone" }), fault.Denied, "no table [principals.gone]"},
		"a user of the host":        {changed(func(a *access.Assertion) { a.Principal = "uid:0" }), fault.Denied, "no table [principals.uid:0]"},
	} {
		p, err := h.asserted(c.value)
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.message) || p.Role != 0 || p.Name != "" {
			t.Errorf(`%s: p = %+v, err = %v, want an error of kind %v and err containing %q and p.Role == 0 and p.Name == ""`,
				name, p, err, c.kind, c.message)
		}
	}
	if _, err := h.asserted(good); err != nil {
		t.Error(err)
	}
}

// A statement for LangBot is good for LangBot's protocol alone, and no other statement is good for that.
func TestAnAssertionForLangBotIsRefusedElsewhere(t *testing.T) {
	t.Parallel()
	h, key := node(t)
	const target = "/v1/sessions?all=true"
	word := func() []string {
		t.Helper()
		value, err := ciAssertion().SignLangBot(key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return []string{value}
	}
	if !access.IsLangBot(word()) || access.IsLangBot(shown(t, ciAssertion(), key, time.Now())) {
		t.Error("IsLangBot does not tell the header of LangBot from that of another gateway")
	}
	if p, err := h.asserted(word()); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`used as assertion of a caller: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	if p, err := h.asserted([]string{access.AssertionScheme + strings.SplitN(word()[0], " ", 2)[1]}); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`under the other name: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	for name, values := range map[string][]string{"none": {}, "of a caller": shown(t, ciAssertion(), key, time.Now())} {
		if p, err := h.gate.IdentifyLangBot(values, "GET", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
			t.Errorf(`%s: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, name, p, err)
		}
	}
	once := word()
	if p, err := h.gate.IdentifyLangBot(once, "GET", target); err != nil || p.Name != "ci" {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	if p, err := h.gate.IdentifyLangBot(once, "GET", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`twice: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
}

// An assertion about a token identifies no caller, and one about a caller does not count for a token.
func TestAnAssertionAboutATokenAuthenticatesNoCaller(t *testing.T) {
	t.Parallel()
	h, key := node(t)
	const target = "/v1/sessions?all=true"
	word := func(a access.Assertion) []string {
		value, err := a.SignHolder(key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return []string{value}
	}
	a := ciAssertion()
	a.Token = "night"
	if p, err := h.asserted(word(a)); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" || p.Role != 0 {
		t.Errorf(`used as assertion of a caller: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == "" and p.Role == 0`,
			p, err)
	}
	if p, err := h.asserted([]string{access.AssertionScheme + strings.SplitN(word(a)[0], " ", 2)[1]}); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`under the other name: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	if p, err := h.gate.IdentifyHolder(shown(t, a, key, time.Now()), "GET", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`the assertion of a caller, used as one of a key: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`,
			p, err)
	}
	if p, err := h.gate.IdentifyHolder(nil, "GET", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`without an assertion: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	once := word(a)
	if p, err := h.gate.IdentifyHolder(once, "GET", target); err != nil || p.Name != "ci" || p.Token != access.FleetToken("main", "night") || p.Role != access.User {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "ci" and p.Token == access.FleetToken("main", "night") and p.Role == access.User`,
			p, err)
	}
	if p, err := h.gate.IdentifyHolder(once, "GET", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`twice: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	if p, err := h.gate.IdentifyHolder(word(a), "POST", target); fault.KindOf(err) != fault.Unauthenticated || p.Name != "" {
		t.Errorf(`another request: p = %+v, err = %v, want a fault.Unauthenticated error and p.Name == ""`, p, err)
	}
	a.Principal = "out"
	if p, err := h.gate.IdentifyHolder(word(a), "GET", target); fault.KindOf(err) != fault.Denied || p.Name != "" {
		t.Errorf(`a principal that the gateway may not assert: p = %+v, err = %v, want a fault.Denied error and p.Name == ""`, p, err)
	}
	a.Principal = "" // it only asks
	if p, err := h.gate.IdentifyHolder(word(a), "GET", target); err != nil || !p.Anonymous() || p.Role != 0 {
		t.Errorf("p = %+v, err = %v, want no error and p.Anonymous() and p.Role == 0", p, err)
	}
	if p, err := h.asserted(shown(t, a, key, time.Now())); fault.KindOf(err) != fault.Denied || p.Name != "" {
		t.Errorf(`an assertion without a principal: p = %+v, err = %v, want a fault.Denied error and p.Name == ""`, p, err)
	}
}

// A request with an accepted identity goes on until the configuration takes it away; a new request needs a new assertion.
func TestAGatewayAssertionIsCheckedAtTheStartOfARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, key := node(t)
		value := shown(t, ciAssertion(), key, time.Now())
		late := shown(t, ciAssertion(), key, time.Now())
		pass, err := h.asserted(value)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if p, err := h.gate.ReassertedPass(&pass); err != nil || p.Name != "ci" || p.Role != access.User {
			t.Errorf(`an hour later: p = %+v, err = %v, want no error and p.Name == "ci" and p.Role == access.User`,
				p, err)
		}
		if _, err := h.asserted(late); fault.KindOf(err) != fault.Unauthenticated || !strings.Contains(err.Error(), "expiry") {
			t.Errorf(`expired: err = %v, want a fault.Unauthenticated error and err containing "expiry"`, err)
		}
		if _, err := h.asserted(shown(t, ciAssertion(), key, time.Now())); err != nil {
			t.Error(err)
		}
		g := h.config.Fleet.Gateways["main"]
		g.Principals = []string{"low"}
		h.config.Fleet.Gateways = map[string]access.Gateway{"main": g}
		h.gate.Use(h.state(""))
		if _, err := h.gate.ReassertedPass(&pass); fault.KindOf(err) != fault.Denied {
			t.Errorf("a caller that the gateway may no longer assert: err = %v, want a fault.Denied error", err)
		}
		h.config.Fleet.Gateways = nil
		h.gate.Use(h.state(""))
		if _, err := h.gate.ReassertedPass(&pass); fault.KindOf(err) != fault.Unauthenticated {
			t.Errorf("a removed gateway: err = %v, want a fault.Unauthenticated error", err)
		}
	})
}

// An assertion that no gateway has signed identifies no caller.
func FuzzAssertion(f *testing.F) {
	f.Add("", "")
	f.Add(access.AssertionScheme+"e30.AA", "x")
	f.Add(access.AssertionScheme+"eyJnYXRld2F5IjoibWFpbiJ9.AAAA", access.AssertionScheme)
	f.Fuzz(func(t *testing.T, one, two string) {
		h, _ := node(t)
		for _, values := range [][]string{{one}, {one, two}} {
			if p, err := h.asserted(values); err == nil || p.Role != 0 || p.Name != "" {
				t.Errorf(`%q is %+v, %v, want an error and p.Role == 0 and p.Name == ""`, values, p, err)
			}
			if p, err := h.gate.IdentifyHolder(values, "GET", "/"); err == nil || p.Role != 0 || p.Name != "" {
				t.Errorf("%q is accepted as the assertion of a key: %+v, %v", values, p, err)
			}
		}
	})
}

// A gateway may import images where the node's box.toml says so: in the name of a caller who may make sessions, and nothing else
// with that identity.
func TestAGatewayImportsImagesWhereItMay(t *testing.T) {
	t.Parallel()
	h, key := node(t)
	a := ciAssertion()
	a.Image, a.Method, a.Target = true, "POST", "/v1/images?name=x"
	imports := func() (access.Pass, error) {
		t.Helper()
		return h.gate.IdentifyAsserted(shown(t, a, key, time.Now()), a.Method, a.Target)
	}
	if p, err := imports(); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "may not import images") {
		t.Errorf(`where it may not: p = %+v, err = %v, want a fault.Denied error and err containing "may not import images"`,
			p, err)
	}
	may := h.config.Fleet.Gateways["main"]
	may.Images = true
	h.config.Fleet.Gateways["main"] = may
	h.gate.Use(h.state(""))
	a.Role = access.User
	p, err := imports()
	if err != nil || p.Name != "ci" || p.Role != access.Operator || p.Rule != "fleet.gateways.main.images" || !p.Allows("POST /v1/images") || p.Allows("DELETE /v1/images/{image}") || p.Allows("POST /v1/sessions") {
		t.Errorf("p = %+v, err = %v", p, err)
	}
	if again, err := h.gate.ReassertedPass(&p); err != nil || again.Role != access.Operator {
		t.Errorf("while it imports: again = %+v, err = %v, want no error and again.Role == access.Operator", again, err)
	}
	for name, change := range map[string]func(){
		"a viewer":          func() { a.Role = access.Viewer },
		"a principal":       func() { a.Principal = "low" },
		"another route":     func() { a.Target = "/v1/images/prune" },
		"another method":    func() { a.Method = "DELETE" },
		"a route behind it": func() { a.Target = "/v1/images/x?/v1/images" },
	} {
		before := a
		change()
		if p, err := imports(); fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: p = %+v, err = %v, want a fault.Denied error", name, p, err)
		}
		a = before
	}
	may.Images = false
	h.config.Fleet.Gateways["main"] = may
	h.gate.Use(h.state(""))
	if _, err := h.gate.ReassertedPass(&p); fault.KindOf(err) != fault.Denied {
		t.Errorf("when it may no more: err = %v, want a fault.Denied error", err)
	}
}
