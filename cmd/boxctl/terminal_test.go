// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func commandOf(t *testing.T, d *boxtest.Daemon, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "BOXD_SOCKET="+d.Socket, "XDG_STATE_HOME="+d.Dir)
	return cmd
}

// terminal is a user's terminal with one program in it.
type terminal struct {
	t      *testing.T
	screen *os.File // the user's end
	line   *os.File // the program's end
	cmd    *exec.Cmd
	read   chan struct{} // closed when there is nothing more to read
	before *unix.Termios // its settings before the program started

	mu   sync.Mutex // guards the field below
	seen strings.Builder
}

// onTerminal starts a program as the session leader of a terminal.
func onTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	screen, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, screen: screen, line: line, cmd: cmd, read: make(chan struct{})}
	// Unusual settings: a program that restores "the usual" ones changes them.
	settings := term.settings()
	settings.Cc[unix.VEOF], settings.Lflag = 5, settings.Lflag&^unix.ECHO
	term.control(func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, settings) })
	term.before = settings
	cmd.Stdin, cmd.Stdout, cmd.Stderr = line, line, line
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the line is closed
		defer close(term.read)
		_, _ = io.Copy(term, screen)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // of a failed test
		line.Close()
		screen.Close()
		<-term.read
	})
	return term
}

// Write receives the program's output.
func (term *terminal) Write(p []byte) (int, error) {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.seen.Write(p)
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return strings.ReplaceAll(term.seen.String(), "\r\n", "\n")
}

// shows waits until the terminal shows a line.
func (term *terminal) shows(line string) {
	term.t.Helper()
	defer func() {
		if term.t.Failed() {
			term.t.Logf("the terminal shows %q", term.text())
		}
	}()
	boxtest.Eventually(term.t, "the terminal shows "+line, func() bool { return strings.Contains("\n"+term.text(), "\n"+line+"\n") })
}

func (term *terminal) types(text string) {
	term.t.Helper()
	if _, err := term.screen.WriteString(text); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) control(f func(fd int) error) {
	term.t.Helper()
	raw, err := term.line.SyscallConn()
	if err != nil {
		term.t.Fatal(err)
	}
	var cerr error
	if err := raw.Control(func(fd uintptr) { cerr = f(int(fd)) }); err != nil || cerr != nil {
		term.t.Fatalf("err = %v, cerr = %v, want both nil", err, cerr)
	}
}

