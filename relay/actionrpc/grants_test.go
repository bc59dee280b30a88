// SPDX-License-Identifier: Apache-2.0

package actionrpc_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc"
)

// object decodes the fields of a JSON object, and rejects anything else.
func object(text json.RawMessage) (fields map[string]json.RawMessage, ok bool) {
	ok = json.Unmarshal(text, &fields) == nil && fields != nil
	return fields, ok
}

func fields(t testing.TB, text string) map[string]json.RawMessage {
	t.Helper()
	f, ok := object(json.RawMessage(text))
	if !ok {
		t.Fatal(text)
	}
	return f
}

const good = `"instance_uuid":" i ","workspace_uuid":"w","execution_generation":1,"entitlement_revision":2,"expires_at":"2030-01-02T03:04:05Z","max_sessions":1,"max_managed_processes":0`

// with returns a grant in which a field has another value; "" leaves it out.
func with(field, value string) string {
	var out []string
	for pair := range strings.SplitSeq(good, ",") {
		name, _, _ := strings.Cut(pair, ":")
		if name == `"`+field+`"` {
			if value != "" {
				out = append(out, name+":"+value)
			}
			continue
		}
		out = append(out, pair)
	}
	text := "{" + strings.Join(out, ",")
	if !strings.Contains(good, `"`+field+`"`) {
		text += `,"` + field + `":` + value
	}
	return text + "}"
}

func TestAGrantIsReadOrRefused(t *testing.T) {
	t.Parallel()
	g, err := actionrpc.ReadGrant(fields(t, "{"+good+"}"))
	if err != nil || g.Instance != "i" || g.Workspace != "w" || g.Generation != 1 || g.Revision != 2 || g.MaxSessions != 1 || g.MaxProcesses != 0 || g.Expires.Unix() != 1893553445 {
		t.Fatalf("g = %+v, err = %v", g, err)
	}
	const whole, date = "Value error, must be an integer", "Input should be a valid datetime"
	for _, tc := range []struct{ field, value, want string }{
		{"instance_uuid", `" "`, "Value error, must not be empty"},
		{"workspace_uuid", `""`, "Value error, must not be empty"},
		{"workspace_uuid", `7`, "Input should be a valid string"},
		{"workspace_uuid", `null`, "Input should be a valid string"},
		{"workspace_uuid", `"` + strings.Repeat("w", 257) + `"`, "Value error, must have at most 256 characters"},
		{"workspace_uuid", "", "Field required"},
		{"execution_generation", `0`, "Input should be greater than or equal to 1"},
		{"execution_generation", `-9223372036854775808`, "Input should be greater than or equal to 1"},
		{"execution_generation", `true`, whole},
		{"execution_generation", `"1"`, whole},
		{"execution_generation", `1.0`, whole},
		{"execution_generation", `1e3`, whole},
		{"execution_generation", `null`, whole},
		{"execution_generation", `[1]`, whole},
		{"execution_generation", `"Infinity"`, whole},
		{"execution_generation", `"NaN"`, whole},
		{"entitlement_revision", `9223372036854775808`, "Value error, must be an integer of 64 bits"},
		{"entitlement_revision", `0`, "Input should be greater than or equal to 1"},
		{"max_sessions", `-1`, "Input should be greater than or equal to 0"},
		{"max_sessions", `false`, whole},
		{"max_managed_processes", `"0"`, whole},
		{"expires_at", `"2030-01-02T03:04:05"`, "Value error, expires_at must include a timezone"},
		{"expires_at", `"2030-01-02"`, "Value error, expires_at must include a timezone"},
		{"expires_at", `1893553445`, date},
		{"expires_at", `"soon"`, date},
		{"expires_at", `""`, date},
		{"expires_at", `null`, date},
		{"expires_at", `"2030-13-02T03:04:05Z"`, date},
		{"expires_at", `"2030-01-02T03:04:05Z` + strings.Repeat(" x", 99) + `"`, date},
		{"more", `1`, "Extra inputs are not permitted"},
	} {
		want := "BoxValidationError: 1 validation error for SandboxAdmissionGrant\n" + tc.field + "\n  " + tc.want
		if _, err := actionrpc.ReadGrant(fields(t, with(tc.field, tc.value))); err == nil || err.Error() != want {
			t.Errorf("%s %s: %v, want %q", tc.field, tc.value, err, want)
		}
	}
	// A name that looks like an error class is not repeated: clients would take it for one.
	if _, err := actionrpc.ReadGrant(fields(t, with("BoxAdmissionError: x", "1"))); err == nil || strings.Contains(err.Error(), "BoxAdmissionError:") {
		t.Error(err)
	}
	for value, want := range map[string]string{
		"2030-01-02T03:04:05.1234567+02:00": "2030-01-02T03:04:05.123456+02:00", "2030-01-02 03:04:05z": "2030-01-02T03:04:05+00:00", "2030-01-02t03:04:05-0330": "2030-01-02T03:04:05-03:30",
	} {
		g, err := actionrpc.ReadGrant(fields(t, with("expires_at", `"`+value+`"`)))
		if err != nil || g.Receipt()["expires_at"] != want {
			t.Errorf(`%s: g = %+v, err = %v, want no error and g.Receipt()["expires_at"] == %v`, value, g, err, want)
		}
	}
}

