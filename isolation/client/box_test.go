// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pid1 is a stand-in for PID 1 that sends what a test makes it send.
type pid1 struct {
	t    *testing.T
	conn *fdpass.Conn
}

// newTestBox returns a box and its stand-in for PID 1.
func newTestBox(t *testing.T) (*Box, *pid1) {
	t.Helper()
	conn, fd, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	box, err := newBox(isolation.Launched{PID: 42}, fd, null, fdpass.NewBuffers(isolation.MaxBoxReply))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		box.Close()
		conn.Close()
	})
	return box, &pid1{t, conn}
}

// reply sends a reply, with memory files of the given contents.
func (p *pid1) reply(reply *isolation.BoxReply, contents ...string) {
	p.t.Helper()
	fds := make([]int, len(contents))
	for i, text := range contents {
		fds[i] = memory(p.t, text)
		defer unix.Close(fds[i])
	}
	p.send(reply, fds...)
}

func (p *pid1) send(reply *isolation.BoxReply, fds ...int) {
	p.t.Helper()
	if err := p.conn.Send(reply.Encode(), fds...); err != nil && !errors.Is(err, unix.EPIPE) {
		p.t.Error(err)
	}
}

// nextRequest returns the next request.
func (p *pid1) nextRequest() *isolation.BoxRequest {
	p.t.Helper()
	body, files, err := p.conn.Recv(false)
	fdpass.CloseAll(files)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := isolation.DecodeBoxRequest(body)
	if err != nil {
		p.t.Fatal(err)
	}
	return req
}

func memory(t *testing.T, text string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return fd
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// startProgram starts a program that keeps two bytes of head and tail.
func startProgram(t *testing.T, box *Box, peer *pid1, durable bool) *Program {
	t.Helper()
	p, err := box.Start(&isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Output: isolation.Output{Head: 2, Tail: 2}, Durable: durable}, Files{})
	if err != nil {
		t.Fatal(err)
	}
	if req := peer.nextRequest(); req.Spawn == nil || req.ID != p.id {
		t.Fatalf("heard %+v", req)
	}
	return p
}

func exited(id uint32, totals ...uint64) *isolation.BoxReply {
	r := &isolation.BoxReply{ID: id, Exited: &isolation.Exit{}}
	for i, n := range totals {
		r.Exited.Streams[i] = isolation.StreamEnd{Total: n}
		r.Attached[i] = n > 0
	}
	return r
}

func TestOutputOfAnEndedProgram(t *testing.T) {
	t.Parallel()
	box, peer := newTestBox(t)
	p := startProgram(t, box, peer, false)
	reply := exited(p.id, 10, 3)
	reply.Exited.Streams[0].CutFrom, reply.Exited.Streams[0].CutTo = 2, 8
	peer.reply(reply, "01xxxxxx89", "abc")
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for stream, want := range [][2]string{{"01", "89"}, {"abc", ""}} {
		head, tail, err := p.Retained(stream)
		if err != nil || string(head) != want[0] || string(tail) != want[1] {
			t.Errorf("stream %d: %q, %q, %v", stream, head, tail, err)
		}
	}
}

func TestAProgramThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	box, peer := newTestBox(t)
	for _, durable := range []bool{false, true} {
		p := startProgram(t, box, peer, durable)
		peer.reply(&isolation.BoxReply{ID: p.id, Failed: &isolation.StepError{Step: isolation.StepLookup, Item: "x", Errno: unix.ENOENT}})
		_, werr := p.Wait(t.Context())
		for _, err := range []error{werr, p.Started(t.Context())} {
			if step, ok := errors.AsType[*isolation.StepError](err); !ok || step.Step != isolation.StepLookup || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v", err)
			}
		}
		p.Close()
	}
}

