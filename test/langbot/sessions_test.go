// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
)

// Like the real client: a ping, an INIT with LangBot's own defaults, a session, a command, the end.
func TestTheFirstConversation(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	if r := c.ask("__ping", `{}`); string(r.Data) != "{}" {
		t.Errorf(`r = %+v, want r.Data == "{}"`, r)
	}
	var done map[string]any
	c.gets("box_init", `{"enabled":true,"backend":"local","limits":{"max_sessions":64,"max_managed_processes":64,"max_completed_processes":256,"max_workspace_entries":100000,"max_admission_records":100000,"max_rpc_file_bytes":20971520},
		"admission":{"required":false,"logical_session_id":"global","required_backend":"nsjail","max_sessions":1},
		"local":{"profile":"default","image":"","host_root":"./data/box","default_workspace":"","skills_root":"skills","allowed_mount_roots":["./data/box","/tmp"],"workspace_quota_mb":null},
		"default_memory_mb":1536,"docker":{"cpu_limit_enabled":true},"e2b":{"api_key":""}}`, &done)
	if done["initialized"] != true {
		t.Errorf(`done = %v, want done["initialized"] == true`, done)
	}
	var backend map[string]any
	c.gets("box_get_backend_info", `{}`, &backend)
	if backend["available"] != true || backend["name"] != "boxd" {
		t.Errorf(`backend = %v, want backend["available"] == true and backend["name"] == "boxd"`, backend)
	}
	var s map[string]any
	c.gets("box_create_session", `{"session_id":"person_12 34/ä?","cmd":"","host_path":null}`, &s)
	keys := slices.Sorted(maps.Keys(s))
	want := []string{
		"backend_name", "backend_session_id", "cpus", "created_at", "host_path", "host_path_mode", "image", "last_used_at", "memory_mb", "mount_path", "network",
		"persistent", "pids_limit", "read_only_rootfs", "session_id", "workspace_quota_mb",
	}
	if !slices.Equal(keys, want) || s["session_id"] != "person_12-34" || s["cpus"] != 1.0 || s["memory_mb"] != 512.0 || s["host_path"] != nil || s["network"] != "off" {
		t.Errorf("s = %v", s)
	}
	r := c.run("person_12-34", "echo hello; echo there >&2; pwd; exit 3")
	delete(r, "duration_ms")
	if fmt.Sprint(r) != "map[backend_name:boxd exit_code:3 session_id:person_12-34 status:completed stderr:there stdout:hello\n/workspace]" {
		t.Errorf(`r = %v, want fmt.Sprint(r) == "map[backend_name:boxd exit_code:3 session_id:person_12-34 status:completed stderr:there stdout:hello\n/workspace]"`,
			r)
	}
	if ids := c.sessions(); !slices.Equal(ids, []string{"person_12-34"}) {
		t.Errorf(`ids = %q, want []string{"person_12-34"}`, ids)
	}
	var status map[string]any
	c.gets("box_status", `{}`, &status)
	if status["active_sessions"] != 1.0 || status["managed_processes"] != 0.0 || status["session_ttl_sec"] != 300.0 {
		t.Errorf(`status = %v, want status["active_sessions"] == 1.0 and status["managed_processes"] == 0.0 and status["session_ttl_sec"] == 300.0`,
			status)
	}
	var deleted map[string]any
	c.gets("box_delete_session", `{"session_id":"person_12 34/ä?"}`, &deleted)
	if deleted["deleted"] != "person_12 34/ä?" || len(c.sessions()) != 0 {
		t.Errorf(`deleted = %v, want deleted["deleted"] == "person_12 34/ä?" and len(c.sessions()) == 0`, deleted)
	}
}

