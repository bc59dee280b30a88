// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/relay/api"
)

// python returns a shell line that runs a Python program.
func python(program string) string { return "exec /usr/bin/python3 - <<'END'\n" + program + "\nEND" }

// rights sends descriptors over everything that a program was given, and looks for a socket that leads out of the box.
const rights = `
import array, errno, os, socket, subprocess
fd = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY)
message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd, 0, 1, 2] * 50))]
for n in 0, 1, 2:
    kind = os.readlink("/proc/self/fd/%d" % n).split(":")[0]
    s, _ = socket.socketpair()
    os.dup2(n, s.fileno())
    try:
        s.sendmsg([b"x"], message)
        result = "SENT"
    except OSError as e:
        result = errno.errorcode[e.errno]
    s.close()
    _.close()
    print(n, kind, result)
others = [os.readlink("/proc/self/fd/" + f) for f in os.listdir("/proc/self/fd") if int(f) > 2 and int(f) != fd and os.path.exists("/proc/self/fd/" + f)]
print("others", others)
print("sockets", open("/proc/net/unix").read().count("\n") - 1)
print("files", [os.path.join(d, f) for d, _, names in os.walk("/") if not d.startswith("/proc") for f in names if os.path.exists(os.path.join(d, f)) and os.stat(os.path.join(d, f)).st_mode & 0o170000 == 0o140000])
`

