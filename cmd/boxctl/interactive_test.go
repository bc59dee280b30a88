// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// What the keys send.
const (
	ctrlP = "\x10"
	ctrlQ = "\x11"
)

// prompt returns the arguments that start a shell without a prompt, so that its output can be matched.
func prompt(verb ...string) []string {
	return append(verb, "--", "env", "PS1=", "ENV=", "/bin/sh")
}

func (term *terminal) sized(rows, cols uint16) {
	term.t.Helper()
	if err := pty.Setsize(term.screen, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		term.t.Fatal(err)
	}
}

// notes waits until the terminal shows a line that matches, and returns the first group.
func (term *terminal) notes(pattern string) (group string) {
	term.t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	boxtest.Eventually(term.t, "the terminal shows "+pattern, func() bool {
		m := re.FindStringSubmatch(term.text())
		if m != nil {
			group = m[len(m)-1]
		}
		return m != nil
	})
	return group
}

func TestAShellInABoxHasTheTerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	session(t, d, "create", "work")
	for _, verb := range [][]string{{"exec", "-it", "work"}, {"run", "-it"}} {
		cmd := d.Boxctl(t, prompt(verb...)...)
		cmd.Env = append(cmd.Env, "TERM=vt220")
		term := onTerminal(t, cmd)
		term.sized(33, 111)
		term.types("test -t 0 && test -t 2 && echo it has a $TERM\n")
		term.shows("it has a vt220")
		boxtest.Eventually(t, "the program in the box has the size of the terminal", func() bool {
			term.types("stty size\n")
			return strings.Contains(term.text(), "\n33 111\n")
		})
		term.sized(20, 70)
		if err := cmd.Process.Signal(syscall.SIGWINCH); err != nil { // the kernel sends it if the terminal has a foreground group
			t.Fatal(err)
		}
		boxtest.Eventually(t, "the program in the box has the new size of the terminal", func() bool {
			term.types("stty size\n")
			return strings.Contains(term.text(), "\n20 70\n")
		})
		// Ctrl-C only affects the foreground program.
		term.types("sleep 1000; echo slept\n")
		boxtest.Eventually(t, "the program sleep runs", func() bool { return running(d, "sleep") == 1 })
		term.types(ctrlC)
		term.types("echo still $((40+2))\n")
		term.shows("still 42")
		term.types("exit 9\n")
		term.ends(9)
	}
	if got := session(t, d, "ps", "work"); strings.Count(got, "\n") != 1 {
		t.Errorf(`processes are left: got %s, want strings.Count(got, "\n") == 1`, got)
	}
	session(t, d, "rm", "work")
	d.NothingLeft(before)
}

func TestATerminalCanBeLeftAndComeBackTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	session(t, d, "create", "work")
	term := onTerminal(t, d.Boxctl(t, prompt("exec", "-it", "work")...))
	term.types("x=kept; echo be''fore\n")
	term.shows("before")
	term.types("unfinished" + ctrlP + ctrlQ)
	name := term.notes(`^boxctl: detached; 'boxctl attach work ([^']+)' attaches again$`)
	term.ends(0)

	// Earlier output is shown again, and what was typed is still there.
	term = onTerminal(t, d.Boxctl(t, "attach", "--detach-keys", "ctrl-a,d", "work", name))
	term.shows("before")
	term.types("\x15echo $x\n") // Ctrl-U deletes it
	term.shows("kept")
	term.types("\x01d")
	term.notes("boxctl: (detached)")
	term.ends(0)

	// One client is the writer; another may take the write access.
	first := onTerminal(t, d.Boxctl(t, "attach", "work", name))
	first.shows("kept")
	term = onTerminal(t, d.Boxctl(t, "attach", "work", name))
	term.notes("boxctl: (read-only, as another client writes to it)")
	term.types("echo nobody's\n" + ctrlP + ctrlQ)
	term.ends(0)
	term = onTerminal(t, d.Boxctl(t, "attach", "--take-over", "work", name))
	first.notes("boxctl: (another client writes to it now)")
	term.types("echo ta''ken\n")
	term.shows("taken")
	first.shows("taken")
	term.types("exit 4\n")
	term.ends(4)
	first.ends(4)
	session(t, d, "rm", "work")
	d.NothingLeft(before)
}

