// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// look prints what a program sees of its user and home directory.
const look = `id -un; id -gn; id -u; echo "$HOME $USER $LOGNAME"; eval echo ~; cd && pwd; echo x > here && cat here; stat -c %U .; grep -c :1000: /etc/passwd`

// The user of a session's programs has the name and home of its profile or request, under a read-only and a writable root, and no
// program can replace the home by something else.
func TestAUserHasTheNameAndTheHomeOfItsProfile(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept, `
		[profiles.sandbox]
		user_name = "user"
		home = "/home/user"

		[profiles.closed]
		home = "/root"
		locked = ["user_name", "home"]`)
	d.Warm()
	before := d.Look()
	saw := func(user, home string) string {
		return strings.Join([]string{user, user, "1000", home + " " + user + " " + user, home, home, "x", user, "1", ""}, "\n")
	}
	for id, tc := range map[string]struct {
		req        api.SessionRequest
		user, home string
	}{
		"usual":    {api.SessionRequest{}, "box", "/home/box"},
		"profile":  {api.SessionRequest{Profile: "sandbox"}, "user", "/home/user"},
		"writable": {api.SessionRequest{Profile: "sandbox", ReadOnlyRoot: new(false)}, "user", "/home/user"},
		"disk":     {api.SessionRequest{Profile: "sandbox", HomeOnDisk: new(true)}, "user", "/home/user"},
		"both":     {api.SessionRequest{Profile: "closed", HomeOnDisk: new(true), ReadOnlyRoot: new(false)}, "box", "/root"},
		"closed":   {api.SessionRequest{Profile: "closed"}, "box", "/root"},
		"root":     {api.SessionRequest{Profile: "sandbox", Home: new("/root"), ReadOnlyRoot: new(false)}, "user", "/root"},
		"asked":    {api.SessionRequest{UserName: new("agent-7"), Home: new("/home/A.b_c")}, "agent-7", "/home/A.b_c"},
	} {
		req := tc.req
		req.ID = id
		s := d.NewSession(t, req)
		if s.UserName != tc.user || s.Home != tc.home {
			t.Errorf("%s: user and home are %s and %s, want %s and %s", id, s.UserName, s.Home, tc.user, tc.home)
		}
		if got := d.Sh(t, id, look); got != saw(tc.user, tc.home) {
			t.Errorf("%s: %q, want %q", id, got, saw(tc.user, tc.home))
		}
		const spoil = `rmdir $HOME; mv $HOME /tmp/away; rm -rf /etc/passwd; echo "evil:x:0:0::/:/bin/sh" >> /etc/passwd; echo evil >> /etc/group; ln -sfn /etc $HOME; umount $HOME /etc/passwd; chmod 777 /etc/passwd; id -un; readlink -f ~; grep -c evil /etc/passwd`
		if got := d.Output(t, id, boxtest.Shell(spoil+" || true")); s.ReadOnlyRoot && tc.user != "box" && got != tc.user+"\n"+tc.home+"\n0\n" {
			t.Errorf(`%s: a program has another user name: got %q, want s.ReadOnlyRoot == false or tc.user == "box" or got == tc.user + "\n" + tc.home + "\n0\n"`,
				id, got)
		} else if !s.ReadOnlyRoot && !strings.HasSuffix(got, tc.home+"\n1\n") {
			t.Errorf(`%s: the users of a root that can be written to are not changed: got %q, want s.ReadOnlyRoot == true or got ending with tc.home + "\n1\n"`,
				id, got)
		}
		if got := d.Result(t, id, api.ExecRequest{Argv: []string{"pwd"}, Cwd: tc.home + "/a/b"}); got.Stdout != tc.home+"/a/b\n" {
			t.Errorf(`%s: a directory in the home is not made: got %s, want got.Stdout == tc.home + "/a/b\n"`,
				id, boxtest.Show(got))
		}
	}
	d.Kill()
	d.Restart()
	if got := d.Sh(t, "profile", "rm here; "+look); got != saw("user", "/home/user") {
		t.Errorf(`after a restart: got %q, want saw("user", "/home/user")`, got)
	}
	if _, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "profile", Profile: "sandbox", UserName: new("user"), Home: new("/home/user")}); isNew || err != nil {
		t.Errorf("the same request again: isNew = %v, err = %v, want isNew == false and no error", isNew, err)
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "profile", Profile: "sandbox", UserName: new("box"), Home: new("/root")})
	boxtest.Refused(t, err, http.StatusConflict, "user_name, home")
	for id := range map[string]bool{"usual": true, "profile": true, "writable": true, "disk": true, "both": true, "closed": true, "root": true, "asked": true} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// A request cannot set a home or a name that gains it anything.
func TestNamesAndHomesThatAreMoreAreRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, `
		[profiles.closed]
		locked = ["user_name", "home"]`)
	for _, home := range []string{"", "/", "/etc", "/home", "/home/", "/home/..", "/home/.", "/workspace/..", "/home/../etc", "/home/a/b", "/home/a:b", "/home/a\nroot:x:0:0::/:/bin/sh", "/home/a b", "home/a", "/root/a", "/tmp", "/home/" + strings.Repeat("a", 65)} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Home: &home})
		boxtest.Refused(t, err, http.StatusBadRequest, "home")
	}
	for _, name := range []string{"", "root", "nobody", "a:0:0", "a\nb", "a b", "0", "1a", "-a", "A", "é", "a/b", strings.Repeat("a", 33)} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{UserName: &name})
		boxtest.Refused(t, err, http.StatusBadRequest, "user_name")
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Profile: "closed", UserName: new("user")})
	boxtest.Refused(t, err, http.StatusForbidden, "user_name")
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{Profile: "closed", Home: new("/root")})
	boxtest.Refused(t, err, http.StatusForbidden, "home")
}

