// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// grant returns a grant for the Workspace with a limited lifetime.
func grant(revision int, life time.Duration) string {
	return fmt.Sprintf(`{"instance_uuid":%q,"workspace_uuid":%q,"execution_generation":1,"entitlement_revision":%d,"expires_at":%q,"max_sessions":1,"max_managed_processes":0}`,
		instance, workspace, revision, time.Now().Add(life).UTC().Format(time.RFC3339Nano))
}

// LangBot requires admission: boxes are attested, grants admit and end, and a restarted boxd admits no Workspace. If no cgroup v2
// enforces limits it is not ready, says so, and does nothing else.
func TestAConversationWithGrants(t *testing.T) {
	t.Parallel()
	b := start(t, "allow_soft_storage_limits = true", boxtest.Kept)
	c := b.dial(t)
	printed, err := b.Status(t.Context())
	if err != nil || !strings.Contains(strings.Join(printed.Degraded, " "), "langbot.allow_soft_storage_limits") || !strings.Contains(b.Log(), "langbot.allow_soft_storage_limits") {
		t.Fatalf("printed = %+v, err = %v", printed, err)
	}
	policy := fmt.Sprintf(`{"backend":"nsjail","local":{"host_root":%q,"default_workspace":"own","allowed_mount_roots":[%q]},
		"admission":{"required":true,"cpus":0.5,"memory_mb":128,"pids_limit":40,"workspace_quota_mb":64}}`, b.shared, b.shared)
	c.gets("box_init", policy, nil)
	if info, err := os.Stat(filepath.Join(b.shared, "own")); err != nil || !info.IsDir() {
		t.Errorf("LangBot does not find its directory after INIT: err = %v, want no error and info.IsDir()", err)
	}
	const hello = `{"session_id":"person_1","cmd":"id -un; pwd; echo hello >f"}`
	c.gets("box_upsert_sandbox_admission_grant", grant(1, 4*time.Minute), nil)
	groups := printed.Enforced["memory"] == "cgroup2" && printed.Enforced["cpu"] == "cgroup2" && printed.Enforced["pids"] == "cgroup2"
	status, ready := b.ready(t)
	for name, is := range ready.Checks {
		if want := name != "cgroup_v2" || groups; is != want {
			t.Errorf("%s is %v, want is == %v", name, is, want)
		}
	}
	if ready.Ready != groups || ready.Mode != "grant_enforced" || len(ready.Checks) != 14 || ready.Backend["name"] != "nsjail" || ready.Error != "" {
		t.Fatalf(`status = %d, ready = %+v, want ready.Ready == %v and ready.Mode == "grant_enforced" and len(ready.Checks) == 14 and ready.Backend["name"] == "nsjail" and ready.Error == ""`,
			status, ready, groups)
	}
	own := filepath.Join(b.shared, "own") // created by the attestation
	if info, err := os.Stat(own); err != nil || !info.IsDir() {
		t.Error(err)
	}
	if !groups {
		c.refused("box_exec", hello, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: cgroup_v2)")
		return
	}
	var r struct {
		Session string `json:"session_id"`
		Stdout  string
	}
	c.gets("box_exec", hello, &r)
	home := filepath.Join(own, "tenants", wire.Namespace(instance, workspace))
	text, err := os.ReadFile(filepath.Join(home, "f"))
	if r.Session != "global" || r.Stdout != "box\n/workspace" || err != nil || string(text) != "hello\n" {
		t.Errorf(`r = %+v, text = %q, err = %v, want r.Session == "global" and r.Stdout == "box\n/workspace" and no error and text == "hello\n"`,
			r, text, err)
	}
	var info struct {
		Quota  int `json:"workspace_quota_mb"`
		Memory int `json:"memory_mb"`
	}
	if c.gets("box_get_session", `{"session_id":"global"}`, &info); info.Quota != 64 || info.Memory != 128 {
		t.Errorf("info = %+v, want info.Quota == 64 and info.Memory == 128", info)
	}
	c.refused("box_exec", `{"session_id":"s","cmd":"true","network":"on"}`, "BoxAdmissionError: Managed sandbox network access is disabled")
	c.refused("box_start_managed_process", `{"session_id":"global","spec":{"command":"sleep"}}`, "BoxAdmissionError: Sandbox admission grant does not permit managed processes")
	c.workspace = "w2"
	c.refused("box_exec", hello, "BoxAdmissionError: Sandbox admission grant is missing")
	c.workspace = workspace

	// What runs is ended by a revocation, and by the expiry of a grant.
	const long = `{"session_id":"s","cmd":"echo up >>marks; sleep 100"}`
	ended := func(answer <-chan reply) {
		t.Helper()
		if r := <-answer; r.Message != "BoxAdmissionError: Sandbox admission grant is missing" {
			t.Errorf(`r = %+v, want r.Message == "BoxAdmissionError: Sandbox admission grant is missing"`, r)
		}
		for sessions := 1; sessions > 0; { // it is ending
			_, ready := b.ready(t)
			sessions = *ready.Resources.Sessions
		}
	}
	answer := c.send("box_exec", long, true)
	c.gets("box_create_session", `{"session_id":"global"}`, nil)
	c.gets("box_revoke_sandbox_admission_grant", fmt.Sprintf(`{"instance_uuid":%q,"workspace_uuid":%q,"entitlement_revision":1}`, instance, workspace), nil)
	ended(answer)
	c.refused("box_upsert_sandbox_admission_grant", grant(1, 4*time.Minute), "BoxAdmissionError: Sandbox admission grant revision was revoked")
	c.gets("box_upsert_sandbox_admission_grant", grant(2, 15*time.Second), nil)
	ended(c.send("box_exec", long, true))

	// No link leads to another Workspace's directory.
	if err := os.Rename(home, home+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(home)+"-away", home); err != nil {
		t.Fatal(err)
	}
	c.gets("box_upsert_sandbox_admission_grant", grant(2, time.Minute), nil)
	c.refused("box_exec", hello, "BoxAdmissionError: Managed sandbox host_path is reached by a link, which is not followed")
	if err := os.Remove(home); err != nil {
		t.Fatal(err)
	}
	c.run("s", "true")

	b.Stop()
	b.Restart()
	c = b.dial(t)
	c.refused("box_exec", hello, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: workspace_mount)")
	c.gets("box_init", policy, nil)
	c.refused("box_exec", hello, "BoxAdmissionError: Sandbox admission grant is missing")
	c.gets("box_upsert_sandbox_admission_grant", grant(2, time.Minute), nil)
	c.run("s", "true")
}
