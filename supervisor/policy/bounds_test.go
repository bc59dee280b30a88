// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func boundsFor(change func(*Policy)) Policy {
	b := NoPolicy()
	change(&b)
	return b
}

func TestThePolicyOfACallerIsFoundByPrincipalGroupOrRole(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	maps.Copy(c.Policies, map[string]Policy{
		"one":    boundsFor(func(b *Policy) { b.Principals = []string{"uid:1000", "bot"} }),
		"agents": boundsFor(func(b *Policy) { b.GroupIDs = []uint32{50} }),
		"devs":   boundsFor(func(b *Policy) { b.GroupIDs = []uint32{60} }),
		"ops":    boundsFor(func(b *Policy) { b.Roles = []string{"operator"} }),
		"roots":  boundsFor(func(b *Policy) { b.Roles = []string{"admin"} }),
	})
	for want, who := range map[string]access.Principal{
		"one":     {Name: "uid:1000", GID: 50, Role: access.Operator},
		"agents":  {Name: "uid:1001", GID: 7, Groups: []uint32{60, 50}, Role: access.Operator},
		"devs":    {Name: "uid:1002", GID: 60, Role: access.User},
		"ops":     {Name: "uid:1003", Role: access.Operator},
		"roots":   {Name: "uid:0", Role: access.Admin},
		"default": {Name: "uid:1004", Role: access.User},
	} {
		if got := c.PolicyOf(who); got.Name != want {
			t.Errorf("%s is held by %q, want %q", who.Name, got.Name, want)
		}
	}
	delete(c.Policies, "roots")
	if got := c.PolicyOf(access.Principal{Name: "uid:0", Role: access.Admin}); got.Name != "" || !reflect.DeepEqual(got.Policy, NoPolicy()) {
		t.Errorf("an admin is held by %q", got.Name)
	}
}

// A policy applies to a person, however the policy writes the name and whichever principal a session of that person has.
func TestAPolicyAppliesToAUserUnderAnyName(t *testing.T) {
	t.Parallel()
	person := func(written string) (string, uint32, bool) {
		switch written {
		case "alice", "asmith", "uid:1001": // a table, of the user asmith
			return "alice", 1001, true
		case "bob", "uid:1002": // a user without a table
			return "uid:1002", 1002, true
		case "uid:1003": // a member of a group that is one principal
			return "uid:1003", 1003, true
		case "robot": // for tokens
			return "robot", access.NoUser, true
		}
		return "", access.NoUser, false
	}
	for written, held := range map[string][]access.Principal{
		"alice":    {{Name: "alice", UID: 1001}, {Name: "uid:1001", UID: 1001}},
		"asmith":   {{Name: "alice", UID: 1001}, {Name: "uid:1001", UID: 1001}},
		"uid:1001": {{Name: "alice", UID: 1001}, {Name: "uid:1001", UID: 1001}},
		"bob":      {{Name: "uid:1002", UID: 1002}},
		"uid:1002": {{Name: "uid:1002", UID: 1002}},
		"uid:1003": {{Name: "team", UID: 1003}},
		"robot":    {{Name: "robot", UID: access.NoUser}},
	} {
		c := DefaultConfig()
		c.Policies["x"] = boundsFor(func(b *Policy) { b.Principals = []string{written} })
		if nobody, err := c.ResolvePrincipals(person); nobody != nil || err != nil {
			t.Fatalf("%s: nobody = %v, err = %v, want nobody == nil and no error", written, nobody, err)
		}
		for _, who := range held {
			if got := c.PolicyOf(who); got.Name != "x" {
				t.Errorf("written as %s, %s is held by %q", written, who.Name, got.Name)
			}
		}
		if got := c.PolicyOf(access.Principal{Name: "uid:7", UID: 7, Role: access.User}); got.Name == "x" {
			t.Errorf("written as %s, the policy applies to another principal", written)
		}
	}
	c := DefaultConfig()
	c.Policies["x"] = boundsFor(func(b *Policy) { b.Principals = []string{"alice", "gone"} })
	c.Policies["y"] = boundsFor(func(b *Policy) { b.Principals = []string{"uid:1001"} })
	nobody, err := c.ResolvePrincipals(person)
	if nobody == nil || nobody.Error() != `policy.x.principals = "gone": must be the name of a table [principals.NAME], uid:N, or a user of this host` {
		t.Errorf("principals that do not exist: nobody = %v, want nobody != nil and nobody == `policy.x.principals = \"gone\": must be the name of a table [principals.NAME], uid:N, or a user of this host`",
			nobody)
	}
	if err == nil || err.Error() != `policy.y.principals = "uid:1001": must be in one table only, and is also in policy.x` {
		t.Errorf("twice: err = %v, want an error and err == `policy.y.principals = \"uid:1001\": must be in one table only, and is also in policy.x`",
			err)
	}
}

