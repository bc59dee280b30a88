// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
	"time"
)

// The conversation with PID 1 of a box, over one SEQPACKET socket. The keeper says the first word and
// hands its end to boxd, so nothing privileged is in the path of an exec.
//
//	keeper, then boxd                     boxinit
//	Setup{…} + mount trees ────────────►  make the box, drop privileges
//	─── the socket changes hands ───
//	            ◄──────────────────────── Ready                  or SetupFailed{step, item, errno}
//	Spawn{id, command} + files ────────►  start a program
//	            ◄──────────────────────── Started{id, pid} + files    if the output is followed
//	            ◄──────────────────────── SpawnFailed{id, step, item, errno}, and that is its end
//	Signal{id, signal} ────────────────►  to the program and what it started
//	Kill{id} ──────────────────────────►  end the program and what it started
//	Freeze{on} ────────────────────────►  stop all programs where they are, or let them go on
//	            ◄──────────────────────── Frozen{errno}, when that is so
//	Taken{id, stream, offset} ─────────►  output before offset is no longer needed
//	            ◄──────────────────────── Exited{id, exit} + kept output not handed over before
//	            ◄──────────────────────── Quiet, when the processes of an Exit with Kept are gone
//
// Files of Setup: the mount trees, then the group that holds the programs' groups, if Grouped, then the
// socket on which PID 1 is connected to again, if Adoptable.
// Files of Spawn: the script, if ScriptArg ≥ 0, then standard input, if it is StdinFile.
// Files of Started: the writing end of standard input, if it is StdinPipe, then the memfds of
// standard output and error, then an eventfd that is written whenever one of them has grown.
// Files of Exited: the memfds of the streams named in Attached, in order.
//
// A stream's memfd holds its bytes at their own offsets, so its size is the number of bytes written
// so far: the sequence number of the next one. What is no longer kept is a hole.
//
// When boxd's end closes, the box ends.

// Types of the messages with boxinit.
const (
	msgSetup uint8 = iota + 64
	msgReady
	msgSetupFailed
	msgSpawn
	msgStarted
	msgSpawnFailed
	msgSignal
	msgKill
	msgTaken
	msgExited
	msgQuiet
	msgFreeze
	msgFrozen
)

// ProgramGroup is the name of the control group of a program. It is never used again: in a group that has
// once been killed nothing can start, from Linux 6.12 on.
func ProgramGroup(id uint32) string { return "e" + strconv.FormatUint(uint64(id), 10) }

// MaxBoxReply is the largest message PID 1 sends, in bytes.
const MaxBoxReply = 4 << 10

// Setup is what a fresh PID 1 needs to know. The trees of Mounts travel beside it, in order.
type Setup struct {
	Hostname  string
	Scratch   Scratch
	Rlimits   []Rlimit
	Mounts    []SetupMount
	Grouped   bool   // every program gets a control group
	Adoptable bool   // a later boxd can connect
	Filter    []byte // seccomp program, as in isolation/seccomp
}

// SetupMount is where a mount tree goes.
type SetupMount struct {
	Target   string
	Writable bool
}

// BoxRequest is a message to PID 1; exactly one pointer is set.
type BoxRequest struct {
	Setup  *Setup
	ID     uint32 // of the program; chosen by the sender, never used twice in a box
	Spawn  *Command
	Signal int
	Kill   bool
	Freeze *Freeze
	Taken  *Taken
}

// Freeze asks that no program of the box runs, or that they do again.
type Freeze struct{ On bool }

// Taken says that output of a followed stream has been taken over.
type Taken struct {
	Stream uint8 // 0 standard output, 1 standard error
	Offset uint64
}

// BoxReply is a message from PID 1.
type BoxReply struct {
	Ready    bool
	ID       uint32
	Started  bool
	PID      uint32 // in the box's own numbering
	Exited   *Exit
	Attached [2]bool // which streams' memfds travel with Exited
	Quiet    bool    // no process is left but PID 1
	Frozen   bool    // what Freeze asked for is so; with Failed, it is not
	Failed   *StepError
}

