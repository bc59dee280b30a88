// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/isolation/output"
)

// program is one running program and everything it has started. A durable program is remembered until boxd sends Forget.
type program struct {
	id          uint32
	pid         int
	pidfd       int
	token       int32        // epoll token of pidfd, later of events
	events      int          // cgroup.events of group while its processes are dying; 0: not open
	tag         uint32       // marker gid, where the box has no cgroups
	group       cgroup.Group // where the box has cgroups; FD is -1 otherwise
	started     time.Duration
	deadline    time.Duration // 0: none
	reason      isolation.Reason
	keepRunning bool
	root        bool            // it runs as root of the box
	exit        *isolation.Exit // set once the program itself has ended; its other processes are dying, or dead if finished
	killed      bool            // by PID 1
	conn        uint32          // the connection that knows the program
	stuck       bool            // some process of it does not die, so its marker gid stays in use
	script      string          // path of its script file, "" if none
	streams     [2]stream

	// For a durable program only.
	durable    bool
	terminal   bool
	slave      int  // the program's end of the terminal, held so that it is always open; -1 if none
	finished   bool // all processes are dead; only the output and exit are left
	input      input
	journal    output.Journal
	event      int // eventfd that wakes the readers, -1 if none
	pace       isolation.Pace
	remoteEnds []int    // our copies of boxd's ends of the pipes, until they are sent
	private    int      // boxd's own data, held for the next boxd; -1 if none
	continued  *program // the program whose output it continues, until it has started
}

func newProgram(id uint32, cmd *isolation.Command) *program {
	return &program{
		id: id, pidfd: -1, slave: -1, event: -1, private: -1, input: input{-1, -1}, journal: output.Journal{FD: -1},
		root: cmd.Root, keepRunning: cmd.KeepRunning, durable: cmd.Durable, pace: isolation.Pace{Wait: cmd.Wait}, group: cgroup.Group{FD: -1},
	}
}

// spawn starts a program and closes files. Nothing runs between this thread and the program: the
// child inherits the thread's filter, its reduced capabilities and its directory, and becomes the
// box user on the way (see child).
func (s *server) spawn(id uint32, cmd *isolation.Command, files []int) *isolation.StepError {
	script, stdin, private, ok := attachments(cmd, files)
	defer func() { fdpass.CloseAll(files) }()
	if id == 0 || s.programs[id] != nil {
		return stepError(isolation.StepCommand, "id", unix.EEXIST)
	}
	if !ok {
		return stepError(isolation.StepCommand, "files", unix.EPROTO)
	}
	if cmd.Root && s.rootUser < 0 {
		return stepError(isolation.StepUser, "root", s.rootUserErr)
	}
	if s.frozen { // it would stop before its exec, and PID 1 would wait for it
		return stepError(isolation.StepFreeze, "", unix.EBUSY)
	}
	p := newProgram(id, cmd)
	p.conn = s.conn
	// As the box user, or root of the box, who then owns the pipes too: programs can open /dev/stdout.
	restore := asBoxUser()
	defer restore()
	if err := s.chdirAs(cmd); err != nil {
		return stepError(isolation.StepDirectory, cmd.Dir, err)
	}
	defer func() { _ = unix.Fchdir(s.root) }() // a working directory in a mount keeps it busy
	if script >= 0 {
		asUser(cmd.Root)
		if err := s.writeScript(p, cmd, script); err != nil {
			return stepError(isolation.StepScript, p.script, err)
		}
	}
	asUser(false)
	io, err := s.openStdio(p, cmd, stdin)
	if err == nil {
		err = s.start(p, cmd, io)
	}
	for i, fd := range io {
		if isWriter := i > 0 && fd == p.streams[i-1].writer; fd != s.null && fd != stdin && !slices.Contains(io[:i], fd) && !isWriter {
			unix.Close(fd)
		}
	}
	if err != nil {
		s.abandon(p)
		return asStepError(err)
	}
	s.lastID = max(s.lastID, id)
	if !p.durable {
		return nil
	}
	if private >= 0 {
		p.private, files = private, files[:len(files)-1] // it is the last of them
	} else if p.continued != nil {
		p.private, p.continued.private = p.continued.private, -1
	}
	_ = unix.Fchdir(s.root) // before the answer, after which boxd may want to unmount that directory
	s.send(&isolation.BoxReply{ID: id, Started: true, PID: uint32(p.pid)}, p.handOver(p.continued == nil)...)
	fdpass.CloseAll(p.remoteEnds)
	p.remoteEnds = nil
	if old := p.continued; old != nil {
		p.continued = nil
		old.dropOutput()
		s.forget(old)
	}
	return nil
}

