// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/lookup"
)

// program is one running program and everything it has started.
type program struct {
	id       uint32
	pid      int
	pidfd    int
	token    int32        // of pidfd, later of events
	events   int          // cgroup.events of group, while that is dying; 0: none
	tag      uint32       // where the box has no control groups
	group    cgroup.Group // where it has; -1 if not
	started  time.Duration
	deadline time.Duration // 0: none
	reason   isolation.Reason
	keep     bool
	exit     *isolation.Exit // it has ended, and what it has left is dying
	killed   bool            // by us
	stuck    bool            // something of it does not die: its tag stays used
	script   string          // path of its script file, "" if none
	streams  [2]stream
	event    int // eventfd of a follower, -1 if none
}

// spawn starts a program. It owns the files. There is no step between this thread and the program:
// the child inherits the thread's filter, its missing capabilities and its directory, and becomes
// the box user on the way (syscall.ForkExec, by vfork).
func (s *server) spawn(id uint32, cmd *isolation.Command, files []int) *isolation.StepError {
	defer fdpass.CloseAll(files)
	if id == 0 || s.programs[id] != nil {
		return stepError(isolation.StepCommand, "id", unix.EEXIST)
	}
	script, stdin, ok := attachments(cmd, files)
	if !ok {
		return stepError(isolation.StepCommand, "files", unix.EPROTO)
	}
	if s.frozen { // it would be stopped halfway, and PID 1 with it
		return stepError(isolation.StepFreeze, "", unix.EBUSY)
	}
	p := &program{id: id, pidfd: -1, event: -1, keep: cmd.KeepRunning, group: cgroup.Group{FD: -1}}
	// With the rights of the box user, whose the pipes are then too: /dev/stdout can be opened.
	restore := asBoxUser()
	defer restore()
	if err := s.enter(cmd.Dir); err != nil {
		return stepError(isolation.StepDirectory, cmd.Dir, err)
	}
	defer func() { _ = unix.Fchdir(s.root) }() // holding it would keep a mount busy
	if script >= 0 {
		if err := s.writeScript(p, cmd, script); err != nil {
			return stepError(isolation.StepScript, p.script, err)
		}
	}
	pipes, err := s.openStdio(p, cmd, stdin)
	if err == nil {
		err = s.start(p, cmd, pipes)
	}
	for _, fd := range pipes.child {
		if fd != s.null && fd != stdin {
			unix.Close(fd)
		}
	}
	if err != nil {
		s.abandon(p, pipes)
		return asStepError(err)
	}
	if cmd.Output.Follow {
		out := []int{p.streams[0].ring.fd, p.streams[1].ring.fd, p.event}
		if pipes.stdin >= 0 {
			out = append([]int{pipes.stdin}, out...)
		}
		s.send(&isolation.BoxReply{ID: id, Started: true, PID: uint32(p.pid)}, out...)
	}
	if pipes.stdin >= 0 {
		unix.Close(pipes.stdin) // only boxd holds it, so that closing it is the end of file
	}
	return nil
}

// attachments sorts the files of a Spawn; -1 means none.
func attachments(cmd *isolation.Command, files []int) (script, stdin int, ok bool) {
	script, stdin = -1, -1
	if cmd.ScriptArg >= 0 && len(files) > 0 {
		script, files = files[0], files[1:]
	}
	if cmd.Stdin == isolation.StdinFile && len(files) > 0 {
		stdin, files = files[0], files[1:]
	}
	ok = len(files) == 0 && (script >= 0) == (cmd.ScriptArg >= 0) && (stdin >= 0) == (cmd.Stdin == isolation.StdinFile)
	return script, stdin, ok
}

// enter makes dir the working directory of this thread. Only plain open is used from here on: openat2
// would be a hole in the filter of a box with host directories. Links are followed, but none leads out of the box: its tree is the root, and PID 1 holds no
// directory of any other but those of its control groups. What a link calls /proc/self is PID 1, though,
// which programs cannot see: so no program starts in a procfs, nor where a descriptor of PID 1 leads.
func (s *server) enter(dir string) error {
	fd, err := openDir(dir)
	if errors.Is(err, unix.ENOENT) {
		fd, err = makeDirs(dir)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return unix.EACCES
	}
	if err := unix.Fchdir(fd); err != nil {
		return err
	}
	// A directory that is gone or outside has no path (getcwd(2)): never start a program there.
	var buf [unix.PathMax]byte
	n, err := unix.Getcwd(buf[:])
	if err == nil && (n == 0 || buf[0] != '/') {
		err = unix.ENOENT
	}
	return err
}

