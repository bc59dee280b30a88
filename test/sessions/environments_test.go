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
		t.Fatalf(`all = %+v, want e.Path == all[1].Path and e.Made != all[1].Made and e.Path starting with "/workspace/.skill-envs/greets/" and e.Python != ""`,
			all)
	}
	if got := d.Sh(t, "b", e.Path+"/bin/python -c 'import sys; print(sys.prefix)'"); got != e.Path+"\n" {
		t.Errorf(`it is %q, want e.Path + "\n"`, got)
	}
	d.Sh(t, "a", "rm "+e.Path+"/.boxd-environment; touch "+e.Path+"/half")
	if again, err := c.MakeSkillEnvironment(t.Context(), "a", "greets", nil); err != nil || !again.Made || again.Path != e.Path {
		t.Errorf("after half: again = %+v, err = %v, want no error and again.Made == true and again.Path == %v",
			again, err, e.Path)
	}
	if got := d.Sh(t, "a", "ls -A "+e.Path+" | grep -c half; ls -A /workspace/.skill-envs/greets | wc -l; cd /workspace; git status --porcelain 2>/dev/null; true"); got != "0\n2\n" {
		t.Errorf(`left: got %q, want "0\n2\n"`, got)
	}
	if err := rewriteSkill(t, d, "greets", "other"); err != nil {
		t.Fatal(err)
	}
	activate(t, d, "b", "greets", false)
	if other, err := c.MakeSkillEnvironment(t.Context(), "b", "greets", nil); err != nil || !other.Made || other.Path == e.Path {
		t.Errorf("of another version: other = %+v, err = %v, want no error and other.Made == true and other.Path != %v",
			other, err, e.Path)
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
		t.Errorf(`without a file: e.Problem = %+v, want e.Status == 409 and e.Field == "skill" and e.Detail containing "requirements.txt"`,
			e.Problem)
	}
	_, err = c.MakeSkillEnvironment(t.Context(), "s", "greets", nil)
	e := problemOf(t, err)
	if d.Result(t, "s", boxtest.Shell("python3 -I -c 'import pip'")).Stderr != "" && d.Result(t, "s", boxtest.Shell("python3 -I -c 'import ensurepip'")).Stderr != "" {
		if e.Status != 501 || !strings.Contains(e.Hint, "python3-pip") {
			t.Errorf(`without pip: e.Problem = %+v, want e.Status == 501 and e.Hint containing "python3-pip"`,
				e.Problem)
		}
		return
	}
	if e.Status != 409 || !strings.Contains(e.Detail, "hello-box") || !strings.Contains(e.Hint, "network") {
		t.Errorf(`without the package: e.Problem = %+v, want e.Status == 409 and e.Detail containing "hello-box" and e.Hint containing "network"`,
			e.Problem)
	}
	if got := d.Sh(t, "s", "find /workspace/.skill-envs -name pyvenv.cfg"); got != "" {
		t.Errorf(`left: got %q, want ""`, got)
	}
	made, err := c.MakeSkillEnvironment(t.Context(), "s", "greets", &api.SkillEnvironmentRequest{Env: map[string]string{"PIP_FIND_LINKS": "/skills/greets/wheels"}})
	if err != nil || !made.Made {
		t.Fatalf("made = %+v, err = %v, want no error and made.Made == true", made, err)
	}
	if got := d.Sh(t, "s", made.Path+"/bin/python -m hello_box"); got != "hello\n" {
		t.Errorf(`the program prints %q, want "hello\n"`, got)
	}
}