func TestEveryRefusalHasItsClassAndText(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	for _, tc := range []struct{ action, data, want string }{
		{"__heartbeat", `{}`, "ValueError: Action __heartbeat not found"},
		{"box_nothing", `{}`, "ValueError: Action box_nothing not found"},
		{"box_get_session", `{}`, "KeyError: 'session_id'"},
		{"box_get_session", `{"session_id":""}`, "ValueError: Box session_id must not be empty"},
		{"box_get_session", `{"session_id":"??"}`, "ValueError: Box session_id must contain a valid character"},
		{"box_get_session", `{"session_id":"s-42"}`, "BoxSessionNotFoundError: session PHYS-s-42 not found"},
		{"box_delete_session", `{"session_id":"s-42"}`, "BoxSessionNotFoundError: session PHYS-s-42 not found"},
		{"box_exec", `{"session_id":"s","cmd":" "}`, "BoxValidationError: cmd must not be empty"},
		{"box_exec", `{"session_id":"s","cmd":"x","timeout_sec":0}`, "BoxValidationError: 1 validation error for BoxSpec\ntimeout_sec\n  Value error, timeout_sec must be greater than 0"},
		{"box_create_session", `{"session_id":"n","host_path":"/etc/ssl"}`, "BoxValidationError: host_path /etc/ssl is blocked for security"},
		{"box_create_session", `{"session_id":"n","host_path":"/"}`, "BoxValidationError: host_path / is blocked for security"},
		{"box_create_session", `{"session_id":"n","extra_mounts":[{"host_path":"/","mount_path":"/mnt"}]}`, "BoxValidationError: host_path / is blocked for security"},
		{"box_create_session", `{"session_id":"n","host_path":"/usr/share"}`, "BoxValidationError: …"},
		{"box_create_session", fmt.Sprintf(`{"session_id":"n","host_path":%q,"host_path_mode":"ro"}`, b.shared+"/missing"), "BoxValidationError: …"},
		{"box_create_session", `{"session_id":"s","image":"x","cpus":2}`, "BoxSessionConflictError: Box session PHYS-s already exists with image=rockchin/langbot-sandbox:latest"},
		{"box_create_session", `{"session_id":"s","cpus":2}`, "BoxSessionConflictError: Box session PHYS-s already exists with cpus=1.0"},
		{"box_create_session", `{"session_id":"s","host_path":"/srv/x"}`, "BoxSessionConflictError: Box session PHYS-s already exists with host_path=None"},
		{"box_start_managed_process", `{"session_id":"s"}`, "KeyError: 'spec'"},
		{"box_start_managed_process", `{"session_id":"s","spec":{"command":""}}`, "BoxValidationError: 1 validation error for BoxManagedProcessSpec\ncommand\n  Value error, command must not be empty"},
		{"box_start_managed_process", `{"session_id":"s-42","spec":{"command":"x"}}`, "BoxSessionNotFoundError: session PHYS-s-42 not found"},
		{"box_get_managed_process", `{"session_id":"s"}`, "BoxManagedProcessNotFoundError: session PHYS-s has no managed process with process_id=default"},
		{"box_stop_managed_process", `{"session_id":"s","process_id":"p"}`, "BoxManagedProcessNotFoundError: session PHYS-s has no managed process with process_id=p"},
		{"box_init", `{"limits":{"max_sessions":-1}}`, "ValueError: box.limits.max_sessions must be between 0 and 5000"},
		{"box_upsert_sandbox_admission_grant", `{}`, "BoxAdmissionError: Sandbox admission enforcement is not enabled"},
		{"box_revoke_sandbox_admission_grant", `{}`, "BoxAdmissionError: Sandbox admission enforcement is not enabled"},
		{"box_verify_shared_workspace", `{"marker_name":"x"}`, "BoxReadinessError: Invalid Box shared Workspace probe basename"},
		{"box_verify_shared_workspace", `{"marker_name":".langbot-box-volume-probe-0123456789abcdef0123456789abcdef"}`, "BoxReadinessError: Managed sandbox admission requires box.local.default_workspace"},
		{"box_get_skill", `{}`, "KeyError: 'name'"},
	} {
		c.refused(tc.action, tc.data, tc.want)
	}
	for data, want := range map[string]string{
		"": "PermissionError: Box tenant action requires a trusted Workspace context",
		`,"context":{"instance_uuid":"other","workspace_uuid":"w","placement_generation":1}`: "PermissionError: Box action context does not match the trusted instance",
	} {
		ch := c.send("box_status", "{}"+data, false)
		if r := <-ch; r.Message != want {
			t.Errorf("%s: r.Message = %q, want %q", data, r.Message, want)
		}
	}
	for _, name := range []string{"box_list_skills", "box_get_skill"} { // LangBot requests these whenever it connects
		c.gets(name, `{"name":"x"}`, nil)
	}
}