// Every ceiling cuts its field, whether the value is the profile's or the request's, and the cut is reported.
func TestEveryCeilingCutsAndSaysSo(t *testing.T) {
	t.Parallel()
	ceilings := limits.Ceilings{
		CPUs: 0.25, Memory: 64 * quantity.MiB, Swap: quantity.MiB, Pids: 20, CPUWeight: 2, IOWeight: 3, IORead: 64 * quantity.KiB, IOWrite: 65 * quantity.KiB,
		Tmp: quantity.MiB, WorkspaceQuota: 2 * quantity.MiB, WorkspaceInodes: 17, Timeout: seconds(1), TTL: seconds(2), MaxLifetime: seconds(3),
	}
	c := DefaultConfig()
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Ceilings = ceilings }), Name: "ci"}
	for name, req := range map[string]*Request{"profile": {}, "request": {
		Patch: limits.Patch{
			CPUs: new(2.0), Memory: new(quantity.GiB), MemoryHigh: new(512 * quantity.MiB), Swap: new(quantity.GiB), Pids: new(100), CPUWeight: new(100),
			IOWeight: new(100), IORead: new(quantity.GiB), IOWrite: new(quantity.GiB), WorkspaceQuota: new(quantity.GiB), WorkspaceInodes: new(5000),
			TTL: new(seconds(0)), MaxLifetime: new(seconds(0)),
		}, Tmp: new(quantity.GiB),
	}} {
		s, _, err := c.Merge(req)
		if err != nil {
			t.Fatal(err)
		}
		asked := s
		if err := h.Hold(&s, req); err != nil {
			t.Fatal(err)
		}
		clamped := s.Clamped
		s.Clamped = nil
		got := limits.Ceilings{
			CPUs: s.CPUs, Memory: s.Memory, Swap: s.Swap, Pids: s.Pids, CPUWeight: s.CPUWeight, IOWeight: s.IOWeight, IORead: s.IORead, IOWrite: s.IOWrite,
			Tmp: s.Tmp, WorkspaceQuota: s.WorkspaceQuota, WorkspaceInodes: s.WorkspaceInodes, Timeout: ceilings.Timeout, TTL: s.TTL, MaxLifetime: s.MaxLifetime,
			NetworkConnections: s.NetworkConnections, NetworkBandwidth: s.NetworkBandwidth,
		}
		want := ceilings
		if req.Swap == nil {
			want.Swap = 0
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		if s.MemoryHigh > s.Memory {
			t.Errorf("%s: memory_high %v of %v", name, s.MemoryHigh, s.Memory)
		}
		for _, cl := range clamped {
			if !strings.HasPrefix(cl.By, "policy.ci.ceilings.") || cl.Asked == cl.Got || cl.Asked == "" {
				t.Errorf(`%s: cl = %+v, want cl.By starting with "policy.ci.ceilings." and cl.Asked != %v and cl.Asked != ""`,
					name, cl, cl.Got)
			}
		}
		changed := 0
		for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
			if !f.Anonymous && !reflect.DeepEqual(reflect.ValueOf(s).FieldByIndex(f.Index).Interface(), reflect.ValueOf(asked).FieldByIndex(f.Index).Interface()) {
				changed++
			}
		}
		if changed != len(clamped) {
			t.Errorf("%s: %d fields are less than asked for, and %d are listed: clamped = %+v, want changed == len(clamped)",
				name, changed, len(clamped), clamped)
		}
		if err := s.validate(); err != nil {
			t.Errorf("%s: the reduced settings are invalid: %v", name, err)
		}
	}
	d, clamped, err := h.Timeout(0, false)
	if d != time.Second || len(clamped) != 1 || err != nil {
		t.Errorf("timeout %v, %v, %v", d, clamped, err)
	}
}

