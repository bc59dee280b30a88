// SPDX-License-Identifier: Apache-2.0

package isolation

import "math"

// The bytes of the messages to and from PID 1. They stay the same in every release: see
// BoxVersion.

// Encode returns the message's bytes.
func (m *BoxRequest) Encode() []byte {
	kind := m.kind()
	c := writeMessage(kind)
	m.fields(c, kind)
	return c.b
}

// DecodeBoxRequest decodes a message to PID 1.
func DecodeBoxRequest(b []byte) (*BoxRequest, error) {
	c, kind := readMessage(b)
	m := &BoxRequest{}
	m.fields(c, kind)
	if err := c.done(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *BoxRequest) kind() uint8 {
	switch {
	case m.Setup != nil && m.Setup.Root:
		return msgSetupRoot
	case m.Setup != nil && m.Setup.User != (User{}):
		return msgSetupUser
	case m.Setup != nil:
		return msgSetup
	case m.Spawn != nil && m.Spawn.Root:
		return msgSpawnRoot
	case m.Spawn != nil && m.Spawn.Spool:
		return msgSpawnSpooled
	case m.Spawn != nil && m.Spawn.Merged:
		return msgSpawnMerged
	case m.Spawn != nil && m.Spawn.Existing:
		return msgSpawnExisting
	case m.Spawn != nil:
		return msgSpawn
	case m.Pace != nil:
		return msgPace
	case m.Times != nil:
		return msgTimes
	case m.Adopt != 0:
		return msgTakeOver
	case m.Freeze != nil:
		return msgFreeze
	case m.Kill:
		return msgKill
	case m.UnshareCgroup:
		return msgUnshareCgroup
	case m.Private:
		return msgPrivate
	case m.CloseInput:
		return msgCloseInput
	case m.Forget:
		return msgForget
	}
	return msgSignal
}

func (m *BoxRequest) fields(c *codec, kind uint8) {
	switch kind {
	case msgSetup:
		part(c, &m.Setup)
	case msgSetupUser:
		part(c, &m.Setup)
		c.str(&m.Setup.User.Name, &m.Setup.User.Home)
		c.refuse(m.Setup.User.Validate() != nil)
	case msgSetupRoot:
		part(c, &m.Setup)
		c.str(&m.Setup.User.Name, &m.Setup.User.Home)
		c.set(&m.Setup.Root)
		c.refuse(m.Setup.User != User{} && m.Setup.User.Validate() != nil)
	case msgSpawn, msgSpawnExisting, msgSpawnMerged, msgSpawnSpooled, msgSpawnRoot:
		m.spawnFields(c, kind)
	case msgPace:
		c.u32(&m.ID)
		part(c, &m.Pace)
	case msgTimes:
		part(c, &m.Times)
	case msgUnshareCgroup:
		c.set(&m.UnshareCgroup)
	case msgPrivate:
		c.set(&m.Private)
	case msgCloseInput:
		c.u32(&m.ID)
		c.set(&m.CloseInput)
	case msgForget:
		c.u32(&m.ID)
		c.set(&m.Forget)
	case msgTakeOver:
		c.u32(&m.Adopt)
		c.refuse(m.Adopt == 0)
	case msgFreeze:
		part(c, &m.Freeze)
	case msgKill:
		c.u32(&m.ID)
		c.set(&m.Kill)
	case msgSignal:
		c.u32(&m.ID)
		small(c, &m.Signal)
		c.refuse(m.Signal == 0 || m.Signal > 64)
	default:
		c.refuse(true)
	}
}

// spawnFields are those of a Spawn, of which each version has added one.
func (m *BoxRequest) spawnFields(c *codec, kind uint8) {
	c.u32(&m.ID)
	part(c, &m.Spawn)
	limit := uint64(MaxOutput)
	switch kind {
	case msgSpawnRoot:
		c.bool(&m.Spawn.Existing, &m.Spawn.Merged, &m.Spawn.Spool)
		c.set(&m.Spawn.Root)
	case msgSpawnSpooled:
		c.bool(&m.Spawn.Existing, &m.Spawn.Merged)
		c.set(&m.Spawn.Spool)
	case msgSpawnExisting:
		c.set(&m.Spawn.Existing)
	case msgSpawnMerged:
		c.bool(&m.Spawn.Existing)
		c.set(&m.Spawn.Merged)
	}
	if m.Spawn.Spool {
		c.refuse(!m.Spawn.Durable || m.Spawn.Direct)
		limit = MaxSpool
	}
	c.refuse(m.Spawn.Output.Head > limit || m.Spawn.Output.Tail > limit)
}

// Encode returns the message's bytes.
func (m *BoxReply) Encode() []byte {
	kind := m.kind()
	c := writeMessage(kind)
	m.fields(c, kind)
	return c.b
}

// DecodeBoxReply decodes a message from PID 1, which is not trusted: every number is checked.
func DecodeBoxReply(b []byte) (*BoxReply, error) {
	c, kind := readMessage(b)
	m := &BoxReply{}
	m.fields(c, kind)
	if err := c.done(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *BoxReply) kind() uint8 {
	switch {
	case m.Ready:
		return msgReady
	case m.Quiet:
		return msgQuiet
	case m.Unshared:
		return msgUnshared
	case m.Frozen:
		return msgFrozen
	case m.Failed != nil && m.ID == 0:
		return msgSetupFailed
	case m.Failed != nil:
		return msgSpawnFailed
	case m.Started:
		return msgStarted
	case m.Program != nil:
		return msgProgram
	case m.Adopted != nil:
		return msgAdopted
	}
	return msgExited
}

func (m *BoxReply) fields(c *codec, kind uint8) {
	switch kind {
	case msgReady:
		c.set(&m.Ready)
	case msgQuiet:
		c.set(&m.Quiet)
	case msgUnshared:
		c.set(&m.Unshared)
	case msgFrozen:
		c.set(&m.Frozen)
		optional(c, &m.Failed)
	case msgSetupFailed:
		part(c, &m.Failed)
	case msgSpawnFailed:
		c.u32(&m.ID)
		part(c, &m.Failed)
		c.refuse(m.ID == 0)
	case msgStarted:
		c.u32(&m.ID, &m.PID)
		c.set(&m.Started)
	case msgExited:
		c.u32(&m.ID)
		part(c, &m.Exited)
		c.bool(&m.Attached[0], &m.Attached[1])
	case msgProgram:
		c.u32(&m.ID)
		part(c, &m.Program)
		c.refuse(m.ID == 0)
	case msgAdopted:
		part(c, &m.Adopted)
	default:
		c.refuse(true)
	}
}

func (s *Setup) fields(c *codec) {
	c.str(&s.Hostname)
	c.u64(&s.Scratch.Bytes, &s.Scratch.Inodes)
	list(c, &s.Rlimits, 20)
	list(c, &s.Mounts, 5)
	c.bool(&s.Grouped, &s.Adoptable)
	c.bytes(&s.Filter)
	c.str(&s.Resolv)
	c.u64(&s.View.Memory, &s.View.Swap, &s.View.CPU, &s.View.Pids)
	c.u32(&s.View.Processors)
	c.str(&s.View.Possible)
}

func (m *SetupMount) fields(c *codec) {
	c.str(&m.Target)
	c.bool(&m.Writable)
}

func (x *Command) fields(c *codec) {
	c.strs(&x.Argv)
	c.strs(&x.Env)
	c.str(&x.Dir)
	script := uint32(int32(x.ScriptArg))
	if c.u32(&script); c.reading {
		x.ScriptArg = int(int32(script))
	}
	c.str(&x.ScriptSuffix)
	small(c, &x.Stdin)
	c.durations(&x.Timeout)
	c.bool(&x.KeepRunning)
	c.u64(&x.Output.Head, &x.Output.Tail)
	limits(c, &x.Limits)
	c.bool(&x.Durable)
	x.terminal(c)
	c.u32(&x.Continue)
	c.bool(&x.Direct, &x.Wait)
	c.refuse(len(x.Argv) == 0 || x.ScriptArg < -1 || x.ScriptArg >= len(x.Argv) || x.Stdin > StdinPipe || x.Timeout < 0 ||
		x.Wait && x.Output.Tail == 0 || !x.Durable && (x.Stdin == StdinPipe || x.Continue != 0 || x.Direct || x.Wait) ||
		x.Direct && (x.Stdin != StdinNull || x.Continue != 0))
}

// terminal encodes the size of a terminal in one number, 0 if there is none.
func (x *Command) terminal(c *codec) {
	var size uint32
	if x.Terminal != nil {
		size = uint32(x.Terminal.Rows)<<16 | uint32(x.Terminal.Cols)
	}
	if c.u32(&size); !c.reading || size == 0 {
		return
	}
	x.Terminal = &Terminal{Rows: uint16(size >> 16), Cols: uint16(size)}
	c.refuse(x.Terminal.Rows == 0 || x.Terminal.Cols == 0 || !x.Durable || x.Stdin != StdinPipe)
}

func (x *Exit) fields(c *codec) {
	small(c, &x.Reason)
	small(c, &x.Code)
	small(c, &x.Signal)
	c.durations(&x.Duration, &x.UserTime, &x.SystemTime)
	c.u64(&x.MaxRSS)
	c.u32(&x.Leftovers)
	c.bool(&x.LeftRunning, &x.Grouped)
	use(c, &x.Use)
	for i := range x.Disks {
		x.Disks[i].fields(c)
	}
	for i := range x.Streams {
		x.Streams[i].fields(c)
	}
	c.refuse(x.Reason > ReasonOOM || x.Duration < 0 || x.UserTime < 0 || x.SystemTime < 0 || x.Use.User < 0 || x.Use.System < 0)
}

func (s *StreamEnd) fields(c *codec) {
	c.u64(&s.Total, &s.CutFrom, &s.CutTo)
	c.refuse(s.CutFrom > s.CutTo || s.CutTo > s.Total)
}

func (p *Pace) fields(c *codec) {
	c.bool(&p.Wait)
	c.u64(&p.Taken[0], &p.Taken[1])
}

func (f *Freeze) fields(c *codec) { c.bool(&f.On) }

func (t *Times) fields(c *codec) {
	c.durations(&t.Grace)
	c.bool(&t.Parked)
	c.durations(&t.Idle, &t.End)
	c.refuse(t.Grace < 0 || t.Idle < 0 || t.End < 0)
}

func (k *ProgramState) fields(c *codec) {
	c.u32(&k.PID)
	c.bool(&k.Input)
	c.u64(&k.Taken)
	c.bool(&k.Terminal)
	c.u64(&k.Output.Head, &k.Output.Tail)
	optional(c, &k.Exited)
	c.refuse(k.Terminal && !k.Input && k.Exited == nil || k.Output.Head > MaxSpool || k.Output.Tail > MaxSpool || k.Taken > math.MaxInt64)
}

func (a *Adopted) fields(c *codec) {
	c.u32(&a.Version, &a.Next)
	c.bool(&a.Frozen, &a.LeftRunning, &a.Private)
}
