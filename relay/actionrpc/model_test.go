// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

func fields(t *testing.T, text string) map[string]json.RawMessage {
	t.Helper()
	f, ok := wire.ObjectOf(json.RawMessage(text))
	if !ok {
		t.Fatal(text)
	}
	return f
}

func TestASpecHasTheDefaultsOfTheReference(t *testing.T) {
	t.Parallel()
	got, err := readSpec(fields(t, `{"session_id":" s ","host_path":null,"unknown":1}`))
	want := &boxSpec{
		SessionID: "s", Workdir: "/workspace", TimeoutSec: 30, Network: "off", Env: map[string]string{}, Image: "rockchin/langbot-sandbox:latest",
		SpecFields: SpecFields{HostPathMode: "rw", MountPath: "/workspace", CPUs: 1, MemoryMB: 512, PidsLimit: 128, ReadOnlyRootfs: true},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	got, err = readSpec(fields(t, `{"session_id":"s","timeout_sec":"5","cpus":"2","persistent":"yes","memory_mb":64.0,"mount_path":"/data","workdir":"","host_path":" /srv/x ",
		"extra_mounts":[{"host_path":"/a","mount_path":"/b"},{"host_path":"/a","mount_path":"/c","mode":"none"}],"skill_name":" "}`))
	if err != nil || got.TimeoutSec != 5 || got.CPUs != 2 || !got.Persistent || got.MemoryMB != 64 || got.Workdir != "/data" || *got.HostPath != "/srv/x" || len(got.mounts(modeReadWrite)) != 1 || got.SkillName != "" {
		t.Errorf("got %+v, err = %v", got, err)
	}
}

func TestSpecErrorsAreThoseOfTheReference(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                                    "Field required",
		`{"session_id":" "}`:                    "session_id must not be empty",
		`{"session_id":7}`:                      "Input should be a valid string",
		`{"session_id":"s","workdir":"x"}`:      "workdir must be an absolute path inside the sandbox",
		`{"session_id":"s","timeout_sec":0}`:    "timeout_sec must be greater than 0",
		`{"session_id":"s","timeout_sec":[]}`:   "Input should be a valid integer",
		`{"session_id":"s","network":"lan"}`:    "Input should be 'off' or 'on'",
		`{"session_id":"s","host_path":"x"}`:    "host_path must be an absolute host path",
		`{"session_id":"s","mount_path":"x"}`:   "mount_path must be an absolute path inside the sandbox",
		`{"session_id":"s","env":{"A":1}}`:      "Input should be a valid string",
		`{"session_id":"s","env":[]}`:           "Input should be a valid dictionary",
		`{"session_id":"s","cpus":0}`:           "cpus must be greater than 0",
		`{"session_id":"s","memory_mb":31}`:     "memory_mb must be at least 32",
		`{"session_id":"s","pids_limit":0}`:     "pids_limit must be at least 1",
		`{"session_id":"s","persistent":7}`:     "Input should be a valid boolean",
		`{"session_id":"s","extra_mounts":{}}`:  "Input should be a valid list",
		`{"session_id":"s","extra_mounts":[7]}`: "Input should be a valid dictionary",
		`{"session_id":"s","extra_mounts":[{"host_path":"x","mount_path":"/b"}]}`:   "host_path must be an absolute host path",
		`{"session_id":"s","extra_mounts":[{"host_path":"/x","mount_path":"b"}]}`:   "mount_path must be an absolute path inside the sandbox",
		`{"session_id":"s","workspace_quota_mb":-1}`:                                "workspace_quota_mb must be greater than or equal to 0",
		`{"session_id":"s","skill_name":"a/b"}`:                                     "skill_name can only contain up to 64 letters, numbers, hyphens and underscores",
		`{"session_id":"s","skill_name":"` + strings.Repeat("a", 65) + `"}`:         "skill_name can only contain up to 64 letters",
		`{"session_id":"s","host_path":"/srv/x","workdir":"/workspacex"}`:           "workdir must stay under mount_path when host_path is provided",
		`{"session_id":"s","host_path":"/srv/x","workdir":"/tmp","cpus":"nothing"}`: "Input should be a valid number",
	} {
		_, err := readSpec(fields(t, text))
		if err == nil || !regexp.MustCompile(`^BoxValidationError: [12] validation errors? for BoxSpec\n`).MatchString(err.Error()) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestAProcessIsReadAndRefused(t *testing.T) {
	t.Parallel()
	got, err := readProcess(json.RawMessage(`{"command":" python3 ","args":["-u","x"],"env":{"A":"b"}}`))
	want := &processSpec{ID: "default", Command: "python3", Args: []string{"-u", "x"}, Env: map[string]string{"A": "b"}, Cwd: "/workspace"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for text, want := range map[string]string{
		`{"command":" "}`: "command must not be empty", `{"command":"x","cwd":"y"}`: "cwd must be an absolute path inside the sandbox", `{"command":"x","args":[1]}`: "valid string",
		`[]`: "valid dictionary", `null`: "valid dictionary", `{"command":"x","memory_mb":-1}`: "greater than or equal to 0",
	} {
		if _, err := readProcess(json.RawMessage(text)); err == nil || !strings.HasPrefix(err.Error(), "BoxValidationError: ") || !strings.Contains(err.Error(), want) {
			t.Errorf(`%s: err = %v, want an error and err starting with "BoxValidationError: " and err containing %q`,
				text, err, want)
		}
	}
}

func TestTheFirstDifferenceIsPrintedAsPythonDoes(t *testing.T) {
	t.Parallel()
	with := func(text string) *specSnapshot {
		s, err := readSpec(fields(t, `{"session_id":"s"`+text+`}`))
		if err != nil {
			t.Fatal(err)
		}
		return s.keep()
	}
	for _, tc := range []struct{ has, asked, want string }{
		{``, ``, ""},
		{``, `,"network":"on","image":"x"`, "network=off"},
		{``, `,"image":"x"`, "image=rockchin/langbot-sandbox:latest"},
		{``, `,"host_path":"/srv/x"`, "host_path=None"},
		{`,"host_path":"/srv/x"`, ``, "host_path=/srv/x"},
		{``, `,"host_path_mode":"ro"`, "host_path_mode=rw"},
		{``, `,"mount_path":"/data"`, "mount_path=/workspace"},
		{``, `,"persistent":true`, "persistent=False"},
		{``, `,"cpus":0.5`, "cpus=1.0"},
		{`,"cpus":0.5`, ``, "cpus=0.5"},
		{``, `,"memory_mb":64`, "memory_mb=512"},
		{``, `,"pids_limit":64`, "pids_limit=128"},
		{``, `,"read_only_rootfs":false`, "read_only_rootfs=True"},
		{``, `,"workspace_quota_mb":8`, "workspace_quota_mb=0"},
		{``, `,"cmd":"x","timeout_sec":9,"env":{"a":"b"},"workdir":"/tmp","skill_name":"x","extra_mounts":[{"host_path":"/a","mount_path":"/b"}]`, ""},
	} {
		field, has, differs := with(tc.has).conflict(with(tc.asked))
		got := ""
		if differs {
			got = field + "=" + has
		}
		if got != tc.want {
			t.Errorf("%s against %s: %q, want %q", tc.has, tc.asked, got, tc.want)
		}
	}
	if a, b := with(``), with(`,"extra_mounts":[{"host_path":"/a","mount_path":"/b"}]`); a.Mounts == b.Mounts {
		t.Error("specs with different mounts compare as equal")
	}
}

func TestWhatIsKeptComesBackFromLabels(t *testing.T) {
	t.Parallel()
	s, err := readSpec(fields(t, `{"session_id":"s","host_path":"/srv/`+strings.Repeat("ä𝄞", 500)+`","image":"a\u0085b"}`))
	if err != nil {
		t.Fatal(err)
	}
	labels := s.keep().labels()
	for k, v := range labels {
		if len(k)+len(v) > 256 || strings.IndexFunc(v, unicode.IsControl) >= 0 {
			t.Errorf("label %q: v = %q, want len(k) + len(v) <= 256 and strings.IndexFunc(v, unicode.IsControl) < 0",
				k, v)
		}
	}
	got, err := readLabels(labels)
	if diff := cmp.Diff(s.keep(), got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := readLabels(map[string]string{"other": "x"}); err == nil {
		t.Error("no error for the labels of a foreign session")
	}
}

func TestOutputIsText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in    string
		total uint64
		want  string
	}{
		{" a\nb \n", 6, "a\nb"},
		{"\xff\xfex", 3, "\ufffd\ufffdx"},
		{"head \n", maxOutput + 5, "head\n... [raw output clipped at 1048576 bytes, 5 bytes discarded]"},
	} {
		if got := outputText([]byte(tc.in), tc.total, maxOutput); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.in, got, tc.want)
		}
	}
	long := strings.Repeat("é", 5000)
	if got := previewText([]byte(long[1:] + "\n")); got != strings.Repeat("é", 4000) {
		t.Errorf("a preview of %d bytes", len(got))
	}
}