func TestARevocationIsReadOrRefused(t *testing.T) {
	t.Parallel()
	v, err := actionrpc.ReadRevocation(fields(t, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":3}`))
	if err != nil || *v != (actionrpc.Revocation{Instance: "i", Workspace: "w", Revision: 3}) {
		t.Fatalf(`v = %+v, err = %v, want no error and *v == actionrpc.Revocation{Instance: "i", Workspace: "w", Revision: 3}`,
			v, err)
	}
	_, err = actionrpc.ReadRevocation(fields(t, `{"instance_uuid":"i","workspace_uuid":"","entitlement_revision":true,"max_sessions":1}`))
	want := "BoxValidationError: 3 validation errors for SandboxAdmissionRevocation\nentitlement_revision\n  Value error, must be an integer\n" +
		"max_sessions\n  Extra inputs are not permitted\nworkspace_uuid\n  Value error, must not be empty"
	if err == nil || err.Error() != want {
		t.Errorf("err = %v, want an error and err == %v", err, want)
	}
}

func TestAPolicyIsReadOrRequiresAdmissionThatNobodyHas(t *testing.T) {
	t.Parallel()
	p, required, wrong := actionrpc.ReadPolicy(json.RawMessage(`{"required":true,"max_sessions":0,"max_grant_ttl_sec":"60","max_timeout_sec":7,"cpus":0.5,"memory_mb":64,"pids_limit":9,
		"read_only_rootfs":false,"workspace_quota_mb":8,"readiness_cache_sec":1e300}`))
	if !required || wrong != "" || p.MaxSessions != 0 || p.MaxGrant != time.Minute || p.MaxTimeoutSec != 7 || p.CPUs != 0.5 || p.MemoryMB != 64 || p.PidsLimit != 9 || p.ReadOnlyRootfs ||
		p.WorkspaceQuotaMB != 8 || p.ReadinessCache < time.Hour {
		t.Errorf("p = %+v, required = %v, wrong = %q", p, required, wrong)
	}
	for _, text := range []string{
		`[]`, `7`, `"x"`, `{"required":"perhaps"}`, `{"more":1}`, `{"max_sessions":2}`, `{"max_sessions":-1}`, `{"max_managed_processes":1}`, `{"logical_session_id":"other"}`,
		`{"required_backend":"docker"}`, `{"max_grant_ttl_sec":0}`, `{"max_grant_ttl_sec":99999999999999999999}`, `{"max_timeout_sec":0}`, `{"cpus":0}`, `{"cpus":"inf"}`, `{"cpus":"nan"}`,
		`{"cpus":-1}`, `{"memory_mb":31}`, `{"pids_limit":0}`, `{"read_only_rootfs":2}`, `{"workspace_quota_mb":-1}`, `{"readiness_cache_sec":-1}`, `{"readiness_cache_sec":"NaN"}`, `{"memory_mb":null}`,
	} {
		if p, required, wrong := actionrpc.ReadPolicy(json.RawMessage(text)); !required || wrong == "" || p != actionrpc.DefaultPolicy() {
			t.Errorf(`%s: p = %+v, required = %v, wrong = %q, want required == true and wrong != "" and p == actionrpc.DefaultPolicy()`,
				text, p, required, wrong)
		}
	}
}

const ns = "ws-47998c0fa608dea5e8702d8a"

func grant(generation, revision, sessions int64, life time.Duration) *actionrpc.Grant {
	return &actionrpc.Grant{Instance: "i", Workspace: "w", Generation: generation, Revision: revision, Expires: time.Now().Add(life).Round(0), MaxSessions: sessions}
}

// A revocation does not wait for a grant that is about to be installed.
func TestAGrantRevokedDuringItsCheckIsNotInstalled(t *testing.T) {
	t.Parallel()
	for revision, want := range map[int64]string{1: "", 2: "BoxAdmissionError: Sandbox admission grant revision was revoked"} {
		b, p := actionrpc.NewGrants(time.Now), actionrpc.DefaultPolicy()
		g := grant(1, 2, 1, time.Minute)
		_, drop, err := b.Weigh(ns, g, &p, 9)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Revoke(ns, &actionrpc.Revocation{Revision: revision}, 9); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := b.Install(ns, g, drop); err != nil {
			got = err.Error()
		}
		if _, err := b.Admit(ns, 1, &p); got != want || (err == nil) != (want == "") {
			t.Errorf("revoked up to %d: %q, want %q; %v", revision, got, want, err)
		}
	}
}

// putGrant weighs a grant and installs it.
func putGrant(b *actionrpc.Grants, namespace string, g *actionrpc.Grant, most int) (have *actionrpc.Grant, drop actionrpc.Drop, why string) {
	p := actionrpc.DefaultPolicy()
	have, drop, err := b.Weigh(namespace, g, &p, most)
	if err != nil {
		return nil, drop, err.Error()
	}
	if have == nil {
		if err := b.Install(namespace, g, drop); err != nil {
			return nil, drop, err.Error()
		}
	}
	return have, drop, ""
}

func admit(b *actionrpc.Grants, generation int64) string {
	p := actionrpc.DefaultPolicy()
	_, err := b.Admit(ns, generation, &p)
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestGrantsAreRefusedInTheOrderAndWordsOfTheProtocol(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := actionrpc.NewGrants(time.Now)
		const begin = "BoxAdmissionError: "
		for i, tc := range []struct {
			namespace string
			g         *actionrpc.Grant
			most      int
			drop      actionrpc.Drop
			want      string
		}{
			{ns, grant(1, 1, 9, -time.Second), 0, actionrpc.DropNone, "Cannot install an expired sandbox admission grant"},
			{ns, grant(1, 1, 9, 0), 0, actionrpc.DropNone, "Cannot install an expired sandbox admission grant"},
			{ns, grant(1, 1, 9, 301*time.Second), 0, actionrpc.DropNone, "Sandbox admission grant lifetime exceeds the configured maximum"},
			{ns, grant(1, 1, 9, 1<<62), 0, actionrpc.DropNone, "Sandbox admission grant lifetime exceeds the configured maximum"},
			{ns, grant(1, 1, 2, time.Minute), 0, actionrpc.DropNone, "Sandbox admission grant exceeds the session cap"},
			{ns, &actionrpc.Grant{Generation: 1, Revision: 1, Expires: time.Now().Add(time.Minute), MaxSessions: 1, MaxProcesses: 1}, 0, actionrpc.DropNone, "Sandbox admission grant exceeds the managed-process cap"},
			{ns, grant(1, 1, 1, time.Minute), 0, actionrpc.DropNone, "Sandbox admission record capacity reached; refusing an unbounded Workspace fence allocation"},
			{ns, grant(2, 5, 1, time.Minute), 1, actionrpc.DropAll, ""},
			{"ws-other", grant(2, 5, 1, time.Minute), 1, actionrpc.DropNone, "Sandbox admission record capacity reached; refusing an unbounded Workspace fence allocation"},
			{ns, grant(1, 4, 1, time.Minute), 1, actionrpc.DropNone, "Sandbox admission grant revision is stale"},
			{ns, grant(1, 5, 0, time.Minute), 1, actionrpc.DropNone, "Sandbox admission execution generation is stale"},
			{ns, grant(2, 5, 0, time.Minute), 1, actionrpc.DropNone, "Sandbox admission limits changed without a new entitlement revision"},
			{ns, grant(2, 5, 1, 2*time.Minute), 1, actionrpc.DropOthers, ""}, // renewed
			{ns, grant(2, 6, 1, time.Minute), 1, actionrpc.DropOthers, ""},   // with a new entitlement
			{ns, grant(3, 6, 1, time.Minute), 1, actionrpc.DropAll, ""},
			{ns, grant(3, 7, 0, time.Minute), 1, actionrpc.DropAll, ""},
			{ns, grant(3, 7, 1, time.Minute), 1, actionrpc.DropNone, "Sandbox admission limits changed without a new entitlement revision"},
			{ns, grant(3, 8, 1, 300*time.Second), 1, actionrpc.DropOthers, ""}, // the longest allowed
		} {
			_, drop, why := putGrant(b, tc.namespace, tc.g, tc.most)
			if tc.want != "" {
				tc.want = begin + tc.want
			}
			if why != tc.want || drop != tc.drop {
				t.Errorf("%d: %q %v, want %q %v", i, why, drop, tc.want, tc.drop)
			}
		}
		// A shorter one of the same revision changes nothing, from whichever client.
		have, _, why := putGrant(b, ns, grant(3, 8, 1, time.Minute), 1)
		if have == nil || why != "" || time.Until(have.Expires) != 300*time.Second {
			t.Errorf(`have = %+v, why = %q, want have != nil and why == "" and time.Until(have.Expires) == 300 * time.Second`,
				have, why)
		}
	})
}

func TestARevocationIsRemembered(t *testing.T) {
	t.Parallel()
	b := actionrpc.NewGrants(time.Now)
	revoke := func(revision int64, most int) string {
		if err := b.Revoke(ns, &actionrpc.Revocation{Revision: revision}, most); err != nil {
			return err.Error()
		}
		return ""
	}
	if why := revoke(1, 0); why != "BoxAdmissionError: Sandbox admission record capacity reached; refusing an unbounded Workspace fence allocation" {
		t.Error(why)
	}
	if why := revoke(3, 1); why != "" {
		t.Error(why)
	}
	const stale = "BoxAdmissionError: Sandbox admission revocation is stale"
	if why := revoke(2, 1); why != stale {
		t.Error(why)
	}
	if _, _, why := putGrant(b, ns, grant(1, 3, 1, time.Minute), 1); why != "BoxAdmissionError: Sandbox admission grant revision was revoked" {
		t.Error(why)
	}
	if _, _, why := putGrant(b, ns, grant(1, 4, 1, time.Minute), 1); why != "" || admit(b, 1) != "" {
		t.Errorf(`why = %v, admit(b, 1) = %v, want why == "" and admit(b, 1) == ""`, why, admit(b, 1))
	}
	if why := revoke(3, 1); why != stale || admit(b, 1) != "" {
		t.Error("an earlier revocation has taken a later grant away", why)
	}
	if why := revoke(4, 1); why != "" || admit(b, 1) != "BoxAdmissionError: Sandbox admission grant is missing" {
		t.Errorf(`why = %v, admit(b, 1) = %v, want why == "" and admit(b, 1) == "BoxAdmissionError: Sandbox admission grant is missing"`, why, admit(b, 1))
	}
	if why := revoke(4, 1); why != "" {
		t.Error("the same again:", why)
	}
}

func TestOnlyAGrantOfTheSameGenerationAdmits(t *testing.T) {
	t.Parallel()
	b := actionrpc.NewGrants(time.Now)
	missing := "BoxAdmissionError: Sandbox admission grant is missing"
	if why := admit(b, 1); why != missing {
		t.Error(why)
	}
	putGrant(b, ns, grant(2, 1, 1, time.Minute), 9)
	for generation, want := range map[int64]string{
		1: "BoxAdmissionError: Sandbox admission grant belongs to another execution generation", 3: "BoxAdmissionError: Sandbox admission grant belongs to another execution generation", 2: "",
	} {
		if why := admit(b, generation); why != want {
			t.Errorf("%d: why = %q, want %q", generation, why, want)
		}
	}
	p := actionrpc.DefaultPolicy()
	pass, err := b.Admit(ns, 2, &p)
	if err != nil {
		t.Fatal(err)
	}
	p.MaxSessions = 0
	if _, err := b.Admit(ns, 2, &p); err == nil || err.Error() != "BoxAdmissionError: Sandbox admission grant exceeds the active runtime policy" {
		t.Error(err)
	}
	p.MaxSessions = 1
	putGrant(b, ns, grant(2, 1, 1, 2*time.Minute), 9) // renewed: what it admitted goes on
	if err := b.Still(ns, 2, &p, pass); err != nil {
		t.Error(err)
	}
	if err := b.Revoke(ns, &actionrpc.Revocation{Revision: 1}, 9); err != nil {
		t.Fatal(err)
	}
	putGrant(b, ns, grant(2, 2, 1, time.Minute), 9) // new: what was admitted before is not
	if err := b.Still(ns, 2, &p, pass); err == nil || err.Error() != missing {
		t.Error(err)
	}
	putGrant(b, ns, grant(2, 3, 0, time.Minute), 9)
	if why := admit(b, 2); why != "BoxAdmissionError: Sandbox admission grant does not permit sessions" {
		t.Error(why)
	}
	if why := admit(actionrpc.NewGrants(time.Now), 2); why != missing { // like a boxd that has just started
		t.Error(why)
	}
}

// A grant expires by the host's clock, or by elapsed time if that clock is set back.
func TestAGrantEndsWhateverTheClockDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var jump time.Duration // of the clock, without effect on elapsed time
		b := actionrpc.NewGrants(func() time.Time { return time.Now().Round(0).Add(jump) })
		putGrant(b, ns, grant(1, 1, 1, time.Minute), 9)
		if some, next := b.Expire(); some || next != time.Minute {
			t.Errorf("some = %v, next = %v, want some == false and next == time.Minute", some, next)
		}
		jump = 2 * time.Minute
		if why := admit(b, 1); why != "BoxAdmissionError: Sandbox admission grant has expired" {
			t.Error("the clock was set forward:", why)
		}
		for _, jump = range []time.Duration{0, -time.Hour} {
			if why := admit(b, 1); why != "" {
				t.Error(why)
			}
		}
		<-time.After(time.Minute) // in the bubble, which takes no time
		if why := admit(b, 1); why != "BoxAdmissionError: Sandbox admission grant has expired" {
			t.Error(why)
		}
		jump = -time.Hour // it was set back meanwhile
		if some, next := b.Expire(); !some || next != 0 {
			t.Errorf("some = %v, next = %v, want some == true and next == 0", some, next)
		}
		if why := admit(b, 1); why != "BoxAdmissionError: Sandbox admission grant is missing" {
			t.Error(why)
		}
		jump = 0
		if _, drop, why := putGrant(b, ns, grant(1, 1, 1, time.Minute), 9); why != "" || drop != actionrpc.DropAll {
			t.Error("renewed too late:", drop, why)
		}
	})
}