func openDir(path string) (int, error) {
	return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// makeDirs makes what is missing of dir and opens it. Every prefix is looked up from the root again,
// so that a link among the parents means the same as to a program.
func makeDirs(dir string) (int, error) {
	for end := 0; ; {
		start := end + 1
		if end = start + strings.IndexByte(dir[start:], '/'); end < start {
			end = len(dir)
		}
		fd, err := openDir(dir[:end])
		if errors.Is(err, unix.ENOENT) {
			if err := unix.Mkdir(dir[:end], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
				return -1, err
			}
			fd, err = openDir(dir[:end])
		}
		if err != nil || end == len(dir) {
			return fd, err
		}
		unix.Close(fd)
	}
}

// writeScript puts the script into a file that the box user owns and names it in argv.
func (s *server) writeScript(p *program, cmd *isolation.Command, from int) error {
	p.script = "/tmp/.box-" + strconv.FormatUint(uint64(p.id), 10) + cmd.ScriptSuffix
	fd, err := unix.Open(p.script, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Sendfile(fd, from, nil, 1<<20)
		if err != nil {
			_ = unix.Unlink(p.script)
			return err
		}
		if n == 0 {
			break
		}
	}
	cmd.Argv[cmd.ScriptArg] = p.script
	return nil
}

// start looks the program up, runs it and puts it into the loop.
func (s *server) start(p *program, cmd *isolation.Command, pipes stdio) error {
	path, err := lookup.Program(cmd.Argv[0], cmd.Env)
	if err != nil {
		return stepError(isolation.StepLookup, cmd.Argv[0], err)
	}
	if err := s.mark(p, &cmd.Limits); err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		PidFD:      &p.pidfd,
		Credential: &syscall.Credential{Uid: isolation.BoxUID, Gid: isolation.BoxGID, Groups: []uint32{isolation.BoxGID}},
	}
	if p.group.FD >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, p.group.FD
	} else {
		attr.Credential.Groups = append(attr.Credential.Groups, p.tag)
	}
	p.started = monotonic()
	p.pid, err = syscall.ForkExec(path, cmd.Argv, &syscall.ProcAttr{
		Env:   cmd.Env,
		Files: []uintptr{uintptr(pipes.child[0]), uintptr(pipes.child[1]), uintptr(pipes.child[2])},
		Sys:   attr,
	})
	if err != nil {
		return stepError(isolation.StepExec, path, err)
	}
	s.childful = true
	if cmd.Timeout > 0 {
		p.deadline = p.started + cmd.Timeout
	}
	s.programs[p.id], s.byPID[p.pid] = p, p
	if p.token, err = s.watch(p.pidfd, watch{program: p}); err != nil {
		s.kill(p)
		return stepError(isolation.StepStdio, "epoll", err)
	}
	s.watchStreams(p)
	return nil
}

// end kills a program and everything it has started; finish follows when it is gone.
func (s *server) end(p *program, reason isolation.Reason) {
	p.deadline = 0
	if p.reason == isolation.ReasonExited {
		p.reason = reason
	}
	s.kill(p)
}

// finish sees to it that a program which has ended is reported, after ending and counting what it left
// behind.
func (s *server) finish(p *program, status unix.WaitStatus, usage *unix.Rusage) {
	exit := &isolation.Exit{
		Reason: p.reason, Duration: monotonic() - p.started,
		UserTime: time.Duration(usage.Utime.Nano()), SystemTime: time.Duration(usage.Stime.Nano()),
		MaxRSS: uint64(usage.Maxrss) << 10,
	}
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		if exit.Reason == isolation.ReasonExited {
			exit.Reason = isolation.ReasonSignaled
		}
	} else {
		exit.Code = status.ExitStatus()
	}
	p.exit = exit
	delete(s.byPID, p.pid) // the number may be another's now
	s.unwatch(p.pidfd, p.token)
	p.pidfd, p.deadline = -1, 0
	switch others := s.othersAlive(p); {
	case p.keep && !p.killed:
		exit.Kept = others
		s.kept = s.kept || others
	case others:
		if ours := p.killed; ours {
			s.kill(p)
		} else {
			exit.Leftovers = s.kill(p)
		}
		if !s.isEmpty(p) {
			return // report follows
		}
	}
	s.report(p)
}

// report says that a program has ended, and forgets it.
func (s *server) report(p *program) {
	exit := p.exit
	if p.group.FD >= 0 {
		exit.Grouped, exit.Use = true, p.group.Use()
		if exit.Reason == isolation.ReasonSignaled && exit.Signal == int(unix.SIGKILL) && exit.Use.OOMKills > 0 {
			exit.Reason = isolation.ReasonOOM
		}
	}
	exit.Disks = [2]isolation.Disk{diskOf(isolation.Workspace), diskOf("/tmp")}
	reply := isolation.BoxReply{ID: p.id, Exited: exit}
	var files []int
	for i := range p.streams {
		st := &p.streams[i]
		s.drain(st)
		exit.Streams[i] = st.ring.end()
		if st.ring.fd >= 0 && p.event < 0 {
			reply.Attached[i] = true
			files = append(files, st.ring.fd)
		}
	}
	s.send(&reply, files...)
	s.forget(p)
}

// othersAlive reports whether a program that has ended may have left processes. Without a control group
// to tell, it is whether PID 1 still has children: without any there can be no other process in the box,
// and the walk through /proc is saved.
func (s *server) othersAlive(p *program) bool {
	if p.group.FD >= 0 {
		populated, err := p.group.Populated()
		return populated || err != nil
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

// abandon undoes a start that failed halfway.
func (s *server) abandon(p *program, pipes stdio) {
	if pipes.stdin >= 0 {
		unix.Close(pipes.stdin)
	}
	s.forget(p)
}

// forget releases everything a program held.
func (s *server) forget(p *program) {
	for i := range p.streams {
		s.closeStream(&p.streams[i])
	}
	switch {
	case p.pidfd >= 0:
		s.unwatch(p.pidfd, p.token)
	case p.events > 0:
		s.unwatch(p.events, p.token)
	}
	if p.event >= 0 {
		unix.Close(p.event)
	}
	if p.script != "" {
		restore := asBoxUser()
		_ = unix.Unlink(p.script) // the program may have removed it
		restore()
	}
	s.dropGroup(p)
	delete(s.programs, p.id)
	if s.byPID[p.pid] == p {
		delete(s.byPID, p.pid)
	}
	if p.tag != 0 && !p.keep && !p.stuck {
		s.tags.free(p.tag)
	}
}
