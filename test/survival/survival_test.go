// SPDX-License-Identifier: Apache-2.0

// Package survival_test kills boxd, its keeper and its zygotes under load, then looks for what is lost.
package survival_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// kills returns how often a daemon is killed in a run; SURVIVAL_KILLS sets another number.
func kills() int {
	if n, err := strconv.Atoi(os.Getenv("SURVIVAL_KILLS")); err == nil {
		return n
	}
	return 40
}

func start(t *testing.T) *boxtest.Daemon {
	t.Helper()
	d := boxtest.Start(t, boxtest.Kept)
	d.Warm()
	return d
}

// load is the work done while daemons are killed. Each part runs until stop is closed, resumes after any loss of its connection,
// and then checks that it has lost nothing.
type load struct {
	t    *testing.T
	d    *boxtest.Daemon
	stop chan struct{}
	work sync.WaitGroup

	counted, echoed, typed, asked, executed, streamed, made, uploaded atomic.Int64
}

func (l *load) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// again repeats a call until boxd answers it.
func (l *load) again(what string, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil || !transient(err) || ctx.Err() != nil {
			if err != nil {
				l.t.Errorf("%s: %v", what, err)
			}
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// transient reports whether an error only means that a daemon was dead, whatever became of the request.
func transient(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	if ok {
		return e.Status == http.StatusServiceUnavailable
	}
	return true
}

// attach attaches to a process; once attached, reconnecting is up to the client.
func (l *load) attach(ctx context.Context, name string, o client.AttachOptions, stdio client.Stdio) error {
	o.From, o.Lossless = &[2]int64{}, true
	for begun := false; ; {
		o.Attached = func(*api.StreamAttached) { begun = true }
		_, err := l.d.Attach(ctx, "s1", name, o, stdio, nil)
		if err == nil || begun || !transient(err) || ctx.Err() != nil {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// startProcess starts a process, or finds the existing one.
func (l *load) startProcess(name string, req *api.ProcessRequest) error {
	return l.again(name, func(ctx context.Context) error {
		_, _, err := l.d.StartProcess(ctx, "s1", name, req)
		return err
	})
}

// count reads numbered lines of both streams, each without a gap.
func (l *load) count() {
	script := `i=0; while [ ! -e /workspace/enough ]; do i=$((i+1)); echo $i; [ $((i % 3)) -ne 0 ] || echo $i >&2; [ $((i % 50)) -ne 0 ] || sleep 0.01; done; echo end`
	if l.startProcess("count", &api.ProcessRequest{Command: &script}) != nil {
		return
	}
	out, errs := &numbers{t: l.t, name: "stdout", step: 1}, &numbers{t: l.t, name: "stderr", step: 3}
	err := l.attach(l.t.Context(), "count", client.AttachOptions{Gap: func(g api.StreamGap) {
		l.t.Errorf("count: a gap of %d in %s", g.Bytes, g.Stream)
	}}, client.Stdio{Stdout: out, Stderr: errs})
	if err != nil || !out.ended || out.last == 0 {
		l.t.Errorf("count: %v, ended %v after %d", err, out.ended, out.last)
	}
	l.counted.Store(int64(out.last))
}

// numbers checks that the lines count up.
type numbers struct {
	t     *testing.T
	name  string
	step  int
	last  int
	rest  []byte
	ended bool
}

func (n *numbers) Write(p []byte) (int, error) {
	n.rest = append(n.rest, p...)
	for {
		line, rest, ok := bytes.Cut(n.rest, []byte{'\n'})
		if !ok {
			return len(p), nil
		}
		n.rest = rest
		if string(line) == "end" {
			n.ended = true
			continue
		}
		i, err := strconv.Atoi(string(line))
		if err != nil || i != n.last+n.step {
			n.t.Errorf("count: after line %d of %s the next is %q, want no error and i == n.last + n.step",
				n.last, n.name, line)
		}
		n.last = i
	}
}

// echo sends numbered lines to a process, through a pipe or a terminal, and checks that each comes back once.
func (l *load) echo(name string, req *api.ProcessRequest, done *atomic.Int64) {
	if l.startProcess(name, req) != nil {
		return
	}
	in, feed := io.Pipe()
	lines, out := io.Pipe()
	l.work.Go(func() {
		defer feed.Close()
		scan := bufio.NewScanner(lines)
		scan.Scan() // "ready"
		for i := 0; !l.stopped(); i++ {
			if _, err := fmt.Fprintf(feed, "line %d\n", i); err != nil {
				l.t.Errorf("%s: %v", name, err)
				return
			}
			if !scan.Scan() || scan.Text() != fmt.Sprintf("<line %d>", i) {
				l.t.Errorf("%s: line %d is returned as %q, %v", name, i, scan.Text(), scan.Err())
				_ = lines.CloseWithError(io.ErrClosedPipe)
				return
			}
			done.Add(1)
		}
		_, _ = io.WriteString(feed, "stop\n")
		_, _ = io.Copy(io.Discard, lines)
	})
	err := l.attach(l.t.Context(), name, client.AttachOptions{Write: true}, client.Stdio{Stdin: in, Stdout: out, Stderr: io.Discard})
	if err != nil {
		l.t.Errorf("%s: %v", name, err)
	}
	out.Close()
	in.Close()
}

const echoScript = `echo ready; while read x && [ "$x" != stop ]; do echo "<$x>"; done`

// execute runs commands with ids, each until it has its result: none runs twice.
func (l *load) execute(n int) {
	for i := 0; !l.stopped(); i++ {
		id := fmt.Sprintf("exec-%d-%d", n, i)
		req := &api.ExecRequest{ID: id, Command: new(fmt.Sprintf("echo %s >> /workspace/ran; sleep 0.0%d; echo %s", id, i%7, id))}
		var r api.ExecResult
		err := l.again(id, func(ctx context.Context) (err error) {
			r, err = l.d.Exec(ctx, "s1", req)
			return err
		})
		if err != nil {
			return
		}
		if r.Status != "exited" || r.Stdout != id+"\n" {
			l.t.Errorf(`%s: r.Status = %s, r.Stdout = %q, r.Stderr = %q, want r.Status == "exited" and r.Stdout == id + "\n"`,
				id, r.Status, r.Stdout, r.Stderr)
		}
		l.executed.Add(1)
	}
}

// stream runs commands without an id, with streamed output. If the first connection is cut before any output, the result is
// unknown.
func (l *load) stream() {
	for !l.stopped() {
		var out strings.Builder
		req := &api.ExecRequest{Command: new("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; exit 7"), Timeout: new(quantity.Duration(2 * time.Minute))}
		r, err := l.d.ExecStream(l.t.Context(), "s1", req, client.Stdio{Stdout: &out, Stderr: os.Stderr}, nil)
		if err != nil && out.Len() == 0 {
			<-time.After(5 * time.Millisecond)
			continue
		}
		if err != nil || r.ExitCode == nil || *r.ExitCode != 7 || out.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" {
			l.t.Errorf("stream: %+v, %v after %q", r, err, out.String())
			return
		}
		l.streamed.Add(1)
	}
}

// upload sends a large input to a command and compares what arrived.
func (l *load) upload() {
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	for !l.stopped() {
		id := "upload-" + strconv.Itoa(int(l.uploaded.Load()))
		if l.startProcess(id, &api.ProcessRequest{Command: new("wc -c; sleep 0.01"), Stdin: true}) != nil {
			return
		}
		var out strings.Builder
		err := l.attach(l.t.Context(), id, client.AttachOptions{Write: true}, client.Stdio{Stdin: bytes.NewReader(data), Stdout: &out, Stderr: io.Discard})
		if err != nil || strings.TrimSpace(out.String()) != strconv.Itoa(len(data)) {
			l.t.Errorf("%s: out = %q, err = %v, want no error and strings.TrimSpace(out.String()) == strconv.Itoa(len(data))",
				id, out.String(), err)
			return
		}
		_ = l.again("remove "+id, func(ctx context.Context) error { return gone(l.d.DeleteProcess(ctx, "s1", id)) })
		l.uploaded.Add(1)
	}
}

// gone ignores an error that says the target does not exist.
func gone(err error) error {
	if errors.Is(err, client.NotFound) {
		return nil
	}
	return err
}

// make creates and deletes sessions.
func (l *load) make(n int) {
	for i := 0; !l.stopped(); i++ {
		id := fmt.Sprintf("made-%d-%d", n, i)
		if l.again("create "+id, func(ctx context.Context) error {
			_, _, err := l.d.CreateSession(ctx, &api.SessionRequest{ID: id})
			return err
		}) != nil {
			return
		}
		var r api.ExecResult
		_ = l.again("exec in "+id, func(ctx context.Context) (err error) {
			r, err = l.d.Exec(ctx, id, &api.ExecRequest{ID: "e", Argv: []string{"echo", id}})
			return err
		})
		if r.Stdout != id+"\n" {
			l.t.Errorf(`%s: r = %+v, want r.Stdout == id + "\n"`, id, r)
		}
		_ = l.again("remove "+id, func(ctx context.Context) error { return gone(l.d.DeleteSession(ctx, id)) })
		l.made.Add(1)
	}
}

// ask sends requests to an MCP server, one by one: each is answered once, by a server that is never restarted.
func (l *load) ask() {
	if l.startProcess("mcp", &api.ProcessRequest{Argv: []string{"/workspace/mcpserver"}, Stdin: true, Restart: &api.Restart{Policy: "on-failure"}}) != nil {
		return
	}
	in, feed := io.Pipe()
	lines, out := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	l.work.Go(func() {
		defer cancel()
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.IOTransport{Reader: lines, Writer: feed}, nil)
		if err != nil {
			l.t.Errorf("mcp: %v", err)
			return
		}
		for i := 1; !l.stopped(); i++ {
			r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "square", Arguments: map[string]int{"number": i}})
			if err != nil {
				l.t.Errorf("mcp: %v", err)
				return
			}
			got, err := json.Marshal(r.StructuredContent)
			if want := fmt.Sprintf(`{"calls":%d,"square":%d}`, i, i*i); err != nil || string(got) != want {
				l.t.Errorf("mcp: the answer to %d is %s, %v, want no error and got == want", i, got, err)
				return
			}
			l.asked.Add(1)
		}
	})
	err := l.attach(ctx, "mcp", client.AttachOptions{Write: true, Lines: true}, client.Stdio{Stdin: in, Stdout: out, Stderr: os.Stderr})
	if !errors.Is(err, context.Canceled) {
		l.t.Errorf("mcp: err = %v, want err is context.Canceled", err)
	}
	out.Close()
	in.Close()
}

// install copies a program into the workspace.
func install(t *testing.T, d *boxtest.Daemon, name string) {
	t.Helper()
	f, err := os.Open(boxtest.Build(t, "./test/survival/"+name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	req := &api.ExecRequest{Command: new("cat > " + name + " && chmod +x " + name)}
	if r, err := d.ExecStream(t.Context(), "s1", req, client.Stdio{Stdin: f, Stdout: os.Stderr, Stderr: os.Stderr}, nil); err != nil || *r.ExitCode != 0 {
		t.Fatalf("r = %+v, err = %v, want no error and *r.ExitCode == 0", r, err)
	}
}

func (l *load) run() {
	install(l.t, l.d, "mcpserver")
	l.work.Go(l.ask)
	l.work.Go(l.count)
	l.work.Go(func() { l.echo("pipe", &api.ProcessRequest{Command: new(echoScript), Stdin: true}, &l.echoed) })
	l.work.Go(func() {
		req := &api.ProcessRequest{Command: new("stty -echo -opost; " + echoScript), Terminal: &api.Terminal{Rows: 24, Cols: 80}}
		l.echo("terminal", req, &l.typed)
	})
	for n := range 2 {
		l.work.Go(func() { l.execute(n) })
		l.work.Go(func() { l.make(n) })
	}
	l.work.Go(l.stream)
	l.work.Go(l.upload)
}

// finish ends the load and makes the final checks.
func (l *load) finish() {
	close(l.stop)
	_ = l.again("enough", func(ctx context.Context) error {
		_, err := l.d.Exec(ctx, "s1", &api.ExecRequest{ID: "enough", Command: new("touch /workspace/enough")})
		return err
	})
	l.work.Wait()
	var r api.ExecResult
	_ = l.again("what ran", func(ctx context.Context) (err error) {
		r, err = l.d.Exec(ctx, "s1", &api.ExecRequest{Command: new("sort /workspace/ran | uniq -c | awk '$1 != 1'; wc -l < /workspace/ran")})
		return err
	})
	if strings.TrimSpace(r.Stdout) != strconv.Itoa(int(l.executed.Load())) {
		l.t.Errorf("of %d executions there have run: r.Stdout = %s, want strings.TrimSpace(r.Stdout) == strconv.Itoa(int(l.executed.Load()))",
			l.executed.Load(), r.Stdout)
	}
	l.t.Logf("lines counted %d, echoed %d, typed %d; questions %d, executions %d, streams %d, sessions %d, uploads %d",
		l.counted.Load(), l.echoed.Load(), l.typed.Load(), l.asked.Load(), l.executed.Load(), l.streamed.Load(), l.made.Load(), l.uploaded.Load())
}

// goesOn waits until each kind of work has been done once more, except count, which is checked at its end.
func (l *load) goesOn() {
	l.t.Helper()
	for name, n := range map[string]*atomic.Int64{
		"echoed": &l.echoed, "typed": &l.typed, "executed": &l.executed, "streamed": &l.streamed, "asked": &l.asked, "made": &l.made, "uploaded": &l.uploaded,
	} {
		before := n.Load()
		boxtest.Eventually(l.t, "the load has more "+name, func() bool { return n.Load() > before || l.t.Failed() })
	}
}

// under runs kill at random moments under load.
func under(t *testing.T, times int, kill func(d *boxtest.Daemon)) {
	d := start(t)
	before := d.Look()
	session := d.NewSession(t, api.SessionRequest{ID: "s1"})
	l := &load{t: t, d: d, stop: make(chan struct{})}
	l.run()
	l.goesOn()
	for i := range times {
		<-time.After(time.Duration(rand.IntN(150)) * time.Millisecond)
		kill(d)
		if i%5 == 4 { // clients give up after half a minute without progress
			l.goesOn()
		}
	}
	l.goesOn()
	l.finish()
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != session.PID {
		t.Errorf("the box of %d is that of %d, %v", session.PID, now.PID, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) != 0 {
		t.Errorf("left are %v, %v, want no error and len(list) == 0", list, err)
	}
	d.NothingLeft(before)
}

func TestNothingIsLostWhenBoxdIsKilled(t *testing.T) {
	under(t, kills(), func(d *boxtest.Daemon) {
		d.Kill()
		d.Restart()
	})
}

// An orderly shutdown leaves as much as a kill.
func TestNothingIsLostWhenBoxdIsStopped(t *testing.T) {
	under(t, kills()/4, func(d *boxtest.Daemon) {
		d.Stop()
		d.Restart()
	})
}

func TestNothingIsLostWhenTheKeeperIsKilled(t *testing.T) {
	under(t, kills(), func(d *boxtest.Daemon) {
		_ = unix.Kill(d.Keeper(), unix.SIGKILL) // it may just be starting
		for _, pid := range d.Zygotes() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
}
