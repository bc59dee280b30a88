// SPDX-License-Identifier: Apache-2.0

package actionrpc_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc"
)

func TestTheDialectIsOffAndClosedByItself(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*actionrpc.Settings)
		want   string // "": allowed
	}{
		"off":                            {func(*actionrpc.Settings) {}, ""},
		"without a token":                {func(c *actionrpc.Settings) { c.Listen = "127.0.0.1:5410" }, "langbot.token_file"},
		"open on the loopback, as asked": {func(c *actionrpc.Settings) { c.Listen, c.Insecure = "[::1]:5410", true }, ""},
		"open to the world":              {func(c *actionrpc.Settings) { c.Listen, c.Insecure = "0.0.0.0:5410", true }, "langbot.token_file"},
		"the world with a token":         {func(c *actionrpc.Settings) { c.Listen, c.TokenFile = "0.0.0.0:5410", "/x" }, ""},
		"no address":                     {func(c *actionrpc.Settings) { c.Listen, c.TokenFile = "localhost", "/x" }, "langbot.listen"},
		"nobody's":                       {func(c *actionrpc.Settings) { c.Principal = "" }, "langbot.principal"},
		"no profile":                     {func(c *actionrpc.Settings) { c.Profile = "" }, "langbot.profile"},
		"a relative path":                {func(c *actionrpc.Settings) { c.TokenFile = "x" }, "langbot.token_file"},
		"no such way":                    {func(c *actionrpc.Settings) { c.MissingImage = "host" }, "langbot.missing_image"},
		"no instance":                    {func(c *actionrpc.Settings) { c.Instance = "a b" }, "langbot.instance"},
	} {
		c := actionrpc.DefaultSettings()
		tc.change(&c)
		err := c.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestATokenIsASecret(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 32)
	for name, tc := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"a secret": {long + "\n", 0o600, true}, "of everybody": {long, 0o644, false}, "short": {long[1:], 0o600, false}, "with blanks": {long + " x", 0o600, false},
		"endless": {strings.Repeat("k", 5000), 0o600, false},
	} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(tc.text), tc.mode); err != nil {
			t.Fatal(err)
		}
		got, err := (&actionrpc.Settings{TokenFile: path}).ReadToken()
		if (err == nil) != tc.ok || tc.ok && got != long {
			t.Errorf("%s: got %q, err = %v, want (err == nil) == %v and (tc.ok == false or got == %q)",
				name, got, err, tc.ok, long)
		}
	}
	if _, err := (&actionrpc.Settings{TokenFile: "/nowhere/at/all"}).ReadToken(); err == nil {
		t.Error("no error for a missing token file")
	}
}

// afterInits returns the configuration after some INITs, of which only the last may be refused.
func afterInits(t *testing.T, inits ...string) (*actionrpc.InitConfig, string) {
	t.Helper()
	has := actionrpc.DefaultInit()
	for i, text := range inits {
		fields, ok := object(json.RawMessage(text))
		if !ok {
			t.Fatal(text)
		}
		next, err := has.Merge(fields)
		if err != nil {
			if i < len(inits)-1 {
				t.Fatal(err)
			}
			return has, err.Error()
		}
		has = next
	}
	return has, ""
}

func TestLimitsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"limits":[]}`:                               "ValueError: box.limits must be an object",
		`{"limits":{"max_sessions":true}}`:            "ValueError: box.limits.max_sessions must be an integer",
		`{"limits":{"max_sessions":"x"}}`:             "ValueError: box.limits.max_sessions must be an integer",
		`{"limits":{"max_sessions":5001}}`:            "ValueError: box.limits.max_sessions must be between 0 and 5000",
		`{"limits":{"max_rpc_file_bytes":0}}`:         "ValueError: box.limits.max_rpc_file_bytes must be between 1 and 104857600",
		`{"limits":{"max_sessions":3,"other":"any"}}`: "",
		`{"limits":null}`:                             "",
	} {
		if _, got := afterInits(t, text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	got, _ := afterInits(t, `{"limits":{"max_sessions":3,"completed_process_retention_sec":7}}`, `{"backend":"nsjail"}`)
	if got.Limits.MaxSessions != 3 || got.Limits.Retention != 7*time.Second || got.Limits.MaxManagedProcesses != 64 || !got.Ours() {
		t.Errorf("got %+v, want got.Limits.MaxSessions == 3 and got.Limits.Retention == 7 * time.Second and got.Limits.MaxManagedProcesses == 64 and got.Ours()",
			got)
	}
	if got, _ = afterInits(t, `{"backend":"e2b"}`); got.Ours() {
		t.Error("the backend e2b counts as boxd's own")
	}
	if got, _ = afterInits(t, `{"limits":{"max_sessions":3}}`, `{"limits":{"max_sessions":-1}}`); got.Limits.MaxSessions != 3 {
		t.Error("the refused limits changed max_sessions")
	}
}

func TestTheDefaultWorkspaceLiesInAnAllowedRoot(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"local":{"host_root":"./data/box","default_workspace":"","allowed_mount_roots":["./data/box","/tmp"]}}`: "",
		`{"local":{"host_root":"/srv/box"}}`: "",
		`{"local":{"host_root":"/srv/box","default_workspace":"/var/x","allowed_mount_roots":"/srv/box, /tmp"}}`:      "BoxValidationError: box.local.default_workspace is outside allowed_mount_roots: /srv/box, /tmp",
		`{"local":{"host_root":"/srv/box","default_workspace":"/srv/box/../etc","allowed_mount_roots":["/srv/box"]}}`: "BoxValidationError: box.local.default_workspace is outside allowed_mount_roots: /srv/box",
		`{"local":{"default_workspace":"/srv/box"}}`:                                                                  "BoxValidationError: box.local.default_workspace cannot be created because no allowed_mount_roots are configured",
		`{"local":7}`: "",
	} {
		if _, got := afterInits(t, text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestAdmissionFailsClosed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		inits    []string
		required bool
		broken   string
	}{
		{[]string{`{}`}, false, ""},
		{[]string{`{"admission":{"required":false,"max_sessions":1}}`}, false, ""},
		{[]string{`{"admission":{"required":true}}`}, true, ""},
		{[]string{`{"admission":[]}`}, true, "object"},
		{[]string{`{"admission":{"required":"perhaps"}}`}, true, "boolean"},
		{[]string{`{"admission":{"requierd":false}}`}, true, "unknown key"},
		{[]string{`{"admission":{"required":false,"max_sessions":2}}`}, true, "max_sessions"},
		{[]string{`{"admission":{"max_managed_processes":1}}`}, true, "max_managed_processes"},
		{[]string{`{"admission":{"required_backend":"docker"}}`}, true, "required_backend"},
		{[]string{`{"admission":{"logical_session_id":"global","required_backend":"nsjail","max_sessions":1,"max_managed_processes":0,"max_grant_ttl_sec":300,"max_timeout_sec":120,"cpus":1.0,
			"memory_mb":512,"pids_limit":128,"read_only_rootfs":true,"workspace_quota_mb":0,"readiness_cache_sec":15,"required":false}}`}, false, ""},
		{[]string{`{"admission":{"required":true}}`, `{"admission":{"required":false}}`}, true, "cannot be disabled"},
		{[]string{`{"admission":{"required":true}}`, `{"backend":"local"}`}, true, ""},
	} {
		got, _ := afterInits(t, tc.inits...)
		if got.Required != tc.required || !strings.Contains(got.Broken, tc.broken) || tc.broken == "" && got.Broken != "" {
			t.Errorf(`%v: got.Required = %v, got.Broken = %q, want got.Required == %v and got.Broken containing %q and (tc.broken != "" or got.Broken == "")`,
				tc.inits, got.Required, got.Broken, tc.required, tc.broken)
		}
	}
}

