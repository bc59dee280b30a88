// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// A process runs as root after every restart: by its policy, by the next boxd, or by the start of its session. Its files keep their
// owners, and operations that have to see all files can read them.
func TestAProcessOfRootStaysOne(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true)})
	asRoot := func(line string) string {
		t.Helper()
		return d.Output(t, "s", api.ExecRequest{Argv: []string{"/bin/sh", "-euc", line}, User: "root"})
	}
	req := api.ProcessRequest{
		Command: new("umask 077; id -u >> /workspace/ids; exec sleep 1000"), User: "root", Cwd: "/",
		Restart: &api.Restart{Policy: "always", Delay: new(quantity.Duration(10 * time.Millisecond))},
	}
	p := d.NewProcess(t, "s", "server", &req)
	starts := 0
	started := func(what string) {
		t.Helper()
		starts++
		boxtest.Eventually(t, what, func() bool { return asRoot("cat /workspace/ids 2>/dev/null || true") == strings.Repeat("0\n", starts) })
	}
	started("it runs as root")
	if _, _, err := d.StartProcess(t.Context(), "s", "server", &api.ProcessRequest{Command: req.Command, Cwd: "/", Restart: req.Restart}); boxtest.Refused(t, err, http.StatusConflict, "user") == nil {
		t.Error(err)
	}
	if err := d.SignalProcess(t.Context(), "s", "server", "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	started("it runs as root again")
	d.Kill()
	d.Restart()
	restored(t, d, "s", "server", "running")
	if now, err := d.Process(t.Context(), "s", "server", 0); err != nil || now.ID != p.ID {
		t.Errorf("now = %+v, err = %v, want no error and now.ID == %v", now, err, p.ID)
	}
	if err := d.SignalProcess(t.Context(), "s", "server", "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	started("the next boxd runs it as root")

	asRoot(`umask 077; mkdir /workspace/closed /usr/local/closed; echo kept > /workspace/closed/file; echo kept > /usr/local/closed/file; chown 33:33 /workspace/closed/file; echo home > ~/home; echo user > /home/box/roots`)
	if got := d.Sh(t, "s", "cat /workspace/closed/file /usr/local/closed/file /home/box/roots 2>&1 || true"); strings.Count(got, "ermission denied") != 3 {
		t.Errorf(`the box user reads %q, want strings.Count(got, "ermission denied") == 3`, got)
	}
	if got := archiveOf(t, d, "s", "/workspace"); !strings.Contains(got, "closed/file=kept") {
		t.Errorf(`an archive has %q, want got containing "closed/file=kept"`, got)
	}
	diff, err := d.DiffRoot(t.Context(), "s", &api.RootDiff{})
	if text, _ := json.Marshal(diff.Created); err != nil || !strings.Contains(string(text), `"/usr/local/closed/file"`) || diff.Unreadable != 0 {
		t.Errorf("changes: text = %s, diff.Counts = %+v, err = %v, want no error and text containing `\"/usr/local/closed/file\"` and diff.Unreadable == 0",
			text, diff.Counts, err)
	}
	is, err := d.Definition(t.Context(), "s", false)
	if err != nil || !strings.Contains(string(is.Processes["server"]), `"user":"root"`) {
		t.Errorf("the definition: is.Processes[\"server\"] = %s, err = %v, want no error and is.Processes[\"server\"] containing `\"user\":\"root\"`",
			is.Processes["server"], err)
	}

	stop(t, d, "s")
	if got := archiveOf(t, d, "s", "/workspace"); !strings.Contains(got, "closed/file=kept") {
		t.Errorf(`an archive of the stopped session has %q, want got containing "closed/file=kept"`, got)
	}
	if _, err := d.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	started("the session runs it as root")
	if got := asRoot("cat /workspace/closed/file /usr/local/closed/file ~/home /home/box/roots; stat -c %u:%a /workspace/closed /workspace/closed/file /usr/local/closed"); got != "kept\nkept\nhome\nuser\n0:700\n33:600\n0:700\n" {
		t.Errorf(`after a stop: got %q, want "kept\nkept\nhome\nuser\n0:700\n33:600\n0:700\n"`, got)
	}
	if _, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{}); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "s", "ls -d /usr/local/closed 2>&1 || true"); !strings.Contains(got, "No such file") {
		t.Errorf(`not undone: got %q, want got containing "No such file"`, got)
	}
	if diff, err := d.DiffRoot(t.Context(), "s", &api.RootDiff{}); err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("undone: diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{}", diff, err)
	}
}

