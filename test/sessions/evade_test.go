// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// evade is a program that tries to outlive its execution, in the way its argument names. While it lives it increments a counter
// in a file.
const evade = `#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <fcntl.h>

static void count(unsigned long n)
{
	char text[32];
	int fd = open("/workspace/alive", O_CREAT | O_WRONLY | O_TRUNC, 0644);
	if (write(fd, text, snprintf(text, sizeof text, "%lu", n)) < 0)
		_exit(1);
	close(fd);
}

static void *live(void *unused)
{
	for (unsigned long n = 1;; n++, usleep(10000))
		count(n);
	return unused;
}

static void leave(void)
{
	if (fork())
		_exit(0);
	setsid();
	if (fork())
		_exit(0);
}

int main(int argc, char **argv)
{
	if (argc > 2)
		leave();
	close(0), close(1), close(2);
	if (!strcmp(argv[1], "thread")) {
		/* The first thread ends and another goes on: the process looks like a zombie. */
		pthread_t t;
		pthread_create(&t, 0, live, 0);
		syscall(SYS_exit, 0);
	}
	if (!strcmp(argv[1], "sibling")) {
		/* Its parent is that of this process. */
		if (syscall(SYS_clone, CLONE_PARENT, 0, 0, 0, 0) == 0)
			live(0);
		pause();
	}
	if (!strcmp(argv[1], "reaper")) {
		/* Its orphans become children of this process, not of PID 1. */
		prctl(PR_SET_CHILD_SUBREAPER, 1);
		if (fork() == 0) {
			if (fork() == 0)
				live(0);
			_exit(0);
		}
		pause();
	}
	if (!strcmp(argv[1], "chain")) {
		/* Every process has a successor before anybody can look at it. */
		for (unsigned long n = 1;; n++) {
			long pid;
			if (n % 64 == 0)
				count(n);
			while ((pid = syscall(SYS_fork)) < 0)
				;
			if (pid > 0)
				syscall(SYS_exit_group, 0);
		}
	}
	if (!strcmp(argv[1], "bomb")) {
		/* Whoever is killed has been replaced by several; 300 of them keep any machine busy. */
		struct rlimit limit = {300, 300};
		setrlimit(RLIMIT_NPROC, &limit);
		for (unsigned long n = 1;; n++) {
			if (n % 64 == 0)
				count(n);
			fork();
		}
	}
	/* Whatever can be stopped is: programs that are just being started, too. */
	for (;;)
		kill(-1, SIGSTOP);
}
`

// counts reports whether the counter in a session's file still increases.
func counts(t *testing.T, d *boxtest.Daemon, id string) bool {
	t.Helper()
	f := strings.Fields(d.Sh(t, id, "cat alive; echo; sleep 0.5; cat alive"))
	return len(f) == 2 && f[0] != f[1]
}