func TestValuesBelowTheCeilingsAreUnchanged(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) {
		b.Ceilings = limits.Ceilings{Memory: quantity.GiB, TTL: seconds(3600), IORead: quantity.GiB}
	}), Name: "ci"}
	req := &Request{Patch: limits.Patch{Memory: new(quantity.GiB), TTL: new(seconds(60)), IORead: new(quantity.MiB)}}
	s, _, err := c.Merge(req)
	if err != nil {
		t.Fatal(err)
	}
	want := s
	if err := h.Hold(&s, req); err != nil || !s.unchanged(&want) {
		t.Errorf("s.Clamped = %v, err = %v, want no error and s.unchanged(&want)", s.Clamped, err)
	}
}

// If the operator chose to refuse excess, a request for too much is refused; a profile that has too much is still cut.
func TestExcessIsRefusedWhereTheOperatorSaysSo(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) {
		b.Excess, b.Ceilings = excessRefuse, limits.Ceilings{Memory: 64 * quantity.MiB, Timeout: seconds(1)}
	}), Name: "ci"}
	s, _, err := c.Merge(&Request{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Hold(&s, &Request{}); err != nil || len(s.Clamped) != 1 || s.Memory != 64*quantity.MiB {
		t.Errorf("the profile: s.Clamped = %v, err = %v, want no error and len(s.Clamped) == 1 and s.Memory == 64 * quantity.MiB",
			s.Clamped, err)
	}
	req := &Request{Patch: limits.Patch{Memory: new(quantity.GiB)}}
	if s, _, err = c.Merge(req); err != nil {
		t.Fatal(err)
	}
	err = h.Hold(&s, req)
	if got := refusalOf(t, err); got != (refusal{fault.Denied, "memory", "1GiB", "at most 64MiB"}) || fault.DenialOf(err).Rule != "policy.ci.ceilings.memory" {
		t.Errorf(`the request: got %+v, fault.DenialOf(err) = %+v, want got == refusal{fault.Denied, "memory", "1GiB", "at most 64MiB"} and fault.DenialOf(err).Rule == "policy.ci.ceilings.memory"`,
			got, fault.DenialOf(err))
	}
	if _, _, err := h.Timeout(time.Minute, true); fault.KindOf(err) != fault.Denied {
		t.Errorf("a timeout: err = %v, want a fault.Denied error", err)
	}
}

func TestWhatIsNotListedIsRefusedByItsLayer(t *testing.T) {
	t.Parallel()
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) {
		b.Profiles, b.Networks, b.Tools, b.Mounts = []string{"default"}, []string{NetworkOff}, []string{ToolExec}, []string{"/srv/ci", "/data"}
	}), Name: "ci"}
	base := func() Settings {
		s, _, err := (&Config{Sessions: SessionLimits{DefaultProfile: "default"}, Profiles: defaultProfiles()}).Merge(&Request{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, tc := range []struct {
		name   string
		change func(*Settings)
		layer  fault.Layer
		rule   string
	}{
		{"profile", func(s *Settings) { s.Profile = "network_basic" }, fault.LayerPolicy, "profiles"},
		{"network", func(s *Settings) { s.Network = NetworkHost }, fault.LayerNetwork, "networks"},
		{"mount", func(s *Settings) { s.Mounts = []Mount{{Source: "/srv/ci/a"}, {Source: "/srv/cia"}} }, fault.LayerMount, "mounts"},
		{"mount above", func(s *Settings) { s.Mounts = []Mount{{Source: "/srv"}} }, fault.LayerMount, "mounts"},
		{"mount by dots", func(s *Settings) { s.Mounts = []Mount{{Source: "/srv/ci/../x"}} }, fault.LayerMount, "mounts"},
	} {
		s := base()
		tc.change(&s)
		err := h.Hold(&s, &Request{})
		d := fault.DenialOf(err)
		if fault.KindOf(err) != fault.Denied || d == nil || d.Layer != tc.layer || d.Rule != "policy.ci."+tc.rule || d.Setting == "" || d.Allowed == "" {
			t.Errorf(`%s: err = %v, d = %+v, want a fault.Denied error and d != nil and d.Layer == %v and d.Rule == "policy.ci." + tc.rule and d.Setting != "" and d.Allowed != ""`,
				tc.name, err, d, tc.layer)
		}
	}
	s := base()
	s.Mounts = []Mount{{Source: "/srv/ci"}, {Source: "/data/x"}}
	if err := h.Hold(&s, &Request{}); err != nil {
		t.Errorf("%v", err)
	}
	home := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Mounts = []string{HomeRoot} }), Name: "ci"}
	if home.AllowsMount("/home/ann/x") || home.AllowsMount("/") {
		t.Error("a caller without a home directory may mount one")
	}
	if home.Home = "/home/ann"; !home.AllowsMount("/home/ann/x") || home.AllowsMount("/home/anna") || home.AllowsMount("/srv") {
		t.Error("AllowsMount does not allow exactly the home directory")
	}
	for _, tool := range tools() {
		err := h.May(tool)
		if (err == nil) != (tool == ToolExec) || err != nil && fault.DenialOf(err).Rule != "policy.ci.tools" {
			t.Errorf(`%s: err = %v, want (err == nil) == (tool == ToolExec) and (no error or fault.DenialOf(err).Rule == "policy.ci.tools")`,
				tool, err)
		}
	}
	h.Networks = []string{NetworkEgress}
	s = base()
	s.Network = NetworkEgress
	if err := h.Hold(&s, &Request{}); fault.DenialOf(err) == nil || fault.DenialOf(err).Layer != fault.LayerNetwork {
		t.Errorf("a network without the tool: err = %v, want fault.DenialOf(err) != nil and fault.DenialOf(err).Layer == fault.LayerNetwork",
			err)
	}
}

func TestBoundsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Policy){
		"policy.x.roles":                func(b *Policy) { b.Roles = []string{"king"} },
		"policy.x.profiles":             func(b *Policy) { b.Profiles = []string{"gone"} },
		"policy.x.tools":                func(b *Policy) { b.Tools = []string{"hammer"} },
		"policy.x.networks":             func(b *Policy) { b.Networks = []string{"wan"} },
		"policy.x.mounts":               func(b *Policy) { b.Mounts = []string{"srv"} },
		"policy.x.excess":               func(b *Policy) { b.Excess = "" },
		"policy.x.sessions":             func(b *Policy) { b.Sessions = -1 },
		"policy.x.burst":                func(b *Policy) { b.Burst = -1 },
		"policy.x.total_cpus":           func(b *Policy) { b.CPUs = -0.5 },
		"policy.x.total_memory":         func(b *Policy) { b.Memory = maxSize + 1 },
		"policy.x.session_template":     func(b *Policy) { b.Template = "{a}{b}" },
		"policy.x.force_template":       func(b *Policy) { b.Force = true },
		"policy.x.ceilings: memory":     func(b *Policy) { b.Ceilings.Memory = quantity.MiB },
		"policy.x.ceilings: pids":       func(b *Policy) { b.Ceilings.Pids = 2 },
		"policy.x.ceilings: cpu_weight": func(b *Policy) { b.Ceilings.CPUWeight = 20_000 },
		"policy.x.ceilings.timeout":     func(b *Policy) { b.Ceilings.Timeout = longestTimeout + 1 },
		"policy.x: must have":           func(*Policy) {},
	} {
		c := DefaultConfig()
		c.Policies["a"] = boundsFor(func(b *Policy) { b.Principals = []string{"uid:1"} })
		c.Policies["x"] = boundsFor(func(b *Policy) {
			change(b)
			if want != "policy.x: must have" && len(b.Roles) == 0 {
				b.Roles = []string{"viewer"}
			}
		})
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v, want an error containing want", want, err)
		}
	}
}