// Root adds users, and writes to files of other users in /etc, also on a host that forbids root that in sticky directories
// (fs.protected_regular). Links of /etc may be replaced: replacements stay, removed links are restored at the next start, and a
// discard restores all.
func TestRootChangesEtc(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	s := d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false)})
	asRoot := func(line string) string {
		t.Helper()
		return d.Output(t, "s", api.ExecRequest{Argv: []string{"/bin/sh", "-euc", line}, User: "root", Cwd: "/"})
	}
	if got := asRoot("echo '# mine' >> /etc/nsswitch.conf; tail -n1 /etc/nsswitch.conf; useradd -m -U -s /bin/sh added; getent passwd added | cut -d: -f1,6,7; stat -c %U /home/added"); got != "# mine\nadded:/home/added:/bin/sh\nadded\n" {
		t.Errorf(`got %q, want "# mine\nadded:/home/added:/bin/sh\nadded\n"`, got)
	}
	// In the directories at the top, the two follow each other's symbolic links, which fs.protected_symlinks forbids where everybody can write.
	d.Sh(t, "s", "ln -s /usr/bin /opt/users; ln -s /usr/bin /users; cd /bin")
	asRoot("ls -d /lib/ /opt/users/ /users/ >&2; cd /bin; ln -s /usr/lib /opt/roots; ln -s /usr/lib /roots; ln -s /usr/lib /etc/roots; rm -f /opt/users")
	if got := d.Sh(t, "s", "ls -d /opt/roots/ /roots/ /etc/roots/; ls /users/true; id -nG root; touch /opt/mine /var/mine /mine"); got != "/etc/roots/\n/opt/roots/\n/roots/\n/users/true\nroot box\n" {
		t.Errorf(`got %q, want "/etc/roots/\n/opt/roots/\n/roots/\n/users/true\nroot box\n"`, got)
	}
	if s.Enforcement["pids"] != "rlimit" { // without cgroups root cannot become another user
		asRoot("setpriv --reuid=added --regid=added --init-groups sh -c '! touch /etc/x; ! touch /x; ! touch /opt/x; ! touch /home/x; ! rm /etc/nsswitch.conf'")
		if got := asRoot("setpriv --reuid=added --regid=added --init-groups sh -c 'id -un; cd ~added; touch own; stat -c %U own'"); got != "added\nadded\n" {
			t.Errorf(`the user that it has added: got %q, want "added\nadded\n"`, got)
		}
	}
	asRoot("userdel -r added; ! getent passwd added")
	if _, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{}); err != nil {
		t.Fatal(err)
	}
	const look = "cat /etc/hosts; cat /etc/hostname; readlink /etc/hosts /etc/hostname /etc/resolv.conf /etc/mtab || true"
	fresh := d.Sh(t, "s", look)
	changes := func(what, want string) {
		t.Helper()
		diff, err := d.DiffRoot(t.Context(), "s", &api.RootDiff{})
		var paths []string
		for _, f := range diff.Created {
			paths = append(paths, "+"+f.Path)
		}
		for _, f := range diff.Changed {
			paths = append(paths, "*"+f.Path)
		}
		for _, f := range diff.Removed {
			paths = append(paths, "-"+f.Path)
		}
		if got := strings.Join(paths, " "); err != nil || got != want {
			t.Errorf("%s, the changes: %q, %v, want %q", what, got, err, want)
		}
	}
	changes("undone", "")
	d.Sh(t, "s", "sed -i s/localhost/here/ /etc/hosts; rm /etc/mtab; ! mv /etc /moved; ! rm -r /etc/../var/run")
	asRoot("mv /etc/hostname /etc/was; rm /etc/resolv.conf; mkdir /etc/resolv.conf; echo x > /etc/resolv.conf/x")
	stop(t, d, "s")
	if _, err := d.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Sh(t, "s", "cat /etc/hosts; readlink /etc/hostname /etc/mtab; ls /etc/resolv.conf"), "../run/box/hostname\n../proc/self/mounts\nx\n"; !strings.Contains(got, "\there ") || !strings.HasSuffix(got, want) {
		t.Errorf(`after a start: got %q, want got containing "\there " and got ending with %q`, got, want)
	}
	changes("after a start", "+/etc/resolv.conf/x +/etc/was */etc/hosts */etc/resolv.conf")
	if _, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{Paths: []string{"/etc/hosts"}}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "readlink /etc/hosts"); got != "../run/box/hosts\n" {
		t.Errorf(`one link is undone: got %q, want "../run/box/hosts\n"`, got)
	}
	d.Sh(t, "s", "rm /etc/mtab")
	if done, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{}); err != nil || done != (api.RootDiscarded{Removed: 1, Restored: 2}) {
		t.Errorf("done = %+v, err = %v, want no error and done == api.RootDiscarded{Removed: 1, Restored: 2}",
			done, err)
	}
	if got := d.Sh(t, "s", look); got != fresh {
		t.Errorf("undone it is %q, and was %q, want got == fresh", got, fresh)
	}
	changes("all undone", "")
}