func TestNoTrickOutlivesAnExecution(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "gcc")
	d := boxtest.Start(t)
	pids := 2000
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Pids: &pids}})
	build := boxtest.Shell("gcc -O1 -pthread -xc -o evade -")
	build.Stdin, build.Timeout = evade, boxtest.Duration("2m")
	d.Output(t, "s1", build)
	for _, beside := range []bool{false, true} {
		if beside { // then PID 1 has a child that is none of what they leave
			if _, _, err := d.StartProcess(t.Context(), "s1", "beside", &api.ProcessRequest{Argv: []string{"sleep", "infinity"}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, trick := range []string{"thread", "sibling", "reaper", "chain", "bomb"} {
			for i := range 3 {
				begun := boxtest.Shell("rm -f alive; ./evade " + trick + " away; until [ -s alive ]; do sleep 0.01; done")
				begun.Timeout = boxtest.Duration("2m")
				r := d.Result(t, "s1", begun)
				if r.Status != "exited" || r.LeftoversKilled == 0 {
					t.Errorf(`%s, left running, round %d: r = %s, want r.Status == "exited" and r.LeftoversKilled != 0`,
						trick, i, boxtest.Show(r))
				}
				if counts(t, d, "s1") {
					t.Fatalf("%s, left running, round %d: a process still runs", trick, i)
				}
				req := boxtest.Shell("./evade " + trick + "; sleep 1000")
				req.Timeout = boxtest.Duration("300ms")
				if r := d.Result(t, "s1", req); r.Status != "timed_out" {
					t.Errorf(`%s, out of time, round %d: r = %s, want r.Status == "timed_out"`, trick, i, boxtest.Show(r))
				}
				if counts(t, d, "s1") {
					t.Fatalf("%s, out of time, round %d: a process still runs", trick, i)
				}
			}
		}
	}
	if p, err := d.Process(t.Context(), "s1", "beside", 0); err != nil || p.State != "running" {
		t.Errorf("the process beside them: %+v, %v", p, err)
	}
}

// PID 1 briefly stops all processes to find one that forks endlessly; the other programs do not notice.
func TestNeighboursOfAForkChainGoOn(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "gcc")
	d := boxtest.Start(t)
	pids := 2000 // dead processes count until PID 1 has reaped them
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Pids: &pids}})
	build := boxtest.Shell("gcc -O1 -pthread -xc -o evade -")
	build.Stdin, build.Timeout = evade, boxtest.Duration("2m")
	d.Output(t, "s1", build)
	neighbour := boxtest.Shell("echo up; sleep 1000 & kill -STOP $!; echo $!; read line; cat /proc/$!/status | grep State; kill -KILL $!; wait $! 2>/dev/null; echo $line")
	neighbour.Timeout = new(quantity.Duration(boxtest.Longest))
	c := converse(t.Context(), d, "s1", neighbour)
	c.hears(t, "up\n")
	var pid []byte
	for one := make([]byte, 1); len(pid) == 0 || pid[len(pid)-1] != '\n'; pid = append(pid, one[0]) {
		if _, err := c.out.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		req := boxtest.Shell("./evade chain; sleep 1000")
		req.Timeout = boxtest.Duration("200ms")
		if r := d.Result(t, "s1", req); r.Status != "timed_out" {
			t.Errorf(`r = %s, want r.Status == "timed_out"`, boxtest.Show(r))
		}
	}
	boxtest.Eventually(t, "the dead processes are reaped", func() bool { // until then the session has as many processes as it may, and programs cannot fork
		r := d.Result(t, "s1", boxtest.Shell("set -- /proc/[0-9]*; test $# -lt 100"))
		return r.Status == "exited" && r.ExitCode != nil && *r.ExitCode == 0
	})
	c.says(t, "on\n")
	c.hears(t, "State:\tT (stopped)\non\n") // what was stopped before is still stopped
	if r := c.ends(t); r.Status != "exited" {
		t.Errorf(`*r = %s, want r.Status == "exited"`, boxtest.Show(*r))
	}
}

// A program can stop one that is being started once that has the box user's id and before its execve (signal(7)): PID 1 then
// waits for it. That costs this session time, and affects nothing else.
func TestAProgramThatStopsTheOthersEndsItsSessionAtMost(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "gcc")
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{TTL: boxtest.Duration("0"), MaxLifetime: boxtest.Duration("0")}})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	build := boxtest.Shell("gcc -O1 -pthread -xc -o evade -")
	build.Stdin, build.Timeout = evade, boxtest.Duration("2m")
	d.Output(t, "s1", build)
	r := d.Result(t, "s1", api.ExecRequest{Command: new("(setsid ./evade stop &); i=0; while :; do /bin/true; done"), Timeout: boxtest.Duration("1s")})
	if r.Status != "timed_out" && r.Status != "lost" {
		t.Errorf(`r = %s, want r.Status == "timed_out" or r.Status == "lost"`, boxtest.Show(r))
	}
	// Streams end too, as do requests whose client does not wait.
	stop := api.ExecRequest{Command: new("exec ./evade stop"), Timeout: boxtest.Duration("30s")}
	if _, err := d.Session(t.Context(), "s1"); err == nil {
		go func() { _, _ = d.Exec(t.Context(), "s1", &stop) }()
		for range 100 {
			c := converse(t.Context(), d, "s1", api.ExecRequest{Argv: []string{"true"}, Timeout: boxtest.Duration("20ms")})
			if r := <-c.result; r == nil || r.Status == "lost" {
				break
			}
		}
		d.Sh(t, "s2", "true")
		_ = d.DeleteSession(t.Context(), "s1") // it may be lost already
	}
	if err := d.DeleteSession(t.Context(), "s2"); err != nil {
		t.Error(err)
	}
	d.Warm()
	d.NothingLeft(before)
}
