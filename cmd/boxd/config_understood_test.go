// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestACheckSaysWhatItHasUnderstood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.toml")
	text := "[daemon]\nhttp = \"127.0.0.1:5411\"\n[sessions]\nmax = 9\nmax_per_owner = 3\n[principals.ci]\nuser = \"daemon\"\nrole = \"user\"\n[principals.web]\nrole = \"viewer\"\n" +
		"[policy.small]\nprincipals = [\"ci\"]\nroles = [\"viewer\"]\nsessions = 2\ntotal_memory = \"3584MiB\"\n[policy.default]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := cfg.understood()
	for _, want := range []string{
		"listens on /run/boxd/boxd.sock (group boxd), http 127.0.0.1:5411",
		"principals.ci: user daemon, role user", "principals.web: callers with a token, role viewer",
		"policy.small: applies to principals ci and roles viewer; 2 boxes, 3.5 GiB of memory",
		"policy.default: applies to everybody without another policy, except admins; no total limits",
		"boxes: at most 9, 3 per owner",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

func TestABoxdThatStopsSaysWhatItLeaves(t *testing.T) {
	t.Parallel()
	const end = `to end them, start it with on_stop = "end" and stop it`
	for _, tc := range []struct {
		boxes int
		keep  bool
		want  string
	}{
		{2, false, ""},
		{0, true, `the keeper keeps running for the next boxd (daemon.on_stop = "keep")`},
		{1, true, `1 box and the keeper keep running for the next boxd (daemon.on_stop = "keep"); ` + end},
		{2, true, `2 boxes and the keeper keep running for the next boxd (daemon.on_stop = "keep"); ` + end},
	} {
		if got := leftBehind(tc.boxes, tc.keep); got != tc.want {
			t.Errorf("%d, %v: %q, want %q", tc.boxes, tc.keep, got, tc.want)
		}
	}
}
