// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"math"
	"time"
)

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
	case m.Pace != nil:
		e := message(msgPace)
		e.u32(m.ID)
		e.bool(m.Pace.Wait)
		e.u64(m.Pace.Taken[0], m.Pace.Taken[1])
		return e.b
	case m.Times != nil:
		e := message(msgTimes)
		e.times(m.Times)
		return e.b
	case m.Adopt != 0:
		e := message(msgTakeOver)
		e.u32(m.Adopt)
		return e.b
	case m.Freeze != nil:
		e := message(msgFreeze)
		e.bool(m.Freeze.On)
		return e.b
	case m.Kill:
		return m.about(msgKill)
	case m.Private:
		return message(msgPrivate).b
	case m.CloseInput:
		return m.about(msgCloseInput)
	case m.Forget:
		return m.about(msgForget)
	}
	e := message(msgSignal)
	e.u32(m.ID)
	e.u8(uint8(m.Signal))
	return e.b
}

func (m *BoxRequest) about(kind uint8) []byte {
	e := message(kind)
	e.u32(m.ID)
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
	case msgPace:
		m.ID = d.u32()
		m.Pace = &Pace{Wait: d.bool(), Taken: [2]uint64{d.u64(), d.u64()}}
	case msgTimes:
		m.Times = d.times()
	case msgPrivate:
		m.Private = true
	case msgCloseInput:
		m.ID, m.CloseInput = d.u32(), true
	case msgForget:
		m.ID, m.Forget = d.u32(), true
	case msgTakeOver:
		m.Adopt = d.u32()
		d.bad = d.bad || m.Adopt == 0
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
	case m.Program != nil:
		e := message(msgProgram)
		e.u32(m.ID)
		e.kept(m.Program)
		return e.b
	case m.Adopted != nil:
		e := message(msgAdopted)
		e.u32(m.Adopted.Version)
		e.u32(m.Adopted.Next)
		e.bool(m.Adopted.Frozen)
		e.bool(m.Adopted.Kept)
		e.bool(m.Adopted.Private)
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
	case msgProgram:
		m.ID = d.u32()
		m.Program = d.kept()
		d.bad = d.bad || m.ID == 0
	case msgAdopted:
		m.Adopted = &Adopted{Version: d.u32(), Next: d.u32(), Frozen: d.bool(), Kept: d.bool(), Private: d.bool()}
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
	e.u64(s.Scratch.Bytes, s.Scratch.Inodes)
	e.rlimits(s.Rlimits)
	e.u32(uint32(len(s.Mounts)))
	for i := range s.Mounts {
		e.str(s.Mounts[i].Target)
		e.bool(s.Mounts[i].Writable)
	}
	e.bool(s.Grouped)
	e.bool(s.Adoptable)
	e.str(string(s.Filter))
	e.str(s.Resolv)
	e.u64(s.View.Memory, s.View.Swap, s.View.CPU, s.View.Pids)
	e.u32(s.View.Processors)
	e.str(s.View.Possible)
}

func (d *decoder) setup() *Setup {
	s := &Setup{Hostname: d.str(), Scratch: Scratch{Bytes: d.u64(), Inodes: d.u64()}, Rlimits: d.rlimits()}
	for range d.count(5) {
		s.Mounts = append(s.Mounts, SetupMount{Target: d.str(), Writable: d.bool()})
	}
	s.Grouped, s.Adoptable, s.Filter, s.Resolv = d.bool(), d.bool(), []byte(d.str()), d.str()
	s.View = View{Memory: d.u64(), Swap: d.u64(), CPU: d.u64(), Pids: d.u64(), Processors: d.u32(), Possible: d.str()}
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
	e.limits(&c.Limits)
	e.bool(c.Durable)
	size := Terminal{}
	if c.Terminal != nil {
		size = *c.Terminal
	}
	e.u32(uint32(size.Rows)<<16 | uint32(size.Cols))
	e.u32(c.Continue)
	e.bool(c.Direct)
	e.bool(c.Wait)
}

func (d *decoder) command() *Command {
	c := &Command{
		Argv: d.strs(), Env: d.strs(), Dir: d.str(),
		ScriptArg: int(int32(d.u32())), ScriptSuffix: d.str(),
		Stdin: Stdin(d.u8()), Timeout: time.Duration(d.i64()), KeepRunning: d.bool(),
		Output: Output{Head: d.u64(), Tail: d.u64()}, Limits: d.limits(), Durable: d.bool(),
	}
	if size := d.u32(); size != 0 {
		c.Terminal = &Terminal{Rows: uint16(size >> 16), Cols: uint16(size)}
		d.bad = d.bad || c.Terminal.Rows == 0 || c.Terminal.Cols == 0 || !c.Durable || c.Stdin != StdinPipe
	}
	c.Continue, c.Direct, c.Wait = d.u32(), d.bool(), d.bool()
	d.bad = d.bad || len(c.Argv) == 0 || c.ScriptArg < -1 || c.ScriptArg >= len(c.Argv) || c.Stdin > StdinPipe || c.Timeout < 0 ||
		c.Output.Head > MaxOutput || c.Output.Tail > MaxOutput || c.Wait && c.Output.Tail == 0 || !c.Durable && (c.Stdin == StdinPipe || c.Continue != 0 || c.Direct || c.Wait) ||
		c.Direct && (c.Stdin != StdinNull || c.Continue != 0)
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
		e.u64(disk.Used, disk.Limit, disk.Files, disk.FilesLimit)
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

func (e *encoder) times(t *Times) {
	e.i64(int64(t.Grace))
	e.bool(t.Parked)
	e.i64(int64(t.Idle))
	e.i64(int64(t.End))
}

func (d *decoder) times() *Times {
	t := &Times{Grace: time.Duration(d.i64()), Parked: d.bool(), Idle: time.Duration(d.i64()), End: time.Duration(d.i64())}
	d.bad = d.bad || t.Grace < 0 || t.Idle < 0 || t.End < 0
	return t
}

func (e *encoder) kept(k *Kept) {
	e.u32(k.PID)
	e.bool(k.Input)
	e.u64(k.Taken)
	e.bool(k.Terminal)
	e.u64(k.Output.Head)
	e.u64(k.Output.Tail)
	e.bool(k.Exited != nil)
	if k.Exited != nil {
		e.exit(k.Exited)
	}
}

func (d *decoder) kept() *Kept {
	k := &Kept{PID: d.u32(), Input: d.bool(), Taken: d.u64(), Terminal: d.bool(), Output: Output{Head: d.u64(), Tail: d.u64()}}
	if d.bool() {
		k.Exited = d.exit()
	}
	d.bad = d.bad || k.Terminal && !k.Input && k.Exited == nil || k.Output.Head > MaxOutput || k.Output.Tail > MaxOutput || k.Taken > math.MaxInt64
	return k
}
