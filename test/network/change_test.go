// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// holding is a program that keeps a connection open and writes to it until it is cut.
const holding = `exec 3<>/dev/tcp/` + public4 + `/80 && read -r line <&3 && touch begun && trap "" PIPE && while printf x >&3; do sleep 0.2; done; echo cut`

// The rules of a running session can be replaced, by network and by name, both to allow more and to allow less; connections that
// they no longer allow are cut, and a refused change changes nothing.
func TestRulesOfALivingSessionChange(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("www.allowed.example.", public4)
	z.set("next.example.", public4)
	d := boxtest.Start(t, boxtest.Lasting+byName, "[profiles.fixed]\nnetwork = \"egress\"\nnetwork_rules = [\"11.22.33.0/24\"]\nlocked = [\"network_rules\"]\n")
	change := func(id string, rules ...string) {
		t.Helper()
		s, err := d.ChangeSession(t.Context(), id, &api.SessionChange{NetworkRules: append([]string{}, rules...)})
		must(t, err)
		if len(s.NetworkRules) != len(rules) {
			t.Errorf("rules are %q, want len(s.NetworkRules) == len(rules)", s.NetworkRules)
		}
	}
	d.NewSession(t, egress("one", public4+"/32 tcp 80"))
	said := make(chan string, 1)
	go func() {
		r, err := d.Exec(t.Context(), "one", &api.ExecRequest{Argv: []string{"bash", "-c", holding}, Timeout: new(quantity.Duration(5 * time.Minute))})
		if err != nil {
			said <- err.Error()
			return
		}
		said <- r.Stdout + r.Stderr
	}()
	boxtest.Eventually(t, "the connection is established", func() bool { return in(t, d, "one", "ls begun 2>&1") == "begun\n" })

	for status, rules := range map[int][]string{403: {"10.99.0.1/32 tcp 80"}, 400: {"010.0.0.1/8"}} {
		_, err := d.ChangeSession(t.Context(), "one", &api.SessionChange{NetworkRules: rules, Labels: map[string]string{"a": "b"}})
		if p, ok := errors.AsType[*client.Error](err); !ok || p.Status != status || p.Field != "network_rules[0]" {
			t.Errorf(`%q: err = %v, want ok == true and p.Status == %v and p.Field == "network_rules[0]"`,
				rules, err, status)
		}
	}
	if s, err := d.Session(t.Context(), "one"); err != nil || len(s.Labels) > 0 || !slices.Equal(s.NetworkRules, []string{public4 + "/32 tcp 80"}) {
		t.Errorf(`a refusal has changed something: s = %+v, err = %v, want no error and len(s.Labels) == 0 and s.NetworkRules == []string{public4 + "/32 tcp 80"}`,
			s, err)
	}
	if got := reach(t, d, "one", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`after a refusal: got %q, want got starting with "tcp "`, got)
	}

	change("one", "www.allowed.example")
	if got := <-said; !strings.HasPrefix(got, "cut\n") {
		t.Errorf(`the connection: got %q, want got starting with "cut\n"`, got)
	}
	if got := reach(t, d, "one", public4, 80); !refused(got) {
		t.Errorf("an address without its name: got %q, want refused(got)", got)
	}
	if got := reach(t, d, "one", "next.example", 80); !unknown(got) || z.wasQueried("next.example") {
		t.Errorf(`another name: got %q, want unknown(got) and not z.wasAsked("next.example")`, got)
	}
	if got := reach(t, d, "one", "www.allowed.example", 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`a name of the new rules: got %q, want got starting with "tcp "`, got)
	}

	change("one", "next.example")
	if got := reach(t, d, "one", public4, 80); !refused(got) {
		t.Errorf("the address of a name of the earlier rules: got %q, want refused(got)", got)
	}
	if got := reach(t, d, "one", "next.example", 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`the next name: got %q, want got starting with "tcp "`, got)
	}
	d.Kill()
	d.Restart()
	boxtest.Eventually(t, "after the restart of boxd a name of the earlier rules is refused", func() bool { return unknown(reach(t, d, "one", "www.allowed.example", 80)) })

	change("one", other4+"/32 tcp 80") // it uses the common name server again
	if got := in(t, d, "one", "cat /etc/resolv.conf"); got != "nameserver "+other4+"\n" {
		t.Errorf(`resolv.conf: got %q, want "nameserver " + other4 + "\n"`, got)
	}
	if got := reach(t, d, "one", "next.example", 80); !refused(got) {
		t.Errorf("a name whose address no rule has: got %q, want refused(got)", got)
	}
	if got := reach(t, d, "one", other4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`an address of the new rules: got %q, want got starting with "tcp "`, got)
	}
	change("one")
	for _, to := range []string{other4, public4} {
		if got := reach(t, d, "one", to, 80); !refused(got) {
			t.Errorf("%s with no rules at all: got %q, want refused(got)", to, got)
		}
	}

	d.NewSession(t, api.SessionRequest{ID: "fixed", Profile: "fixed"})
	d.NewSession(t, api.SessionRequest{ID: "off"})
	for id, rules := range map[string][]string{"fixed": {"0.0.0.0/0 tcp"}, "off": {}} {
		_, err := d.ChangeSession(t.Context(), id, &api.SessionChange{NetworkRules: rules})
		if p, ok := errors.AsType[*client.Error](err); !ok || !strings.HasPrefix(p.Field, "network_rules") {
			t.Errorf(`%s: err = %v, want ok == true and p.Field starting with "network_rules"`, id, err)
		}
	}
	change("fixed", public4+"/32 tcp 443") // fewer than the profile's
	settled(t, d)
}

