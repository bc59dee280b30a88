// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// shareOf returns the size of a flood: smaller on slow machines, but at least least.
func shareOf(all, least int64) int64 {
	if share, err := strconv.ParseInt(os.Getenv("ABUSE_FLOOD_SHARE"), 10, 64); err == nil {
		return max(all/share, least)
	}
	return all
}

// margin is how much boxd may grow while a box floods it, in bytes.
const margin = 32 << 20

// written returns how much a process of s1 has written, requested without its output.
func written(t *testing.T, d *boxtest.Daemon, p string) int64 {
	t.Helper()
	list, err := d.Processes(t.Context(), "s1")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.ID == p {
			return s.Output[0].Bytes
		}
	}
	t.Fatalf("no %s in %+v", p, list)
	return 0
}

// flood makes a process write very much with two readers that do not read: the lossless one blocks the process until it
// disconnects; the other never does, and is told what it missed.
func flood(t *testing.T, size int64, req *api.ProcessRequest) {
	size = shareOf(size, 30_000_000)
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req.Command = new(fmt.Sprintf("%s until [ -e go ]; do sleep 0.02; done; head -c %d /dev/zero", *req.Command, size))
	d.NewProcess(t, "s1", "p", req)
	slow, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{})
	lossless, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Lossless: new(true)})
	before := boxtest.Memory(t, d.PID(), "VmRSS")
	d.Sh(t, "s1", "touch go")
	n, same := int64(0), 0
	boxtest.Eventually(t, "the flooding program has stopped writing", func() bool {
		last := n
		if n = written(t, d, "p"); n != last {
			same = 0
		}
		same++
		return n > 0 && same > 50
	})
	if n > 8<<20 {
		t.Errorf("with a lossless reader that does not read %d bytes were written", n)
	}
	if state, err := d.Process(t.Context(), "s1", "p", 0); err != nil || state.State != "running" || state.Readers != 2 {
		t.Errorf(`state = %+v, err = %v, want no error and state.State == "running" and state.Readers == 2`, state, err)
	}
	if now := boxtest.Memory(t, d.PID(), "VmRSS"); now > before+margin {
		t.Errorf("held up: boxd has grown from %d to %d bytes", before, now)
	}
	_ = lossless.WS.CloseNow()
	for n < size { // which may take long
		last := n
		boxtest.Eventually(t, "the program writes on without the lossless reader", func() bool {
			n = written(t, d, "p")
			return n > last
		})
	}
	came, missing, exit := drain(t, slow)
	if came+missing != size || missing < size/2 || exit.Status != "exited" || exit.Output[0].Bytes != uint64(size) {
		t.Errorf("%d bytes arrived and %d were reported missing, of %d; %+v", came, missing, size, exit)
	}
	late, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Replay: true})
	came, missing, _ = drain(t, late)
	if came+missing != size || came > 8<<20 || a.Stdout != 0 {
		t.Errorf("afterwards %d bytes arrived and %d were reported missing, of %d", came, missing, size)
	}
	if now := boxtest.Memory(t, d.PID(), "VmRSS"); now > before+margin {
		t.Errorf("read: boxd has grown from %d to %d bytes", before, now)
	}
}

func TestT40AFloodOfStdout(t *testing.T) {
	t.Parallel()
	flood(t, 10_000_000_000, boxtest.ShellProcess(""))
}

func TestT40AFloodOfATerminal(t *testing.T) {
	t.Parallel()
	req := boxtest.ShellProcess("stty raw -echo;")
	req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
	flood(t, 300_000_000, req)
}

// typing types into the program's own terminal, and makes requests to the console behind it.
const typing = `
import errno, fcntl, os, struct, sys, termios
print(os.ttyname(0), os.isatty(1), os.isatty(2))
def call(name, request, argument):
    for fd in 0, os.open("/dev/tty", os.O_RDWR):
        try:
            fcntl.ioctl(fd, request, argument)
            print(name, "DONE")
        except OSError as e:
            print(name, errno.errorcode[e.errno])
call("TIOCSTI", 0x5412, b"!")
call("TIOCSTI high", 0x5412 | 1 << 32, b"!")
for code in 2, 3, 4, 11, 12, 13:
    call("TIOCLINUX %d" % code, 0x541C, struct.pack("b", code) + bytes(63))
call("TIOCCONS", 0x541D, 0)
call("TIOCSETD", 0x5423, struct.pack("i", 1))
`

// A program with a terminal cannot type into it, so it cannot send input to the shell of an attached client; nor can it reach a
// console. That logs are not interpreted by a terminal is TestLogsDoNotSpeakToTheTerminal of cmd/boxctl.
func TestT46ATerminalOfABoxCannotBeTypedInto(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("/usr/bin/python3 -c '" + typing + "'; read -t 1 x; echo \"left: <$x>\"")
	req.Command, req.Language, req.Code = nil, "bash", req.Command
	req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
	d.NewProcess(t, "s1", "p", req)
	text := strings.ReplaceAll(d.Ended(t, "s1", "p").Result.Stdout, "\r\n", "\n")
	if !strings.HasPrefix(text, "/dev/pts/0 True True\n") || !strings.HasSuffix(text, "left: <>\n") || strings.Count(text, "TIOC") < 18 {
		t.Errorf(`text = %s, want text starting with "/dev/pts/0 True True\n" and text ending with "left: <>\n" and strings.Count(text, "TIOC") >= 18`,
			text)
	}
	for line := range strings.Lines(text) {
		name, result, ok := strings.Cut(strings.TrimSpace(line), " E")
		if strings.HasPrefix(line, "TIOC") && (!ok || !strings.Contains("PERM IO ACCES INVAL NOTTY", result)) {
			t.Errorf(`%s: line = %s, want line not starting with "TIOC" or ok == true and "PERM IO ACCES INVAL NOTTY" containing %q`,
				name, line, result)
		}
	}
}
