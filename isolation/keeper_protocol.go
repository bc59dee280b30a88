// SPDX-License-Identifier: Apache-2.0

package isolation

import "syscall"

// The conversation between boxd and the keeper, over one SEQPACKET socket. Requests carry a number
// and are answered in any order; everything a box needs afterwards goes past the keeper.
//
//	boxd                                  keeper
//	Hello{version} ────────────────────►
//	            ◄──────────────────────── Hello{version}         or the connection ends
//	Launch{req, spec} ─────────────────►  reserve ids, open mounts, clone from the zygote
//	            ◄──────────────────────── Launched{req, pid, base} + control socket, pidfd:
//	                                      PID 1 runs and has its Setup, see box_protocol.go
//	            ◄──────────────────────── Failed{req, step, item, errno | refusal}
//	End{req, key, remove work} ────────►  kill, wait until it is gone, release all of it
//	            ◄──────────────────────── Ended{req}             or Failed
//	Check{req} ────────────────────────►  try what boxes need on this host
//	            ◄──────────────────────── Checked{req, checks}
//
// When boxd's end closes, the keeper ends every box and itself.

// KeeperVersion is the version of this conversation; both sides must have the same.
const KeeperVersion = 1

// Types of the messages between boxd and keeper.
const (
	msgHello uint8 = iota + 1
	msgLaunch
	msgEnd
	msgCheck
	msgLaunched
	msgEnded
	msgChecked
	msgFailed
)

// KeeperRequest is a message from boxd to the keeper; exactly one of the pointers is set, or Check.
type KeeperRequest struct {
	Req    uint32
	Hello  uint32 // version, when it is a greeting
	Launch *Spec
	End    *EndBox
	Check  bool
}

// EndBox asks for the end of a box.
type EndBox struct {
	Key        string
	RemoveWork bool // the managed workspace goes too
}

// KeeperReply is a message from the keeper to boxd. Launched comes with the box's control socket and
// its pidfd, in this order.
type KeeperReply struct {
	Req      uint32
	Hello    uint32
	Launched *Launched
	Ended    bool
	Checks   []Check
	Failed   *StepError
}

// Launched describes a started box as the host sees it.
type Launched struct {
	PID    uint32
	IDBase uint32 // first of the IDRange host ids
}

// Check is one line of a host examination.
type Check struct {
	Name   string
	Level  CheckLevel
	Detail string // what was found
	Hint   string // what to do about it
}

// CheckLevel says how a check ended.
type CheckLevel uint8

// The levels. With a Fail no box can start.
const (
	CheckOK CheckLevel = iota
	CheckWarn
	CheckFail
)

// Encode returns the message's bytes.
func (m *KeeperRequest) Encode() []byte {
	switch {
	case m.Launch != nil:
		e := message(msgLaunch)
		e.u32(m.Req)
		e.spec(m.Launch)
		return e.b
	case m.End != nil:
		e := message(msgEnd)
		e.u32(m.Req)
		e.str(m.End.Key)
		e.bool(m.End.RemoveWork)
		return e.b
	case m.Check:
		e := message(msgCheck)
		e.u32(m.Req)
		return e.b
	}
	e := message(msgHello)
	e.u32(m.Hello)
	return e.b
}

// DecodeKeeperRequest reads a message from boxd.
func DecodeKeeperRequest(b []byte) (*KeeperRequest, error) {
	d := &decoder{b: b}
	m := &KeeperRequest{}
	switch d.u8() {
	case msgHello:
		m.Hello = d.u32()
	case msgLaunch:
		m.Req = d.u32()
		m.Launch = d.spec()
	case msgEnd:
		m.Req = d.u32()
		m.End = &EndBox{Key: d.str(), RemoveWork: d.bool()}
	case msgCheck:
		m.Req, m.Check = d.u32(), true
	default:
		d.bad = true
	}
	if err := d.done(); err != nil {
		return nil, err
	}
	return m, nil
}