func TestAdmissionRecordsAreBounded(t *testing.T) {
	t.Parallel()
	b := actionrpc.NewGrants(time.Now)
	const most = 5000
	refused := 0
	for i := range 2 * most {
		if _, _, why := putGrant(b, fmt.Sprintf("ws-%024x", i), grant(1, 1, 1, time.Minute), most); why != "" {
			refused++
		}
	}
	if refused != most {
		t.Errorf("%d were refused", refused)
	}
	if _, _, why := putGrant(b, fmt.Sprintf("ws-%024x", 7), grant(1, 2, 1, time.Minute), most); why != "" {
		t.Error("one that is known:", why)
	}
}

func TestChangesOfOneWorkspaceTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := actionrpc.NewGrants(time.Now)
		done, err := b.Turn(t.Context(), ns)
		if err != nil {
			t.Fatal(err)
		}
		other, err := b.Turn(t.Context(), "ws-88998c0fa608dea5e8702d8a")
		if err != nil {
			t.Fatal(err)
		}
		other()
		second := false
		go func() {
			if done, err := b.Turn(t.Context(), ns); err == nil {
				second = true
				done()
			}
		}()
		synctest.Wait()
		if second {
			t.Error("two changes of one Workspace ran at once")
		}
		done()
		synctest.Wait()
		if !second {
			t.Error("the second change got no turn after the first")
		}
	})
}

