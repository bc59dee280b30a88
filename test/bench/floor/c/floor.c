/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts the program in argv once for every line on standard input and answers with the time from
 * before vfork to after waitpid, in nanoseconds: the least a program can cost on this machine. It is
 * C so that no runtime of ours is in the figure.
 *
 * As floor -c SOCKET [METHOD PATH BODY TEXT]... it makes these requests instead, one after the other
 * over one connection, and answers with the time of all; TEXT is what each answer has to contain. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int run(void *argv) {
	execv(((char **)argv)[0], argv);
	_exit(127);
}

static char answer[1 << 20];

static int fail(const char *what) {
	fprintf(stderr, "%s: %s\n", what, answer);
	return 1;
}

static int dial(const char *path) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (strlen(path) >= sizeof to.sun_path)
		return -1;
	strcpy(to.sun_path, path);
	return connect(fd, (struct sockaddr *)&to, sizeof to) ? -1 : fd;
}

/* One request; 0 if its answer has the text. */
static int request(int fd, char **r) {
	char text[4096], *body, *length;
	size_t got = 0, n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: boxd\r\nContent-Length: %zu\r\n\r\n%s", r[0], r[1], strlen(r[2]), r[2]);
	if (n >= sizeof text || send(fd, text, n, MSG_NOSIGNAL) != (ssize_t)n)
		return fail(strerror(errno));
	for (;;) {
		ssize_t more = read(fd, answer + got, sizeof answer - 1 - got);
		if (more <= 0)
			return fail("read");
		answer[got += more] = 0;
		if (!(body = strstr(answer, "\r\n\r\n")))
			continue;
		length = strstr(answer, "Content-Length: ");
		if (!length || length > body || answer + got >= body + 4 + atoi(length + strlen("Content-Length: ")))
			return strstr(answer, r[3]) ? 0 : fail(r[1]);
	}
}

/* Makes the requests for every line; the connection is made for the first, as boxd waits for that only some seconds. */
static int client(const char *socket, int n, char **requests) {
	char line[16];
	int fd = -1;
	while (fgets(line, sizeof line, stdin)) {
		int failed = 0;
		if (fd < 0 && (fd = dial(socket)) < 0)
			return fail(strerror(errno));
		long long start = now();
		for (int i = 0; i + 4 <= n && !failed; i += 4)
			failed = request(fd, requests + i);
		printf("%lld %d\n", now() - start, failed);
		fflush(stdout);
	}
	return 0;
}

/* With -n before the program it runs in new namespaces of all kinds that a box has. */
int main(int argc, char **argv) {
	static char stack[64 << 10];
	char line[16];
	int namespaces = argc > 1 && !strcmp(argv[1], "-n");
	if (argc > 2 && !strcmp(argv[1], "-c"))
		return client(argv[2], argc - 3, argv + 3);
	argc -= namespaces;
	argv += namespaces;
	if (argc < 2)
		return 2;
	while (fgets(line, sizeof line, stdin)) {
		int status;
		long long start = now();
		pid_t pid;
		if (namespaces)
			pid = clone(run, stack + sizeof stack,
				CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | SIGCHLD, argv + 1);
		else
			pid = vfork();
		if (pid == 0) {
			execv(argv[1], argv + 1);
			_exit(127);
		}
		waitpid(pid, &status, 0);
		printf("%lld %d\n", now() - start, status);
		fflush(stdout);
	}
	return 0;
}
