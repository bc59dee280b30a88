// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

const drive = "me/data"

// fillDrive creates the next version of a drive, with a file "text" and a directory with another file.
func fillDrive(t *testing.T, d *boxtest.Daemon, name, text string) api.DriveVersion {
	t.Helper()
	archive := bytes.NewReader(boxtest.Tar(0o644, map[string]string{"text": text, "dir/file": text}))
	v, isNew, err := d.FillDrive(t.Context(), name, &client.DriveFilling{Archive: archive})
	if err != nil || !isNew {
		t.Fatalf("fill %s: isNew = %v, err = %v, want no error and isNew == true", name, isNew, err)
	}
	return v
}

func switchDrive(t *testing.T, d *boxtest.Daemon, id, name string, version int, isNew bool) api.SessionDrive {
	t.Helper()
	k, fresh, err := d.SwitchDrive(t.Context(), id, name, version)
	if err != nil || fresh != isNew {
		t.Fatalf("switch %s: new %v, %v", name, fresh, err)
	}
	return k
}

// driveTrees returns the drive versions on disk, of all users.
func driveTrees(t *testing.T, d *boxtest.Daemon) int {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(d.State, "drives", "u-*", "trees", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A session can read a drive, and be switched to another version while a program uses it: the program keeps the files that it has
// open. Versions that a session has, or had, survive the end of boxd and keeper, whatever keep_versions says.
func TestADriveIsSwitchedInALivingSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting+"[drives]\nkeep_versions = 1\n")
	fillDrive(t, d, drive, "first")
	s := d.NewSession(t, api.SessionRequest{ID: "s", Drives: []string{drive}})
	if len(s.Drives) != 1 || s.Drives[0].Target != "/drives/me/data" || s.Drives[0].Version != 1 || !slices.Equal(s.Drives[0].Attributes, []string{"ro", "nosuid", "nodev", "nosymfollow"}) {
		t.Fatalf("s.Drives = %+v", s.Drives)
	}
	for _, try := range []string{"echo x > text", "echo x > new", "rm -f text", "mkdir new", "chmod 600 text", "mv text other", "mv /drives/me/data /drives/me/x", "mkdir /drives/x", "rmdir /drives/me", "umount /drives/me/data"} {
		if r := d.Result(t, "s", boxtest.Shell("cd /drives/me/data && "+try)); r.ExitCode == nil || *r.ExitCode == 0 {
			t.Errorf("%s: r = %s, want r.ExitCode != nil and *r.ExitCode != 0", try, boxtest.Show(r))
		}
	}
	process(t, d, "s", "reads", &api.ProcessRequest{Argv: []string{"sh", "-c", "exec 3</drives/me/data/text; cd /drives/me/data/dir; touch /tmp/in; until [ -e /tmp/go ]; do sleep 0.1; done; cat <&3; cat file; echo; cat /drives/me/data/text; touch /tmp/out; sleep 10000"}})
	boxtest.Eventually(t, "the program has opened the files of the drive", func() bool { return d.Result(t, "s", boxtest.Shell("test -e /tmp/in && echo yes")).Stdout == "yes\n" })
	fillDrive(t, d, drive, "second")
	if got := d.Sh(t, "s", "cat /drives/me/data/text"); got != "first" {
		t.Errorf(`before the switch: got %s, want "first"`, got)
	}
	if k := switchDrive(t, d, "s", drive, 0, false); k.Version != 2 || k.Earlier != 1 || !slices.Contains(k.Attributes, "ro") {
		t.Errorf(`k = %+v, want k.Version == 2 and k.Earlier == 1 and k.Attributes containing "ro"`, k)
	}
	if k := switchDrive(t, d, "s", drive, 0, false); k.Earlier != 1 {
		t.Errorf("the same again: k = %+v, want k.Earlier == 1", k)
	}
	fillDrive(t, d, drive, "third") // version 2 is only kept for the session
	d.Kill()
	d.Restart()
	fillDrive(t, d, drive, "fourth")
	boxtest.Eventually(t, "the unused version is removed", func() bool { return driveTrees(t, d) == 3 })
	d.Sh(t, "s", "touch /tmp/go")
	boxtest.Eventually(t, "the program has read the files of the drive", func() bool { return d.Result(t, "s", boxtest.Shell("test -e /tmp/out && echo yes")).Stdout == "yes\n" })
	const all = "firstfirst\nsecond"
	var got []byte
	boxtest.Eventually(t, "all output of the program has arrived", func() bool { // PID 1 of the box passes it on
		logs, err := d.Logs(t.Context(), "s", "reads", client.LogOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer logs.Close()
		if got, err = io.ReadAll(logs); err != nil {
			t.Fatal(err)
		}
		return len(got) >= len(all)
	})
	if string(got) != all {
		t.Errorf("got %q, want got == all", got)
	}
	c := d.Client
	if err := c.DetachDrive(t.Context(), "s", drive, true); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "ls -A /drives"); got != "" {
		t.Errorf(`left is %q, want ""`, got)
	}
	if e := problemOf(t, c.DetachDrive(t.Context(), "s", drive, false)); e.Status != 404 || e.Field != "drive" {
		t.Errorf(`twice: e.Problem = %+v, want e.Status == 404 and e.Field == "drive"`, e.Problem)
	}
	if e := problemOf(t, c.DeleteDrive(t.Context(), drive, 0)); e.Status != 409 {
		t.Errorf("the version that was in use: e.Problem = %+v, want e.Status == 409", e.Problem)
	}
	if k := switchDrive(t, d, "s", drive, 1, true); k.Version != 1 || d.Sh(t, "s", "cat /drives/me/data/text") != "first" {
		t.Errorf(`back: k = %+v, want k.Version == 1 and d.Sh(t, "s", "cat /drives/me/data/text") == "first"`, k)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "one version is left", func() bool { return driveTrees(t, d) == 1 })
	if err := c.DeleteDrive(t.Context(), drive, 0); err != nil || driveTrees(t, d) != 0 {
		t.Error(err)
	}
}

