// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// The snapshot commands, on a filesystem that supports snapshots.
func TestSnapshotsAreTakenAndRestored(t *testing.T) {
	t.Parallel()
	d := boxtest.StartWith(t, fmt.Sprintf("state_dir = %q\n", filepath.Join(boxtest.NewFilesystem(t, "xfs"), "state")), boxtest.BestEffort)
	session(t, d, "create", "work")
	session(t, d, "exec", "-c", "echo one >f", "work")
	refused := func(says string, args ...string) {
		t.Helper()
		out, err := d.Boxctl(t, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("boxctl %q: %v\n%s", args, err, out)
		}
	}
	refused("hint: stop it first: boxctl stop BOX", "snapshots", "create", "work", "first")
	session(t, d, "stop", "work")
	if out := session(t, d, "snapshots", "create", "work", "first"); out != "first\n" {
		t.Errorf("created %q", out)
	}
	session(t, d, "snapshots", "create", "work", "second")
	if out := session(t, d, "snapshots", "ls", "work"); !regexp.MustCompile(`^NAME +CREATED +SIZE +FILES\nfirst +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +[1-9]\w* +2\nsecond .*\n$`).MatchString(out) {
		t.Errorf("listed %s", out)
	}
	session(t, d, "start", "work")
	session(t, d, "exec", "-c", "echo two >f", "work")
	refused("must be stopped", "snapshots", "restore", "work", "first")
	session(t, d, "stop", "work")
	if out := session(t, d, "__complete", "snapshots", "restore", "work", ""); !strings.HasPrefix(out, "first\t") || !strings.Contains(out, "\nsecond\t") {
		t.Errorf("offered %q", out)
	}
	if out := session(t, d, "snapshots", "restore", "work", "first"); out != "" {
		t.Errorf("restored %q", out)
	}
	session(t, d, "start", "work")
	if out := session(t, d, "exec", "work", "--", "cat", "f"); out != "one\n" {
		t.Errorf(`it has %q, want "one\n"`, out)
	}
	refused("none: box \"work\" has no snapshot", "snapshots", "rm", "work", "none", "first")
	if out := session(t, d, "snapshots", "ls", "-q", "work"); out != "second\n" {
		t.Errorf(`left %q, want "second\n"`, out)
	}
	if out := session(t, d, "snapshots", "ls", "--json", "work"); !strings.Contains(out, `"files"`) {
		t.Errorf("as JSON %q", out)
	}
}