// Encode returns the message's bytes.
func (m *BoxRequest) Encode() []byte {
	switch {
	case m.Setup != nil:
		e := message(msgSetup)
		e.setup(m.Setup)
		return e.b
	case m.Spawn != nil:
		e := message(msgSpawn)
		e.u32(m.ID)
		e.command(m.Spawn)
		return e.b
	case m.Taken != nil:
		e := message(msgTaken)
		e.u32(m.ID)
		e.u8(m.Taken.Stream)
		e.u64(m.Taken.Offset)
		return e.b
	case m.Freeze != nil:
		e := message(msgFreeze)
		e.bool(m.Freeze.On)
		return e.b
	case m.Kill:
		e := message(msgKill)
		e.u32(m.ID)
		return e.b
	}
	e := message(msgSignal)
	e.u32(m.ID)
	e.u8(uint8(m.Signal))
	return e.b
}

// DecodeBoxRequest reads a message to PID 1.
func DecodeBoxRequest(b []byte) (*BoxRequest, error) {
	d := &decoder{b: b}
	m := &BoxRequest{}
	switch d.u8() {
	case msgSetup:
		m.Setup = d.setup()
	case msgSpawn:
		m.ID = d.u32()
		m.Spawn = d.command()
	case msgTaken:
		m.ID = d.u32()
		m.Taken = &Taken{Stream: d.u8(), Offset: d.u64()}
		d.bad = d.bad || m.Taken.Stream > 1
	case msgFreeze:
		m.Freeze = &Freeze{On: d.bool()}
	case msgKill:
		m.ID, m.Kill = d.u32(), true
	case msgSignal:
		m.ID, m.Signal = d.u32(), int(d.u8())
		d.bad = d.bad || m.Signal == 0 || m.Signal > 64
	default:
		d.bad = true
	}
	if err := d.done(); err != nil {
		return nil, err
	}
	return m, nil
}

// Encode returns the message's bytes.
func (m *BoxReply) Encode() []byte {
	switch {
	case m.Ready:
		return message(msgReady).b
	case m.Quiet:
		return message(msgQuiet).b
	case m.Frozen:
		e := message(msgFrozen)
		e.bool(m.Failed != nil)
		if m.Failed != nil {
			e.stepError(m.Failed)
		}
		return e.b
	case m.Failed != nil && m.ID == 0:
		e := message(msgSetupFailed)
		e.stepError(m.Failed)
		return e.b
	case m.Failed != nil:
		e := message(msgSpawnFailed)
		e.u32(m.ID)
		e.stepError(m.Failed)
		return e.b
	case m.Started:
		e := message(msgStarted)
		e.u32(m.ID)
		e.u32(m.PID)
		return e.b
	}
	e := message(msgExited)
	e.u32(m.ID)
	e.exit(m.Exited)
	for _, a := range m.Attached {
		e.bool(a)
	}
	return e.b
}

// DecodeBoxReply reads a message from PID 1, which is not trusted: every number is checked.
func DecodeBoxReply(b []byte) (*BoxReply, error) {
	d := &decoder{b: b}
	m := &BoxReply{}
	switch d.u8() {
	case msgReady:
		m.Ready = true
	case msgQuiet:
		m.Quiet = true
	case msgFrozen:
		m.Frozen = true
		if d.bool() {
			m.Failed = d.stepError()
		}
	case msgSetupFailed:
		m.Failed = d.stepError()
	case msgSpawnFailed:
		m.ID = d.u32()
		m.Failed = d.stepError()
		d.bad = d.bad || m.ID == 0
	case msgStarted:
		m.ID, m.PID, m.Started = d.u32(), d.u32(), true
	case msgExited:
		m.ID = d.u32()
		m.Exited = d.exit()
		m.Attached = [2]bool{d.bool(), d.bool()}
	default:
		d.bad = true
	}
	if err := d.done(); err != nil {
		return nil, err
	}
	return m, nil
}

