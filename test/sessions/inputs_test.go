// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A session can read its input workspaces, including what others write there meanwhile, and can do nothing else with them: not
// write, not follow a link, not gain by a setuid bit. It has them until it ends, across the end of boxd.
func TestASessionReadsItsInputs(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	space(t, d, "data")
	space(t, d, "results")
	d.NewSession(t, api.SessionRequest{ID: "fills", Workspace: "data"})
	d.Sh(t, "fills", "echo text > file; mkdir dir; echo deep > dir/file; ln -s file link; ln -s dir dirlink; ln -s /etc/passwd out; cp /bin/sh sh; chmod 4755 sh; mkfifo fifo")
	s := d.NewSession(t, api.SessionRequest{ID: "reads", Workspace: "results", Inputs: []api.Input{{Workspace: "data"}, {Workspace: "data", Target: "/srv/a/b"}}})
	if !slices.Equal(s.Inputs, []api.Input{{Workspace: "data", Target: "/mnt/data"}, {Workspace: "data", Target: "/srv/a/b"}}) {
		t.Errorf(`s.Inputs = %+v, want []api.Input{{Workspace: "data", Target: "/mnt/data"}, {Workspace: "data", Target: "/srv/a/b"}}`,
			s.Inputs)
	}
	if got := d.Sh(t, "reads", "cat /mnt/data/file /srv/a/b/dir/file; stat -c '%u %g' /mnt/data/file; echo out > made; ls"); got != "text\ndeep\n1000 1000\nmade\n" {
		t.Errorf(`got %s, want "text\ndeep\n1000 1000\nmade\n"`, got)
	}
	for _, at := range []string{"/mnt/data", "/srv/a/b"} {
		fields := strings.Split(strings.TrimSpace(d.Sh(t, "reads", "grep ' "+at+" ' /proc/self/mounts")), " ")
		options := strings.Split(fields[3], ",")
		for _, want := range []string{"ro", "nosuid", "nodev"} {
			if !slices.Contains(options, want) {
				t.Errorf("%s is mounted %q", at, options)
			}
		}
		for _, try := range []string{"echo x > %/file", "echo x > %/new", "rm -f %/file", "mkdir %/new", "chmod 600 %/file", "mv %/file %/other", "ln %/file made2", "cat %/link", "ls %/dirlink/", "cat %/out", "touch %/file"} {
			if r := d.Result(t, "reads", boxtest.Shell(strings.ReplaceAll(try, "%", at))); r.ExitCode == nil || *r.ExitCode == 0 {
				t.Errorf("%s: r = %s, want r.ExitCode != nil and *r.ExitCode != 0",
					strings.ReplaceAll(try, "%", at), boxtest.Show(r))
			}
		}
		if got := d.Sh(t, "reads", at+"/sh -p -c 'id -u'"); got != "1000\n" {
			t.Errorf(`got %s, want "1000\n"`, got)
		}
	}
	d.Sh(t, "fills", "test ! -e new && cat file && echo more >> file")
	if got := d.Sh(t, "reads", "cat /mnt/data/file"); got != "text\nmore\n" {
		t.Errorf(`got %s, want "text\nmore\n"`, got)
	}
	if err := d.DeleteSession(t.Context(), "fills"); err != nil {
		t.Fatal(err)
	}
	d.Kill()
	d.Restart()
	if list := usersOf(t, d, "data"); !slices.Equal(list, []string{"reads"}) {
		t.Errorf(`list = %v, want []string{"reads"}`, list)
	}
	if err := d.DeleteWorkspace(t.Context(), "data"); boxtest.StatusOf(err) != 409 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	if got := d.Sh(t, "reads", "cat /mnt/data/dir/file"); got != "deep\n" {
		t.Errorf(`got %s, want "deep\n"`, got)
	}
	if err := d.DeleteSession(t.Context(), "reads"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "results"} {
		if err := d.DeleteWorkspace(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}

func TestInputsAreRefusedByField(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "data")
	ask := func(in ...api.Input) error {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Inputs: in})
		return err
	}
	for _, target := range []string{"/workspace", "/workspace/x", "/tmp", "/home/box", "/usr/bin", "/skills/x", "x", "/mnt/../usr", "/mnt/a/", "/proc/x", "/mnt/\x00"} {
		boxtest.Refused(t, ask(api.Input{Workspace: "data", Target: target}), 400, "inputs[0].target")
	}
	boxtest.Refused(t, ask(api.Input{Workspace: "data"}, api.Input{Workspace: "data"}), 400, "inputs[1].target")
	boxtest.Refused(t, ask(api.Input{Workspace: "../data"}), 400, "inputs[0].workspace")
	boxtest.Refused(t, ask(api.Input{Workspace: "data"}, api.Input{Workspace: "none"}), 404, "inputs[1].workspace")
	boxtest.Refused(t, ask(slices.Repeat([]api.Input{{Workspace: "data"}}, 17)...), 400, "inputs")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Inputs: []api.Input{{Workspace: "data", Target: "/mnt/a/b"}}, Mounts: []api.Mount{{Source: "/srv", Target: "/mnt/a", Mode: "rw"}}})
	boxtest.Refused(t, err, 400, "inputs[0].target")
	foreign := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"s","inputs":[{"workspace":"data"}]}`))[0]
	if p := foreign.Problem(t); foreign.Code != 404 || p.Field != "inputs[0].workspace" {
		t.Errorf(`foreign.Code = %d, foreign.Body = %s, want foreign.Code == 404 and p.Field == "inputs[0].workspace"`,
			foreign.Code, foreign.Body)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Inputs: []api.Input{{Workspace: "data"}}})
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Inputs: []api.Input{{Workspace: "data", Target: "/mnt/other"}}})
	if boxtest.StatusOf(err) != 409 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 409", err)
	}
}