// attachments assigns the files of a Spawn; -1 means that there is none.
func attachments(cmd *isolation.Command, files []int) (script, stdin, private int, ok bool) {
	takeNext := func(wanted bool) int {
		if !wanted || len(files) == 0 {
			return -1
		}
		fd := files[0]
		files = files[1:]
		return fd
	}
	script, stdin = takeNext(cmd.ScriptArg >= 0), takeNext(cmd.Stdin == isolation.StdinFile)
	private = takeNext(cmd.Durable)
	ok = len(files) == 0 && (script >= 0) == (cmd.ScriptArg >= 0) && (stdin >= 0) == (cmd.Stdin == isolation.StdinFile)
	return script, stdin, private, ok
}

// chdirAs enters the directory of a command as its user, and as root of the box that failing as the box user: here it has no rights over
// what belongs to others, as the workspace does.
func (s *server) chdirAs(cmd *isolation.Command) error {
	if cmd.Root {
		asUser(true)
		err := s.chdir(cmd.Dir, cmd.Existing)
		asUser(false)
		if !errors.Is(err, unix.EACCES) {
			return err
		}
	}
	return s.chdir(cmd.Dir, cmd.Existing)
}

// chdir makes dir the working directory of this thread. From here on only plain open is used: to
// allow openat2 would be a hole in the filter of a box with host directories. Symbolic links are
// followed, but none leads out of the box: its tree is the root, and PID 1 holds no directory
// outside of it but those of its cgroups. To PID 1, however, /proc/self is PID 1, which programs
// cannot see: so no program is started in a procfs, nor where a descriptor of PID 1 leads.
//
// A missing dir is made, unless it must exist.
func (s *server) chdir(dir string, mustExist bool) error {
	fd, err := openDir(dir)
	if errors.Is(err, unix.ENOENT) && !mustExist {
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
	// A directory that was removed or is outside the root has no path (getcwd(2)): never start a
	// program there.
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

// makeDirs makes the missing directories of dir and opens it. Every prefix is looked up from the
// root again, so that a symbolic link among the parents means the same as it does to a program.
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

// writeScript writes the script to a file that the box user owns and puts its path into argv.
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

// identity returns who a program is.
func (s *server) identity(p *program, cmd *isolation.Command) *identity {
	id := &identity{namespace: -1, uid: isolation.BoxUID, gid: isolation.BoxGID, groups: []uint32{isolation.BoxGID}}
	if cmd.Root {
		// The box user's group has what that may write to of PID 1's (overlay.Skeleton).
		*id = identity{namespace: s.rootUser, groups: []uint32{isolation.RootID, isolation.BoxGID}, capabilities: rootCapabilities}
	}
	if p.group.FD < 0 {
		id.groups = append(id.groups, p.tag)
		// It could leave the group that marks it, and what the kernel counts for a user is bounded by no control group.
		id.capabilities &^= 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID
	}
	return id
}

// start finds the executable, runs it and adds the process to the event loop.
func (s *server) start(p *program, cmd *isolation.Command, io stdio) error {
	path, err := isolation.LookPath(cmd.Argv[0], cmd.Env)
	if errors.Is(err, unix.EACCES) && cmd.Root {
		asUser(false) // as in chdirAs
		path, err = isolation.LookPath(cmd.Argv[0], cmd.Env)
	}
	if err != nil {
		return stepError(isolation.StepLookup, cmd.Argv[0], err)
	}
	if err := s.mark(p, &cmd.Limits); err != nil {
		return err
	}
	c, err := newChild(path, cmd, io, p.terminal, p.group.FD, s.identity(p, cmd))
	if err == nil {
		p.started = monotonic()
		p.pid, p.pidfd, err = c.start()
	}
	if err != nil {
		return stepError(isolation.StepExec, path, err)
	}
	s.mayHaveChildren = true
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