// Messages of PID 1 are checked as if a program had sent them: a malformed one ends the box, and
// no descriptor that came with it stays open.
func TestNonsenseFromPID1EndsTheBox(t *testing.T) {
	for name, malformed := range map[string]func(peer *pid1, p *Program){
		"an end of nothing":          func(peer *pid1, p *Program) { peer.reply(exited(p.id+7, 0), "x") },
		"a failure of nothing":       func(peer *pid1, p *Program) { peer.reply(&isolation.BoxReply{ID: 9, Failed: &isolation.StepError{}}) },
		"a start that was not asked": func(peer *pid1, p *Program) { peer.reply(&isolation.BoxReply{ID: p.id, Started: true}, "", "", "") },
		"ready with a file":          func(peer *pid1, _ *Program) { peer.reply(&isolation.BoxReply{Ready: true}, "x") },
		"ready twice": func(peer *pid1, _ *Program) {
			peer.reply(&isolation.BoxReply{Ready: true})
			peer.reply(&isolation.BoxReply{Ready: true})
		},
		"more kept than asked for": func(peer *pid1, p *Program) { peer.reply(exited(p.id, 5), "01234") },
		"output without a file": func(peer *pid1, p *Program) {
			r := exited(p.id, 3)
			r.Attached[0] = false
			peer.reply(r)
		},
		"a file too much": func(peer *pid1, p *Program) { peer.reply(exited(p.id, 3), "abc", "abc") },
		"a file too few":  func(peer *pid1, p *Program) { peer.reply(exited(p.id, 3, 3), "abc") },
		"a failure with a file": func(peer *pid1, p *Program) {
			peer.reply(&isolation.BoxReply{ID: p.id, Failed: &isolation.StepError{}}, "x")
		},
		"a file that can block":  func(peer *pid1, p *Program) { fd := eventfd(peer.t); peer.send(exited(p.id, 3), fd); unix.Close(fd) },
		"a message of no form":   func(peer *pid1, _ *Program) { _ = peer.conn.Send([]byte{255}) },
		"a message that is long": func(peer *pid1, _ *Program) { _ = peer.conn.Send([]byte(strings.Repeat("x", isolation.MaxBoxReply+2))) },
		"a body in a file":       func(peer *pid1, _ *Program) { _ = peer.conn.Send([]byte(strings.Repeat("x", fdpass.MaxInline+1))) },
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			box, peer := newTestBox(t)
			p := startProgram(t, box, peer, false)
			malformed(peer, p)
			<-box.Done()
			if _, err := p.Wait(t.Context()); !errors.Is(err, ErrBoxLost) {
				t.Errorf("the program: %v", err)
			}
			if _, err := box.Start(&isolation.Command{Argv: []string{"x"}, ScriptArg: -1}, Files{}); !errors.Is(err, ErrBoxLost) {
				t.Errorf("another: %v", err)
			}
			if !box.Gone() {
				t.Error("the box is not gone")
			}
			p.Close()
			box.Close()
			peer.conn.Close()
			if now := openFiles(t); now != before {
				t.Errorf("%d files are open, %d were before", now, before)
			}
		})
	}
}