// Refused connections of a box are counted, and reported with a rule that would allow them, also when the box ends.
func TestDeniedConnectionsAreReported(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("www.allowed.example.", public4)
	d := boxtest.Start(t, byName)
	d.NewSession(t, egress("one", "www.allowed.example"))
	if got := reach(t, d, "one", "www.allowed.example", 80); !strings.HasPrefix(got, "tcp ") {
		t.Fatalf(`got %q, want got starting with "tcp "`, got)
	}
	s, err := d.Session(t.Context(), "one")
	must(t, err)
	before := s.Traffic
	if before == nil || before.Received == 0 || before.ReceivedPackets == 0 || before.Sent == 0 || before.SentPackets == 0 || len(before.Addresses) != 2 {
		t.Fatalf("traffic: before = %+v, want before != nil and before.Received != 0 and before.ReceivedPackets != 0 and before.Sent != 0 and before.SentPackets != 0 and len(before.Addresses) == 2",
			before)
	}
	for _, to := range []string{public4 + " 22", other4 + " 80", "10.99.0.1 80", public6 + " 443"} {
		if got := reachText(t, d, "one", to); !refused(got) {
			t.Errorf("%s: got %q, want refused(got)", to, got)
		}
	}
	in(t, d, "one", "exec 3<>/dev/udp/"+other4+"/53; echo x >&3")
	deniedOf(t, d, "one",
		"a connection to "+public4+", of www.allowed.example, port 22 by tcp is allowed by no rule; network_rules with \"www.allowed.example tcp 22\" would allow it",
		"a connection to "+other4+" port 80 by tcp is allowed by no rule; network_rules with \""+other4+"/32 tcp 80\" would allow it",
		"a connection to 10.99.0.1 port 80 by tcp is allowed by no rule; a profile whose network_rules have \"10.99.0.1/32 tcp 80\" would allow it",
		"a connection to "+public6+" port 443 by tcp is allowed by no rule; network_rules with \""+public6+"/128 tcp 443\" would allow it",
		"a connection to "+other4+" port 53 by udp is allowed by no rule, and none would allow it")
	s, err = d.Session(t.Context(), "one")
	must(t, err)
	if s.Traffic == nil || s.Traffic.DeniedPackets < before.DeniedPackets+5 || s.Traffic.Received < before.Received {
		t.Errorf("traffic is %+v, and was %+v, want s.Traffic != nil and s.Traffic.DeniedPackets >= before.DeniedPackets + 5 and s.Traffic.Received >= %v",
			s.Traffic, before, before.Received)
	}
	// Attempts to very many destinations delay nothing, and do not fill the event log.
	in(t, d, "one", `for p in {1..200}; do exec 3<>/dev/tcp/`+other4+`/$p; done`)
	if got := reach(t, d, "one", "www.allowed.example", 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`after a flood: got %q, want got starting with "tcp "`, got)
	}
	// Refusals are read a last time at the end.
	d.NewSession(t, egress("short", public4+"/32 tcp 80"))
	reach(t, d, "short", other4, 81)
	must(t, d.DeleteSession(t.Context(), "short"))
	deniedOf(t, d, "short", "a connection to "+other4+" port 81 by tcp")
	list, err := d.Sessions(t.Context(), false)
	must(t, err)
	if len(list) != 1 || list[0].Traffic != nil {
		t.Errorf("list = %+v, want len(list) == 1 and list[0].Traffic == nil", list)
	}
}

// settled kills boxd in the middle of a change: the next boxd applies to the box what its record says.
func settled(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	if got := reach(t, d, "fixed", public4, 80); !refused(got) {
		t.Errorf("before: got %q, want refused(got)", got)
	}
	d.Kill()
	all, err := filepath.Glob(filepath.Join(d.State, "sessions", "*.json"))
	must(t, err)
	for _, path := range all {
		data, err := os.ReadFile(path)
		must(t, err)
		var r map[string]any
		must(t, json.Unmarshal(data, &r))
		if settings, ok := r["settings"].(map[string]any); ok && r["id"] == "fixed" {
			settings["network_rules"], settings["unsettled"] = []string{public4 + "/32 tcp 80"}, true
		}
		data, err = json.Marshal(r)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o600))
	}
	d.Restart()
	if got := reach(t, d, "fixed", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`a change that was interrupted: got %q, want got starting with "tcp "`, got)
	}
}