// The output of an execution becomes a version of a drive, packed in its box; entries that are no files are refused. Removing a
// drive in use names its users; a foreign one is not found.
func TestResultsBecomeADrive(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "makes"})
	d.Output(t, "makes", versioned("echo result > $OUTPUT_DIR/r; mkdir $OUTPUT_DIR/d; cp /bin/true $OUTPUT_DIR/d/run", "v1"))
	c := d.Client
	v, isNew, err := c.FillDrive(t.Context(), "me/results", &client.DriveFilling{Session: "makes", Output: "v1", Into: "runs/v1"})
	if err != nil || !isNew || v.Origin != "session makes, /workspace/output/v1" {
		t.Fatalf(`v = %+v, err = %v, want no error and isNew == true and v.Origin == "session makes, /workspace/output/v1"`,
			v, err)
	}
	d.Output(t, "makes", versioned("echo more > $OUTPUT_DIR/r", "v2"))
	if v, _, err = c.FillDrive(t.Context(), "me/results", &client.DriveFilling{Session: "makes", Output: "v2", Into: "runs/v2", Add: true, IfVersion: &v.Version}); err != nil || v.Version != 2 {
		t.Fatalf("v = %+v, err = %v, want no error and v.Version == 2", v, err)
	}
	d.Sh(t, "makes", "mkdir out; ln -s /etc/shadow out/link")
	if _, _, err := c.FillDrive(t.Context(), "me/results", &client.DriveFilling{Session: "makes", Path: "out"}); problemOf(t, err).Status != 400 {
		t.Errorf("a link: err = %v, want problemOf(t, err).Status == 400", err)
	}
	if _, _, err := c.FillDrive(t.Context(), "me/results", &client.DriveFilling{Session: "makes", Path: "none"}); problemOf(t, err).Status != 404 {
		t.Errorf("nothing: err = %v, want problemOf(t, err).Status == 404", err)
	}
	d.NewSession(t, api.SessionRequest{ID: "reads", Drives: []string{"me/results@1"}})
	if got := d.Sh(t, "reads", "cd /drives/me/results; find . -type f | sort; runs/v1/d/run && cat runs/v1/r"); got != "./runs/v1/d/run\n./runs/v1/r\nresult\n" {
		t.Errorf(`got %s, want "./runs/v1/d/run\n./runs/v1/r\nresult\n"`, got)
	}
	process(t, d, "reads", "sits", &api.ProcessRequest{Argv: []string{"sleep", "10000"}, Cwd: "/drives/me/results/runs"})
	err = c.DetachDrive(t.Context(), "reads", "me/results", false)
	if users := client.MountUsersOf(err); problemOf(t, err).Status != 409 || len(users) == 0 || !strings.HasPrefix(users[0].Path, "/drives/me/results") {
		t.Errorf(`in use: err = %v, users = %+v, want problemOf(t, err).Status == 409 and len(users) != 0 and users[0].Path starting with "/drives/me/results"`,
			err, users)
	}
	for _, req := range []api.SessionRequest{{ID: "x", Drives: []string{"me/none"}}, {ID: "x", Drives: []string{"me/results@7"}}} {
		if _, _, err := d.CreateSession(t.Context(), &req); problemOf(t, err).Status != 404 {
			t.Errorf("%v: err = %v, want problemOf(t, err).Status == 404", req.Drives, err)
		}
	}
	for _, bad := range []string{"../../etc", "me", "me/results@0", "me/results/..", "Me/x"} {
		if _, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "x", Drives: []string{bad}}); problemOf(t, err).Status != 400 || problemOf(t, err).Field != "drives" {
			t.Errorf(`%q: err = %v, want problemOf(t, err).Status == 400 and problemOf(t, err).Field == "drives"`,
				bad, err)
		}
	}
}