func TestNonsenseAboutADurableProgramEndsTheBox(t *testing.T) {
	for name, files := range map[string]func() []int{
		"no files":              func() []int { return nil },
		"rings that block":      func() []int { return []int{eventfd(t), eventfd(t), memory(t, ""), eventfd(t)} },
		"a journal that blocks": func() []int { return []int{memory(t, ""), memory(t, ""), eventfd(t), eventfd(t)} },
		"input that was not asked for": func() []int {
			return []int{eventfd(t), memory(t, ""), memory(t, ""), memory(t, ""), memory(t, ""), eventfd(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			box, peer := newTestBox(t)
			p := startProgram(t, box, peer, true)
			fds := files()
			peer.send(&isolation.BoxReply{ID: p.id, Started: true}, fds...)
			fdpass.CloseAll(fds)
			<-box.Done()
			if err := p.Started(t.Context()); !errors.Is(err, ErrBoxLost) {
				t.Errorf("%v", err)
			}
			p.Close()
			box.Close()
			peer.conn.Close()
			if now := openFiles(t); now != before {
				t.Errorf("%d files are open, %d were before", now, before)
			}
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// startDurable starts a durable program and returns the files that PID 1 writes to.
func startDurable(t *testing.T, box *Box, peer *pid1) (p *Program, out, event int) {
	t.Helper()
	p = startProgram(t, box, peer, true)
	fds := []int{memory(t, "one "), memory(t, ""), memory(t, ""), eventfd(t)}
	t.Cleanup(func() { fdpass.CloseAll(fds) })
	peer.send(&isolation.BoxReply{ID: p.id, Started: true, PID: 7}, fds...)
	if err := p.Started(t.Context()); err != nil || p.PID() != 7 {
		t.Fatal(p.PID(), err)
	}
	return p, fds[0], fds[3]
}

func TestReadersAreNotifiedOfOutputAndOfTheEnd(t *testing.T) {
	t.Parallel()
	box, peer := newTestBox(t)
	p, out, event := startDurable(t, box, peer)
	defer p.Close()
	changed := p.Output().Changed()
	if _, err := unix.Write(out, []byte("two ")); err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Write(event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-changed
	changed = p.Output().Changed()
	if err := p.Pace(&[2]int64{4, 0}); err != nil {
		t.Fatal(err)
	}
	if req := peer.nextRequest(); req.Pace == nil || *req.Pace != (isolation.Pace{Wait: true, Taken: [2]uint64{4, 0}}) {
		t.Errorf("PID 1 hears %+v", req)
	}
	peer.conn.Close() // PID 1 dies with unread output
	<-changed
	if _, err := p.Wait(t.Context()); !errors.Is(err, ErrBoxLost) {
		t.Errorf("%v", err)
	}
	c, err := p.Output().NewReader([2]int64{}, false).Next(make([]byte, 100))
	if err != nil || string(c.Data) != "one two " {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestASecondProgramAppendsToTheOutputLogOfTheFirst(t *testing.T) {
	t.Parallel()
	box, peer := newTestBox(t)
	first, _, _ := startDurable(t, box, peer)
	log := first.Output()
	peer.reply(exited(first.id))
	if _, err := first.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd := &isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Durable: true}
	for _, succeeds := range []bool{false, true} {
		second, err := box.Start(cmd, Files{Old: first})
		if err != nil {
			t.Fatal(err)
		}
		if req := peer.nextRequest(); req.Spawn == nil || req.Spawn.Continue != first.id {
			t.Fatalf("PID 1 hears %+v", req)
		}
		if !succeeds {
			peer.reply(&isolation.BoxReply{ID: second.id, Failed: &isolation.StepError{Errno: unix.ENOENT}})
			if err := second.Started(t.Context()); err == nil || first.Output() != log {
				t.Errorf("%v", err)
			}
			second.Close()
			continue
		}
		peer.reply(&isolation.BoxReply{ID: second.id, Started: true, PID: 8})
		if err := second.Started(t.Context()); err != nil || second.Output() != log || first.Output() != nil {
			t.Errorf("%v", err)
		}
		first.Close()
		peer.reply(exited(second.id))
		if _, err := second.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		second.Close()
	}
}

func TestInputIsCountedByWhatThePipeAndTheFileSay(t *testing.T) {
	t.Parallel()
	var pipeEnds [2]int
	if err := unix.Pipe2(pipeEnds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipeEnds[0])
	box, _ := newTestBox(t)
	p := box.newProgram(&isolation.Command{})
	file := memory(t, "")
	fileCopy := duplicate(t, file)
	pipe := duplicate(t, pipeEnds[1])
	in := newInput(p, pipeEnds[1], file)
	data := []byte(strings.Repeat("0123456789", 20_000)) // three times what a pipe holds
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the first byte in the pipe
		for ready := []unix.PollFd{{Fd: int32(pipeEnds[0]), Events: unix.POLLIN}}; ; {
			if _, err := unix.Poll(ready, -1); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		cancel()
	}()
	n, err := in.Write(ctx, data)
	if !errors.Is(err, context.Canceled) || n == 0 || in.Taken() != int64(n) {
		t.Fatalf("%d, %v, %d", n, err, in.Taken())
	}
	in.close()
	// Another boxd continues with the rest in the file, and then the remaining data.
	in = newInput(p, pipe, fileCopy)
	if in.Taken() != int64(n) {
		t.Errorf("%d of %d", in.Taken(), n)
	}
	got := make(chan []byte)
	r := os.NewFile(uintptr(duplicate(t, pipeEnds[0])), "pipe")
	go func() {
		all, _ := io.ReadAll(r)
		r.Close()
		got <- all
	}()
	if m, err := in.Write(t.Context(), data[n:]); err != nil || m != len(data)-n || in.Taken() != int64(len(data)) {
		t.Errorf("%d, %v", m, err)
	}
	if err := in.CloseWrite(); err != nil {
		t.Error(err)
	}
	if all := <-got; !bytes.Equal(all, data) {
		t.Errorf("%d bytes have come, not %d", len(all), len(data))
	}
	if _, err := in.Write(t.Context(), data); !errors.Is(err, ErrInputClosed) {
		t.Errorf("%v", err)
	}
	in.close()
}

func duplicate(t *testing.T, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A PID 1 that does not answer is given up. This test runs with a clock of its own.
func TestASilentPID1IsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &Box{ready: make(chan error, 1)}
		start := time.Now()
		err := b.awaitReady(t.Context())
		if !errors.Is(err, unix.ETIMEDOUT) || time.Since(start) != setupTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Whoever watches a box is called for what happens, and for what has happened before; of the end once.
func TestABoxWatcherGetsPastEventsToo(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"before": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box, peer := newTestBox(t)
			calls := make(chan bool, 10)
			watch := func() { box.Watch(func(gone bool) { calls <- gone }) }
			expectCall := func(gone bool) {
				t.Helper()
				select {
				case got := <-calls:
					if got != gone {
						t.Errorf("called with gone %t, want %t", got, gone)
					}
				case <-time.After(time.Minute):
					t.Fatalf("not called with gone %t", gone)
				}
			}
			if early {
				watch()
			}
			p := startProgram(t, box, peer, false)
			left := exited(p.id)
			left.Exited.LeftRunning = true
			peer.reply(left)
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			peer.reply(&isolation.BoxReply{Quiet: true})
			if !early {
				for running := true; running; running, _ = box.LeftRunning() {
					runtime.Gosched()
				}
				watch()
			}
			expectCall(false)
			peer.conn.Close()
			expectCall(true)
			<-box.Done()
			box.Watch(func(gone bool) { calls <- gone })
			expectCall(true)
			if len(calls) > 0 {
				t.Errorf("called %d times more", len(calls))
			}
		})
	}
}

func TestAWatcherOfABoxThatIsGoneIsCalledAtOnce(t *testing.T) {
	t.Parallel()
	box, peer := newTestBox(t)
	peer.conn.Close()
	<-box.Done()
	calls := []bool{}
	box.Watch(func(gone bool) { calls = append(calls, gone) })
	if len(calls) != 1 || !calls[0] {
		t.Errorf("the watcher was called with %v, want once, with gone", calls)
	}
}