func (e *encoder) setup(s *Setup) {
	e.str(s.Hostname)
	e.u64(s.Scratch.Bytes)
	e.u64(s.Scratch.Inodes)
	e.rlimits(s.Rlimits)
	e.u32(uint32(len(s.Mounts)))
	for i := range s.Mounts {
		e.str(s.Mounts[i].Target)
		e.bool(s.Mounts[i].Writable)
	}
	e.bool(s.Grouped)
	e.bool(s.Adoptable)
	e.str(string(s.Filter))
}

func (d *decoder) setup() *Setup {
	s := &Setup{Hostname: d.str(), Scratch: Scratch{Bytes: d.u64(), Inodes: d.u64()}, Rlimits: d.rlimits()}
	for range d.count(5) {
		s.Mounts = append(s.Mounts, SetupMount{Target: d.str(), Writable: d.bool()})
	}
	s.Grouped, s.Adoptable = d.bool(), d.bool()
	s.Filter = []byte(d.str())
	return s
}

func (e *encoder) command(c *Command) {
	e.strs(c.Argv)
	e.strs(c.Env)
	e.str(c.Dir)
	e.u32(uint32(int32(c.ScriptArg)))
	e.str(c.ScriptSuffix)
	e.u8(uint8(c.Stdin))
	e.i64(int64(c.Timeout))
	e.bool(c.KeepRunning)
	e.u64(c.Output.Head)
	e.u64(c.Output.Tail)
	e.bool(c.Output.Follow)
	e.limits(&c.Limits)
}

func (d *decoder) command() *Command {
	c := &Command{
		Argv: d.strs(), Env: d.strs(), Dir: d.str(),
		ScriptArg: int(int32(d.u32())), ScriptSuffix: d.str(),
		Stdin: Stdin(d.u8()), Timeout: time.Duration(d.i64()), KeepRunning: d.bool(),
		Output: Output{Head: d.u64(), Tail: d.u64(), Follow: d.bool()}, Limits: d.limits(),
	}
	if len(c.Argv) == 0 || c.ScriptArg < -1 || c.ScriptArg >= len(c.Argv) || c.Stdin > StdinPipe || c.Timeout < 0 {
		d.bad = true
	}
	return c
}

func (e *encoder) exit(x *Exit) {
	e.u8(uint8(x.Reason))
	e.u8(uint8(x.Code))
	e.u8(uint8(x.Signal))
	e.i64(int64(x.Duration))
	e.i64(int64(x.UserTime))
	e.i64(int64(x.SystemTime))
	e.u64(x.MaxRSS)
	e.u32(x.Leftovers)
	e.bool(x.Kept)
	e.bool(x.Grouped)
	e.use(&x.Use)
	for _, disk := range x.Disks {
		e.u64(disk.Used)
		e.u64(disk.Limit)
		e.u64(disk.Files)
		e.u64(disk.FilesLimit)
	}
	for _, s := range x.Streams {
		e.u64(s.Total)
		e.u64(s.CutFrom)
		e.u64(s.CutTo)
	}
}

func (d *decoder) exit() *Exit {
	x := &Exit{
		Reason: Reason(d.u8()), Code: int(d.u8()), Signal: int(d.u8()),
		Duration: time.Duration(d.i64()), UserTime: time.Duration(d.i64()), SystemTime: time.Duration(d.i64()),
		MaxRSS: d.u64(), Leftovers: d.u32(), Kept: d.bool(), Grouped: d.bool(), Use: d.use(),
	}
	for i := range x.Disks {
		x.Disks[i] = Disk{d.u64(), d.u64(), d.u64(), d.u64()}
	}
	for i := range x.Streams {
		s := StreamEnd{Total: d.u64(), CutFrom: d.u64(), CutTo: d.u64()}
		if s.CutFrom > s.CutTo || s.CutTo > s.Total {
			d.bad = true
		}
		x.Streams[i] = s
	}
	if x.Reason > ReasonOOM || x.Duration < 0 || x.UserTime < 0 || x.SystemTime < 0 || x.Use.User < 0 || x.Use.System < 0 {
		d.bad = true
	}
	return x
}
