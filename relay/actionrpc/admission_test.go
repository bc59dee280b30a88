// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// host is a server whose boxes are a list of ids.
type host struct {
	*Server
	t     *testing.T
	proof Proof

	mu       sync.Mutex
	sessions []string
	looks    int
	fails    error // error of ending sessions
}

// all is a proof in which every check has passed.
var all = Proof{Available: true, Groups: true, Namespaces: true, Mounts: true, Network: true, Ephemeral: true, Work: true, Bounded: true}

const policyInit = `{"backend":"local","local":{"host_root":"/srv/box","allowed_mount_roots":["/srv/box"]},"admission":{"required":true}}`

func admitting(t *testing.T, inits ...string) *host {
	t.Helper()
	h := &host{t: t, proof: all}
	h.Server = &Server{
		cfg:    Config{Settings: Settings{Principal: "langbot", AllowSoftStorage: true}, Log: slog.New(slog.DiscardHandler), Marker: Marker(filepath.Join(t.TempDir(), MarkerFile))},
		grants: NewGrants(time.Now), handshakes: wire.NewHandshakes("", "i"), boxes: newBoxes(BoxesConfig{Owner: func() (access.Principal, error) { return access.Principal{}, errors.New("there is no session") }}),
	}
	h.seen.turn = make(chan struct{}, 1)
	h.initConfig.Store(DefaultInit())
	h.available = func() bool { return true }
	h.attest = func(context.Context, *boxSpec, string) Proof {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.looks++
		return h.proof
	}
	h.endBoxes = func(_ context.Context, which func(string) bool) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.fails != nil {
			return h.fails
		}
		h.sessions = slices.DeleteFunc(h.sessions, which)
		return nil
	}
	h.fence = NewFence(Workspaces{
		Highest: func(FenceKey) int64 { return 0 },
		Retire: func(ctx context.Context, k FenceKey, generation int64) error {
			return h.endBoxes(ctx, func(id string) bool {
				n, ok := wire.GenerationOf(wire.Namespace(k.Instance, k.Workspace), id)
				return ok && n < generation
			})
		},
	})
	h.actions = h.table()
	for _, text := range inits {
		if _, err := h.ask("box_init", text, 0); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// ask does an action for Workspace w in a generation.
func (h *host) ask(action, data string, generation int64) (any, error) {
	h.t.Helper()
	fields, ok := wire.ObjectOf(json.RawMessage(data))
	if !ok {
		h.t.Fatal(data)
	}
	c := &call{Request: &wire.Request{Action: action, Data: fields}, conn: &conn{server: h.Server, instance: "i"}}
	if generation > 0 {
		c.Context = &wire.Context{Instance: "i", Workspace: "w", Generation: generation}
		c.namespace = wire.Namespace("i", "w")
		c.tenant.Prefix = wire.Prefix(c.namespace, generation)
	}
	a := h.actions[action]
	return a.do(h.t.Context(), c)
}

// refused expects an error.
func (h *host) refused(action, data string, generation int64, want string) {
	h.t.Helper()
	got := ""
	if _, err := h.ask(action, data, generation); err != nil {
		got = inWords(err).Error()
	}
	if got != want {
		h.t.Errorf("%s %s: %q, want %q", action, data, got, want)
	}
}

func (h *host) has(ids ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.sessions, ids) {
		h.t.Errorf("there are %v, want %v", h.sessions, ids)
	}
}

func grantOf(generation, revision, sessions int, life time.Duration) string {
	return fmt.Sprintf(`{"instance_uuid":"i","workspace_uuid":"w","execution_generation":%d,"entitlement_revision":%d,"expires_at":%q,"max_sessions":%d,"max_managed_processes":0}`,
		generation, revision, time.Now().Add(life).Format(time.RFC3339Nano), sessions)
}

var eight = []string{
	"box_create_session", "box_delete_session", "box_exec", "box_get_managed_process", "box_get_session", "box_get_sessions", "box_start_managed_process", "box_stop_managed_process",
}

const missing = "BoxAdmissionError: Sandbox admission grant is missing"

