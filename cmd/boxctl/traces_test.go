// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// belongings are counts of what boxd, its keeper and its zygote hold, by kind.
type belongings map[string]int

// holds inspects more than Look: the zygote, every mount namespace, and every file.
func holds(t *testing.T, d *boxtest.Daemon) belongings {
	t.Helper()
	d.Close() // idle connections are descriptors in boxd
	b := belongings{}
	var pids []int
	boxtest.Eventually(t, "boxd, keeper, zygote and the worker processes run", func() bool { // a process that is being started still looks like its parent
		pids = []int{d.PID()}
		for i := 0; i < len(pids); i++ {
			for _, child := range boxtest.Children(t, pids[i]) {
				cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
				if err == nil && bytes.Contains(cmdline, []byte("boxkeeper")) {
					pids = append(pids, child)
				}
			}
		}
		return len(pids) == 4
	})
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			t.Fatal(err)
		}
		b[fmt.Sprintf("descriptors of %d", pid)] = len(fds)
		b[fmt.Sprintf("mounts of %d", pid)] = bytes.Count(mounts, []byte("\n"))
	}
	err := filepath.WalkDir(d.State, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == "usage" {
			return fs.SkipDir // usage records are kept
		}
		if errors.Is(err, fs.ErrNotExist) { // being removed
			return nil
		}
		b[path]++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Not parallel: two hundred concurrent programs are enough for one machine.
func TestTwoHundredConcurrentRunsLeaveNothing(t *testing.T) {
	const most = 200
	runs := most
	if boxtest.Grouped() {
		runs = 40 // in an emulated machine they take as long
	}
	d := boxtest.Start(t, "[profiles.default]\nmax_timeout = \"1h\"")
	d.Warm()
	before, held := d.Look(), holds(t, d)
	var wg sync.WaitGroup
	var gates [most]*io.PipeWriter
	for i := range runs {
		// Every program waits for input, so that all boxes exist at the same time.
		gate, word := io.Pipe()
		gates[i] = word
		wg.Go(func() {
			defer gate.Close()
			var stdout, stderr bytes.Buffer
			cmd := d.Boxctl(t, "run", "--timeout", "30m", "--", "sh", "-c", `echo "$0" >file; read -r word; echo "$word $(cat file)"; echo "$word" >&2; exit "$1"`,
				fmt.Sprint(i), fmt.Sprint(i%100))
			cmd.Stdin, cmd.Stdout, cmd.Stderr = gate, &stdout, &stderr
			_ = cmd.Run() // the code says it all
			wantOut, wantErr := fmt.Sprintf("word%d %d\n", i, i), fmt.Sprintf("word%d\n", i)
			if cmd.ProcessState.ExitCode() != i%100 || stdout.String() != wantOut || stderr.String() != wantErr {
				t.Errorf("run %d: cmd.ProcessState = %v, stdout = %q, stderr = %q, want cmd.ProcessState.ExitCode() == i %% 100 and stdout.String() == %q and stderr.String() == %q",
					i, cmd.ProcessState, stdout.String(), stderr.String(), wantOut, wantErr)
			}
		})
	}
	for have := 0; have < runs; {
		boxtest.Eventually(t, fmt.Sprintf("more than %d of them run at once", have), func() bool {
			s, err := d.Status(t.Context())
			if err != nil || min(s.Running, s.Sessions) <= have {
				return false
			}
			have = min(s.Running, s.Sessions)
			return true
		})
	}
	for i, gate := range gates[:runs] {
		fmt.Fprintf(gate, "word%d\n", i)
		gate.Close()
	}
	wg.Wait()
	d.NothingLeft(before)
	var now belongings
	defer func() {
		if t.Failed() {
			t.Logf("boxd and the keeper's held %v, now %v", held, now)
		}
	}()
	boxtest.Eventually(t, "boxd and the processes of the keeper hold no more descriptors and mounts than before", func() bool {
		now = holds(t, d)
		for what, n := range now {
			if n > held[what] {
				return false
			}
		}
		return true
	})
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) > 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}