func FuzzReadGrant(f *testing.F) {
	f.Add([]byte("{" + good + "}"))
	f.Add([]byte(`{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fields, ok := object(text)
		if !ok {
			return
		}
		if g, err := actionrpc.ReadGrant(fields); err == nil {
			if g.Instance == "" || g.Workspace == "" || g.Generation < 1 || g.Revision < 1 || g.MaxSessions < 0 || g.MaxProcesses < 0 || g.Expires.IsZero() && len(fields) != 7 {
				t.Fatalf("g = %+v", g)
			}
			if _, err := json.Marshal(g.Receipt()); err != nil {
				t.Fatal(err)
			}
		} else if !strings.HasPrefix(err.Error(), "BoxValidationError: ") {
			t.Fatal(err)
		}
		if v, err := actionrpc.ReadRevocation(fields); err == nil && (v.Revision < 1 || v.Workspace == "") {
			t.Fatalf(`v = %+v, want an error or v.Revision >= 1 and v.Workspace != ""`, v)
		}
	})
}

func FuzzReadPolicy(f *testing.F) {
	f.Add([]byte(`{"required":true,"max_sessions":1,"cpus":1e309,"readiness_cache_sec":"1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, required, wrong := actionrpc.ReadPolicy(text)
		if wrong != "" && !required {
			t.Fatal("an unreadable policy does not require admission")
		}
		if p.MaxSessions < 0 || p.MaxSessions > 1 || p.MaxProcesses != 0 || p.MaxGrant <= 0 || p.MaxTimeoutSec < 1 || !(p.CPUs > 0) || p.MemoryMB < 32 || p.PidsLimit < 1 || p.ReadinessCache < 0 {
			t.Fatalf("p = %+v", p)
		}
	})
}