// Files that root has given away or closed are restored: by a discard, by a request of the owner, and at the next start.
func TestWhatRootHasClosedIsOpened(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	dir := ofHost(t, "/usr/local", map[string]fs.FileMode{"file": 0o644, "sub/file": 0o600, "removed/file": 0o644, "groups": 0o644})
	if err := errors.Join(os.Lchown(dir+"/groups", 0, 50), os.Symlink("file", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true)})
	asRoot := func(line string) {
		t.Helper()
		d.Output(t, "s", api.ExecRequest{Argv: []string{"/bin/sh", "-euc", line}, User: "root", Cwd: "/"})
	}
	owners := func() string {
		return d.Sh(t, "s", "cd "+dir+"; stat -c %u:%g . file sub link removed removed/file groups")
	}
	was := owners()
	asRoot("cd " + dir + "; chown 33:33 file sub groups; chown -h 33:33 link; rm -r removed")
	diff, err := d.DiffRoot(t.Context(), "s", &api.RootDiff{})
	if err != nil || diff.Counts != (api.ChangeCounts{Changed: 4, Removed: 1}) {
		t.Errorf("diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{Changed: 4, Removed: 1}",
			diff, err)
	}
	if _, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{}); err != nil {
		t.Fatal(err)
	}
	if now := owners(); now != was {
		t.Errorf("they belonged to %q, and now to %q", was, now)
	}
	d.Sh(t, "s", "cd "+dir+"; echo more >> file; echo more >> removed/file; rm -r removed sub")

	d.Sh(t, "s", "echo kept > file")
	asRoot("for at in /workspace /home/box; do chown 33:33 $at; chmod 0 $at; done")
	if got := archiveOf(t, d, "s", "/workspace"); !strings.Contains(got, "file=kept") {
		t.Errorf(`a closed workspace is %q, want got containing "file=kept"`, got)
	}
	if err := d.ChmodFile(t.Context(), "s", &api.FileChmod{Path: "/workspace", Mode: "755"}); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "s", "cat file"); got != "kept\n" {
		t.Errorf(`opened by its owner: got %q, want "kept\n"`, got)
	}
	asRoot("mkdir -m 700 /opt/own; chmod 700 /workspace /home/box")
	if got := d.Output(t, "s", api.ExecRequest{Argv: []string{"pwd"}, User: "root", Cwd: "/opt/own"}); got != "/opt/own\n" {
		t.Errorf(`in a directory of its own: got %q, want "/opt/own\n"`, got)
	}
	if r := d.Result(t, "s", api.ExecRequest{Argv: []string{"no-such-program"}, User: "root", Cwd: "/"}); r.Failure == nil || r.Failure.Errno != "ENOENT" {
		t.Errorf(`a missing program: r = %s, want r.Failure != nil and r.Failure.Errno == "ENOENT"`,
			boxtest.Show(r))
	}
	stop(t, d, "s")
	if _, err := d.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "echo more >> file; echo x > ~/x; cat file ~/x; stat -c %u:%g . ~"); got != "kept\nmore\nx\n1000:1000\n1000:1000\n" {
		t.Errorf(`after a start: got %q, want "kept\nmore\nx\n1000:1000\n1000:1000\n"`, got)
	}
}

// A policy whose tools lack root forbids it, and nothing else.
func TestAPolicyForbidsRoot(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[policy.ci]\nprincipals = [\"uid:4242\"]\ntools = [\"exec\", \"files\", \"processes\"]\n")
	asRoot := func(user string) string {
		return boxtest.Request("POST", "/v1/sessions/s/exec", `{"argv":["id","-u"],"user":"`+user+`"}`)
	}
	all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"s","read_only_root":false}`), asRoot("root"), asRoot(""), boxtest.Request("POST", "/v1/sessions/s/fs/diff", `{}`))
	denied(t, all[1], http.StatusForbidden, "policy", "policy.ci.tools")
	if all[2].Code != http.StatusOK || !strings.Contains(string(all[2].Body), `"stdout":"1000\n"`) || all[3].Code != http.StatusOK {
		t.Errorf("all[2].Body = %s, all[3].Body = %s, want all[2].Code == 200 and all[2].Body containing `\"stdout\":\"1000\\n\"` and all[3].Code == 200",
			all[2].Body, all[3].Body)
	}
}

