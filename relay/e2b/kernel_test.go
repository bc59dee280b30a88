// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// patience is longer than an execution takes on a busy host.
const patience = 5 * time.Minute

// native is a kernel that runs on this host.
type native struct {
	t      *testing.T
	kernel kernel
	cmd    *exec.Cmd
	in     io.WriteCloser
	ended  chan struct{} // closed when both streams have ended
	mu     sync.Mutex
	news   *sync.Cond
	outs   [2]strings.Builder
	events [2][]*kernelEvent
	number int
}

func startNative(t *testing.T, language string, env ...string) *native {
	t.Helper()
	return startNativeIn(t, t.TempDir(), language, env...)
}

func startNativeIn(t *testing.T, dir, language string, env ...string) *native {
	t.Helper()
	k := kernels()[language]
	boxtest.RequireProgram(t, k.needs)
	n := &native{t: t, kernel: k, ended: make(chan struct{})}
	n.news = sync.NewCond(&n.mu)
	argv := k.start("nonce")
	n.cmd = exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	n.cmd.Dir, n.cmd.Env = dir, append(os.Environ(), env...)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for i, pipe := range []func() (io.ReadCloser, error){n.cmd.StdoutPipe, n.cmd.StderrPipe} {
		from, err := pipe()
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() { n.read(i, from) })
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		readers.Wait()
		n.mu.Lock() // otherwise a waiter that has just seen it run would miss this
		defer n.mu.Unlock()
		close(n.ended)
		n.news.Broadcast()
	}()
	t.Cleanup(func() {
		n.in.Close()
		_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL)
		<-n.ended
		_ = n.cmd.Wait()
	})
	return n
}

func (n *native) read(stream int, from io.Reader) {
	f, buf := newFrames("nonce"), make([]byte, 64<<10)
	output := func(data []byte) error {
		n.outs[stream].Write(data)
		return nil
	}
	for {
		got, err := from.Read(buf)
		n.mu.Lock()
		_ = f.add(buf[:got], output, func(e *kernelEvent) error {
			n.events[stream] = append(n.events[stream], e)
			return nil
		})
		n.news.Broadcast()
		n.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// cell is the outcome of an execution.
type cell struct {
	out, err string
	count    int64
	results  []map[string]json.RawMessage
	main     map[string]json.RawMessage
	failed   *kernelEvent
	died     bool
}

func (e *cell) text() string { return field(e.main, "text/plain") }

func field(data map[string]json.RawMessage, mime string) string {
	var s string
	_ = json.Unmarshal(data[mime], &s)
	return s
}

func (n *native) write(req *kernelRequest) {
	n.t.Helper()
	line, err := n.kernel.encode(req)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.in.Write(line); err != nil {
		n.t.Fatal(err)
	}
}

func (n *native) begin(req *kernelRequest) string {
	n.t.Helper()
	n.number++
	req.ID = fmt.Sprint("e", n.number)
	req.Op = cmp.Or(req.Op, opRun)
	n.write(req)
	return req.ID
}

func (n *native) run(code string) *cell {
	n.t.Helper()
	return n.await(n.begin(&kernelRequest{Code: code}))
}

// await waits for the end of an execution.
func (n *native) await(id string) *cell {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	has := func(stream int, kind string) bool {
		for _, e := range n.events[stream] {
			if e.Kind == kind && e.ID == id {
				return true
			}
		}
		return false
	}
	e := &cell{}
	defer time.AfterFunc(patience+time.Second, n.news.Broadcast).Stop()
	for deadline := time.Now().Add(patience); ; n.news.Wait() {
		ended := has(0, kernelEnd) && has(1, kernelEnd) || has(0, kernelSynced) && has(1, kernelSynced)
		select {
		case <-n.ended:
			e.died = !ended
		default:
		}
		if ended || e.died {
			break
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("no end of execution %s: tailOf(n.outs[0].String()) = %q, tailOf(n.outs[1].String()) = %q",
				id, tailOf(n.outs[0].String()), tailOf(n.outs[1].String()))
		}
	}
	for _, event := range n.events[0] {
		switch event.Kind {
		case kernelBegin:
			e.count = event.Count
		case kernelError:
			e.failed = event
		case kernelResult:
			e.results = append(e.results, event.Data)
			if event.Main {
				e.main = event.Data
			}
		}
	}
	e.out, e.err = n.outs[0].String(), n.outs[1].String()
	for i := range n.events {
		n.outs[i].Reset()
		n.events[i] = nil
	}
	return e
}

// awaitInterrupted waits for the end of an interrupted execution. It repeats the interrupt, since the first signal may have come
// just before the code began to sleep.
func (n *native) awaitInterrupted(id string) *cell {
	n.t.Helper()
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Second):
				_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGINT)
			}
		}
	}()
	defer func() {
		close(done)
		<-over
	}()
	return n.await(id)
}

func (n *native) interrupt() {
	n.t.Helper()
	if err := syscall.Kill(-n.cmd.Process.Pid, syscall.SIGINT); err != nil {
		n.t.Fatal(err)
	}
}

// awaitOutput waits until the code has written a text.
func (n *native) awaitOutput(text string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	deadline := time.Now().Add(patience)
	defer time.AfterFunc(patience+time.Second, n.news.Broadcast).Stop()
	for !strings.Contains(n.outs[0].String(), text) {
		if time.Now().After(deadline) {
			n.t.Fatalf("no %q: tailOf(n.outs[0].String()) = %q, tailOf(n.outs[1].String()) = %q",
				text, tailOf(n.outs[0].String()), tailOf(n.outs[1].String()))
		}
		select {
		case <-n.ended:
			n.t.Fatalf("ended without %q", text)
		default:
		}
		n.news.Wait()
	}
}

// tailOf returns the end of a text, for an error message.
func tailOf(text string) string { return text[max(0, len(text)-1000):] }

// codeCase is code for a kernel, and the expected result.
type codeCase struct {
	name, code           string
	text, out, err, fail string // fail: prefix of the error's name and value, "" for no error
}

// runs makes the kernel run the cases one by one.
func (n *native) runs(cases []codeCase) {
	n.t.Helper()
	for _, c := range cases {
		e := n.run(c.code)
		if e.died {
			n.t.Fatalf("%s: the kernel died: e.err = %s, want e.died == false", c.name, e.err)
		}
		fail := ""
		if e.failed != nil {
			fail = e.failed.Name + ": " + e.failed.Value
		}
		if e.text() != c.text || e.out != c.out || e.err != c.err || !strings.HasPrefix(fail, c.fail) || (fail == "") != (c.fail == "") {
			n.t.Errorf("%s: text %q, out %q, err %q, error %q; want %q, %q, %q and %q", c.name, e.text(), e.out, e.err, fail, c.text, c.out, c.err, c.fail)
		}
	}
}
