// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// bareKeeper is a keeper without a boxd.
type bareKeeper struct {
	*client.Keeper
	cfg client.KeeperConfig
}

func startKeeper(t *testing.T) *bareKeeper {
	t.Helper()
	boxtest.RequireRoot(t)
	dir, bin := boxtest.TempDir(t), boxtest.Programs(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	base, count := boxtest.IDs(t)
	k := &bareKeeper{cfg: client.KeeperConfig{
		KeeperConfig: isolation.KeeperConfig{
			RunDir: dir, StateDir: state, BoxInit: filepath.Join(bin, "boxinit"), IDBase: base, IDCount: count, IDLock: filepath.Join(dir, "ids"),
		},
		Program: filepath.Join(bin, "boxkeeper"), Stderr: os.Stderr, Log: slog.New(slog.DiscardHandler),
	}}
	k.connect(t)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func (k *bareKeeper) connect(t *testing.T) {
	t.Helper()
	var err error
	if k.Keeper, err = client.StartKeeper(t.Context(), k.cfg); err != nil {
		t.Fatal(err)
	}
}

const bareKey = "d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0"

// bareBox starts a box with a keeper and no boxd.
func bareBox(t *testing.T) *client.Box {
	t.Helper()
	return startKeeper(t).launch(t)
}

func (k *bareKeeper) launch(t *testing.T) *client.Box {
	t.Helper()
	box, err := k.Launch(t.Context(), &isolation.Spec{
		Key: bareKey, Hostname: "box", Scratch: isolation.Scratch{Bytes: 64 << 20, Inodes: 10_000}, ManagedWork: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// durable starts a durable program from a shell script.
func durable(t *testing.T, box *client.Box, script string, change func(*isolation.Command, *client.Files)) *client.Program {
	t.Helper()
	cmd := &isolation.Command{
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "TERM=dumb"}, Dir: isolation.Workspace, ScriptArg: -1,
		Timeout: 10 * time.Minute, Output: isolation.Output{Head: 1 << 10, Tail: 64 << 10}, Durable: true,
	}
	var files client.Files
	if change != nil {
		change(cmd, &files)
	}
	p, err := box.Start(cmd, files)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func withStdin(c *isolation.Command, _ *client.Files) { c.Stdin = isolation.StdinPipe }

func withTerminal(c *isolation.Command, _ *client.Files) {
	c.Stdin, c.Terminal = isolation.StdinPipe, &isolation.Terminal{Rows: 33, Cols: 101}
}

// until reads a program's output until it contains want.
func until(t *testing.T, p *client.Program, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all bytes.Buffer
	reader, buf := p.Output().NewReader([2]int64{}, false), make([]byte, 64<<10)
	for {
		news := p.Output().Changed()
		c, err := reader.Next(buf)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(c.Data)
		if strings.Contains(all.String(), want) {
			return all.String()
		}
		if c.Len() > 0 {
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
			t.Fatalf("no %q in %q", want, all.String())
		}
	}
}

func wait(t *testing.T, p *client.Program) *isolation.Exit {
	t.Helper()
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

func TestDurableProgramIsTalkedTo(t *testing.T) {
	box := bareBox(t)
	p := durable(t, box, "while read line; do echo \"<$line>\"; echo \"$line\" >&2; done; exit 3", withStdin)
	for i := range 50 {
		line := fmt.Sprintf("line %d", i)
		if _, err := p.Input().Write(t.Context(), []byte(line+"\n")); err != nil {
			t.Fatal(err)
		}
		until(t, p, "<"+line+">")
	}
	if err := p.Input().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Reason != isolation.ReasonExited || exit.Code != 3 || exit.Streams[0].Total == 0 || exit.Streams[1].Total == 0 {
		t.Errorf("exit = %+v, want exit.Reason == isolation.ReasonExited and exit.Code == 3 and exit.Streams[0].Total != 0 and exit.Streams[1].Total != 0",
			exit)
	}
	head, _, err := p.Retained(0)
	if err != nil || !strings.HasPrefix(string(head), "<line 0>\n<line 1>\n") {
		t.Errorf(`head = %q, err = %v, want no error and head starting with "<line 0>\n<line 1>\n"`, head, err)
	}
	if err := p.Forget(); err != nil {
		t.Error(err)
	}
}

func TestDirectProgramIsItsCallersAlone(t *testing.T) {
	box := bareBox(t)
	p := durable(t, box, "cat; echo the end >&2; exit 8", func(c *isolation.Command, _ *client.Files) { c.Direct = true })
	far := p.Far()
	if len(far) != 3 || p.Far() != nil || p.Input() != nil {
		t.Fatal(far)
	}
	if _, err := far[0].WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	far[0].Close()
	for i, want := range []string{"hello", "the end\n"} {
		got, err := io.ReadAll(far[1+i])
		far[1+i].Close()
		if err != nil || string(got) != want {
			t.Errorf("got %q, err = %v, want no error and got == want", got, err)
		}
	}
	if exit := wait(t, p); exit.Code != 8 || exit.Streams[0].Total != 0 {
		t.Errorf("exit = %+v, want exit.Code == 8 and exit.Streams[0].Total == 0", exit)
	}
	// Closing the ends here has the same effect as a reader that goes away.
	p = durable(t, box, "exec yes", func(c *isolation.Command, _ *client.Files) { c.Direct = true })
	for _, f := range p.Far() {
		f.Close()
	}
	if exit := wait(t, p); exit.Reason != isolation.ReasonSignaled || exit.Signal != int(unix.SIGPIPE) {
		t.Errorf("exit = %+v, want exit.Reason == isolation.ReasonSignaled and exit.Signal == int(unix.SIGPIPE)", exit)
	}
}

func TestTerminalOfABox(t *testing.T) {
	box := bareBox(t)
	p := durable(t, box, "tty; stty size; trap 'stty size; echo resized' WINCH; echo ready; while :; do read x && echo \"got $x\"; done", withTerminal)
	if text := until(t, p, "ready"); !strings.Contains(text, "/dev/pts/0") || !strings.Contains(text, "33 101") {
		t.Errorf(`text = %q, want text containing "/dev/pts/0" and text containing "33 101"`, text)
	}
	cols := uint16(70)
	boxtest.Eventually(t, "the program sees the new size of the terminal", func() bool { // a resize is lost if it comes just before the read
		cols ^= 1 // 71 or 70, another one each time; the program may tell it much later
		if err := p.Resize(20, cols); err != nil {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
		return strings.Contains(written(t, p), "resized")
	})
	if text := written(t, p); !strings.Contains(text, "\n20 7") {
		t.Errorf(`text = %q, want text containing "\n20 7"`, text)
	}
	if _, err := p.Input().Write(t.Context(), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	until(t, p, "got hello")
	if _, err := p.Input().Write(t.Context(), []byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Reason != isolation.ReasonSignaled || exit.Signal != int(unix.SIGINT) {
		t.Errorf("exit = %+v, want exit.Reason == isolation.ReasonSignaled and exit.Signal == int(unix.SIGINT)", exit)
	}
}

func TestTerminalHasJobControl(t *testing.T) {
	boxtest.RequireProgram(t, "bash")
	box := bareBox(t)
	p := durable(t, box, "exec bash --norc -i", withTerminal)
	until(t, p, "$ ") // Ctrl-Z would discard input typed before that
	if _, err := p.Input().Write(t.Context(), []byte("echo go; sleep 100\n")); err != nil {
		t.Fatal(err)
	}
	until(t, p, "\ngo\r\n")
	boxtest.Eventually(t, "the shell reports the program as stopped", func() bool {
		_, _ = p.Input().Write(t.Context(), []byte{26}) // Ctrl-Z; the shell gets it until it has started the program
		<-time.After(50 * time.Millisecond)
		return strings.Contains(written(t, p), "Stopped")
	})
	if _, err := p.Input().Write(t.Context(), []byte("bg; kill %1; wait; exit 7\n")); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 7 {
		t.Errorf("exit = %+v, written(t, p) = %q, want exit.Code == 7", exit, written(t, p))
	}
}

// written returns all the output that a program has written to its terminal.
func written(t *testing.T, p *client.Program) string {
	t.Helper()
	c, err := p.Output().NewReader([2]int64{}, false).Next(make([]byte, 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	return string(c.Data)
}

// The final output of a program in a terminal is read before its end is reported.
func TestTerminalsLastWords(t *testing.T) {
	box := bareBox(t)
	for range 50 {
		p := durable(t, box, "seq 500; echo the end", withTerminal)
		wait(t, p)
		text := until(t, p, "the end")
		if !strings.Contains(text, "\r\n499\r\n500\r\n") {
			t.Fatalf(`text = %q, want text containing "\r\n499\r\n500\r\n"`, text)
		}
		_ = p.Forget()
	}
}

func TestAProgramWaitsForItsReadersOnlyIfItHasTo(t *testing.T) {
	box := bareBox(t)
	p := durable(t, box, "read go; head -c 3000000 /dev/zero | tr '\\0' x; echo the end >&2", withStdin)
	if err := p.Pace(&[2]int64{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Input().Write(t.Context(), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the program has written as much as its pace allows", func() bool {
		end, err := p.Output().End()
		if err != nil {
			t.Fatal(err)
		}
		return end[0] >= 64<<10
	})
	<-time.After(100 * time.Millisecond)
	end, err := p.Output().End()
	if err != nil || end[0] > 64<<10+64<<10 || end[1] > 0 {
		t.Errorf("it has not waited: end = %v, err = %v, want no error and end[0] <= 64<<10 + 64<<10 and end[1] <= 0",
			end, err)
	}
	if err := p.Pace(&[2]int64{1 << 20, 0}); err != nil { // more than there is
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the program writes on", func() bool {
		now, _ := p.Output().End()
		return now[0] > end[0]
	})
	if err := p.Pace(nil); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Streams[0].Total != 3_000_000 || exit.Streams[1].Total != 8 {
		t.Errorf("exit = %+v, want exit.Streams[0].Total == 3_000_000 and exit.Streams[1].Total == 8", exit)
	}
	reader, buf := p.Output().NewReader([2]int64{}, false), make([]byte, 64<<10)
	var kept, gone int64
	for {
		c, err := reader.Next(buf)
		if err != nil {
			t.Fatal(err)
		}
		if c.Len() == 0 {
			break
		}
		if c.Stream == 0 && bytes.Trim(c.Data, "x") != nil && len(bytes.Trim(c.Data, "x")) > 0 {
			t.Fatalf(`at %d: bytes.Trim(c.Data, "x") = %q, want c.Stream != 0 or bytes.Trim(c.Data, "x") == nil or len(bytes.Trim(c.Data, "x")) == 0`,
				c.Offset, bytes.Trim(c.Data, "x"))
		}
		kept, gone = kept+int64(len(c.Data)), gone+c.Gap
	}
	if kept+gone != 3_000_008 || gone < 2_000_000 || kept < 64<<10 {
		t.Errorf("%d bytes kept, %d bytes lost", kept, gone)
	}
}

func TestAProgramGoesOnWithAnothersOutput(t *testing.T) {
	box := bareBox(t)
	first := durable(t, box, "echo one; exit 1", nil)
	wait(t, first)
	log := first.Output()
	broken, err := box.Start(&isolation.Command{Argv: []string{"/nonesuch"}, Dir: isolation.Workspace, ScriptArg: -1, Durable: true}, client.Files{Old: first})
	if err != nil {
		t.Fatal(err)
	}
	if err := broken.Started(t.Context()); err == nil {
		t.Error("no error for a program that cannot start")
	}
	broken.Close()
	second := durable(t, box, "read x; echo two $x", func(c *isolation.Command, f *client.Files) {
		c.Stdin, f.Old = isolation.StdinPipe, first
	})
	if _, err := second.Input().Write(t.Context(), []byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, second); exit.Code != 0 || second.Output() != log {
		t.Errorf("exit = %+v, want exit.Code == 0 and second.Output() == log", exit)
	}
	if text := until(t, second, "three"); text != "one\ntwo three\n" {
		t.Errorf(`text = %q, want "one\ntwo three\n"`, text)
	}
}

// change turns this process into the next boxd: the state of the first is discarded, as if it had died.
func (k *bareKeeper) change(t *testing.T, box *client.Box, programs ...*client.Program) (*client.Box, *client.Adopted) {
	t.Helper()
	for _, p := range programs {
		p.Close()
	}
	box.Close()
	k.Detach()
	k.connect(t)
	keys, err := k.List(t.Context())
	if err != nil || len(keys) != 1 || keys[0] != bareKey {
		t.Fatalf("running boxes: %q, %v, want no error and len(keys) == 1 and keys[0] == bareKey", keys, err)
	}
	next, found, err := k.Adopt(t.Context(), bareKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	if next.PID != box.PID || next.IDBase != box.IDBase || next.Group != box.Group {
		t.Errorf("%+v was %+v, want next.PID == box.PID and next.IDBase == box.IDBase and next.Group == box.Group",
			next.Launched, box.Launched)
	}
	return next, found
}

func TestAnotherBoxdFindsEverythingAgain(t *testing.T) {
	k := startKeeper(t)
	box := k.launch(t)
	if err := box.SetTimes(isolation.Times{Grace: time.Minute}); err != nil {
		t.Fatal(err)
	}
	ended := durable(t, box, "echo bye; exit 5", nil)
	wait(t, ended)
	secret, err := fdpass.BytesFile("private", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	cat := durable(t, box, "while read x; do echo \"<$x>\"; done; exit 4", func(c *isolation.Command, f *client.Files) {
		c.Stdin, f.Private = isolation.StdinPipe, os.NewFile(uintptr(secret), "private")
		t.Cleanup(func() { f.Private.Close() })
	})
	tty := durable(t, box, "stty -echo; while read x; do echo \"[$x]\"; done", withTerminal)
	meanwhile := durable(t, box, "sleep 0.2; seq 1000; exit 6", nil)
	hasty, err := box.Start(&isolation.Command{Argv: []string{"sleep", "100"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: isolation.Workspace, ScriptArg: -1, Timeout: 10 * time.Minute}, client.Files{})
	if err != nil {
		t.Fatal(err)
	}
	sent := ""
	for round := range 5 {
		for _, p := range []*client.Program{cat, tty} {
			if _, err := p.Input().Write(t.Context(), fmt.Appendf(nil, "line %d\n", round)); err != nil {
				t.Fatal(err)
			}
		}
		sent += fmt.Sprintf("line %d\n", round)
		until(t, cat, fmt.Sprintf("<line %d>", round))
		until(t, tty, fmt.Sprintf("[line %d]", round))
		next, found := k.change(t, box, ended, cat, tty, meanwhile)
		box = next
		if len(found.Programs) != 4 || found.Frozen {
			t.Fatalf("%d programs, frozen %v", len(found.Programs), found.Frozen)
		}
		ids := []uint32{ended.ID(), cat.ID(), tty.ID(), meanwhile.ID()}
		for i, p := range found.Programs {
			t.Cleanup(p.Close)
			if p.ID() != ids[i] {
				t.Errorf("program %d is %d, want p.ID() == ids[i]", ids[i], p.ID())
			}
		}
		ended, cat, tty, meanwhile = found.Programs[0], found.Programs[1], found.Programs[2], found.Programs[3]
		if exit := wait(t, ended); exit.Code != 5 {
			t.Errorf("exit = %+v, want exit.Code == 5", exit)
		}
		if head, _, err := ended.Retained(0); err != nil || string(head) != "bye\n" {
			t.Errorf(`head = %q, err = %v, want no error and head == "bye\n"`, head, err)
		}
		if cat.Input().Taken() != int64(len(sent)) {
			t.Errorf("%d bytes of input, not %d", cat.Input().Taken(), len(sent))
		}
		private, err := io.ReadAll(io.NewSectionReader(cat.Private(), 0, 100))
		if err != nil || string(private) != "secret" || tty.Private() != nil {
			t.Errorf(`private = %q, err = %v, want no error and private == "secret" and tty.Private() == nil`,
				private, err)
		}
		cat.Private().Close()
	}
	if exit := wait(t, meanwhile); exit.Code != 6 || exit.Streams[0].Total != 3893 {
		t.Errorf("exit = %+v, want exit.Code == 6 and exit.Streams[0].Total == 3893", exit)
	}
	if _, err := hasty.Wait(t.Context()); err == nil {
		t.Error("a program that no boxd could restore still runs")
	}
	if err := cat.Input().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, cat); exit.Code != 4 {
		t.Errorf("exit = %+v, want exit.Code == 4", exit)
	}
	// A new program gets an unused number.
	p := durable(t, box, "exit 2", nil)
	if exit := wait(t, p); p.ID() <= meanwhile.ID() || exit.Code != 2 {
		t.Errorf("p.ID() = %d, exit = %+v, want p.ID() > meanwhile.ID() and exit.Code == 2", p.ID(), exit)
	}
}

func TestAnAbandonedBoxEndsAtItsDeadline(t *testing.T) {
	for name, times := range map[string]isolation.Times{
		"never told": {},
		"grace":      {Grace: 300 * time.Millisecond},
		"end":        {Grace: time.Hour, End: 300 * time.Millisecond},
		"idle":       {Parked: true, Idle: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			k := startKeeper(t)
			box := k.launch(t)
			if err := box.SetTimes(times); err != nil {
				t.Fatal(err)
			}
			if name != "idle" {
				durable(t, box, "sleep 100", nil)
			}
			box.Close()
			boxtest.Eventually(t, "the box has ended", func() bool {
				keys, err := k.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return len(keys) == 0
			})
		})
	}
}

func TestADetachedBoxLivesOn(t *testing.T) {
	k := startKeeper(t)
	box := k.launch(t)
	p := durable(t, box, "read x; exit 9", withStdin)
	if err := box.SetTimes(isolation.Times{Parked: true, Idle: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	box.Close()
	<-time.After(500 * time.Millisecond) // it does not count as idle, and has no other deadline
	_, found := k.change(t, box, p)
	p = found.Programs[0]
	t.Cleanup(p.Close)
	if err := p.Input().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 9 {
		t.Errorf("exit = %+v, want exit.Code == 9", exit)
	}
}

// dialInit connects to PID 1 of the box as another boxd. The caller must close the connection.
func (k *bareKeeper) dialInit(t *testing.T) *fdpass.Conn {
	t.Helper()
	dir, err := os.Open(filepath.Join(k.cfg.RunDir, isolation.BoxesDir))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fd, err := fdpass.Dial(int(dir.Fd()), bareKey+"/init")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := fdpass.FromFD(fd, isolation.MaxBoxReply)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A boxd of an earlier version cannot read spooled output. It is not told of programs that have any, and PID 1 ends these: the
// box and all other programs are adopted.
func TestABoxdOfAnEarlierVersionHearsOfNoOutputOnDisk(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	box := k.launch(t)
	durable(t, box, "sleep 1000", func(c *isolation.Command, _ *client.Files) { c.Spool = true })
	durable(t, box, "sleep 1000", nil)
	programs := func(version uint32) (list []*isolation.ProgramState) {
		conn := k.dialInit(t)
		defer conn.Close()
		for _, req := range []*isolation.BoxRequest{{Times: &isolation.Times{Grace: time.Minute}}, {Adopt: version}} {
			if err := conn.Send(req.Encode()); err != nil {
				t.Fatal(err)
			}
		}
		for {
			body, files, err := conn.Recv(true)
			if err != nil {
				t.Fatal(err)
			}
			fdpass.CloseAll(files)
			reply, err := isolation.DecodeBoxReply(body)
			switch {
			case err != nil:
				t.Fatal(err)
			case reply.Adopted != nil:
				return list
			case reply.Program != nil:
				list = append(list, reply.Program)
			}
		}
	}
	if list := programs(isolation.SpoolVersion - 1); len(list) != 1 || list[0].Exited != nil {
		t.Errorf("the earlier boxd gets %d programs: list = %+v, want len(list) == 1 and list[0].Exited == nil", len(list), list)
	}
	boxtest.Eventually(t, "the program whose output is on disk has ended", func() bool {
		ended := 0
		list := programs(isolation.SpoolVersion)
		for _, p := range list {
			if p.Exited != nil && p.Exited.Reason == isolation.ReasonCanceled {
				ended++
			}
		}
		return len(list) == 2 && ended == 1
	})
}

// PID 1 answers an older boxd in that boxd's version, so that after a downgrade the older boxd can adopt the box.
func TestPID1SpeaksToABoxdOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	k.launch(t)
	for asked, want := range map[uint32]uint32{1: 1, isolation.BoxVersion: isolation.BoxVersion, isolation.BoxVersion + 1: isolation.BoxVersion} {
		conn := k.dialInit(t)
		defer conn.Close()
		if err := conn.Send((&isolation.BoxRequest{Times: &isolation.Times{Grace: time.Minute}}).Encode()); err != nil {
			t.Fatal(err)
		}
		if err := conn.Send((&isolation.BoxRequest{Adopt: asked}).Encode()); err != nil {
			t.Fatal(err)
		}
		body, _, err := conn.Recv(true)
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := isolation.DecodeBoxReply(body); err != nil || reply.Adopted == nil || reply.Adopted.Version != want {
			t.Errorf("version %d is answered with %+v, %v", asked, reply, err)
		}
	}
}
