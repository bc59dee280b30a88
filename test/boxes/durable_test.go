// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// bareBox starts a box with nothing above it but a keeper.
func bareBox(t *testing.T) *client.Box {
	t.Helper()
	boxtest.RequireRoot(t)
	dir, bin := boxtest.TempDir(t), boxtest.Programs(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	base, count := boxtest.IDs(t)
	k, err := client.StartKeeper(t.Context(), client.KeeperConfig{
		Program: filepath.Join(bin, "boxkeeper"), BoxInit: filepath.Join(bin, "boxinit"), StateDir: state,
		IDBase: base, IDCount: count, IDLock: filepath.Join(dir, "ids"), Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	box, err := k.Launch(t.Context(), &isolation.Spec{
		Key: strings.Repeat("d0", isolation.KeyLen/2), Hostname: "box", Scratch: isolation.Scratch{Bytes: 64 << 20, Inodes: 10_000}, ManagedWork: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// durable starts a durable program for the shell.
func durable(t *testing.T, box *client.Box, script string, change func(*isolation.Command, *client.Files)) *client.Program {
	t.Helper()
	cmd := &isolation.Command{
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "TERM=dumb"}, Dir: isolation.Workspace, ScriptArg: -1,
		Timeout: 2 * time.Minute, Output: isolation.Output{Head: 1 << 10, Tail: 64 << 10}, Durable: true,
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

// until reads a program's output until it contains something.
func until(t *testing.T, p *client.Program, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
		t.Errorf("%+v", exit)
	}
	head, _, err := p.Kept(0)
	if err != nil || !strings.HasPrefix(string(head), "<line 0>\n<line 1>\n") {
		t.Errorf("%q, %v", head, err)
	}
	if err := p.Forget(); err != nil {
		t.Error(err)
	}
}

func TestTerminalOfABox(t *testing.T) {
	box := bareBox(t)
	p := durable(t, box, "tty; stty size; trap 'stty size; echo resized' WINCH; echo ready; while :; do read x && echo \"got $x\"; done", withTerminal)
	if text := until(t, p, "ready"); !strings.Contains(text, "/dev/pts/0") || !strings.Contains(text, "33 101") {
		t.Errorf("%q", text)
	}
	if err := p.Resize(20, 70); err != nil {
		t.Fatal(err)
	}
	if text := until(t, p, "resized"); !strings.Contains(text, "20 70") {
		t.Errorf("%q", text)
	}
	if _, err := p.Input().Write(t.Context(), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	until(t, p, "got hello")
	if _, err := p.Input().Write(t.Context(), []byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Reason != isolation.ReasonSignaled || exit.Signal != int(unix.SIGINT) {
		t.Errorf("%+v", exit)
	}
}

func TestTerminalHasJobControl(t *testing.T) {
	boxtest.RequireProgram(t, "bash")
	box := bareBox(t)
	p := durable(t, box, "exec bash --norc -i", withTerminal)
	until(t, p, "$ ") // what is typed before would be dropped at Ctrl-Z
	if _, err := p.Input().Write(t.Context(), []byte("echo go; sleep 100\n")); err != nil {
		t.Fatal(err)
	}
	until(t, p, "\ngo\r\n")
	boxtest.Eventually(t, "it is stopped", func() bool {
		_, _ = p.Input().Write(t.Context(), []byte{26}) // Ctrl-Z, for the shell until it has started the program
		time.Sleep(50 * time.Millisecond)
		return strings.Contains(written(t, p), "Stopped")
	})
	if _, err := p.Input().Write(t.Context(), []byte("bg; kill %1; wait; exit 7\n")); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 7 {
		t.Errorf("%+v, %q", exit, written(t, p))
	}
}

// written is all that a program has written to its terminal.
func written(t *testing.T, p *client.Program) string {
	t.Helper()
	c, err := p.Output().NewReader([2]int64{}, false).Next(make([]byte, 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	return string(c.Data)
}

// The last words of a program in a terminal are read before its end is told.
func TestTerminalsLastWords(t *testing.T) {
	box := bareBox(t)
	for range 50 {
		p := durable(t, box, "seq 500; echo the end", withTerminal)
		wait(t, p)
		text := until(t, p, "the end")
		if !strings.Contains(text, "\r\n499\r\n500\r\n") {
			t.Fatalf("%q", text)
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
	boxtest.Eventually(t, "it has written as much as it may", func() bool {
		end, err := p.Output().End()
		if err != nil {
			t.Fatal(err)
		}
		return end[0] >= 64<<10
	})
	time.Sleep(100 * time.Millisecond)
	end, err := p.Output().End()
	if err != nil || end[0] > 64<<10+64<<10 || end[1] > 0 {
		t.Errorf("it has not waited: %v, %v", end, err)
	}
	if err := p.Pace(&[2]int64{1 << 20, 0}); err != nil { // more than there is
		t.Fatal(err)
	}
	boxtest.Eventually(t, "it goes on", func() bool {
		now, _ := p.Output().End()
		return now[0] > end[0]
	})
	if err := p.Pace(nil); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Streams[0].Total != 3_000_000 || exit.Streams[1].Total != 8 {
		t.Errorf("%+v", exit)
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
			t.Fatalf("at %d: %q", c.Offset, bytes.Trim(c.Data, "x"))
		}
		kept, gone = kept+int64(len(c.Data)), gone+c.Gap
	}
	if kept+gone != 3_000_008 || gone < 2_000_000 || kept < 64<<10 {
		t.Errorf("%d kept, %d gone", kept, gone)
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
		t.Error("it has started")
	}
	broken.Close()
	second := durable(t, box, "read x; echo two $x", func(c *isolation.Command, f *client.Files) {
		c.Stdin, f.Old = isolation.StdinPipe, first
	})
	if _, err := second.Input().Write(t.Context(), []byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, second); exit.Code != 0 || second.Output() != log {
		t.Errorf("%+v", exit)
	}
	if text := until(t, second, "three"); text != "one\ntwo three\n" {
		t.Errorf("%q", text)
	}
}