// Only the operator can permit a network, even though LangBot requests one by itself.
func TestANetworkThatThePolicyDoesNotGive(t *testing.T) {
	t.Parallel()
	c := start(t, "[policy.closed]\nprincipals = [\"langbot\"]\nnetworks = [\"off\"]").dial(t)
	c.refused("box_create_session", `{"session_id":"n","network":"on"}`, "BoxValidationError: …")
	c.gets("box_create_session", `{"session_id":"n"}`, nil)
}

func TestACommandSeesWhatLangBotSends(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	ask := func(more, cmd string) map[string]any {
		t.Helper()
		var r map[string]any
		c.gets("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":%q%s}`, cmd, more), &r)
		return r
	}
	long := strings.Repeat("x", 400_000)
	for name, tc := range map[string]struct {
		more, cmd string
		want      any
	}{
		"python does not hold output":     {``, `echo $PYTHONUNBUFFERED`, "1"},
		"caches are on disk":              {``, `echo $npm_config_cache $UV_CACHE_DIR $PIP_CACHE_DIR`, "/workspace/.cache/npm /workspace/.cache/uv /workspace/.cache/pip"},
		"variables":                       {`,"env":{"A":"b c"}`, `echo "$A"`, "b c"},
		"no input":                        {``, `cat; echo end`, "end"},
		"a directory that is made":        {`,"workdir":"/workspace/a/b"`, `pwd`, "/workspace/a/b"},
		"a directory of the image":        {`,"workdir":"/usr"`, `pwd`, "/usr"},
		"several lines":                   {``, "cat <<E\n a\nE\necho b", "a\nb"},
		"python":                          {``, `python -c 'print(6*7)'`, "42"},
		"more than an argument may have":  {``, "cat <<E\n" + long + "\nE\n", long},
		"output without blanks around it": {``, `printf '\n x y \n\n'`, "x y"},
		"no text":                         {``, `printf '\377a'`, "\ufffda"},
		"what is left out":                {``, `head -c 1048580 /dev/zero | tr '\0' a`, strings.Repeat("a", 1<<20) + "\n... [raw output clipped at 1048576 bytes, 4 bytes discarded]"},
	} {
		if r := ask(tc.more, tc.cmd); r["stdout"] != tc.want || r["exit_code"] != 0.0 {
			t.Errorf("%s: %.200q, want %.100q", name, fmt.Sprint(r), tc.want)
		}
	}
	if r := ask("", "kill -9 $$"); r["exit_code"] != 137.0 || r["status"] != "completed" {
		t.Errorf(`r = %v, want r["exit_code"] == 137.0 and r["status"] == "completed"`, r)
	}
}

func TestAHostMayHaveLessThanAProfileOfLangBot(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	var s map[string]any
	c.gets("box_create_session", `{"session_id":"s","cpus":1000,"memory_mb":100000000,"pids_limit":100000000}`, &s)
	if s["cpus"] != 1000.0 || s["memory_mb"] != 1e8 || s["pids_limit"] != 1e8 {
		t.Errorf(`s = %v, want s["cpus"] == 1000.0 and s["memory_mb"] == 1e8 and s["pids_limit"] == 1e8`, s)
	}
	if list, err := b.Sessions(t.Context(), true); err != nil || len(list) != 1 || list[0].CPUs != float64(runtime.NumCPU()) {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and list[0].CPUs == float64(runtime.NumCPU())",
			list, err)
	}
}

func TestATimeoutEndsTheSessionUnlessAProcessRunsInIt(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	var r map[string]any
	c.gets("box_exec", `{"session_id":"plain","cmd":"echo begun; sleep 600","timeout_sec":15}`, &r)
	if r["status"] != "timed_out" || r["exit_code"] != nil || r["stdout"] != "begun" || r["stderr"] != "Command timed out after 15 seconds." {
		t.Errorf(`r = %v, want r["status"] == "timed_out" and r["exit_code"] == nil and r["stdout"] == "begun" and r["stderr"] == "Command timed out after 15 seconds."`,
			r)
	}
	if ids := c.sessions(); len(ids) != 0 {
		t.Errorf("the session still exists: ids = %q, want len(ids) == 0", ids)
	}
	c.gets("box_create_session", `{"session_id":"served"}`, nil)
	c.gets("box_start_managed_process", `{"session_id":"served","spec":{"command":"sleep","args":["1000"]}}`, nil)
	c.gets("box_exec", `{"session_id":"served","cmd":"sleep 600","timeout_sec":5}`, &r)
	var p map[string]any
	c.gets("box_get_managed_process", `{"session_id":"served"}`, &p)
	if r["status"] != "timed_out" || p["status"] != "running" {
		t.Errorf(`r = %v, p = %v, want r["status"] == "timed_out" and p["status"] == "running"`, r, p)
	}
}

func TestCommandsOfASessionTakeTurnsAndThoseOfOthersDoNot(t *testing.T) {
	t.Parallel()
	c := start(t, "[queue]\nwait = \"5m\"").dial(t)
	c.gets("box_create_session", `{"session_id":"one"}`, nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			session := "one" // its commands would see each other's directory
			if i%2 == 0 {
				session = fmt.Sprintf("s%d", i)
			}
			if r := c.run(session, "mkdir busy && rmdir busy"); r["exit_code"] != 0.0 {
				t.Errorf(`r = %v, want r["exit_code"] == 0.0`, r)
			}
		})
	}
	wg.Wait()
}

func TestDeletingASessionEndsWhatRunsAndWaits(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	running := c.send("box_exec", `{"session_id":"s","cmd":"touch /workspace/begun; sleep 100","timeout_sec":110}`, true)
	// A process waits in the box for the command, since processes do not wait in the queue.
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"look","command":"sh","args":["-c","until test -e /workspace/begun; do sleep 0.05; done"]}}`, nil)
	boxtest.Eventually(t, "the command has begun", func() bool {
		var p map[string]any
		c.gets("box_get_managed_process", `{"session_id":"s","process_id":"look"}`, &p)
		return p["status"] == "exited"
	})
	c.gets("box_delete_session", `{"session_id":"s"}`, nil)
	if r := <-running; !strings.HasPrefix(r.Message, "BoxSessionNotFoundError: session ws-") || !strings.HasSuffix(r.Message, "-s is being deleted") {
		t.Errorf(`r = %+v, want r.Message starting with "BoxSessionNotFoundError: session ws-" and r.Message ending with "-s is being deleted"`,
			r)
	}
}