func TestNoActionOfASandboxIsDoneWithoutAGrant(t *testing.T) {
	t.Parallel()
	h := admitting(t, policyInit)
	var sandbox []string
	for name, a := range h.actions {
		if a.sandbox {
			sandbox = append(sandbox, name)
		}
	}
	if slices.Sort(sandbox); !slices.Equal(sandbox, eight) {
		t.Fatalf("sandbox = %v, want %v", sandbox, eight)
	}
	const payload = `{"session_id":"global","cmd":"true","spec":{"command":"x"}}`
	for _, name := range eight {
		h.refused(name, payload, 1, missing)
	}
	h.proof.Groups, h.proof.Network = false, false
	h.seen.init = nil // checked again
	for _, name := range eight {
		h.refused(name, payload, 1, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: cgroup_v2, network_isolation)")
	}
	h.refused("box_health", `{}`, 0, "BoxReadinessError: managed sandbox isolation is not ready")
	if _, err := h.ask("box_init", `{"admission":{"required":false}}`, 0); err != nil {
		t.Error(err)
	}
	const broken = "BoxReadinessError: Invalid sandbox admission configuration: Sandbox admission enforcement cannot be disabled without restarting the Box Runtime"
	for _, name := range append(eight, "box_upsert_sandbox_admission_grant") {
		h.refused(name, grantOf(1, 1, 1, time.Minute), 1, broken)
	}
}

// Regression test: this once failed open.
func TestAnInitThatIsRefusedForItsDirectoriesStillRequiresAdmission(t *testing.T) {
	t.Parallel()
	h := admitting(t)
	const text = `{"local":{"host_root":"/srv/box","default_workspace":"/var/x","allowed_mount_roots":["/srv/box"]},"admission":{"required":true}}`
	h.refused("box_init", text, 0, "BoxValidationError: box.local.default_workspace is outside allowed_mount_roots: /srv/box")
	h.proof.Work = false
	h.refused("box_exec", `{"session_id":"s","cmd":"true"}`, 1, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: workspace_mount)")
	if r := h.readiness(t.Context(), false); r.Ready || r.Error != "Managed sandbox workspace is outside box.local.allowed_mount_roots" {
		t.Errorf(`r = %+v, want r.Ready == false and r.Error == "Managed sandbox workspace is outside box.local.allowed_mount_roots"`,
			r)
	}
	h.refused("box_verify_shared_workspace", `{"marker_name":".langbot-box-volume-probe-`+strings.Repeat("a", 32)+`"}`, 0,
		"BoxReadinessError: Managed sandbox workspace is outside box.local.allowed_mount_roots")
	if told := h.cfg.Marker.Init(); !told.Required {
		t.Error("the marker for the next boxd does not require admission")
	}
}

