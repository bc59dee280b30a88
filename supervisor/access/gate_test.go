// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
)

// gateFixture is a gate with the files and the configuration that it reads.
type gateFixture struct {
	t      *testing.T
	dir    string
	config access.GateConfig
	gate   *access.Gate
	log    *bytes.Buffer
}

func build(t *testing.T, list string) *gateFixture {
	t.Helper()
	h := &gateFixture{t: t, dir: t.TempDir(), log: new(bytes.Buffer)}
	h.config = access.GateConfig{
		Access:     access.Config{DefaultRole: access.User, Tokens: filepath.Join(h.dir, "tokens")},
		Principals: map[string]access.Rule{"ci": {Role: access.Operator}, "low": {Role: access.Viewer}, "out": {}},
	}
	root, err := os.OpenRoot(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	store, err := access.OpenGrants(root, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	h.gate = access.NewGate(h.state(list), store, slog.New(slog.NewTextHandler(h.log, nil)))
	return h
}

func (h *gateFixture) state(list string) *access.State {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "tokens"), []byte(list), 0o600); err != nil {
		h.t.Fatal(err)
	}
	s, err := access.Prepare(&h.config, access.LookupHost(), "")
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func token(name, principal, more string) (secret, text string) {
	secret, hash := access.NewToken()
	return secret, fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\nprincipal = %q\n%s\n", name, hash, principal, more)
}

func bearer(secret string) []string { return []string{"Bearer " + secret} }

// Every request with a bad token gets the same error, whatever is wrong with the token.
func TestEveryBadTokenGetsTheSameError(t *testing.T) {
	t.Parallel()
	good, one := token("good", "ci", "")
	old, two := token("old", "ci", "expires = 2020-01-01T00:00:00Z")
	stray, three := token("stray", "of-another-host", "")
	h := build(t, one+two+three)
	strange, _ := token("x", "ci", "")
	want := ""
	for name, header := range map[string][]string{
		"expired": bearer(old), "of nobody": bearer(stray), "unknown": bearer(strange), "truncated": bearer(good[:len(good)-1]), "empty": {""}, "no token": {"Bearer "},
		"another scheme": {"Basic " + good}, "no scheme": {good}, "two": {"Bearer " + good, "Bearer " + good}, "NUL": bearer(good + "\x00"), "long": bearer(strings.Repeat("a", 60000)),
	} {
		for _, peer := range []access.Peer{{}, {Local: true}} { // the gate does not fall back on the peer credentials
			p, err := h.gate.Identify(&peer, header)
			f, ok := errors.AsType[*fault.Error](err)
			if !ok || f.Kind != fault.Unauthenticated || !p.Anonymous() || p.Role != 0 {
				t.Fatalf("%s: p = %+v, err = %v, want ok == true and f.Kind == fault.Unauthenticated and p.Anonymous() and p.Role == 0",
					name, p, err)
			}
			if text := fmt.Sprintf("%+v", *f); want == "" {
				want = f.Error() + f.Hint
			} else if want != f.Error()+f.Hint {
				t.Errorf("%s: %s, not %s", name, text, want)
			}
		}
	}
	if p, err := h.gate.Identify(&access.Peer{}, bearer(good)); err != nil || p.Name != "ci" || p.Role != access.Operator || p.Token != "good" || p.UID != access.NoUser {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "ci" and p.Role == access.Operator and p.Token == "good" and p.UID == access.NoUser`,
			p, err)
	}
	if p, err := h.gate.Identify(&access.Peer{}, []string{"bEARER  " + good}); err != nil || p.Name != "ci" {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	if p, err := h.gate.Identify(&access.Peer{Local: true, UID: 7}, nil); err != nil || p.Name != "uid:7" || p.Role != access.User {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "uid:7" and p.Role == access.User`, p, err)
	}
	if p, err := h.gate.Identify(&access.Peer{UID: 0}, nil); err != nil || !p.Anonymous() || p.Role != 0 {
		t.Errorf("over TCP: p = %+v, err = %v, want no error and p.Anonymous() and p.Role == 0", p, err)
	}
	if strings.Contains(h.log.String(), good) || strings.Contains(h.log.String(), strange) {
		t.Errorf("the log has a token: h.log = %s, want h.log.String() without %q and h.log.String() without %q",
			h.log, good, strange)
	}
	if n := strings.Count(h.log.String(), "authentication failed"); n == 0 || n > 5 {
		t.Errorf("%d lines of log about 22 refusals", n)
	}
}

