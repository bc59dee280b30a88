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
	"github.com/boxd-dev/boxd/isolation/output"
)

// program is one running program and everything it has started. A durable one stays until it is forgotten.
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
	exit     *isolation.Exit // it has ended, and what it has left is dying, or is dead if over
	killed   bool            // by us
	stuck    bool            // something of it does not die: its tag stays used
	script   string          // path of its script file, "" if none
	streams  [2]stream

	// Of a durable program.
	durable  bool
	terminal bool
	over     bool // nothing is left but what it has written, and exit
	input    input
	journal  output.Journal
	event    int // eventfd of the readers, -1 if none
	pace     isolation.Pace
	far      []int    // ends of its pipes, until they have been handed over
	private  int      // boxd's, for the next boxd; -1 if none
	before   *program // whose output it goes on with, until it has started
}

func newProgram(id uint32, cmd *isolation.Command) *program {
	return &program{
		id: id, pidfd: -1, event: -1, private: -1, input: input{-1, -1}, journal: output.Journal{FD: -1},
		keep: cmd.KeepRunning, durable: cmd.Durable, group: cgroup.Group{FD: -1},
	}
}

// spawn starts a program. It owns the files. There is no step between this thread and the program:
// the child inherits the thread's filter, its missing capabilities and its directory, and becomes
// the box user on the way (syscall.ForkExec, by vfork).
func (s *server) spawn(id uint32, cmd *isolation.Command, files []int) *isolation.StepError {
	script, stdin, private, ok := attachments(cmd, files)
	defer func() { fdpass.CloseAll(files) }()
	if id == 0 || s.programs[id] != nil {
		return stepError(isolation.StepCommand, "id", unix.EEXIST)
	}
	if !ok {
		return stepError(isolation.StepCommand, "files", unix.EPROTO)
	}
	if s.frozen { // it would be stopped halfway, and PID 1 with it
		return stepError(isolation.StepFreeze, "", unix.EBUSY)
	}
	p := newProgram(id, cmd)
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
	io, err := s.openStdio(p, cmd, stdin)
	if err == nil {
		err = s.start(p, cmd, io)
	}
	for i, fd := range io {
		if fd != s.null && fd != stdin && (i == 0 || fd != io[0]) {
			unix.Close(fd)
		}
	}
	if err != nil {
		s.abandon(p)
		return asStepError(err)
	}
	s.last = max(s.last, id)
	if !p.durable {
		return nil
	}
	if private >= 0 {
		p.private, files = private, files[:len(files)-1] // the last of them
	}
	s.send(&isolation.BoxReply{ID: id, Started: true, PID: uint32(p.pid)}, p.handOver(p.before == nil)...)
	fdpass.CloseAll(p.far)
	p.far = nil
	if old := p.before; old != nil {
		p.before = nil
		old.disown()
		s.forget(old)
	}
	return nil
}

// attachments sorts the files of a Spawn; -1 means none.
func attachments(cmd *isolation.Command, files []int) (script, stdin, private int, ok bool) {
	script, stdin, private = -1, -1, -1
	next := func(wanted bool) int {
		if !wanted || len(files) == 0 {
			return -1
		}
		fd := files[0]
		files = files[1:]
		return fd
	}
	script, stdin = next(cmd.ScriptArg >= 0), next(cmd.Stdin == isolation.StdinFile)
	private = next(cmd.Durable)
	ok = len(files) == 0 && (script >= 0) == (cmd.ScriptArg >= 0) && (stdin >= 0) == (cmd.Stdin == isolation.StdinFile)
	return script, stdin, private, ok
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
func (s *server) start(p *program, cmd *isolation.Command, io stdio) error {
	path, err := lookup.Program(cmd.Argv[0], cmd.Env)
	if err != nil {
		return stepError(isolation.StepLookup, cmd.Argv[0], err)
	}
	if err := s.mark(p, &cmd.Limits); err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Setctty:    p.terminal, // its standard input
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
		Files: []uintptr{uintptr(io[0]), uintptr(io[1]), uintptr(io[2])},
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

// report says that a program has ended, and forgets it if it is not durable.
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
		s.drain(p, st)
		exit.Streams[i].Total = uint64(st.ring.Size())
		exit.Streams[i].CutFrom, exit.Streams[i].CutTo = st.ring.Cut()
		if st.ring.FD >= 0 && !p.durable {
			reply.Attached[i] = true
			files = append(files, st.ring.FD)
		}
	}
	s.release(p)
	s.send(&reply, files...)
	p.tellReaders()
	if p.over = true; !p.durable {
		s.forget(p)
	}
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
func (s *server) abandon(p *program) {
	if p.before != nil {
		p.disown()
	}
	s.release(p)
	s.forget(p)
}

// disown leaves a program's output to another.
func (p *program) disown() {
	for i := range p.streams {
		p.streams[i].ring.FD = -1
	}
	p.journal.FD, p.event = -1, -1
}

// release gives back what only a running program needs.
func (s *server) release(p *program) {
	for i := range p.streams {
		s.closePipe(&p.streams[i])
	}
	if p.input.pipe >= 0 {
		unix.Close(p.input.pipe)
		p.input.pipe = -1
	}
	switch {
	case p.pidfd >= 0:
		s.unwatch(p.pidfd, p.token)
		p.pidfd = -1
	case p.events > 0:
		s.unwatch(p.events, p.token)
		p.events = 0
	}
	if p.script != "" {
		restore := asBoxUser()
		_ = unix.Unlink(p.script) // the program may have removed it
		restore()
		p.script = ""
	}
	s.dropGroup(p)
	if s.byPID[p.pid] == p {
		delete(s.byPID, p.pid)
	}
	if p.tag != 0 && !p.keep && !p.stuck {
		s.ground.Free(p.tag)
		p.tag = 0
	}
	p.deadline = 0
	s.life.idleSince = monotonic()
}

// forget drops what is kept of a program that has been released. Copies of its output may live on with boxd.
func (s *server) forget(p *program) {
	for i := range p.streams {
		p.streams[i].ring.Close()
	}
	p.journal.Close()
	fdpass.CloseAll(p.far)
	for _, fd := range []int{p.event, p.private, p.input.memory} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	delete(s.programs, p.id)
}