func TestATerminalIsRestoredWhateverEndsBoxctl(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	session(t, d, "create", "work")
	session(t, d, "start", "-t", "work", "shell", "--", "env", "PS1=", "/bin/sh")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		term := onTerminal(t, d.Boxctl(t, prompt("exec", "-it", "work")...))
		term.types("trap 'exit 8' TERM HUP INT; echo rea''dy; while :; do sleep 0.01; done\n")
		term.shows("ready")
		if err := term.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		term.ends(8)
		// attach only detaches.
		term = onTerminal(t, d.Boxctl(t, "attach", "work", "shell"))
		term.types("echo rea''dy\n")
		term.shows("ready")
		if err := term.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		term.ends(128 + int(sig))
	}
	for _, args := range [][]string{{"top"}, {"top", "work"}} {
		for _, end := range []string{"q", ctrlC} {
			term := onTerminal(t, d.Boxctl(t, args...))
			term.sized(24, 80)
			term.notes(`(\x1b\[\?1049h)`)
			term.notes(`^(work)`)
			term.types(end)
			term.ends(0)
			boxtest.Eventually(t, "boxctl leaves the alternate screen of the terminal", func() bool { return strings.HasSuffix(term.text(), "\x1b[?1049l") })
		}
	}
	session(t, d, "rm", "work")
	d.NothingLeft(before)
}

func TestLogsDoNotSpeakToTheTerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	session(t, d, "create", "work")
	session(t, d, "start", "--wait", "--ready-line", "end", "-c", `printf '\033[31mred\033]0;title\007\n\302\233end\n'; exec sleep 1000`, "work", "hostile")
	term := onTerminal(t, d.Boxctl(t, "logs", "work", "hostile"))
	term.shows(`\x1b[31mred\x1b]0;title\x07`)
	term.shows(`\u009bend`)
	term.ends(0)
	if got := session(t, d, "logs", "work", "hostile"); !strings.HasPrefix(got, "\x1b[31mred") {
		t.Errorf(`not as it was written: got %q, want got starting with "\x1b[31mred"`, got)
	}
}

func TestARestartOfBoxdIsNotNoticed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	session(t, d, "create", "work")
	session(t, d, "start", "work", "writer", "--", "sh", "-c", `i=0; until [ -e stop ]; do printf 'a\377'; i=$((i+2)); sleep 0.001; done; echo; echo $i`)
	logs := d.Boxctl(t, "logs", "-f", "--json", "work", "writer")
	var written bytes.Buffer
	logs.Stdout = &written
	if err := logs.Start(); err != nil {
		t.Fatal(err)
	}
	term := onTerminal(t, d.Boxctl(t, prompt("exec", "-it", "work")...))
	term.types("echo be''fore; x=kept\n")
	term.shows("before")
	counter := onTerminal(t, d.Boxctl(t, "exec", "--timeout", "2m", "-c", "i=0; until [ -e stop ]; do echo $i; i=$((i+1)); sleep 0.001; done; exit 5", "work"))
	counter.shows("20")
	for i := range 4 {
		if i%2 == 0 {
			d.Kill()
		} else {
			d.Stop()
		}
		term.types("echo $x")
		d.Restart()
		term.types("\n")
	}
	term.shows("kept")
	term.types("touch stop; exit 6\n")
	term.ends(6)
	counter.ends(5)
	for i, line := range strings.Fields(counter.text()) {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q, want line == strconv.Itoa(i)", i, line)
		}
	}
	if err := logs.Wait(); err != nil {
		t.Error(err)
	}
	checkLog(t, &written)
	session(t, d, "rm", "work")
}

// checkLog checks that JSON lines contain everything that the writer has written, which ends with its size.
func checkLog(t *testing.T, written io.Reader) {
	t.Helper()
	var all []byte
	for lines := json.NewDecoder(written); ; {
		var line api.LogLine
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		data := []byte(line.Data)
		if err == nil && line.Base64 {
			data, err = base64.StdEncoding.DecodeString(line.Data)
		}
		if err != nil || line.Offset != int64(len(all)) || line.Gap != 0 {
			t.Fatalf("after %d bytes: line = %+v, err = %v, want no error and line.Offset == int64(len(all)) and line.Gap == 0",
				len(all), line, err)
		}
		all = append(all, data...)
	}
	data, count, _ := strings.Cut(string(all), "\n")
	if data != strings.Repeat("a\377", len(data)/2) || strings.TrimSpace(count) != strconv.Itoa(len(data)) || data == "" {
		t.Errorf(`%d bytes, and the writer says %q, want data == strings.Repeat("a\377", len(data)/2) and strings.TrimSpace(count) == strconv.Itoa(len(data)) and data != ""`,
			len(data), count)
	}
}