func (term *terminal) settings() (settings *unix.Termios) {
	term.t.Helper()
	term.control(func(fd int) (err error) {
		settings, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return settings
}

// ends waits for the program and checks its exit code, and that the terminal settings are restored.
func (term *terminal) ends(code int) {
	term.t.Helper()
	_ = term.cmd.Wait() // the code says it all
	if got := term.cmd.ProcessState.ExitCode(); got != code {
		term.t.Errorf("boxctl ended with %v, want exit code %d; the terminal shows %q", term.cmd.ProcessState, code, term.text())
	}
	if diff := cmp.Diff(term.before, term.settings()); diff != "" {
		term.t.Errorf("the settings of the terminal have changed: %s", diff)
	}
}

// ctrlC is what the key sends.
const ctrlC = "\x03"

func TestATerminalShowsOutputAsItComesAndKeepsWhatIsTyped(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, scriptConfig)
	lent := makeScriptDirs(t, d)
	d.Warm()
	before := d.Look()
	term := onTerminal(t, commandOf(t, d, "/bin/sh", "-c", `"$0" "$@"; read line; echo "left for the shell: $line"`,
		filepath.Join(boxtest.Programs(t), "boxctl"), "run", "-v", lent+":/data:ro", "-c",
		`cat; echo first; echo second >&2; test -t 0 || test -t 1 || echo no terminal; until [ -e /data/go ]; do sleep 0.01; done; echo last`))
	// Each line arrives while the program waits for something that only happens after the line was read.
	term.shows("first")
	term.shows("second")
	term.shows("no terminal")
	term.types("typed\n")
	if err := os.WriteFile(filepath.Join(lent, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	term.shows("last")
	term.shows("left for the shell: typed")
	term.ends(0)
	d.NothingLeft(before)
}

func TestSignalsEndTheProgramAndItsBox(t *testing.T) {
	t.Parallel()
	typed := func(term *terminal) { term.types(ctrlC) }
	sent := func(sig syscall.Signal) func(*terminal) {
		return func(term *terminal) {
			if err := term.cmd.Process.Signal(sig); err != nil {
				term.t.Error(err)
			}
		}
	}
	for _, tc := range []struct {
		name, program string
		signal        func(*terminal)
		code          int
	}{
		{"Ctrl-C", "echo ready; exec sleep 1000", typed, 130},
		{"Ctrl-C and a program in the foreground of a shell", "echo ready; sleep 1000; echo after", typed, 130},
		{"Ctrl-C is the program's to catch", "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.01; done", typed, 7},
		// The process that prints "ready" must get the signal: a bash that has had a trap loses one just before its exec.
		{"Ctrl-C and what it has started", "trap '' INT; (trap - INT; setsid sleep 1000 &); trap - INT; echo ready >/tmp/r; exec tail -f /tmp/r", typed, 130},
		{"SIGTERM", "echo ready; exec sleep 1000", sent(syscall.SIGTERM), 143},
		{"SIGTERM is the program's to catch", "trap 'echo caught; exit 8' TERM; echo ready; while :; do sleep 0.01; done", sent(syscall.SIGTERM), 8},
		{"SIGHUP", "echo ready; exec sleep 1000", sent(syscall.SIGHUP), 129},
		{"second Ctrl-C", "trap 'echo not yet' INT; echo ready; while :; do sleep 0.01; done", func(term *terminal) {
			term.types(ctrlC)
			term.shows("not yet")
			term.types(ctrlC)
		}, 137},
		{"Ctrl-C and SIGTERM", "trap 'echo not yet' INT TERM; echo ready; while :; do sleep 0.01; done", func(term *terminal) {
			term.types(ctrlC)
			term.shows("not yet")
			sent(syscall.SIGTERM)(term)
		}, 137},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t)
			d.Warm()
			before := d.Look()
			// Not sh: dash catches SIGINT itself, and loses one that arrives just before it forks.
			term := onTerminal(t, d.Boxctl(t, "run", "-l", "bash", "--code", tc.program))
			term.shows("ready")
			tc.signal(term)
			term.ends(tc.code)
			d.NothingLeft(before)

			// In a session only the program ends.
			session(t, d, "create", "work")
			session(t, d, "exec", "work", "--", "touch", "kept")
			term = onTerminal(t, d.Boxctl(t, "exec", "-l", "bash", "--code", tc.program, "work"))
			term.shows("ready")
			tc.signal(term)
			term.ends(tc.code)
			if got := session(t, d, "exec", "work", "--", "sh", "-c", "ls; cat /proc/[0-9]*/comm"); !strings.HasPrefix(got, "kept\n") || strings.Contains(got, "sleep") {
				t.Errorf(`the workspace of the session has %q, want got starting with "kept\n" and got without "sleep"`, got)
			}
			session(t, d, "rm", "work")
			d.NothingLeft(before)
		})
	}
}

// session runs a boxctl that must succeed.
func session(t *testing.T, d *boxtest.Daemon, args ...string) string {
	t.Helper()
	out, err := d.Boxctl(t, args...).Output()
	if err != nil {
		t.Fatalf("boxctl %q: %v", args, err)
	}
	return string(out)
}

func TestASignalEndsAProgramThatIsWaitedForToo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	term := onTerminal(t, d.Boxctl(t, "run", "--json", "--timeout", "2m", "--", "sleep", "1000"))
	boxtest.Eventually(t, "the program runs", func() bool { return running(d, "sleep") == 1 })
	term.types(ctrlC)
	term.ends(130)
	d.NothingLeft(before)
}

func TestATerminalThatHangsUpEndsTheProgram(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	term := onTerminal(t, d.Boxctl(t, "run", "--timeout", "2m", "-c", "trap '' HUP; echo ready; while sleep 0.01; do echo more; done"))
	term.shows("ready")
	term.line.Close()
	term.screen.Close()
	_ = term.cmd.Wait() // by whichever it noticed first
	d.NothingLeft(before)
}

// running counts the processes with a name in the boxes of a boxd.
func running(d *boxtest.Daemon, name string) (n int) {
	for _, p := range d.Look().Processes {
		if strings.Contains(p, " "+name+" ") {
			n++
		}
	}
	return n
}

