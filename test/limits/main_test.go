// SPDX-License-Identifier: Apache-2.0

// Package limits_test runs into every limit that the kernel keeps for a box, through a real boxd. It needs
// a host with cgroup v2 and project quota below TMPDIR, so it is run in the virtual machine.
package limits_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestMain(m *testing.M) {
	boxtest.BePatient()
	os.Exit(m.Run())
}

// start starts a private boxd that lets no limit go.
func start(t *testing.T, configuration ...string) *boxtest.Daemon {
	t.Helper()
	boxtest.RequireGroups(t)
	return boxtest.StartWith(t, configuration...)
}

func create(t *testing.T, d *boxtest.Daemon, req api.SessionRequest) api.Session {
	t.Helper()
	s, isNew, err := d.Create(t.Context(), &req)
	if err != nil || !isNew {
		t.Fatalf("create %q: new %v, %v", req.ID, isNew, err)
	}
	return s
}

// sh is a line for the shell.
func sh(line string) api.ExecRequest { return api.ExecRequest{Command: &line} }

func in(t *testing.T, d *boxtest.Daemon, id string, req api.ExecRequest) api.ExecResult {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &req)
	if err != nil {
		t.Fatalf("exec in %q: %v", id, err)
	}
	return r
}

// succeeds runs something that must end with 0, and returns its output.
func succeeds(t *testing.T, d *boxtest.Daemon, id string, req api.ExecRequest) string {
	t.Helper()
	req.Timeout = duration(t, "10m")
	r := in(t, d, id, req)
	if r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf("in %q: %s", id, show(r))
	}
	return r.Stdout
}

func show(r api.ExecResult) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func refused(t *testing.T, err error, status int, field string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Field != field {
		t.Fatalf("got %v (%+v), want %d about %q", err, e, status, field)
	}
	return e
}

func duration(t *testing.T, text string) *quantity.Duration {
	t.Helper()
	d, err := quantity.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

// file reads a file of a session's group, such as "work/memory.max".
func file(t *testing.T, s api.Session, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Group, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func number(t *testing.T, s api.Session, name string) int {
	t.Helper()
	n, err := strconv.Atoi(file(t, s, name))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// programs are the groups of programs that a session has now.
func programs(t *testing.T, s api.Session) (names []string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(s.Group, "work"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// bomber is a program that takes all it can get of one thing, named by its argument. It prints "ready" once
// it has all there is, where it lives to see that.
const bomber = `#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1 << 20)

static void *forever(void *unused) { for (;;) pause(); return unused; }

static void fill(const char *name)
{
	static char buf[MIB];
	int fd = open(name, O_CREAT | O_WRONLY, 0644);
	memset(buf, 1, sizeof buf);
	while (write(fd, buf, sizeof buf) > 0)
		;
	perror(name);
}

int main(int argc, char **argv)
{
	const char *what = argv[1];
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(what, "fork"))
		for (;;)
			fork();
	if (!strcmp(what, "setsid"))
		for (;;)
			if (fork() == 0)
				setsid();
	if (!strcmp(what, "double"))
		for (;;)
			if (fork() == 0 && fork() != 0)
				_exit(0);
	if (!strcmp(what, "vfork"))
		for (;;)
			if (vfork() == 0)
				execl("/proc/self/exe", "bomb", "vfork", (char *)0), _exit(1);
	if (!strcmp(what, "threads"))
		for (;;) {
			pthread_t t;
			pthread_create(&t, 0, forever, 0);
		}
	if (!strcmp(what, "memory"))
		for (;;)
			memset(malloc(MIB), 1, MIB);
	if (!strcmp(what, "mapped"))
		for (;;) {
			void *p = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
			if (p != MAP_FAILED)
				memset(p, 1, MIB);
		}
	if (!strcmp(what, "child"))
		for (;;) {
			if (fork() == 0)
				for (;;)
					memset(malloc(MIB), 1, MIB);
			int status;
			wait(&status);
			printf("child %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
			return 7;
		}
	if (!strcmp(what, "shm"))
		fill("/dev/shm/x");
	if (!strcmp(what, "tmp"))
		fill("/tmp/x");
	if (!strcmp(what, "pipes")) {
		static char buf[65536];
		for (int p[2]; pipe2(p, O_NONBLOCK) == 0;) {
			fcntl(p[1], F_SETPIPE_SZ, MIB);
			while (write(p[1], buf, sizeof buf) > 0)
				;
		}
		perror("pipes");
	}
	if (!strcmp(what, "sockets")) {
		static char buf[65536];
		for (int p[2]; socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, p) == 0;)
			while (write(p[0], buf, sizeof buf) > 0)
				;
		perror("sockets");
	}
	puts("ready");
	for (;;)
		pause();
}
`

// arm puts the bomber into a session.
func arm(t *testing.T, d *boxtest.Daemon, id string) {
	t.Helper()
	boxtest.RequireProgram(t, "gcc")
	build := sh("gcc -O1 -pthread -xc -o /workspace/bomb -")
	build.Stdin = bomber
	succeeds(t, d, id, build)
}

// bomb is a run of the bomber.
func bomb(t *testing.T, what, timeout string) api.ExecRequest {
	t.Helper()
	return api.ExecRequest{Argv: []string{"/workspace/bomb", what}, Timeout: duration(t, timeout)}
}