func TestATokenIsNoMoreThanItsCap(t *testing.T) {
	t.Parallel()
	capped, one := token("capped", "ci", `role = "viewer"`)
	above, two := token("above", "low", `role = "admin"`)
	shut, three := token("shut", "out", "")
	h := build(t, one+two+three)
	for secret, want := range map[string]access.Role{capped: access.Viewer, above: access.Viewer, shut: 0} {
		if p, err := h.gate.Identify(&access.Peer{}, bearer(secret)); err != nil || p.Role != want {
			t.Errorf("%+v, %v, want %v", p, err, want)
		}
	}
	if _, err := h.gate.Grants().Give("ci", access.Admin, time.Hour, "uid:0"); err != nil {
		t.Fatal(err)
	}
	if p, err := h.gate.Identify(&access.Peer{}, bearer(capped)); err != nil || p.Role != access.Viewer {
		t.Errorf("a grant lifts the cap: p = %+v, err = %v, want no error and p.Role == access.Viewer", p, err)
	}
}

func TestWithOpenAccessAnonymousCallersAreGuests(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	h.config.Open, h.config.Access.DefaultRole = true, access.Viewer
	h.gate.Use(h.state(""))
	if p, err := h.gate.Identify(&access.Peer{}, nil); err != nil || p.Name != access.Guest || p.Role != access.Viewer || p.UID != access.NoUser {
		t.Errorf("p = %+v, err = %v, want no error and p.Name == access.Guest and p.Role == access.Viewer and p.UID == access.NoUser",
			p, err)
	}
	if _, err := h.gate.Identify(&access.Peer{}, bearer("x")); err == nil {
		t.Error("no error for an invalid token")
	}
}

// A running call ends when its caller loses the right to make it.
func TestARunningCallEndsWhenItsCallerLosesTheRight(t *testing.T) {
	t.Parallel()
	secret, line := token("a", "ci", "")
	h := build(t, line)
	begin := func(need access.Role) (context.Context, func()) {
		peer := access.Peer{}
		p, err := h.gate.Identify(&peer, bearer(secret))
		if err != nil {
			t.Fatal(err)
		}
		return h.gate.Watch(t.Context(), &p, func() (time.Time, error) {
			now, err := h.gate.Identify(&peer, bearer(secret))
			if err == nil && !now.Is(need) {
				err = fault.Errorf(fault.Denied, "too low")
			}
			return now.Until, err
		})
	}
	low, leaveLow := begin(access.Viewer)
	defer leaveLow()
	high, leaveHigh := begin(access.Operator)
	defer leaveHigh()
	gone, leaveGone := begin(access.Operator)
	leaveGone()
	h.config.Principals["ci"] = access.Rule{Role: access.User}
	h.gate.Use(h.state(line))
	if low.Err() != nil || fault.KindOf(context.Cause(high)) != fault.Denied || fault.KindOf(context.Cause(gone)) == fault.Denied {
		t.Errorf("after another role: context.Cause(low) = %v, context.Cause(high) = %v, context.Cause(gone) = %v, want low.Err() == nil and a fault.Denied error and fault.KindOf(context.Cause(gone)) != fault.Denied",
			context.Cause(low), context.Cause(high), context.Cause(gone))
	}
	h.gate.Use(h.state("")) // the token is revoked
	if fault.KindOf(context.Cause(low)) != fault.Unauthenticated {
		t.Errorf("after the token was revoked: context.Cause(low) = %v, want a fault.Unauthenticated error",
			context.Cause(low))
	}
	// A change between the identification and the watch is not missed.
	h.gate.Use(h.state(line))
	p, err := h.gate.Identify(&access.Peer{}, bearer(secret))
	if err != nil {
		t.Fatal(err)
	}
	h.gate.Use(h.state(""))
	timeoutCtx, release := h.gate.Watch(t.Context(), &p, func() (time.Time, error) {
		now, err := h.gate.Identify(&access.Peer{}, bearer(secret))
		return now.Until, err
	})
	defer release()
	if timeoutCtx.Err() == nil {
		t.Error("the call that began while its token was being revoked was not canceled")
	}
}

