// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func TestWrongKeysForLangBotAreNamed(t *testing.T) {
	t.Parallel()
	const who = "[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[principals.langbot]\nrole = \"user\"\n[langbot]\n" // the key is in line 6
	file := filepath.Join(t.TempDir(), "gateway.toml")
	for text, want := range map[string][]string{
		"lisen = \"127.0.0.1:5410\"": {`unknown key "langbot.lisen"`, "listen, principal, token_file, insecure, instance"},
		"listen = \"5410\"":          {"langbot.listen", "an address with a port"},
		"listen = \"10.0.0.1:5410\"": {"langbot.listen", "must be a loopback address without gateway.certificate"},
		"token_file = \"token\"":     {"langbot.token_file", "an absolute path"},
		"instance = \"a b\"":         {"langbot.instance", "letters, digits"},
		"principal = \"\"":           {"langbot.principal", "[principals.NAME]"},
		"principal = \"gone\"\nlisten = \"127.0.0.1:5410\"\ninsecure = true": {"langbot.principal", "there is no [principals.gone]"},
		"token_file = \"\"\nlisten = \"127.0.0.1:5410\"":                     {"langbot.token_file", "insecure = true"},
	} {
		if err := os.WriteFile(file, []byte(who+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readGateway(file)
		for _, part := range append(want, file+": line 6: ") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", text, err, part)
			}
		}
	}
	for _, text := range []string{"", "listen = \"127.0.0.1:5410\"\ninsecure = true", "listen = \"127.0.0.1:5410\"\ntoken_file = \"/t\""} {
		if err := os.WriteFile(file, []byte(who+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readGateway(file); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAnswersOfAllNodesAreMergedForLangBot(t *testing.T) {
	t.Parallel()
	says := func(node, text string) nodeSaid {
		switch text {
		case "away":
			return nodeSaid{node: node, err: unreached(node, errNoResponder)}
		case "no":
			return nodeSaid{node: node, answer: &nodeAnswer{Answer: &rpc.Answer{Code: 1, Message: "BoxReadinessError: " + node, Data: json.RawMessage("{}")}}}
		}
		return nodeSaid{node: node, answer: &nodeAnswer{Answer: &rpc.Answer{Message: "success", Data: json.RawMessage(text)}}}
	}
	const can, cannot = `{"available":true}`, `{"available":false}`
	for _, c := range []struct {
		action string
		said   []string
		want   string // node whose answer it is, or "!" and the node that does not answer; "": no node
	}{
		{rpc.ActionBackend, []string{cannot, can, cannot}, "n1"},
		{rpc.ActionBackend, []string{"away", can}, "n1"},
		{rpc.ActionBackend, []string{"no", "away", can}, "n2"},
		{rpc.ActionBackend, []string{cannot, "away"}, "n0"},
		{rpc.ActionBackend, []string{"away", "away"}, "!n0"},
		{rpc.ActionHealth, []string{"no", "no"}, "n0"},
		{rpc.ActionInit, []string{"away", "{}"}, "n1"},
		{rpc.ActionInit, []string{"{}", "no", "{}"}, "n1"},
		{rpc.ActionInit, []string{"away"}, ""},
		{"box_shutdown", []string{"{}", "away"}, "!n1"},
		{"box_shutdown", []string{"{}", "no"}, "n1"},
		{"box_shutdown", []string{"{}", "{}"}, "n0"},
		{"box_shutdown", nil, ""},
	} {
		var all []nodeSaid
		for i, text := range c.said {
			all = append(all, says(fmt.Sprint("n", i), text))
		}
		best := oneOf(c.action, all)
		got := best.node
		if best.err != nil {
			got = "!" + got
		}
		if got != c.want {
			t.Errorf("%s of %v: %q, want %q", c.action, c.said, got, c.want)
		}
	}
}

// Gateways may repeat the generation of a Workspace, with a later placement; a generation that has ended, or an older one, is
// refused.
func TestGatewaysMayRepeatAWorkspaceGeneration(t *testing.T) {
	t.Parallel()
	dir, err := durable.Directory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFences(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	say := func(generation uint64, workspace int64, keeps, again bool) (bool, uint64) {
		t.Helper()
		ok, highest, err := f.raise(&fence{Owner: "langbot", ID: "workspace/ws-1", Generation: generation, Bucket: "b", Workspace: workspace, Keeps: keeps, Again: again})
		if err != nil {
			t.Fatal(err)
		}
		return ok, highest
	}
	raise := func(generation uint64, workspace int64, keeps bool) bool {
		t.Helper()
		ok, _ := say(generation, workspace, keeps, true)
		return ok
	}
	key := claimKey("langbot", "workspace/ws-1")
	for _, workspace := range []int64{1, 1, 7, 3} {
		if !raise(2, workspace, workspace == 7) {
			t.Errorf("placement %d is refused", workspace)
		}
	}
	if h := f.all[key]; h.Workspace != 7 || !h.Keeps {
		t.Errorf("h = %+v, want h.Workspace == 7 and h.Keeps == true", h)
	}
	// Its claim may have been removed and made again before that was noted here.
	if ok, highest := say(2, 9, true, false); ok || highest != 2 || f.all[key].Workspace != 7 {
		t.Errorf("a claim that is new has the generation of an earlier one: ok = %t, highest = %d, want ok == false and highest == 2 and f.all[key].Workspace == 7",
			ok, highest)
	}
	if raise(1, 9, false) {
		t.Error("an earlier generation was accepted")
	}
	if err := f.change(key, 2, func(h *fencedSession) { h.Ended = true }); err != nil {
		t.Fatal(err)
	}
	if raise(2, 9, false) || !raise(3, 9, false) {
		t.Error("the generation that ended was accepted, or the next was not")
	}
}

// A Workspace without a session gives its claim back in two steps, unless it has state to keep.
func TestAnIdleWorkspaceIsReleased(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	boxd := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"sessions":[]}`)) })}
	var served sync.WaitGroup
	served.Go(func() { _ = boxd.Serve(ln) }) // until it is closed
	defer served.Wait()
	defer boxd.Close()
	c := &clock{t: time.Unix(1e9, 0)}
	a, err := newAgent(&agentOptions{Fleet: access.Fleet{Name: "n", Servers: []string{"nats://127.0.0.1:1"}}, Socket: socket, State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.fences.close()
	defer a.boxd.Close()
	a.clock = c.now
	if a.view, err = openView(t.Context(), claims, "n"); err != nil {
		t.Fatal(err)
	}
	defer a.view.close()
	const id = "workspace/ws-0123456789abcdef01234567"
	key := claimKey("langbot", id)
	state := func() string {
		t.Helper()
		for range readAnyway { // it looks now and then
			if err := a.reconcile(t.Context(), claims, bucket, nil); err != nil {
				t.Fatal(err)
			}
		}
		claim, err := getClaim(t.Context(), claims, key)
		if err != nil {
			t.Fatal(err)
		}
		if claim == nil {
			return ""
		}
		return claim.State
	}
	place := func(generation uint64, keeps bool) {
		t.Helper()
		claim := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "langbot", ID: id, Node: "n", Generation: generation, State: api.FleetClaimLive}, Workspace: 1, Keeps: keeps, key: key}
		if _, err := putClaim(t.Context(), claims, claim); err != nil {
			t.Fatal(err)
		}
		if ok, _, err := a.fences.raise(claim.fence(bucket)); err != nil || !ok {
			t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
		}
	}
	place(1, false)
	for _, step := range []struct {
		pass time.Duration
		want string
	}{
		{0, api.FleetClaimLive},
		{idleFor - time.Second, api.FleetClaimLive},
		{time.Second, api.FleetClaimStarting},
		{startingFor - time.Second, api.FleetClaimStarting},
		{time.Second, ""},
	} {
		c.pass(step.pass)
		if got := state(); got != step.want {
			t.Fatalf("after another %v it is %q, want %q", step.pass, got, step.want)
		}
	}
	if !a.fences.all[key].Ended {
		t.Error("the node still has the idle Workspace")
	}
	place(2, true)
	state()
	c.pass(idleFor + startingFor)
	if got := state(); got != api.FleetClaimLive {
		t.Errorf("one with skills is %q, want api.FleetClaimLive", got)
	}
}