// Root has a terminal and streams as everybody has, and a time limit ends it with all that it has started.
func TestRootIsLimitedAsOthersAre(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1", ReadOnlyRoot: new(false)})
	const others = `import os, time
if os.path.exists("/sys/fs/cgroup/cgroup.procs"): os.setgroups([]); os.setgid(33); os.setuid(33)
print("up", flush=True); time.sleep(1000)`
	r := d.Result(t, "s1", api.ExecRequest{
		Command: new("(setsid sh -c 'exec sleep 1000' &); (setsid python3 -c '" + others + "' &); sleep 1000"), User: "root", Timeout: new(quantity.Duration(20 * time.Second)),
	})
	if r.Status != "timed_out" || r.Stdout != "up\n" {
		t.Errorf(`r = %s, want r.Status == "timed_out" and r.Stdout == "up\n"`, boxtest.Show(r))
	}
	for _, as := range []string{"", "os.setgid(33); os.setuid(33); "} { // a process may see those processes that it could trace
		const list = `
for f in glob.glob("/proc/[0-9]*/comm"):
    try: print(open(f).read())
    except OSError: pass
`
		boxtest.Eventually(t, "no program is left", func() bool { // one that was killed may be dying when its group is empty
			got := d.Result(t, "s1", api.ExecRequest{Argv: []string{"python3", "-c", "import os, glob\ntry: " + as + "pass\nexcept OSError: pass" + list}, User: "root"})
			return got.ExitCode != nil && *got.ExitCode == 0 && !strings.Contains(got.Stdout, "sleep") && strings.Count(got.Stdout, "python3") == 1
		})
	}
	p := d.NewProcess(t, "s1", "t", &api.ProcessRequest{Argv: []string{"sh", "-c", "tty; echo > $(tty); id -u; exec sleep 1000"}, User: "root", Terminal: &api.Terminal{Rows: 24, Cols: 80}})
	boxtest.Eventually(t, "the terminal belongs to root of the box", func() bool {
		logs := logsOf(t, d, p.ID, 0)
		return strings.Contains(logs, "/dev/pts/") && strings.Contains(logs, "0\r\n")
	})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

// A session starts again, whatever its programs have put in the place of the files of users and of the links that boxd has in /etc.
func TestASessionStartsWhateverIsInItsEtc(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), UserName: new("user"), Home: new("/home/user")})
	for what, make := range map[string]string{
		"nothing":      "",
		"a socket":     `python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $f`,
		"a pipe":       "mkfifo $f",
		"a directory":  "mkdir $f; touch $f/x",
		"a link":       "ln -s /proc/1/environ $f",
		"a long file":  "head -c 2M /dev/zero > $f",
		"a closed one": `printf 'user:x:1000:1000::/:/bin/sh\n' > $f; chmod 0 $f`,
		"one of root":  `echo root:x:0: > $f; chown 0:0 $f; chmod 600 $f`,
	} {
		line := "cd /etc; rm -rf passwd group hosts hostname mtab resolv.conf; for f in passwd group hosts hostname mtab resolv.conf; do " + make + "\n:; done"
		if r := d.Result(t, "s", api.ExecRequest{Argv: []string{"/bin/sh", "-euc", line}, User: "root", Cwd: "/"}); r.ExitCode == nil || *r.ExitCode != 0 {
			t.Errorf("%s: r = %s, want r.ExitCode != nil and *r.ExitCode == 0", what, boxtest.Show(r))
		}
		stop(t, d, "s")
		if _, err := d.StartSession(t.Context(), "s"); err != nil {
			t.Fatalf("with %s: %v", what, err)
		}
		// A mount would keep root from replacing a file of users, and a discard from restoring it.
		if got := d.Sh(t, "s", "grep -c ' /etc/' /proc/self/mountinfo || true"); got != "0\n" {
			t.Errorf(`with %s, mounts in /etc: got %q, want "0\n"`, what, got)
		}
	}
	if _, err := d.DiscardRoot(t.Context(), "s", &api.RootDiscard{}); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "s", "id -un; head -n1 /etc/hosts"); got != "user\n127.0.0.1\tlocalhost s\n" {
		t.Errorf(`undone: got %q, want "user\n127.0.0.1\tlocalhost s\n"`, got)
	}
}
