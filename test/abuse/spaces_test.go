// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// One session renames and links in a workspace while other sessions start with it, get output directories in it, read it as an
// input, and end: nothing outside it is created, changed or removed, and refusals are reported.
func TestARenamerInASharedWorkspaceReachesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	c := d.Client
	if _, err := c.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "shared"}); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(d.Dir, "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(outside, 0o777); err != nil { // writable for everybody, so that only the box's isolation prevents writing
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "enemy", Workspace: "shared"})
	loop := fmt.Sprintf("mkdir -p real; while :; do ln -sfn real output; ln -sfn %s output; ln -sfn /proc/1/root%s output; ln -sfn /usr output; rm -f output; mkdir -p output; touch .here; mv output was 2>/dev/null; rm -rf was; done", outside, outside)
	d.NewProcess(t, "enemy", "renamer", &api.ProcessRequest{Argv: []string{"sh", "-c", loop}})
	boxtest.Eventually(t, "the renamer runs", func() bool { return d.Sh(t, "enemy", "ls -A | grep -c here || :") == "1\n" })
	made, told := 0, 0
	for round := range 30 {
		id := fmt.Sprintf("s%d", round)
		d.NewSession(t, api.SessionRequest{ID: id, Workspace: "shared", Inputs: []api.Input{{Workspace: "shared", Target: "/data"}}})
		_, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"sh", "-c", "echo x > $OUTPUT_DIR/file; ls /data/output/ >/dev/null 2>&1; ! touch /data/x 2>/dev/null"}, OutputVersion: id})
		e, refused := errors.AsType[*client.Error](err)
		switch {
		case err == nil:
			made++
		case refused && e.Status >= 400 && e.Status < 500:
			told++
		default:
			t.Errorf("%v", err)
		}
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("outside: list = %v, err = %v, want no error and len(list) == 0", list, err)
	}
	if err := d.DeleteSession(t.Context(), "enemy"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteWorkspace(t.Context(), "shared"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode().Perm() == 0o777", info, err)
	}
	t.Logf("%d were made, %d refused", made, told)
}