// Encode returns the message's bytes.
func (m *KeeperReply) Encode() []byte {
	switch {
	case m.Failed != nil:
		e := message(msgFailed)
		e.u32(m.Req)
		e.stepError(m.Failed)
		return e.b
	case m.Launched != nil:
		e := message(msgLaunched)
		e.u32(m.Req)
		e.u32(m.Launched.PID)
		e.u32(m.Launched.IDBase)
		return e.b
	case m.Ended:
		e := message(msgEnded)
		e.u32(m.Req)
		return e.b
	case m.Checks != nil:
		e := message(msgChecked)
		e.u32(m.Req)
		e.u32(uint32(len(m.Checks)))
		for _, c := range m.Checks {
			e.u8(uint8(c.Level))
			e.str(c.Name)
			e.str(c.Detail)
			e.str(c.Hint)
		}
		return e.b
	}
	e := message(msgHello)
	e.u32(m.Hello)
	return e.b
}

// DecodeKeeperReply reads a message from the keeper.
func DecodeKeeperReply(b []byte) (*KeeperReply, error) {
	d := &decoder{b: b}
	m := &KeeperReply{}
	switch d.u8() {
	case msgHello:
		m.Hello = d.u32()
	case msgFailed:
		m.Req = d.u32()
		m.Failed = d.stepError()
	case msgLaunched:
		m.Req = d.u32()
		m.Launched = &Launched{PID: d.u32(), IDBase: d.u32()}
	case msgEnded:
		m.Req, m.Ended = d.u32(), true
	case msgChecked:
		m.Req = d.u32()
		m.Checks = make([]Check, 0, d.count(13))
		for range cap(m.Checks) {
			m.Checks = append(m.Checks, Check{Level: CheckLevel(d.u8()), Name: d.str(), Detail: d.str(), Hint: d.str()})
		}
	default:
		d.bad = true
	}
	if err := d.done(); err != nil {
		return nil, err
	}
	return m, nil
}

func (e *encoder) spec(s *Spec) {
	e.str(s.Key)
	e.str(s.Hostname)
	e.u32(s.Caller.UID)
	e.u32(s.Caller.GID)
	e.u32(uint32(len(s.Caller.Groups)))
	for _, g := range s.Caller.Groups {
		e.u32(g)
	}
	e.u64(s.Scratch.Bytes)
	e.u64(s.Scratch.Inodes)
	e.rlimits(s.Rlimits)
	e.bool(s.ManagedWork)
	e.u32(uint32(len(s.Mounts)))
	for i := range s.Mounts {
		m := &s.Mounts[i]
		e.str(m.Source)
		e.str(m.Target)
		e.bool(m.Writable)
		e.u32(m.Owner)
	}
}

func (d *decoder) spec() *Spec {
	s := &Spec{Key: d.str(), Hostname: d.str()}
	s.Caller.UID, s.Caller.GID = d.u32(), d.u32()
	for range d.count(4) {
		s.Caller.Groups = append(s.Caller.Groups, d.u32())
	}
	s.Scratch = Scratch{Bytes: d.u64(), Inodes: d.u64()}
	s.Rlimits = d.rlimits()
	s.ManagedWork = d.bool()
	for range d.count(13) {
		s.Mounts = append(s.Mounts, Mount{Source: d.str(), Target: d.str(), Writable: d.bool(), Owner: d.u32()})
	}
	return s
}

func (e *encoder) rlimits(list []Rlimit) {
	e.u32(uint32(len(list)))
	for _, r := range list {
		e.u32(r.Resource)
		e.u64(r.Soft)
		e.u64(r.Hard)
	}
}

func (d *decoder) rlimits() []Rlimit {
	var list []Rlimit
	for range d.count(20) {
		list = append(list, Rlimit{Resource: d.u32(), Soft: d.u64(), Hard: d.u64()})
	}
	return list
}

// MaxItem bounds the texts of a StepError, so that a reply always fits a small buffer.
const MaxItem = 512

func (e *encoder) stepError(s *StepError) {
	e.u8(uint8(s.Step))
	e.str(s.Item[:min(len(s.Item), MaxItem)])
	e.u32(uint32(s.Errno))
	e.bool(s.Refused != nil)
	if r := s.Refused; r != nil {
		for _, text := range []string{r.Field, r.Value, r.Allowed} {
			e.str(text[:min(len(text), MaxItem)])
		}
	}
}

func (d *decoder) stepError() *StepError {
	s := &StepError{Step: Step(d.u8()), Item: d.item(), Errno: syscall.Errno(d.u32())}
	if d.bool() {
		s.Refused = &Refusal{Field: d.item(), Value: d.item(), Allowed: d.item()}
	}
	return s
}

func (d *decoder) item() string {
	s := d.str()
	d.bad = d.bad || len(s) > MaxItem
	return s
}
