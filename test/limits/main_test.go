// SPDX-License-Identifier: Apache-2.0

// Package limits_test runs into every limit that the kernel enforces for a box, through a real boxd. It needs a host with cgroup v2
// and project quota below TMPDIR, so it is run in the virtual machine.
package limits_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestMain(m *testing.M) {
	boxtest.BePatient()
	os.Exit(m.Run())
}

// start starts a private boxd for which every limit is required.
func start(t *testing.T, configuration ...string) *boxtest.Daemon {
	t.Helper()
	boxtest.RequireGroups(t)
	return boxtest.StartWith(t, configuration...)
}

func number(t *testing.T, s api.Session, name string) int {
	t.Helper()
	n, err := strconv.Atoi(boxtest.GroupFile(t, s.Group, name))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// programs are the cgroups of the programs that a session runs.
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

// bomber is a program that allocates all it can get of one resource, named by its argument. It prints "ready" when it gets no more,
// if it survives that.
const bomber = `#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
	if (!strcmp(what, "tcp")) { // connections that nobody reads, whose other ends have been closed with what they had to send
		static char buf[65536];
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
		socklen_t size = sizeof at;
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(s, (struct sockaddr *)&at, size) || listen(s, 128) || getsockname(s, (struct sockaddr *)&at, &size))
			return 4;
		for (;;) {
			int c = socket(AF_INET, SOCK_STREAM, 0);
			if (c < 0 || connect(c, (struct sockaddr *)&at, size) || accept(s, 0, 0) < 0)
				break;
			fcntl(c, F_SETFL, O_NONBLOCK);
			while (write(c, buf, sizeof buf) > 0)
				;
			close(c);
		}
		perror("tcp");
		sleep(1000);
	}
	if (!strcmp(what, "watches")) { // each is one of a descriptor in an epoll(7) instance
		struct epoll_event event = {.events = EPOLLIN};
		struct rlimit files;
		int most, p[2];
		getrlimit(RLIMIT_NOFILE, &files);
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
		if (pipe(p))
			return 4;
		for (most = p[1]; most < files.rlim_max / 2 && dup(p[0]) >= 0; most++)
			;
		for (int e; (e = epoll_create1(0)) >= 0;)
			for (int fd = p[0]; fd < most; fd++)
				if (fd != p[1] && epoll_ctl(e, EPOLL_CTL_ADD, fd, &event)) {
					perror("watches");
					return 3;
				}
		perror("epoll_create1");
		return 4;
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
	build := boxtest.Shell("gcc -O1 -pthread -xc -o /workspace/bomb -")
	build.Stdin = bomber
	d.Output(t, id, build)
}

// forkBomb is a run of the bomber.
func forkBomb(t *testing.T, what, timeout string) api.ExecRequest {
	t.Helper()
	return api.ExecRequest{Argv: []string{"/workspace/bomb", what}, Timeout: boxtest.Duration(timeout)}
}