// Highlighting is only used for a user at a terminal, and only if the user wants it.
func TestColoursAreForAPersonAtATerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "work")
	session(t, d, "start", "work", "bad", "--", "false")
	if p, err := d.Process(t.Context(), "work", "bad", time.Minute); err != nil || p.State != "ended" {
		t.Fatalf(`p = %+v, err = %v, want no error and p.State == "ended"`, p, err)
	}
	for _, tc := range []struct {
		env  []string
		want bool
	}{
		{[]string{"TERM=xterm", "NO_COLOR="}, true},
		{[]string{"TERM=xterm", "NO_COLOR=1"}, false},
		{[]string{"TERM=dumb", "NO_COLOR="}, false},
	} {
		for _, args := range [][]string{{"status"}, {"doctor"}, {"ls"}, {"ps", "work"}} {
			cmd := d.Boxctl(t, args...)
			cmd.Env = append(cmd.Env, tc.env...)
			term := onTerminal(t, cmd)
			term.ends(0)
			term.line.Close()
			<-term.read
			if got := strings.Contains(term.text(), "\x1b["); got != tc.want {
				t.Errorf("%v %v: term.text() = %q, want got == tc.want", args, tc.env, term.text())
			}
		}
		cmd := d.Boxctl(t, "top")
		cmd.Env = append(cmd.Env, tc.env...)
		term := onTerminal(t, cmd)
		term.sized(24, 80)
		term.notes(`(?m)^(work) `)
		if got := strings.Contains(term.text(), "\x1b[1mBOX"); got != tc.want {
			t.Errorf("top %v: term.text() = %q, want got == tc.want", tc.env, term.text())
		}
		term.types("q")
		term.ends(0)
	}
}

// A boxd that hangs does not prevent the user from quitting top.
func TestTopEndsWhileBoxdHangs(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "work")
	term := onTerminal(t, d.Boxctl(t, "top"))
	term.sized(24, 80)
	term.notes(`(?m)^(work) `)
	if err := syscall.Kill(d.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(d.PID(), syscall.SIGCONT) }() // before it is sent the signal to exit
	<-time.After(3 * time.Second / 2)                             // it refreshes every second, and gets no answer
	term.types("q")
	term.ends(0)
}

// slowDown stops boxd repeatedly, so that a transfer takes longer than the delay before progress is shown. In between boxd gets
// its CPU time, however busy the host is. The returned function ends that.
func slowDown(t *testing.T, d *boxtest.Daemon) (end func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	over := func(after time.Duration) bool {
		select {
		case <-stop:
			return true
		case <-time.After(after):
			return false
		}
	}
	go func() { // ends with end
		defer close(ended)
		defer func() { _ = syscall.Kill(d.PID(), syscall.SIGCONT) }()
		for {
			_ = syscall.Kill(d.PID(), syscall.SIGSTOP)
			if over(600 * time.Millisecond) {
				return
			}
			had := processorTicks(d.PID())
			_ = syscall.Kill(d.PID(), syscall.SIGCONT)
			for processorTicks(d.PID()) < had+2 {
				if over(time.Millisecond) {
					return
				}
			}
		}
	}()
	end = sync.OnceFunc(func() {
		close(stop)
		<-ended
	})
	t.Cleanup(end)
	return end
}

// processorTicks returns the CPU time of a process, in hundredths of a second: utime and stime of proc_pid_stat(5).
func processorTicks(pid int) (n int) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // an ended process needs no waiting
	_, rest, _ := strings.Cut(string(stat), ") ")
	for i, field := range strings.Fields(rest) {
		if i == 11 || i == 12 {
			ticks, _ := strconv.Atoi(field)
			n += ticks
		}
	}
	return n
}

// A long copy shows its progress to a user, on one line that is cleared; a program that reads the output gets none.
func TestALongCopyShowsHowFarItIs(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "work")
	large := filepath.Join(boxtest.TempDir(t), "large")
	if err := os.WriteFile(large, make([]byte, 24<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	goOn := slowDown(t, d)
	// shows runs a command until its progress line shows a percentage before it ends with end: boxd may also have all of it between two stops.
	shows := func(code int, end string, args ...string) {
		t.Helper()
		boxtest.Eventually(t, "the progress line of "+args[0]+" shows a percentage", func() bool {
			term := onTerminal(t, d.Boxctl(t, args...))
			term.ends(code)
			text := term.text()
			if strings.Contains(text, "\x1b") {
				t.Errorf("a person sees %q, want no control sequence", text)
			}
			return strings.Contains(text, "% of 24MiB") && strings.HasSuffix(text, end)
		})
	}
	shows(0, " \r", "cp", "--overwrite", large, "work:")
	shows(0, "\n", "drives", "fill", "me/large", filepath.Dir(large))
	shows(1, "\n", "skills", "preview", filepath.Dir(large)) // it is refused: it is no skill
	goOn()
	if out, err := d.Boxctl(t, "cp", "--overwrite", large, "work:").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("a program reads %q, %v, want no error and len(out) == 0", out, err)
	}
}