// A program has pipes or a terminal and no socket to boxd: it cannot send descriptors to boxd.
func TestT17NoDescriptorCanBeSentToBoxd(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for name, tc := range map[string]struct {
		kinds string
		req   api.ProcessRequest
	}{
		"pipes":    {"pipe", api.ProcessRequest{Stdin: true}},
		"terminal": {"/dev/pts/0", api.ProcessRequest{Terminal: &api.Terminal{Rows: 24, Cols: 80}}},
	} {
		tc.req.Command = new("/usr/bin/python3 -c '" + rights + "'")
		d.NewProcess(t, "s1", name, &tc.req)
		got := strings.ReplaceAll(d.Ended(t, "s1", name).Result.Stdout, "\r\n", "\n")
		want := fmt.Sprintf("0 %[1]s ENOTSOCK\n1 %[1]s ENOTSOCK\n2 %[1]s ENOTSOCK\nothers []\nsockets 0\nfiles []\n", tc.kinds)
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// receive receives descriptors from another program of its box, over an abstract name and over a path.
const receive = `
import array, os, socket, sys
for name in "\0rights", "/workspace/socket":
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(name)
    s.listen()
    print("listening", flush=True)
    c, _ = s.accept()
    for round in range(100):
        _, ancillary, _, _ = c.recvmsg(1, socket.CMSG_SPACE(4))
        a = array.array("i", ancillary[0][2])
        found = sorted(os.listdir(a[0]))
        os.close(a[0])
    print(found, flush=True)
`

const send = `
import array, os, socket, sys
for name in "\0rights", "/workspace/socket":
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        try:
            s.connect(name)
            break
        except OSError as e:
            if "--once" in sys.argv:
                print(type(e).__name__)
                sys.exit()
    fd = os.open("/workspace/dir", os.O_RDONLY | os.O_DIRECTORY)
    for round in range(100):
        s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
`

// Descriptors sent between programs of a box stay there: another box cannot reach the same name, and boxd gets nothing.
func TestT17DescriptorsStayInTheBox(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	d.Sh(t, "s1", "mkdir dir; touch dir/mine")
	d.Sh(t, "s2", "mkdir dir")
	before := settled(t, d)
	d.NewProcess(t, "s1", "receiver", boxtest.ShellProcess(python(receive)))
	awaitOutput(t, d, "receiver", "listening")
	if got := d.Sh(t, "s2", "/usr/bin/python3 - --once <<'END'\n"+send+"\nEND"); got != "ConnectionRefusedError\n" {
		t.Errorf(`another box: got %q, want "ConnectionRefusedError\n"`, got)
	}
	d.Sh(t, "s1", python(send))
	if got, want := d.Ended(t, "s1", "receiver").Result.Stdout, strings.Repeat("listening\n['mine']\n", 2); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := d.DeleteProcess(t.Context(), "s1", "receiver"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

// hoard takes all descriptors and terminals it can get, and keeps them until a file exists.
const hoard = `
import errno, os, signal, time
files, terminals = [], []
try:
    while True:
        terminals.append(os.openpty())
except OSError as e:
    print("terminals", len(terminals), errno.errorcode[e.errno], flush=True)
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e:
    print("files", len(files) > 100, errno.errorcode[e.errno], flush=True)
while not os.path.lexists("/workspace/go"):
    time.sleep(0.02)
`

// A box can use up its own descriptors and terminals only.
func TestT37DescriptorsRunOutInTheBoxAlone(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	terminal := func() *api.ProcessRequest {
		req := boxtest.ShellProcess("tty")
		req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
		return req
	}
	names := []string{}
	for i := range 4 { // together they have all descriptors of the box user
		names = append(names, fmt.Sprint("hoard", i))
		d.NewProcess(t, "s1", names[i], boxtest.ShellProcess(python(hoard)))
		awaitOutput(t, d, names[i], "files True EMFILE")
		if i == 0 {
			awaitOutput(t, d, names[i], "terminals 6")
			awaitOutput(t, d, names[i], "ENOSPC")
		}
	}
	if state, _, err := d.StartProcess(t.Context(), "s1", "terminal", terminal()); err != nil || state.State != "ended" || state.Result.Status != "start_failed" {
		t.Errorf("one terminal more than there are: %+v, %v", state, err)
	}
	d.Sh(t, "s1", "true") // pipes are still available
	for i := range 3 {    // as are terminals in another box
		if r, isNew, err := d.StartProcess(t.Context(), "s2", fmt.Sprint(i), terminal()); err != nil || !isNew {
			t.Errorf("in another box: r = %+v, err = %v, want no error and isNew == true", r, err)
		} else if end, err := d.Process(t.Context(), "s2", fmt.Sprint(i), 5*time.Minute); err != nil || end.Result == nil || !strings.HasPrefix(end.Result.Stdout, "/dev/pts/") {
			t.Errorf(`in another box: end = %+v, err = %v, want no error and end.Result != nil and end.Result.Stdout starting with "/dev/pts/"`,
				end, err)
		}
	}
	d.Sh(t, "s1", "touch go")
	for _, p := range names {
		d.Ended(t, "s1", p)
	}
	d.NewProcess(t, "s1", "again", terminal())
	if end := d.Ended(t, "s1", "again"); !strings.HasPrefix(end.Result.Stdout, "/dev/pts/") {
		t.Errorf(`afterwards: end = %+v, want end.Result.Stdout starting with "/dev/pts/"`, end)
	}
	for _, s := range []string{"s1", "s2"} {
		if err := d.DeleteSession(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// Terminals that boxd itself creates for a box count against the same limit.
func TestT37TerminalsOfManyProcesses(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[processes]\nmax = 80\n")
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Pids: new(200)}})
	got, failed := 0, 0
	for i := range 70 {
		req := boxtest.ShellProcess("read x")
		req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
		p := fmt.Sprint(i)
		_, _, err := d.StartProcess(t.Context(), "s1", p, req)
		state, perr := d.Process(t.Context(), "s1", p, 0)
		switch {
		case err != nil || perr != nil:
			t.Errorf("%d: err = %v, perr = %v, want no error and no error", i, err, perr)
		case state.State == "running":
			got++
		case state.Result != nil && state.Result.Failure != nil && state.Result.Failure.Item == "terminal":
			failed++
		default:
			t.Errorf("%d: %+v", i, state)
		}
	}
	if got != 64 || failed != 70-64 {
		t.Errorf("%d processes have a terminal, %d have none", got, failed)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	d.NothingLeft(before)
}

// TestT37EndedProgramsHoldNoTerminals starts more of them in turn than a box can have at a time.
func TestT37EndedProgramsHoldNoTerminals(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for i := range 70 {
		req := boxtest.ShellProcess("tty")
		req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
		p := fmt.Sprint(i)
		d.NewProcess(t, "s1", p, req)
		if end := d.Ended(t, "s1", p); !strings.HasPrefix(end.Result.Stdout, "/dev/pts/") {
			t.Fatalf(`%d: end.Result.Stdout = %q, end.Result.Failure = %+v, want end.Result.Stdout starting with "/dev/pts/"`,
				i, end.Result.Stdout, end.Result.Failure)
		}
	}
}

// settled returns the traces of a daemon with sessions once it has nothing more to prefork.
func settled(t *testing.T, d *boxtest.Daemon) (now boxtest.Traces) {
	t.Helper()
	list, err := d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	d.AwaitPrefork(len(list))
	boxtest.Eventually(t, "no program runs in a box", func() bool {
		now = d.Look()
		return len(now.Processes) == len(list)+1
	})
	return now
}
