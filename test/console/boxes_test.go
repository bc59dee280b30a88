// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// manage lets a script create and remove boxes, run shell lines in them, and stop and start boxd.
func manage(t *testing.T, d *boxtest.Daemon) acts {
	t.Helper()
	return acts{
		"create": func(id string) string { return d.NewSession(t, api.SessionRequest{ID: id}).ID },
		"remove": func(id string) string {
			if err := d.DeleteSession(t.Context(), id); err != nil {
				t.Error(err)
			}
			return id
		},
		"sh": func(line string) string {
			id, line, _ := strings.Cut(line, " ")
			return d.Sh(t, id, line)
		},
		"start": func(line string) string {
			id, line, _ := strings.Cut(line, " ")
			return d.NewProcess(t, id, "web", boxtest.ShellProcess(line)).ID
		},
		"run": func(line string) string {
			id, line, _ := strings.Cut(line, " ")
			return d.NewProcess(t, "work", id, boxtest.ShellProcess(line)).ID
		},
		"used": func(id string) string {
			s, err := d.Session(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			return s.LastUsedAt.String()
		},
		"limits": func(id string) string {
			s, err := d.Session(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			return s.TTL.String()
		},
		"fail": func(string) string {
			return strconv.Itoa(d.Raw(t, "POST", "/v1/sessions", `{"memory":"9x"}`).Code)
		},
		"kill": func(string) string {
			d.Kill()
			return ""
		},
		"restart": func(string) string {
			d.Restart()
			return ""
		},
	}
}

// Every text of the console is translated into each of its languages.
func TestNoTextLacksATranslation(t *testing.T) {
	t.Parallel()
	requireSources(t)
	root, err := boxtest.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "node", filepath.Join(root, "console/po.mjs")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The list shows the boxes of the person, is updated live, and creates new boxes with a form that shows what policy allows.
func TestTheListOfBoxesIsLive(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	d := boxtest.Start(t, roles+"[policy.ops]\nprincipals = [\"root\"]\n[policy.ops.ceilings]\nmemory = \"256MiB\"\n", boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "first"})
	browse(t, "boxes.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), manage(t, d))
}

// A box can be inspected and changed: its processes and their output, files, limits, mounts, network, and a terminal in it; the
// page says so when it ends.
func TestABoxIsSeenAndChanged(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	shared := boxtest.TempDir(t)
	d := boxtest.Start(t, "[mounts]\nallow = [\""+shared+"\"]\n"+boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "work"})
	browse(t, "box.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), manage(t, d), "CONSOLE_SHARED="+shared)
}

// The console shows a person what boxd allows that person to see: it makes its requests as that person.
func TestEachPersonSeesWhatTheyMay(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	d := boxtest.Start(t, roles+"[principals.locked]\nuid = 7\nrole = \"none\"\n")
	d.NewSession(t, api.SessionRequest{ID: "of-root"})
	for _, a := range d.AsUser(t, user.uid, boxtest.Request("POST", "/v1/sessions", `{"id":"of-user"}`)) {
		if a.Code != 201 {
			t.Fatalf("a.Code = %d, a.Body = %s, want a.Code == 201", a.Code, a.Body)
		}
	}
	for name, who := range map[string]consoleUser{"user": user, "operator": operator, "stranger": stranger, "locked": locked} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			browse(t, "people.mjs", login(t, who, d.Socket, boxtest.Programs(t)), nil, "CONSOLE_PERSON="+name)
		})
	}
}

// The pages of the host, its activity, and what outlives boxes show what boxd reports.
func TestHostActivityAndStorage(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "work"})
	do := manage(t, d)
	do["skill"] = func(name string) string {
		d.Raw(t, "POST", "/v1/skills", `{"name":"`+name+`","description":"Greets people."}`)
		return string(d.Raw(t, "PUT", "/v1/sessions/work/skills/"+name, `{}`).Body)
	}
	do["drive"] = func(name string) string {
		d.Sh(t, "work", "echo kept > /workspace/kept")
		return string(d.Raw(t, "POST", "/v1/drives/team%2F"+name+"/versions?session=work&path=/workspace", "").Body)
	}
	do["image"] = func(name string) string { // and a box of it
		archive := string(boxtest.Tar(0o644, map[string]string{"etc/issue": "one"}))
		d.Raw(t, "POST", "/v1/images?form=rootfs&name="+name, archive, "Content-Type: application/x-tar")
		return d.NewSession(t, api.SessionRequest{ID: "pictured", Image: &name}).Image
	}
	do["break"] = func(string) string { // the audit log: changes a byte in the middle of a record
		file := d.State + "/audit/audit-00000000000000000001.log"
		data, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return ""
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(data), `"session":"work"`, `"session":"wark"`, 1)), 0o600); err != nil {
			t.Error(err)
		}
		return ""
	}
	browse(t, "host.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), do)
}

// The page of the host shows who is queued for what, until they have it, and the warm boxes.
func TestAQueueAndAPoolAreSeen(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	d := boxtest.Start(t, "[sessions]\nmax = 3\n[queue]\nwait = \"1h\"\nlength = 7\n[exec]\nmax_per_session = 1\n[profiles.default]\nwarm = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "first"})
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer leave()
	do := manage(t, d)
	do["wait"] = func(id string) string { // in the background, since it has to wait
		wg.Go(func() {
			if _, _, err := d.CreateSession(ctx, &api.SessionRequest{ID: id}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
		return id
	}
	programs, end := context.WithCancel(ctx)
	do["run"] = func(id string) string { // one runs, and one waits for its end
		for range 2 {
			wg.Go(func() {
				if r, err := d.Exec(programs, id, &api.ExecRequest{Argv: []string{"sleep", "infinity"}, Timeout: boxtest.Duration("10m")}); programs.Err() == nil {
					t.Errorf("r = %+v, err = %v, want programs.Err() != nil", r, err)
				}
			})
		}
		return id
	}
	do["end"] = func(id string) string {
		end()
		return id
	}
	browse(t, "queue.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), do)
}