// A shell on a terminal has that terminal, and gets what the user types there as input.
func TestAShellHasThisTerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, scriptConfig)
	lent := makeScriptDirs(t, d)
	d.Warm()
	before := d.Look()
	cmd := d.Boxctl(t, "shell")
	cmd.Dir = lent
	cmd.Env = append(cmd.Env, "SHELL=/bin/bash", "TERM=dumb") // for which it uses no bracketed paste
	term := onTerminal(t, cmd)
	term.types("test -t 0 && echo te''rminal; pwd; echo made >result; exit 6\n")
	term.shows("terminal")
	term.shows("/workspace")
	term.ends(6)
	if made, err := os.ReadFile(filepath.Join(lent, "result")); err != nil || string(made) != "made\n" {
		t.Errorf("the shell has made %q, %v", made, err)
	}
	d.NothingLeft(before)

	session(t, d, "create", "work")
	cmd = d.Boxctl(t, "shell", "work")
	cmd.Env = append(cmd.Env, "TERM=dumb")
	term = onTerminal(t, cmd)
	term.types("tty | grep -o pts; exit 7\n")
	term.shows("pts")
	term.ends(7)
	session(t, d, "rm", "work")
	d.NothingLeft(before)
}

// Removing all boxes asks for confirmation, and only yes is accepted.
func TestRemovingAllBoxesIsAskedForOnATerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "one")
	session(t, d, "create", "two")
	for _, tc := range []struct {
		answer string
		code   int
		left   int
	}{{"\n", 1, 2}, {"no\n", 1, 2}, {"yes\n", 0, 0}} {
		term := onTerminal(t, d.Boxctl(t, "rm", "--all"))
		if asked := term.notes(`remove 2 boxes: ((?:one, two|two, one))\? \[y/N\] `); asked == "" {
			t.Error("the question does not name the two boxes")
		}
		term.types(tc.answer)
		term.ends(tc.code)
		if list, err := d.Sessions(t.Context(), false); err != nil || len(list) != tc.left {
			t.Errorf("after %q there are %d boxes, %v", tc.answer, len(list), err)
		}
	}
}

// When its terminal is closed, a program gets SIGHUP, and is ended if it ignores that: boxctl's standard error says so.
func TestATerminalThatDiesTakesItsProgramAlong(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "work")
	const deaf = "trap '' HUP; echo ready; sleep 1000"
	for _, tc := range []struct {
		in         []string
		line, said string
	}{
		{[]string{"exec", "-it", "work"}, "echo ready; exec sleep 1000", ""},
		{[]string{"exec", "-it", "work"}, deaf, "was ended"},
		{[]string{"run", "-it"}, deaf, "was ended"},
	} {
		screen, line, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := d.Boxctl(t, append(tc.in, "--", "sh", "-c", tc.line)...)
		var said strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = line, line, &said
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line.Close() // boxctl has it open
		if shown, err := bufio.NewReader(screen).ReadString('\n'); err != nil || strings.TrimSpace(shown) != "ready" {
			t.Errorf("%s: it shows %q, %v", tc.line, shown, err)
		}
		screen.Close()
		_ = cmd.Wait() // it may notice the signal or EOF on its input first, and it varies when the program is killed
		codes := []int{exitSignalBase + int(syscall.SIGHUP), exitSignalBase + int(syscall.SIGKILL), exitBoxd}
		if got := cmd.ProcessState.ExitCode(); !slices.Contains(codes, got) || !strings.Contains(said.String(), tc.said) {
			t.Errorf("%s: code %d, %q", tc.line, got, said.String())
		}
		boxtest.Eventually(t, tc.line+": no process is left", func() bool { // boxctl may have ended first
			list, err := d.Processes(t.Context(), "work")
			return err == nil && len(list) == 0
		})
		boxtest.Eventually(t, fmt.Sprintf("%v: there is one box", tc.in), func() bool {
			list, err := d.Sessions(t.Context(), false)
			return err == nil && len(list) == 1
		})
	}
}