func TestKilledClientLeaksNothing(t *testing.T) {
	t.Parallel()
	const program = "trap '' TERM INT HUP PIPE; (setsid sleep 1000 &); sleep 1000"
	const limit = "--timeout=2m" // longer than any wait here: the timeout does not end the program
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	kill := func(t *testing.T, args ...string) {
		t.Helper()
		input, typing, err := os.Pipe() // stays open: EOF on the input does not end the program
		if err != nil {
			t.Fatal(err)
		}
		defer typing.Close()
		cmd := d.Boxctl(t, args...)
		cmd.Stdin = input
		err = cmd.Start()
		input.Close()
		if err != nil {
			t.Fatal(err)
		}
		boxtest.Eventually(t, "the programs of the client run", func() bool { return running(d, "sleep") == 2 })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed by the test
	}
	for _, args := range [][]string{{"run", limit, "-c", program}, {"run", "-n", limit, "-c", program}, {"run", "--json", "-n", limit, "-c", program}} {
		t.Run(strings.Join(args[:len(args)-3], " "), func(t *testing.T) {
			kill(t, args...)
			d.NothingLeft(before)
		})
	}
	session(t, d, "create", "work")
	session(t, d, "exec", "work", "--", "touch", "kept")
	boxtest.Eventually(t, "there are the box of the session and one preforked box", func() bool { return running(d, "boxinit") == 2 })
	inUse := d.Look()
	for _, args := range [][]string{{"exec", limit, "-c", program, "work"}, {"exec", "-n", limit, "-c", program, "work"}, {"exec", "--json", "-n", limit, "-c", program, "work"}} {
		t.Run(strings.Join(args[:len(args)-4], " "), func(t *testing.T) {
			kill(t, args...)
			boxtest.Eventually(t, "no program of the killed client runs", func() bool {
				s, err := d.Session(t.Context(), "work")
				return err == nil && s.State == "ready" && s.Running == 0
			})
			d.NothingLeft(inUse)
			if got := session(t, d, "exec", "work", "--", "ls"); got != "kept\n" {
				t.Errorf(`the workspace of the session has %q, want "kept\n"`, got)
			}
		})
	}
	session(t, d, "rm", "work")
	d.NothingLeft(before)
}

// The kernel allows one argument of boxctl 128 KiB, including the NUL at its end; boxd's own limit is exec.max_command for all of
// them. Longer ones are passed as input: see testdata/script/input.txtar.
func TestCommandsAsLongAsArgumentsCanBe(t *testing.T) {
	t.Parallel()
	const longest = 128<<10 - 1
	d := boxtest.Start(t)
	end := "; echo the end"
	line := ": " + strings.Repeat("x", longest-2-len(end)) + end
	code := "x = '" + strings.Repeat("x", longest-len("x = ''\nprint(len(x))")) + "'\nprint(len(x))"
	many := []string{"run", "--", "sh", "-c", "echo $#", "sh"}
	for range 7 {
		many = append(many, strings.Repeat("y", longest))
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "-c", line}, "the end\n"},
		{[]string{"run", "-l", "python", "--code", code}, fmt.Sprintln(longest - len("x = ''\nprint(len(x))"))},
		{[]string{"run", "--", "sh", "-c", "echo ${#0}", line}, fmt.Sprintln(longest)},
		{many, "7\n"},
	} {
		if got := session(t, d, tc.args...); got != tc.want {
			t.Errorf("%.40q: %q, want %q", tc.args, got, tc.want)
		}
	}
	var stderr bytes.Buffer
	cmd := d.Boxctl(t, append(many, many[len(many)-2:]...)...)
	cmd.Stderr = &stderr
	_ = cmd.Run() // the code says it all
	if got := stderr.String(); cmd.ProcessState.ExitCode() != exitBoxd || !strings.HasPrefix(got, "boxctl: program ") || !strings.Contains(got, ": must be at most 1MiB (exec.max_command)") {
		t.Errorf("more than exec.max_command: %v, %q", cmd.ProcessState, got)
	}
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) > 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}