func TestGrantsAdmitAndEnd(t *testing.T) {
	t.Parallel()
	const (
		upsert = "box_upsert_sandbox_admission_grant"
		revoke = "box_revoke_sandbox_admission_grant"
	)
	h := admitting(t)
	h.refused(upsert, grantOf(1, 1, 1, time.Minute), 0, "BoxAdmissionError: Sandbox admission enforcement is not enabled")
	h.refused(revoke, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":1}`, 0, "BoxAdmissionError: Sandbox admission enforcement is not enabled")
	for _, data := range []string{`{"instance_uuid":"other"}`, `{"instance_uuid":"other","workspace_uuid":7,"more":true}`} { // before everything else, even an invalid grant
		h.refused(upsert, data, 0, "PermissionError: Sandbox admission grant does not match the trusted instance")
		h.refused(revoke, data, 0, "PermissionError: Sandbox admission revocation does not match the trusted instance")
	}
	foreign := strings.Replace(grantOf(1, 1, 1, -time.Minute), `"i"`, `"other"`, 1)
	h.refused(upsert, foreign, 0, "PermissionError: Sandbox admission grant does not match the trusted instance")
	h.refused(revoke, `{"instance_uuid":"other","workspace_uuid":"w","entitlement_revision":1}`, 0, "PermissionError: Sandbox admission revocation does not match the trusted instance")

	h = admitting(t, policyInit)
	h.refused(upsert, foreign, 0, "PermissionError: Sandbox admission grant does not match the trusted instance")
	ns := wire.Namespace("i", "w")
	one, two := wire.Prefix(ns, 1), wire.Prefix(ns, 2)
	stranger := wire.Prefix(wire.Namespace("i", "v"), 1) + "global"
	h.sessions = []string{one + "global", one + "old", stranger}
	receipt, err := h.ask(upsert, grantOf(1, 1, 1, time.Minute), 0)
	if got, ok := receipt.(map[string]any); err != nil || !ok || got["installed"] != true || got["workspace_uuid"] != "w" || got["execution_generation"] != int64(1) ||
		got["entitlement_revision"] != int64(1) || got["max_sessions"] != int64(1) || got["max_managed_processes"] != int64(0) || len(got) != 7 {
		t.Fatalf("receipt = %v, err = %v", receipt, err)
	}
	h.has(stranger) // a new grant ends all sessions of the Workspace
	h.sessions = []string{one + "global", one + "old", stranger}
	if _, err := h.ask(upsert, grantOf(1, 2, 1, time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	h.has(one+"global", stranger) // a renewed one keeps its own session, and ends all others
	h.refused("box_get_session", `{"session_id":"other"}`, 1, "BoxAdmissionError: Managed sandbox session_id is runtime-owned")
	h.refused("box_start_managed_process", `{"session_id":"global","spec":{"command":"x"}}`, 1, "BoxAdmissionError: Sandbox admission grant does not permit managed processes")
	h.refused("box_delete_session", `{"session_id":"global"}`, 2, "BoxAdmissionError: Sandbox admission grant belongs to another execution generation")

	if _, err := h.ask(upsert, grantOf(2, 2, 1, time.Minute), 0); err != nil { // a new placement
		t.Fatal(err)
	}
	h.has(stranger)
	if _, _, err := h.fence.Enter(t.Context(), FenceKey{Instance: "i", Workspace: "w"}, 1, 9); err == nil {
		t.Error("an earlier generation was accepted after the grant")
	}
	h.sessions = []string{two + "global", stranger}
	if _, err := h.ask(upsert, grantOf(2, 2, 1, 30*time.Second), 0); err != nil { // the same, and shorter
		t.Fatal(err)
	}
	h.has(two+"global", stranger)
	if _, err := h.ask(upsert, grantOf(2, 3, 0, time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	h.has(stranger)
	h.refused("box_get_sessions", `{}`, 2, "BoxAdmissionError: Sandbox admission grant does not permit sessions")

	h.sessions = []string{two + "global", stranger}
	if got, err := h.ask(revoke, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":3}`, 0); err != nil || got.(map[string]any)["revoked"] != true {
		t.Fatalf(`got %v, err = %v, want no error and got.(map[string]any)["revoked"] == true`, got, err)
	}
	h.has(stranger)
	h.refused("box_get_sessions", `{}`, 2, missing)
	h.refused(upsert, grantOf(2, 3, 0, time.Minute), 0, "BoxAdmissionError: Sandbox admission grant revision was revoked")

	// A grant whose Workspace cannot be cleared is not in force.
	h.fails = errors.New("it does not end")
	h.refused(upsert, grantOf(2, 4, 1, time.Minute), 0, "BoxError: it does not end")
	h.refused("box_get_sessions", `{}`, 2, missing)
	// A revocation is in force even if it cannot end the sessions.
	h.fails = nil
	if _, err := h.ask(upsert, grantOf(2, 4, 1, time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	h.fails = errors.New("it does not end")
	if _, err := h.ask(revoke, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":4}`, 0); err != nil {
		t.Error(err)
	}
	h.refused("box_get_sessions", `{}`, 2, missing)
}

// What a grant has admitted ends with it: calls at once, sessions as soon as they are found; also after one failure.
func TestWhatAGrantHasAdmittedEndsWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := admitting(t, policyInit)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			h.sweeps(ctx)
		}()
		if _, err := h.ask("box_upsert_sandbox_admission_grant", grantOf(1, 1, 1, time.Minute), 0); err != nil {
			t.Fatal(err)
		}
		global := wire.Prefix(wire.Namespace("i", "w"), 1) + "global"
		c := &call{Request: &wire.Request{Action: "box_exec", Context: &wire.Context{Instance: "i", Workspace: "w", Generation: 1}}, namespace: wire.Namespace("i", "w")}
		if err := h.requireAdmission(ctx, c); err != nil || c.tenant.Still() != nil || c.tenant.Admitted.Most != 1 || c.tenant.Admitted.home() != "/srv/box/default/tenants/"+c.namespace {
			t.Fatalf(`err = %v, c.tenant = %+v, want no error and c.tenant.Still() == nil and c.tenant.Admitted.Most == 1 and c.tenant.Admitted.home() == "/srv/box/default/tenants/" + c.namespace`,
				err, c.tenant)
		}
		h.mu.Lock()
		h.sessions = []string{global, "not-of-langbot"}
		h.mu.Unlock()
		<-time.After(59 * time.Second)
		synctest.Wait()
		h.has(global, "not-of-langbot")
		h.mu.Lock()
		h.fails = errors.New("it does not end")
		h.mu.Unlock()
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		if err := c.tenant.Still(); err == nil || err.Error() != missing {
			t.Error(err)
		}
		h.has(global, "not-of-langbot")
		h.mu.Lock()
		h.fails = nil
		h.mu.Unlock()
		<-time.After(2 * time.Second)
		synctest.Wait()
		h.has("not-of-langbot")
		// A session created in other ways is found too.
		h.mu.Lock()
		h.sessions = []string{global}
		h.mu.Unlock()
		<-time.After(31 * time.Second)
		synctest.Wait()
		h.has()
		stop()
		<-over
	})
}

// hang makes one session not end, which blocks whoever ends it.
func (h *host) hang(id string) (release func()) {
	gone := make(chan struct{})
	end := h.endBoxes
	h.endBoxes = func(ctx context.Context, which func(string) bool) error {
		wants := false
		err := end(ctx, func(other string) bool {
			is := which(other)
			wants = wants || is && other == id
			return is && other != id
		})
		if !wants {
			return err
		}
		select {
		case <-gone:
			return end(ctx, func(other string) bool { return other == id })
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func() { close(gone) }
}

// A box that does not die blocks grants, revocations and sweeps for no longer than Patience.
func TestABoxThatDoesNotDieBlocksNoGrant(t *testing.T) {
	t.Parallel()
	const (
		upsert = "box_upsert_sandbox_admission_grant"
		revoke = "box_revoke_sandbox_admission_grant"
	)
	synctest.Test(t, func(t *testing.T) {
		h := admitting(t, policyInit)
		stuck := wire.Prefix(wire.Namespace("i", "w"), 1) + "global"
		other := wire.Prefix(wire.Namespace("i", "v"), 1) + "global"
		release := h.hang(stuck)
		elapsed := func(want time.Duration, do func()) {
			t.Helper()
			start := time.Now()
			if do(); time.Since(start) != want {
				t.Errorf("it took %v, want %v", time.Since(start), want)
			}
		}
		h.sessions = []string{stuck}
		elapsed(Patience, func() {
			h.refused(upsert, grantOf(1, 1, 1, 4*time.Minute), 0, "BoxError: sessions have not ended within 20s")
		})
		h.sessions = nil
		for _, text := range []string{grantOf(1, 1, 1, 4*time.Minute), strings.Replace(grantOf(1, 1, 1, 5*time.Second), `"w"`, `"v"`, 1)} {
			if _, err := h.ask(upsert, text, 0); err != nil {
				t.Fatal(err)
			}
		}
		// A revocation is in force at once, even while another call holds the turn of its Workspace.
		h.sessions = []string{stuck, other}
		done, err := h.grants.Turn(t.Context(), wire.Namespace("i", "w"))
		if err != nil {
			t.Fatal(err)
		}
		h.invalid.Store(false) // set by the steps before
		elapsed(Patience, func() {
			if _, err := h.ask(revoke, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":1}`, 0); err != nil {
				t.Error(err)
			}
		})
		done()
		h.refused("box_get_sessions", `{}`, 1, missing)
		if !h.invalid.Load() {
			t.Error("the session that could not be ended is not marked for another attempt")
		}
		// Expired sessions are ended although the other one is not, and that one as soon as possible.
		elapsed(Patience, func() {
			h.grants.Expire()
			if h.sweep(t.Context(), h.initConfig.Load()) {
				t.Error("sweep reports that all sessions have ended")
			}
		})
		h.has(stuck)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			h.sweeps(ctx)
		}()
		<-time.After(50 * time.Second) // it is retried meanwhile
		h.mu.Lock()
		h.sessions = append(h.sessions, other)
		h.mu.Unlock()
		<-time.After(Patience + 1100*time.Millisecond)
		synctest.Wait()
		h.has(stuck)
		release()
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		h.has()
		stop()
		<-over
	})
}

// A sweep follows at once for what a grant or a revocation has left.
func TestWhatARevocationHasNotEndedIsEndedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := admitting(t, policyInit)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			h.sweeps(ctx)
		}()
		if _, err := h.ask("box_upsert_sandbox_admission_grant", grantOf(1, 1, 1, 4*time.Minute), 0); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		synctest.Wait()
		h.invalid.Store(false) // set by the steps before
		h.mu.Lock()
		h.sessions, h.fails = []string{wire.Prefix(wire.Namespace("i", "w"), 1) + "global"}, errors.New("it does not end")
		h.mu.Unlock()
		if _, err := h.ask("box_revoke_sandbox_admission_grant", `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":1}`, 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		h.mu.Lock()
		h.fails = nil
		h.mu.Unlock()
		<-time.After(1100 * time.Millisecond) // long before the next full sweep
		synctest.Wait()
		h.has()
		stop()
		<-over
	})
}

func TestACallThatWasUnderWayWhenAdmissionCameIsHeldToIt(t *testing.T) {
	t.Parallel()
	h := admitting(t)
	c := &call{Request: &wire.Request{Action: "box_exec", Context: &wire.Context{Generation: 1}}}
	if err := h.requireAdmission(t.Context(), c); err != nil || c.tenant.Still() != nil || c.tenant.Admitted != nil {
		t.Fatal(err)
	}
	if _, err := h.ask("box_init", policyInit, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.tenant.Still(); err == nil || err.Error() != missing {
		t.Error(err)
	}
}

// A restarted boxd admits no Workspace until LangBot has sent its policy again.
func TestABoxdThatStartsAgainAdmitsNobody(t *testing.T) {
	t.Parallel()
	h := admitting(t, policyInit)
	if _, err := h.ask("box_upsert_sandbox_admission_grant", grantOf(1, 1, 1, time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	mark := h.cfg.Marker
	h = admitting(t)
	h.cfg.Marker = mark
	h.initConfig.Store(mark.Init())
	h.proof.Work = false
	ready := func(code int, text string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ready(t.Context(), w)
		if w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%d %s, want %d", w.Code, w.Body, code)
		}
	}
	ready(200, `{"ready":true,"mode":"standard","backend":{"name":"boxd","available":true},"checks":{"backend_available":true}`) // otherwise LangBot sends nothing
	h.available = func() bool { return false }
	ready(503, `{"ready":false,"mode":"standard"`)
	h.refused("box_exec", `{"session_id":"s","cmd":"true"}`, 1, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: workspace_mount)")
	h.sessions = []string{wire.Prefix(wire.Namespace("i", "w"), 1) + "global"}
	if !h.sweep(t.Context(), h.initConfig.Load()) {
		t.Error("the admitted session was not ended after the restart")
	}
	h.has()
	h.proof.Work = true
	if _, err := h.ask("box_init", policyInit, 0); err != nil {
		t.Fatal(err)
	}
	h.refused("box_exec", `{"session_id":"s","cmd":"true"}`, 1, missing)
	ready(200, `"mode":"grant_enforced"`)
	// If LangBot does not require admission, that is recorded too; if it cannot be recorded, that is an error, and the requirement stays.
	h = admitting(t)
	h.cfg.Marker = mark
	h.initConfig.Store(mark.Init())
	if _, err := h.ask("box_init", `{"admission":{"required":false}}`, 0); err != nil {
		t.Fatal(err)
	}
	if mark.Init().Required {
		t.Error("the marker still requires admission")
	}
	if err := os.Mkdir(string(mark), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ask("box_init", policyInit, 0); err == nil || !h.initConfig.Load().Required {
		t.Error(err)
	}
}

func TestTheSpecOfAnAdmittedWorkspaceIsClampedByItsPolicy(t *testing.T) {
	t.Parallel()
	h := admitting(t, strings.Replace(policyInit, `"required":true`, `"required":true,"max_timeout_sec":20,"cpus":0.5,"memory_mb":99,"pids_limit":44,"read_only_rootfs":false,"workspace_quota_mb":7`, 1))
	ns := wire.Namespace("i", "w")
	home := "/srv/box/default/tenants/" + ns
	spec := func(text string) (*boxSpec, error) {
		fields, _ := wire.ObjectOf(json.RawMessage(text))
		c := &call{Request: &wire.Request{Data: fields}, namespace: ns}
		c.tenant.Admitted = &Admitted{Most: 1, Namespace: ns, Work: h.initConfig.Load().Work}
		return h.spec(c)
	}
	got, err := spec(`{"session_id":"person_1","cmd":" echo ","workdir":"/workspace/a","timeout_sec":900,"env":{"A":"b"},"image":"mine","host_path":"` + home + `/","host_path_mode":"ro","persistent":false,
		"cpus":8,"memory_mb":4096,"pids_limit":4096,"read_only_rootfs":true,"workspace_quota_mb":0}`)
	if err != nil {
		t.Fatal(err)
	}
	if got.SessionID != "global" || got.Cmd != "echo" || got.Workdir != "/workspace/a" || got.TimeoutSec != 20 || got.Env["A"] != "b" || got.Image != defaultImage || *got.HostPath != home ||
		got.HostPathMode != "rw" || got.MountPath != "/workspace" || !got.Persistent || got.CPUs != 0.5 || got.MemoryMB != 99 || got.PidsLimit != 44 || got.ReadOnlyRootfs || got.WorkspaceQuotaMB != 7 ||
		got.Network != "off" || got.ExtraMounts != nil || got.Skills != nil {
		t.Errorf("got %+v", got)
	}
	if got, err = spec(`{"session_id":"s","timeout_sec":5}`); err != nil || got.TimeoutSec != 5 || *got.HostPath != home || got.Workdir != "/workspace" {
		t.Errorf(`got %+v, err = %v, want no error and got.TimeoutSec == 5 and *got.HostPath == %v and got.Workdir == "/workspace"`,
			got, err, home)
	}
	for text, want := range map[string]string{
		`"network":"on","extra_mounts":[{"host_path":"/a","mount_path":"/b"}]`:    "Managed sandbox network access is disabled",
		`"extra_mounts":[{"host_path":"/a","mount_path":"/b"}],"mount_path":"/x"`: "Managed sandbox additional host mounts are disabled",
		`"extra_mounts":[{"host_path":"/a","mount_path":"/b","mode":"none"}]`:     "Managed sandbox additional host mounts are disabled",
		`"mount_path":"/x","workdir":"/x"`:                                        "Managed sandbox mount_path is runtime-owned",
		`"workdir":"/tmp"`:                                                        "Managed sandbox workdir must stay under /workspace",
		`"workdir":"/workspace/../etc"`:                                           "Managed sandbox workdir must stay under /workspace",
		`"workdir":"/workspaces"`:                                                 "Managed sandbox workdir must stay under /workspace",
		`"host_path":"/srv/box/default/tenants/ws-0","workdir":"/workspace"`:      "Managed sandbox host_path is runtime-owned",
		`"host_path":"` + home + `/../ws-0"`:                                      "Managed sandbox host_path is runtime-owned",
		`"host_path":"/","host_path_mode":"none"`:                                 "Managed sandbox host_path is runtime-owned",
	} {
		if _, err := spec(`{"session_id":"s",` + text + `}`); err == nil || err.Error() != "BoxAdmissionError: "+want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestReadinessComesFromTheAttestationOfARealBox(t *testing.T) {
	t.Parallel()
	h := admitting(t, policyInit)
	h.cfg.AllowSoftStorage = false
	r := h.readiness(t.Context(), false)
	if r.Ready || !slices.Equal(r.failed(), []string{"hard_skill_storage_quota"}) || len(r.Checks) != 14 || r.Mode != "grant_enforced" || *r.Backend.Name != "nsjail" || !r.Backend.Available || *r.Unsafe {
		t.Errorf("without AllowSoftStorage: readiness is %+v, want hard_skill_storage_quota as the only failed check", r)
	}
	for name, tc := range map[string]struct {
		change func(*Proof)
		failed []string
		soft   []string // that fail even if storage may be soft
	}{
		"nothing starts": {func(p *Proof) { *p = Proof{Error: "no"} }, slices.DeleteFunc(slices.Clone(checks), func(c string) bool {
			return slices.Contains([]string{"configuration", "required_backend", "session_cap", "managed_process_cap"}, c)
		}), []string{"workspace_mount", "backend_available", "cgroup_v2", "namespace_isolation", "mount_isolation", "network_isolation"}},
		"no groups":       {func(p *Proof) { p.Groups = false }, []string{"cgroup_v2", "hard_skill_storage_quota"}, []string{"cgroup_v2"}},
		"no namespaces":   {func(p *Proof) { p.Namespaces = false }, []string{"namespace_isolation", "hard_skill_storage_quota"}, []string{"namespace_isolation"}},
		"mounts":          {func(p *Proof) { p.Mounts = false }, []string{"mount_isolation", "hard_skill_storage_quota"}, []string{"mount_isolation"}},
		"a network":       {func(p *Proof) { p.Network = false }, []string{"network_isolation", "hard_skill_storage_quota"}, []string{"network_isolation"}},
		"no quota":        {func(p *Proof) { p.Bounded = false }, []string{"hard_workspace_quota", "hard_skill_storage_quota", "inode_quota"}, nil},
		"endless storage": {func(p *Proof) { p.Ephemeral = false }, []string{"hard_skill_storage_quota", "bounded_ephemeral_storage"}, nil},
		"no workspace":    {func(p *Proof) { p.Work = false }, []string{"workspace_mount", "hard_skill_storage_quota"}, []string{"workspace_mount"}},
	} {
		for _, soft := range []bool{false, true} {
			h := admitting(t, policyInit)
			tc.change(&h.proof)
			h.cfg.AllowSoftStorage = soft
			want := tc.failed
			if soft {
				want = tc.soft
			}
			r := h.readiness(t.Context(), false)
			if !slices.Equal(r.failed(), want) || r.Ready != (len(want) == 0) || *r.Unsafe != soft || r.Error != h.proof.Error {
				t.Errorf("%s, %v: %v, want %v: %+v", name, soft, r.failed(), want, r)
			}
			if text, err := json.Marshal(r); err != nil || !bytes.Contains(text, []byte(`"unsafe_soft_storage_limits":`+fmt.Sprint(soft))) || !bytes.Contains(text, []byte(`"details":{"available":`)) {
				t.Errorf("text = %s, err = %v, want no error and text containing []byte(`\"unsafe_soft_storage_limits\":` + fmt.Sprint(soft)) and text containing []byte(`\"details\":{\"available\":`)",
					text, err)
			}
		}
	}
	h = admitting(t, strings.Replace(policyInit, `"local",`, `"e2b",`, 1))
	if r := h.readiness(t.Context(), false); r.Ready || !slices.Equal(r.failed(), []string{"required_backend", "backend_available"}) {
		t.Errorf(`r = %+v, want r.Ready == false and r.failed() == []string{"required_backend", "backend_available"}`,
			r)
	}
	h = admitting(t, `{"admission":{"required":true}}`)
	h.proof.Work = false
	if r := h.readiness(t.Context(), false); r.Error != "Managed sandbox admission requires box.local.default_workspace" {
		t.Errorf(`r = %+v, want r.Error == "Managed sandbox admission requires box.local.default_workspace"`, r)
	}
}

func TestTheAttestationOfABoxIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := admitting(t, policyInit)
		looked := func(want int) {
			t.Helper()
			if h.looks != want {
				t.Errorf("%d times, want %d", h.looks, want)
			}
		}
		for range 9 {
			h.readiness(t.Context(), false)
		}
		looked(1)
		<-time.After(15*time.Second + 1)
		h.readiness(t.Context(), false)
		looked(2)
		if _, err := h.ask("box_init", strings.Replace(policyInit, `"required":true`, `"required":true,"readiness_cache_sec":0`, 1), 0); err != nil { // this invalidates the result
			t.Fatal(err)
		}
		h.readiness(t.Context(), false)
		looked(3)
		<-time.After(1)
		h.readiness(t.Context(), false)
		looked(4)
		for range 9 { // callers that are not admitted cause no checks
			h.readiness(t.Context(), true)
			<-time.After(100 * time.Millisecond)
		}
		looked(4)
		// If there is no room for a check, the last result counts.
		h.proof = Proof{Full: true, Error: "all room is taken"}
		<-time.After(time.Second)
		if r := h.readiness(t.Context(), false); !r.Ready {
			t.Errorf("r = %+v, want r.Ready == true", r)
		}
		// A failed check is reported, but does not replace a result from before.
		h.proof = Proof{Error: "no"}
		<-time.After(time.Second)
		if r := h.readiness(t.Context(), false); r.Ready {
			t.Errorf("r = %+v, want r.Ready == false", r)
		}
		h.proof = Proof{Full: true, Error: "all room is taken"}
		<-time.After(time.Second)
		if r := h.readiness(t.Context(), false); !r.Ready {
			t.Errorf("r = %+v, want r.Ready == true", r)
		}
		// Concurrent requests share one check.
		block := make(chan struct{})
		before := h.looks
		h.proof = all
		look := h.attest
		h.attest = func(ctx context.Context, spec *boxSpec, work string) Proof {
			<-block
			return look(ctx, spec, work)
		}
		<-time.After(time.Second)
		var requests sync.WaitGroup
		for range 20 {
			requests.Go(func() { h.readiness(t.Context(), false) })
		}
		synctest.Wait()
		close(block)
		requests.Wait()
		looked(before + 1)
	})
}

func TestARelayIsRefusedWithoutAGrant(t *testing.T) {
	t.Parallel()
	h := admitting(t, policyInit)
	_, entered, err := h.fence.Enter(t.Context(), FenceKey{Instance: "i", Workspace: "w"}, 1, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer entered.Leave()
	attach := func(want string) {
		t.Helper()
		r := httptest.NewRequest("GET", "http://localhost/v1/sessions/"+wire.Prefix(wire.Namespace("i", "w"), 1)+"global/managed-process/ws", nil)
		r.Header.Set(wire.HeaderInstance, "i")
		r.Header.Set(wire.HeaderWorkspace, "w")
		r.Header.Set(wire.HeaderGeneration, "1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 400 || w.Body.String() != want {
			t.Errorf("%d %s, want %s", w.Code, w.Body, want)
		}
	}
	attach(`{"error":{"code":"BoxAdmissionError","message":"Sandbox admission grant is missing"}}`)
	if _, err := h.ask("box_upsert_sandbox_admission_grant", grantOf(1, 1, 1, time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	attach(`{"error":{"code":"BoxAdmissionError","message":"Sandbox admission grant does not permit managed process relay"}}`)
	h.proof.Mounts, h.seen.init = false, nil
	attach(`{"error":{"code":"BoxReadinessError","message":"Managed sandbox isolation is not ready (failed checks: mount_isolation)"}}`)
}

func TestReadinessFailsWithoutCapacityForTheFirstAttestation(t *testing.T) {
	t.Parallel()
	h := admitting(t, policyInit)
	h.proof = Proof{Full: true, Error: fault.Errorf(fault.Exhausted, "all room is taken").Error()}
	if r := h.readiness(t.Context(), false); r.Ready || r.Backend.Available || r.Error != "all room is taken" {
		t.Errorf(`r = %+v, want r.Ready == false and r.Backend.Available == false and r.Error == "all room is taken"`,
			r)
	}
}