// An INIT that is refused because of its directories still sets the admission policy.
func TestAnInitWhoseDirectoriesAreRefusedStillRequiresAdmission(t *testing.T) {
	t.Parallel()
	const local = `"local":{"host_root":"/srv/box","default_workspace":"/var/x","allowed_mount_roots":["/srv/box"]}`
	for admission, want := range map[string]string{`{"required":true}`: "", `{"requierd":true}`: "unknown key", `[]`: "object"} {
		fields, _ := object(json.RawMessage(`{` + local + `,"limits":{"max_sessions":3},"admission":` + admission + `}`))
		next, err := actionrpc.DefaultInit().Merge(fields)
		if err == nil || !strings.Contains(err.Error(), "outside allowed_mount_roots") {
			t.Fatalf(`%s: err = %v, want an error containing "outside allowed_mount_roots"`, admission, err)
		}
		if next == nil || !next.Required || !strings.Contains(next.Broken, want) || want == "" && next.Broken != "" || next.Work != "" || next.NoWork == "" || next.Limits.MaxSessions != 3 {
			t.Errorf("%s: %+v", admission, next)
		}
	}
	// One with an invalid limit changes nothing, as the protocol requires.
	fields, _ := object(json.RawMessage(`{"limits":{"max_sessions":-3},"admission":{"required":true}}`))
	if next, err := actionrpc.DefaultInit().Merge(fields); next != nil || err == nil {
		t.Errorf("next = %+v, err = %v, want next == nil and an error", next, err)
	}
}

func TestARecordedAdmissionRequirementHoldsUntilTheFirstInit(t *testing.T) {
	t.Parallel()
	has := actionrpc.RequiredInit()
	if !has.Required || has.Broken != "" {
		t.Fatalf(`has = %+v, want has.Required == true and has.Broken == ""`, has)
	}
	for text, want := range map[string]bool{`{}`: false, `{"admission":{"required":false}}`: false, `{"admission":{"required":true}}`: true, `{"admission":7}`: true} {
		fields, _ := object(json.RawMessage(text))
		next, err := has.Merge(fields)
		if err != nil || next.Required != want {
			t.Fatalf("%s: next = %+v, err = %v, want no error and next.Required == %v", text, next, err, want)
		}
		off, _ := object(json.RawMessage(`{"admission":{"required":false}}`))
		if again, err := next.Merge(off); err != nil || again.Required != want || want && again.Broken == "" {
			t.Errorf(`%s, and then off: again = %+v, err = %v, want no error and again.Required == %v and (want == false or again.Broken != "")`,
				text, again, err, want)
		}
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"limits":{"max_sessions":1},"local":{"host_root":"/x"},"admission":{"required":true},"backend":"local"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fields, ok := object(text)
		if !ok {
			return
		}
		next, err := actionrpc.DefaultInit().Merge(fields)
		if err == nil && (next.Limits.MaxSessions < 0 || next.Limits.MaxRPCFileBytes < 1) {
			t.Fatalf("next.Limits = %+v, want an error or next.Limits.MaxSessions >= 0 and next.Limits.MaxRPCFileBytes >= 1",
				next.Limits)
		}
	})
}

// The marker file is replaced atomically and synced: opening an existing one could follow a link.
func TestTheAdmissionMarkerIsReplacedAtomically(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark := actionrpc.Marker(filepath.Join(dir, actionrpc.MarkerFile))
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), string(mark)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := mark.Set(true); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(string(mark))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 || !mark.Init().Required || !mark.Init().FromBefore() {
			t.Errorf("info = %v, err = %v, want no error and info.Mode().IsRegular() and info.Mode().Perm() == 0o600 and mark.Init().Required == true and mark.Init().FromBefore()",
				info, err)
		}
		if there, err := os.ReadDir(dir); err != nil || len(there) != 1 {
			t.Errorf("there = %v, err = %v, want no error and len(there) == 1", there, err)
		}
	}
	if err := mark.Set(false); err != nil || mark.Init().Required || mark.Init().FromBefore() {
		t.Error(err)
	}
}