func TestTimesHaveMicroseconds(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(wireTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("x", 3600))))
	if err != nil || string(text) != `"2026-01-02T02:04:05.000006Z"` {
		t.Errorf("text = %s, err = %v, want no error and text == `\"2026-01-02T02:04:05.000006Z\"`", text, err)
	}
}

func FuzzReadSpec(f *testing.F) {
	f.Add([]byte(`{"session_id":"s","extra_mounts":[{"host_path":"/a","mount_path":"/b"}],"env":{"a":"b"}}`))
	f.Add([]byte(`{"session_id":1,"cpus":"x","env":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		object, ok := wire.ObjectOf(text)
		if !ok {
			return
		}
		s, err := readSpec(object)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "BoxValidationError: ") {
				t.Fatal(err)
			}
			return
		}
		back, err := readLabels(s.keep().labels())
		if err != nil {
			t.Fatal(err)
		}
		if field, _, differs := back.conflict(s.keep()); differs {
			t.Fatalf("%s differs from itself", field)
		}
	})
}

func FuzzReadProcess(f *testing.F) {
	f.Add([]byte(`{"command":"x","args":["a"],"env":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := readProcess(text)
		if err == nil && (p.Command == "" || p.Args == nil) {
			t.Fatalf(`p = %+v, want an error or p.Command != "" and p.Args != nil`, p)
		}
	})
}