// A file that LangBot has put into its workspace can be read by a box there; otherwise the error says why not.
func TestASharedWorkspaceIsVerified(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.Warm()
	before := b.Look()
	c := b.dial(t)
	const name = ".langbot-box-volume-probe-0123456789abcdef0123456789abcdef"
	ask := fmt.Sprintf(`{"marker_name":%q}`, name)
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q}}`, b.shared), nil)
	refused := func(want string) {
		t.Helper()
		c.refused("box_verify_shared_workspace", ask, "BoxReadinessError: "+want)
	}
	work := filepath.Join(b.shared, "default")
	if err := os.Remove(work); err != nil { // created by INIT
		t.Fatal(err)
	}
	refused("Managed sandbox admission requires box.local.default_workspace")
	marker := filepath.Join(work, name)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(work, 0o755))
	must(os.Chown(work, owner, owner))
	refused("Box Runtime cannot read the Core shared Workspace probe")
	must(os.WriteFile(filepath.Join(work, "other"), []byte("x"), 0o644))
	must(os.Symlink("other", marker))
	refused("Box Runtime cannot read the Core shared Workspace probe")
	must(os.Remove(marker))
	must(os.Mkdir(marker, 0o755))
	refused("Box shared Workspace probe is not a regular file")
	must(os.Remove(marker))
	for _, text := range []string{"", strings.Repeat("x", 1025)} {
		must(os.WriteFile(marker, []byte(text), 0o644))
		refused("Box shared Workspace probe has an invalid size")
	}
	data := append(bytes.Repeat([]byte("\x00\xff\n"), 21), 'x')
	must(os.WriteFile(marker, data, 0o644))
	var r map[string]any
	c.gets("box_verify_shared_workspace", ask, &r)
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); r["sha256"] != want || r["size"] != float64(64) || r["marker_name"] != name || len(r) != 3 {
		t.Errorf("%v, want %s", r, want)
	}
	elsewhere := boxtest.TempDir(t)
	must(os.Mkdir(filepath.Join(elsewhere, "default"), 0o755))
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q}}`, elsewhere), nil)
	refused("Box Runtime cannot read the Core shared Workspace probe") // it is not mounted
	b.NothingLeft(before)
}

