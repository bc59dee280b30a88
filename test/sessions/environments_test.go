// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/base64"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// pythonSkill creates a skill with files.
func pythonSkill(t *testing.T, d *boxtest.Daemon, name string, files ...api.SkillFileWrite) {
	t.Helper()
	c := d.Client
	_, err := c.CreateSkill(t.Context(), &api.SkillRequest{Name: name, Description: "Does it."})
	for i := range files {
		if err == nil {
			_, err = c.WriteSkillFile(t.Context(), name, &files[i])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Two sessions that share a workspace request the environment of a skill at once: one creates it, both get it. An incomplete one
// is recreated, another version of the skill has another one, and programs find the installed packages.
func TestASkillHasAnEnvironment(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	c := d.Client
	pythonSkill(t, d, "greets", api.SkillFileWrite{Path: "requirements.txt", Content: "# nothing yet\n"})
	space(t, d, "both")
	for _, id := range []string{"a", "b"} {
		d.NewSession(t, api.SessionRequest{ID: id, Workspace: "both", Skills: []string{"greets"}})
	}
	var all [2]api.SkillEnvironment
	var wg sync.WaitGroup
	for i, id := range []string{"a", "b"} {
		wg.Go(func() {
			var err error
			if all[i], err = c.MakeSkillEnvironment(t.Context(), id, "greets", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e := all[0]
	if e.Path != all[1].Path || e.Made == all[1].Made || !strings.HasPrefix(e.Path, "/workspace/.skill-envs/greets/") || e.Python == "" {
		t.Fatalf("%+v", all)
	}
	if got := d.Sh(t, "b", e.Path+"/bin/python -c 'import sys; print(sys.prefix)'"); got != e.Path+"\n" {
		t.Errorf("it is %q", got)
	}
	d.Sh(t, "a", "rm "+e.Path+"/.boxd-environment; touch "+e.Path+"/half")
	if again, err := c.MakeSkillEnvironment(t.Context(), "a", "greets", nil); err != nil || !again.Made || again.Path != e.Path {
		t.Errorf("after half: %+v, %v", again, err)
	}
	if got := d.Sh(t, "a", "ls -A "+e.Path+" | grep -c half; ls -A /workspace/.skill-envs/greets | wc -l; cd /workspace; git status --porcelain 2>/dev/null; true"); got != "0\n2\n" {
		t.Errorf("left: %q", got)
	}
	if err := reword(t, d, "greets", "other"); err != nil {
		t.Fatal(err)
	}
	activate(t, d, "b", "greets", false)
	if other, err := c.MakeSkillEnvironment(t.Context(), "b", "greets", nil); err != nil || !other.Made || other.Path == e.Path {
		t.Errorf("of another version: %+v, %v", other, err)
	}
}

// The packages that a skill lists are installed by pip, which honors its environment variables. The answer says if the box has no
// pip, or if nothing is to be installed; neither leaves files.
func TestASkillsPackagesAreInstalled(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	c := d.Client
	pythonSkill(t, d, "greets", api.SkillFileWrite{Path: "requirements.txt", Content: "hello-box\n"},
		api.SkillFileWrite{Path: "wheels/hello_box-1.0-py3-none-any.whl", Content: base64.StdEncoding.EncodeToString(boxtest.Wheel("hello_box", "print('hello')\n")), Encoding: "base64"})
	pythonSkill(t, d, "plain")
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"greets", "plain"}, Env: map[string]string{"PIP_NO_INDEX": "1"}})
	_, err := c.MakeSkillEnvironment(t.Context(), "s", "plain", nil)
	if e := problemOf(t, err); e.Status != 409 || e.Field != "skill" || !strings.Contains(e.Detail, "requirements.txt") {
		t.Errorf("without a file: %+v", e.Problem)
	}
	_, err = c.MakeSkillEnvironment(t.Context(), "s", "greets", nil)
	e := problemOf(t, err)
	if d.Result(t, "s", boxtest.Shell("python3 -I -c 'import pip'")).Stderr != "" && d.Result(t, "s", boxtest.Shell("python3 -I -c 'import ensurepip'")).Stderr != "" {
		if e.Status != 501 || !strings.Contains(e.Hint, "python3-pip") {
			t.Errorf("without pip: %+v", e.Problem)
		}
		return
	}
	if e.Status != 409 || !strings.Contains(e.Detail, "hello-box") || !strings.Contains(e.Hint, "network") {
		t.Errorf("without the package: %+v", e.Problem)
	}
	if got := d.Sh(t, "s", "find /workspace/.skill-envs -name pyvenv.cfg"); got != "" {
		t.Errorf("left: %q", got)
	}
	made, err := c.MakeSkillEnvironment(t.Context(), "s", "greets", &api.SkillEnvironmentRequest{Env: map[string]string{"PIP_FIND_LINKS": "/skills/greets/wheels"}})
	if err != nil || !made.Made {
		t.Fatalf("%+v, %v", made, err)
	}
	if got := d.Sh(t, "s", made.Path+"/bin/python -m hello_box"); got != "hello\n" {
		t.Errorf("it says %q", got)
	}
}