// A program can start in any directory that the box user can enter. A missing one is created only under the paths where that has
// always been done, and never with cwd_must_exist; no path is looked up on the host.
func TestProgramsStartInAnyDirectoryOfTheBox(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewSession(t, api.SessionRequest{ID: "w", ReadOnlyRoot: new(false)})
	host := ofHost(t, "/var", nil) // exists on the host only, not in the box
	for _, id := range []string{"s", "w"} {
		d.Sh(t, id, "mkdir -m 0 shut; ln -s /usr/lib lib; ln -s nowhere dangling; ln -s /proc/1/root out; ln -s /etc etc; echo > file; ln -s loop loop")
	}
	for dir, want := range map[string]string{
		"/": "/\n", "/usr/lib": "/usr/lib\n", "/etc": "/etc\n", "/home": "/home\n", "/workspace/lib": "/usr/lib\n", "/workspace/etc": "/etc\n", "/workspace/out": "/\n", "/proc/1/root": "/\n", "/proc/self/cwd": "/\n", "/workspace/new/one": "/workspace/new/one\n",
		"/home/box/x": "/home/box/x\n", "/tmp/x/y": "/tmp/x/y\n",
	} {
		for _, id := range []string{"s", "w"} {
			if got := d.Result(t, id, api.ExecRequest{Argv: []string{"/bin/pwd", "-P"}, Cwd: dir}); got.Stdout != want {
				t.Errorf("%s, %s: got %s, want got.Stdout == %v", id, dir, boxtest.Show(got), want)
			}
		}
	}
	if got := d.Sh(t, "w", "cd /root && stat -c %a . && echo here > f && ls"); got != "700\nf\n" {
		t.Errorf(`/root of a root that can be written to: got %q, want "700\nf\n"`, got)
	}
	failed := func(id string, req api.ExecRequest, errno string) {
		t.Helper()
		req.Argv = []string{"pwd"}
		got := d.Result(t, id, req)
		if got.Status != "start_failed" || got.Failure == nil || got.Failure.Errno != errno || errno == "ENOENT" && got.Failure.Text != `cwd = "`+req.Cwd+`": must be an existing directory (no such file or directory)` {
			t.Errorf("%s, %+v: %s, %+v, want %s", id, req, boxtest.Show(got), got.Failure, errno)
		}
	}
	for _, id := range []string{"s", "w"} {
		for _, dir := range []string{"/nonexist", "/nonexist/x", "/home/user", "/usr/lib/nonexist", host} {
			failed(id, api.ExecRequest{Cwd: dir}, "ENOENT")
		}
		failed(id, api.ExecRequest{Cwd: "/etc/passwd"}, "ENOTDIR")
		failed(id, api.ExecRequest{Cwd: "/proc"}, "EACCES")
		for _, dir := range []string{"/workspace/missing", "/tmp/missing", "/home/box/missing/two"} {
			failed(id, api.ExecRequest{Cwd: dir, CwdMustExist: true}, "ENOENT")
		}
	}
	for dir, errno := range map[string]string{"/workspace/shut": "EACCES", "/workspace/dangling": "ENOENT", "/workspace/file": "ENOTDIR", "/workspace/loop": "ELOOP"} {
		failed("s", api.ExecRequest{Cwd: dir, CwdMustExist: true}, errno)
	}
	for fd := range 64 { // of PID 1
		dir := "/proc/self/fd/" + strconv.Itoa(fd)
		if got := d.Result(t, "s", api.ExecRequest{Argv: []string{"/bin/pwd", "-P"}, Cwd: dir}); got.Status != "start_failed" && got.Stdout != "/\n" {
			t.Errorf(`%s: got %s, want got.Status == "start_failed" or got.Stdout == "/\n"`, dir, boxtest.Show(got))
		}
	}
	if got := d.Sh(t, "s", "ls -d missing nowhere /tmp/missing ~/missing 2>/dev/null; ls -d /home/user /nonexist 2>/dev/null; echo done"); got != "done\n" {
		t.Errorf(`something was made: got %q, want "done\n"`, got)
	}
	if got := d.Sh(t, "w", "ls -d /home/user /nonexist /usr/lib/nonexist 2>/dev/null; echo done"); got != "done\n" {
		t.Errorf(`something was made: got %q, want "done\n"`, got)
	}
	d.NewProcess(t, "s", "p", &api.ProcessRequest{Argv: []string{"pwd"}, Cwd: "/workspace/later", CwdMustExist: true})
	if p := d.Ended(t, "s", "p"); p.Result.Status != "start_failed" || p.Result.Failure.Text != `cwd = "/workspace/later": must be an existing directory (no such file or directory)` {
		t.Errorf("p.Result = %+v, want p.Result.Status == \"start_failed\" and p.Result.Failure.Text == `cwd = \"/workspace/later\": must be an existing directory (no such file or directory)`",
			p.Result)
	}
	_, _, err := d.StartProcess(t.Context(), "s", "p", &api.ProcessRequest{Argv: []string{"pwd"}, Cwd: "/workspace/later"})
	boxtest.Refused(t, err, http.StatusConflict, "cwd_must_exist")
	d.NewProcess(t, "s", "q", &api.ProcessRequest{Argv: []string{"pwd"}, Cwd: "/usr"})
	if p := d.Ended(t, "s", "q"); p.Result.Stdout != "/usr\n" {
		t.Errorf(`p.Result = %+v, want p.Result.Stdout == "/usr\n"`, p.Result)
	}
	for _, dir := range []string{"usr", "/usr/", "/usr/../etc", "/usr\x00", "/./usr"} {
		_, err := d.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"pwd"}, Cwd: dir})
		boxtest.Refused(t, err, http.StatusBadRequest, "cwd")
	}
}