// A call that a grant allows ends when the grant expires.
func TestAGrantEndsByItselfInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	synctest.Test(t, func(t *testing.T) {
		if _, err := h.gate.Grants().Give("uid:7", access.Admin, time.Hour, "uid:0"); err != nil {
			t.Fatal(err)
		}
		peer := access.Peer{Local: true, UID: 7}
		p, err := h.gate.Identify(&peer, nil)
		if err != nil || p.Role != access.Admin || p.Rule != "grant" {
			t.Fatalf(`p = %+v, err = %v, want no error and p.Role == access.Admin and p.Rule == "grant"`, p, err)
		}
		ctx, release := h.gate.Watch(t.Context(), &p, func() (time.Time, error) {
			now, err := h.gate.Identify(&peer, nil)
			if err == nil && !now.Is(access.Admin) {
				err = fault.Errorf(fault.Denied, "too low")
			}
			return now.Until, err
		})
		defer release()
		start := time.Now()
		<-ctx.Done()
		if elapsed := time.Since(start); elapsed < time.Hour || elapsed > time.Hour+time.Second || fault.KindOf(context.Cause(ctx)) != fault.Denied {
			t.Errorf("it has ended after %v: context.Cause(ctx) = %v, want took >= time.Hour and took <= time.Hour + time.Second and a fault.Denied error",
				elapsed, context.Cause(ctx))
		}
	})
}

func TestCredentialsAndOrder(t *testing.T) {
	t.Parallel()
	h := build(t, "")
	lent := t.TempDir()
	secret, line := token("lent", "ci", "")
	if err := os.WriteFile(filepath.Join(lent, access.Credential), []byte(line), 0o400); err != nil {
		t.Fatal(err)
	}
	s, err := access.Prepare(&h.config, access.LookupHost(), lent)
	if err != nil {
		t.Fatal(err)
	}
	h.gate.Use(s)
	if p, err := h.gate.Identify(&access.Peer{}, bearer(secret)); err != nil || p.Name != "ci" {
		t.Errorf(`p = %+v, err = %v, want no error and p.Name == "ci"`, p, err)
	}
	if err := os.WriteFile(h.config.Access.Tokens, []byte("[[token]]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := access.Prepare(&h.config, access.LookupHost(), ""); err == nil {
		t.Error("no error for an invalid token file")
	}
	if s := h.state(line + func() string { _, l := token("x", "nobody-here", "expires = 2020-01-01T00:00:00Z"); return l }()); len(s.Loud) != 2 {
		t.Errorf("s.Loud = %q, want len(s.Loud) == 2", s.Loud)
	}
}

// A caller accepted earlier is identified again as what it is now: by its user id, or by the token it used, while that is valid.
func TestAnAcceptedCallerIsIdentifiedAnew(t *testing.T) {
	t.Parallel()
	_, one := token("one", "ci", `role = "user"`)
	_, old := token("old", "ci", "expires = 2020-01-01T00:00:00Z")
	_, stray := token("stray", "of-another-host", "")
	h := build(t, one+old+stray)
	if p := h.gate.Reauthenticate(&access.Peer{}, "one"); p.Name != "ci" || p.Role != access.User || p.Token != "one" {
		t.Errorf(`p = %+v, want p.Name == "ci" and p.Role == access.User and p.Token == "one"`, p)
	}
	if p := h.gate.Reauthenticate(&access.Peer{Local: true, UID: 7}, ""); p.Name != "uid:7" || p.Role != access.User {
		t.Errorf(`p = %+v, want p.Name == "uid:7" and p.Role == access.User`, p)
	}
	for _, name := range []string{"old", "stray", "none"} {
		if p := h.gate.Reauthenticate(&access.Peer{Local: true, UID: 7}, name); !p.Anonymous() || p.Role != 0 {
			t.Errorf("%s: p = %+v, want p.Anonymous() and p.Role == 0", name, p)
		}
	}
	if p := h.gate.Reauthenticate(&access.Peer{}, ""); !p.Anonymous() { // over TCP, where every caller needs a token
		t.Errorf("p = %+v, want p.Anonymous()", p)
	}
	h.gate.Use(h.state(""))
	if p := h.gate.Reauthenticate(&access.Peer{}, "one"); !p.Anonymous() {
		t.Errorf("its token was removed: p = %+v, want p.Anonymous()", p)
	}
}