// LangBot's mounts: the directory of a Workspace, which is created if missing, and skills below it.
func TestDirectoriesOfTheHostBelongToLangBot(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	dir := filepath.Join(b.shared, "default", "tenants", wire.Namespace(instance, workspace))
	skill := filepath.Join(b.shared, "skill")
	if err := os.Mkdir(skill, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(skill, owner, owner); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf(`"host_path":%q,"extra_mounts":[{"host_path":%q,"mount_path":"/workspace/.skills/x"}]`, dir, skill)
	var r map[string]any
	c.gets("box_exec", `{"session_id":"s","cmd":"echo hi > made; echo there > .skills/x/file; cat made",`+spec+`}`, &r)
	if r["stdout"] != "hi" {
		t.Fatalf(`r = %v, want r["stdout"] == "hi"`, r)
	}
	for _, path := range []string{filepath.Join(b.shared, "default"), dir, filepath.Join(dir, "made"), filepath.Join(skill, "file")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != owner {
			t.Errorf("%s is %d's", path, st.Uid)
		}
	}
	// With another writable directory the session is recreated, unless a process runs in it.
	c.gets("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":"ls -A .skills/x; cat made","host_path":%q}`, dir), &r)
	if r["stdout"] != "hi" {
		t.Errorf(`r = %v, want r["stdout"] == "hi"`, r)
	}
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"sleep","args":["1000"]}}`, nil)
	c.gets("box_exec", `{"session_id":"s","cmd":"true",`+spec+`}`, &r)
	// Read-only mounts are added and removed in the running session, without disturbing its programs.
	lent := func(name string) string {
		return fmt.Sprintf(`{"host_path":%q,"mount_path":"/workspace/.skills/%s","mode":"ro"}`, skill, name)
	}
	for _, tc := range []struct{ spec, want string }{
		{"", "none"},
		{lent("a"), "there"},
		{lent("a"), "there"},
		{lent("a") + "," + lent("b"), "there\nthere"},
		{lent("b"), "there"},
		{"", "none"},
	} {
		c.gets("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":"cat .skills/[ab]/file 2>/dev/null || echo none; touch .skills/[ab]/file 2>/dev/null && echo written","host_path":%q,"extra_mounts":[%s]}`, dir, tc.spec), &r)
		if r["stdout"] != tc.want {
			t.Errorf(`%s: r = %v, want r["stdout"] == tc.want`, tc.spec, r)
		}
	}
	var p map[string]any
	c.gets("box_get_managed_process", `{"session_id":"s"}`, &p)
	if p["status"] != "running" {
		t.Errorf(`p = %v, want p["status"] == "running"`, p)
	}
}

func TestShutdownEndsTheSessionsOfLangBotAlone(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	other := b.NewSession(t, api.SessionRequest{ID: "ws-mine"})
	c.gets("box_create_session", `{"session_id":"s","persistent":true}`, nil)
	c.gets("box_shutdown", `{}`, nil)
	if ids := c.sessions(); len(ids) != 0 {
		t.Errorf("the sessions %q still exist", ids)
	}
	if s, err := b.Session(t.Context(), other.ID); err != nil || s.State != "ready" {
		t.Errorf(`the session of another owner: s = %+v, err = %v, want no error and s.State == "ready"`, s, err)
	}
	c.gets("box_create_session", `{"session_id":"s"}`, nil) // it is still served
}

func TestThereAreOnlyAsManySessionsAsLangBotWants(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	c.gets("box_init", `{"limits":{"max_sessions":1,"max_managed_processes":1}}`, nil)
	c.gets("box_create_session", `{"session_id":"a"}`, nil)
	c.refused("box_create_session", `{"session_id":"b"}`, "BoxCapacityExceededError: Box session capacity reached (1)")
	c.gets("box_create_session", `{"session_id":"a"}`, nil)
	c.gets("box_start_managed_process", `{"session_id":"a","spec":{"command":"sleep","args":["1000"]}}`, nil)
	c.refused("box_start_managed_process", `{"session_id":"a","spec":{"process_id":"b","command":"sleep"}}`, "BoxCapacityExceededError: Box managed process capacity reached (1)")
	c.gets("box_start_managed_process", `{"session_id":"a","spec":{"command":"sleep","args":["1001"]}}`, nil) // in its own directory
}

// The home directory of a session is on disk if the kernel can limit it there, with or without LangBot's directory as the
// workspace; otherwise it is in memory, limited by tmp.
func TestTheHomeOfASessionIsOnDiskWhereThatIsBounded(t *testing.T) {
	t.Parallel()
	const profile = "[profiles.%s]\ntmp = \"4MiB\"\nworkspace_quota = \"32MiB\"\n"
	b := start(t, "profile = \"small\"\n"+fmt.Sprintf(profile, "small"))
	closed := start(t, "profile = \"closed\"\n"+fmt.Sprintf(profile, "closed")+"locked = [\"home_on_disk\"]")
	status, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "in memory\nbounded"
	if by := status.Enforced["workspace"]; by == "project-quota" || by == "store" {
		want = "on disk\nbounded"
	}
	const fill = `head -c 8000000 /dev/zero >~/a 2>/dev/null && echo on disk || echo in memory; head -c 60000000 /dev/zero >~/b 2>/dev/null || echo bounded`
	for session, is := range map[string]struct {
		b          *bot
		more, want string
	}{
		"own":    {b, "", want},
		"lent":   {b, fmt.Sprintf(`,"host_path":%q`, b.shared), want},
		"locked": {closed, "", "in memory\nbounded"},
	} {
		var r map[string]any
		is.b.dial(t).gets("box_exec", fmt.Sprintf(`{"session_id":%q,"cmd":%q%s}`, session, fill, is.more), &r)
		if r["stdout"] != is.want {
			t.Errorf("%s: %v, want %q", session, r, is.want)
		}
	}
}

// A quota on a host directory that the kernel cannot enforce here is refused, unless the operator leaves it to LangBot, which
// checks before and after each command.
func TestOnlyTheOperatorWaivesAQuotaThatCannotBeEnforced(t *testing.T) {
	t.Parallel()
	ask := func(b *bot) reply {
		dir := filepath.Join(b.shared, "w")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, owner, owner)); err != nil {
			t.Fatal(err)
		}
		return b.dial(t).ask("box_exec", fmt.Sprintf(`{"session_id":"s","host_path":%q,"workspace_quota_mb":64,"cmd":"echo fine"}`, dir))
	}
	if r := ask(start(t)); *r.Code == 0 || !strings.Contains(r.Message, "mounts.quota_roots") {
		t.Errorf(`r = %+v, want *r.Code != 0 and r.Message containing "mounts.quota_roots"`, r)
	}
	b := start(t, "allow_soft_storage_limits = true")
	if r := ask(b); *r.Code != 0 || !strings.Contains(string(r.Data), "fine") || !strings.Contains(b.Log(), "langbot.allow_soft_storage_limits allows that") {
		t.Errorf(`%+v: b.Log() = %s, want *r.Code == 0 and r.Data containing "fine" and b.Log() containing "langbot.allow_soft_storage_limits allows that"`,
			r, b.Log())
	}
}