func TestTheIdOfASession(t *testing.T) {
	t.Parallel()
	chat := map[string]string{"launcher_type": "group", "launcher_id": "7"}
	for _, tc := range []struct {
		name     string
		config   string
		force    bool
		own      string // the policy's own
		ownForce bool
		req      Request
		want     string // "": refused
		kind     fault.Kind
	}{
		{name: "its own", req: Request{ID: "a/b"}, want: "a/b"},
		{name: "no id", req: Request{ID: "a\nb"}, kind: fault.Invalid},
		{name: "a preset", req: Request{Template: "per_chat", Variables: chat}, want: "group_7"},
		{name: "a template", req: Request{Template: "x-{launcher_id}", Variables: chat}, want: "x-7"},
		{name: "the configured", config: "per_chat", req: Request{Variables: chat}, want: "group_7"},
		{name: "that of the policy", config: "per_chat", own: "{launcher_id}", req: Request{Variables: chat}, want: "7"},
		{name: "another than the configured", config: "per_chat", req: Request{Template: "{launcher_id}", Variables: chat}, want: "7"},
		{name: "its own in spite of the configured", config: "per_chat", req: Request{ID: "s"}, want: "s"},
		{name: "both", config: "per_chat", req: Request{ID: "s", Variables: chat}, kind: fault.Invalid},
		{name: "variables of nothing", req: Request{Variables: chat}, kind: fault.Invalid},
		{name: "a variable is missing", req: Request{Template: "per_user", Variables: chat}, kind: fault.Invalid},
		{name: "no template", req: Request{Template: "{", Variables: chat}, kind: fault.Invalid},
		{name: "forced", config: "per_chat", force: true, req: Request{Variables: chat}, want: "group_7"},
		{name: "forced, and nothing said", config: "global", force: true, req: Request{}, want: "global"},
		{name: "forced, and the same", config: "per_chat", force: true, req: Request{ID: "group_7", Template: "per_chat", Variables: chat}, want: "group_7"},
		{name: "forced, and another id", config: "per_chat", force: true, req: Request{ID: "mine", Variables: chat}, kind: fault.Denied},
		{name: "forced, and another template", config: "per_chat", force: true, req: Request{Template: "global", Variables: chat}, kind: fault.Denied},
		{name: "forced, and no variables", config: "per_chat", force: true, req: Request{ID: "mine"}, kind: fault.Invalid},
		{name: "forced by the policy", own: "per_chat", ownForce: true, req: Request{ID: "mine", Variables: chat}, kind: fault.Denied},
		{name: "forced for all, and another for some", config: "per_chat", force: true, own: "{launcher_id}", req: Request{ID: "mine"}, want: "mine"},
	} {
		c := DefaultConfig()
		c.Sessions.Template, c.Sessions.ForceTemplate = tc.config, tc.force
		h := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Template, b.Force = tc.own, tc.ownForce }), Name: "ci"}
		got, err := c.SessionID(&h, &tc.req)
		if got != tc.want && tc.want != "" || err != nil && fault.KindOf(err) != tc.kind || err == nil && tc.want == "" {
			t.Errorf(`%s: got %q, err = %v, want (got == %q or tc.want == "") and (no error or an error of kind %v) and (an error or tc.want != "")`,
				tc.name, got, err, tc.want, tc.kind)
		}
	}
	c := DefaultConfig()
	a, err1 := c.SessionID(&EffectivePolicy{}, &Request{})
	b, err2 := c.SessionID(&EffectivePolicy{}, &Request{})
	if a == b || err1 != nil || err2 != nil {
		t.Errorf("made up: a = %q, b = %q, want a != b and err1 == nil and err2 == nil", a, b)
	}
	if !slices.Contains(tools(), ToolNetwork) {
		t.Error("the list of tools lacks network")
	}
}

// A field that a change lowers below the ceiling is no longer listed as cut.
func TestASessionUpdateIsClampedByThePolicy(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Ceilings = limits.Ceilings{Memory: 64 * quantity.MiB, CPUs: 0.5} }), Name: "ci"}
	s, p, err := c.Merge(&Request{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Hold(&s, &Request{}); err != nil || len(s.Clamped) != 2 {
		t.Fatalf("s.Clamped = %v, err = %v, want no error and len(s.Clamped) == 2", s.Clamped, err)
	}
	for _, tc := range []struct {
		ask, got quantity.Size
		clamps   int
	}{{40 * quantity.MiB, 40 * quantity.MiB, 1}, {quantity.GiB, 64 * quantity.MiB, 2}} {
		req := &Request{Patch: limits.Patch{Memory: new(tc.ask)}}
		next, err := p.Change(&s, req)
		if err == nil {
			err = h.Limits(&next, req)
		}
		if err != nil || next.Memory != tc.got || len(next.Clamped) != tc.clamps || len(s.Clamped) != 2 {
			t.Errorf("%v: next.Memory = %v, next.Clamped = %v, err = %v, want no error and next.Memory == %v and len(next.Clamped) == %v and len(s.Clamped) == 2",
				tc.ask, next.Memory, next.Clamped, err, tc.got, tc.clamps)
		}
	}
}
