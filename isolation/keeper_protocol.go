// SPDX-License-Identifier: Apache-2.0

package isolation

import "github.com/boxd-dev/boxd/cgroup"

// The conversation between boxd and the keeper, over the SEQPACKET socket that the keeper listens on. One
// boxd is served at a time; when its end closes, the keeper waits for the next. Requests carry a number
// and are answered in any order; everything a box needs afterwards goes past the keeper.
//
//	boxd                                  keeper
//	Hello{version} ────────────────────►
//	            ◄──────────────────────── Hello{version, flags, programs}
//	Launch{req, spec} ─────────────────►  reserve ids, open mounts, clone from the zygote
//	            ◄──────────────────────── Launched{req, pid, base} + control socket, pidfd:
//	                                      PID 1 runs and has its Setup, see box_protocol.go
//	            ◄──────────────────────── Failed{req, step, item, errno | refusal}
//	End{req, key, remove work} ────────►  kill, wait until it is gone, release all of it
//	            ◄──────────────────────── Done{req}              or Failed
//	SetLimits{req, key, limits} ───────►  change the limits of a living box, all or none, or of an owner
//	            ◄──────────────────────── Done{req}              or Failed
//	List{req, after} ──────────────────►  of the living boxes, those with keys after that one
//	            ◄──────────────────────── Listed{req, keys, more}
//	Adopt{req, key} ───────────────────►  connect to PID 1 of a living box again
//	            ◄──────────────────────── Launched, as above     or Failed
//	Dress{req, key, hostname} ─────────►  name a box that was made ahead of need
//	            ◄──────────────────────── Done{req}              or Failed
//	Reclaim{req, key} ─────────────────►  take memory back that the programs of a box do not need
//	            ◄──────────────────────── Done{req}              or Failed
//	ChangeMount{req, key, mount} ──────►  add, replace or remove a mount of a living box, or follow a path
//	            ◄──────────────────────── Mounted{req, …}        or Failed
//	Space{req, key, quota, remove} ────►  make a workspace that boxes can be lent, or remove it
//	            ◄──────────────────────── Done{req}              or Failed
//	Network{req, key, words} ──────────►  of the network of a living box: how it is, other rules, pins
//	            ◄──────────────────────── Listed{req, words}     or Failed
//	Held{req, key} ────────────────────►  how full the quotas are of directories of the host that a box writes to
//	            ◄──────────────────────── Listed{req, numbers}   or Failed
//	Look{req} ─────────────────────────►  find out what can be enforced on this host
//	            ◄──────────────────────── Host{req, …}
//	Check{req} ────────────────────────►  try what boxes need on this host
//	            ◄──────────────────────── Checked{req, checks}
//	Leave{req} ────────────────────────►  exit, and leave the boxes to the next keeper
//	Quit{req} ─────────────────────────►  end every box and exit; one that lingers stays
//	            ◄──────────────────────── Done{req}, if it stays
//
// A box whose Launched boxd does not live to receive is ended.

// KeeperVersion is the version of this conversation; both sides must have the same.
const KeeperVersion = 21

// ListPage is how many keys a Listed has at most, so that it fits a packet.
const ListPage = 1024

// HoldCommand is the argument that makes the keeper's program wait for the end of its standard input and do
// nothing else: the process that something is made with which cannot be made without one.
const HoldCommand = "hold"

// Types of the messages between boxd and keeper. They are never renumbered: see Greeting.
const (
	msgHello uint8 = iota + 1
	msgLaunch
	msgEnd
	msgCheck
	msgLaunched
	msgDone
	msgChecked
	msgFailed
	msgSetLimits
	msgLook
	msgHost
	msgLeave
	msgQuit
	msgList
	msgListed
	msgAdopt
	msgDress
	msgReclaim
	msgChangeMount
	msgMounted
	msgSpace
	msgNetwork
	msgHeld
)

// KeeperRequest is a message from boxd to the keeper; exactly one of the pointers is set, or one of
// the flags.
type KeeperRequest struct {
	Req     uint32
	Hello   uint32 // version, when it is a greeting
	Launch  *Spec
	End     *EndBox
	Limits  *SetLimits
	Check   bool
	Look    bool
	Leave   bool
	Quit    bool
	List    *List
	Adopt   *Adopt
	Dress   *Dress
	Reclaim *Reclaim
	Mount   *ChangeMount
	Space   *Space
	Network []string // the key of a living box, and words of isolation/network
	Held    *Held
}

// Reclaim asks that memory be taken back from a living box.
type Reclaim struct{ Key string }

// List asks for the keys of living boxes.
type List struct{ After string }

// Adopt asks for a new connection to a living box.
type Adopt struct{ Key string }

// EndBox asks for the end of a box.
type EndBox struct {
	Key        string
	RemoveWork bool   // the managed workspace goes too
	Tree       string // or becomes the tree of an image, of this name, or SpacesDir/KEY; without Key that tree is removed (EBUSY: a box has it)
}

// SetLimits asks for other limits of a living box: those of its control groups, if it has any, and those
// of its workspace, if that has any. With the name of an owner's group as Key, OwnerPrefix included, it is about what
// all its boxes may have together: memory and processor time of Limits.
type SetLimits struct {
	Key    string
	Limits cgroup.Limits
	Work   Quota
}

// KeeperReply is a message from the keeper to boxd. Launched comes with the box's control socket and
// its pidfd, in this order.
type KeeperReply struct {
	Req      uint32
	Hello    *Greeting
	Launched *Launched
	Listed   *Listed
	Done     bool
	Checks   []Check
	Host     *Host
	Failed   *StepError
	Mounted  *Mounted
}

// Listed is a page of the living boxes, in the order of their keys.
type Listed struct {
	Keys []string
	More bool
}

// Launched describes a started box as the host sees it.
type Launched struct {
	PID    uint32
	IDBase uint32 // first of the IDRange host ids
	Group  string // path of the box's control group, "" if it has none
}

// Host is what can be enforced here, found out by trying.
type Host struct {
	Controllers []string // of the boxes' control groups; none if there are no groups
	NoGroups    string   // why there are none
	Workspaces  string   // the directory that holds the managed workspaces
	Quota       string   // what keeps their quotas, QuotaProject or QuotaStore; "": nothing
	NoQuota     string   // why nothing does
	QuotaHint   string   // what to do about that
	Bounds      []string // of each of KeeperConfig.QuotaRoots its path, and why nothing below it can have a quota; "": it can
}

// What keeps quotas of workspaces.
const (
	QuotaProject = "project-quota" // of the filesystem of the state directory
	QuotaStore   = "store"         // that of a filesystem of boxd's own, in a file there
)

// Encode returns the message's bytes.
func (m *KeeperRequest) Encode() []byte {
	switch {
	case m.Launch != nil:
		e := m.begin(msgLaunch)
		e.spec(m.Launch)
		return e.b
	case m.End != nil:
		e := m.begin(msgEnd)
		e.str(m.End.Key)
		e.bool(m.End.RemoveWork)
		e.str(m.End.Tree)
		return e.b
	case m.Limits != nil:
		e := m.begin(msgSetLimits)
		e.str(m.Limits.Key)
		e.limits(&m.Limits.Limits)
		e.u64(m.Limits.Work.Bytes, m.Limits.Work.Inodes)
		return e.b
	case m.List != nil:
		return m.about(msgList, m.List.After)
	case m.Adopt != nil:
		return m.about(msgAdopt, m.Adopt.Key)
	case m.Dress != nil:
		return m.about(msgDress, m.Dress.Key, m.Dress.Hostname)
	case m.Reclaim != nil:
		return m.about(msgReclaim, m.Reclaim.Key)
	case m.Mount != nil:
		e := m.begin(msgChangeMount)
		e.changeMount(m.Mount)
		return e.b
	case m.Space != nil:
		e := m.begin(msgSpace)
		e.space(m.Space)
		return e.b
	case m.Network != nil:
		return m.about(msgNetwork, m.Network...)
	case m.Held != nil:
		return m.about(msgHeld, m.Held.Key, m.Held.Source)
	}
	for _, f := range []struct {
		set  bool
		kind uint8
	}{{m.Check, msgCheck}, {m.Look, msgLook}, {m.Leave, msgLeave}, {m.Quit, msgQuit}} {
		if f.set {
			e := message(f.kind)
			e.u32(m.Req)
			return e.b
		}
	}
	e := message(msgHello)
	e.u32(m.Hello)
	return e.b
}

func (m *KeeperRequest) begin(kind uint8) *encoder {
	e := message(kind)
	e.u32(m.Req)
	return e
}

func (m *KeeperRequest) about(kind uint8, what ...string) []byte {
	e := m.begin(kind)
	for _, text := range what {
		e.str(text)
	}
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
		m.End = &EndBox{Key: d.str(), RemoveWork: d.bool(), Tree: d.str()}
	case msgSetLimits:
		m.Req = d.u32()
		m.Limits = &SetLimits{Key: d.str(), Limits: d.limits(), Work: Quota{d.u64(), d.u64()}}
	case msgCheck:
		m.Req, m.Check = d.u32(), true
	case msgLook:
		m.Req, m.Look = d.u32(), true
	case msgLeave:
		m.Req, m.Leave = d.u32(), true
	case msgQuit:
		m.Req, m.Quit = d.u32(), true
	case msgList:
		m.Req, m.List = d.u32(), &List{After: d.str()}
	case msgAdopt:
		m.Req, m.Adopt = d.u32(), &Adopt{Key: d.str()}
	case msgDress:
		m.Req, m.Dress = d.u32(), &Dress{Key: d.str(), Hostname: d.str()}
	case msgReclaim:
		m.Req, m.Reclaim = d.u32(), &Reclaim{Key: d.str()}
	case msgChangeMount:
		m.Req, m.Mount = d.u32(), d.changeMount()
	case msgSpace:
		m.Req, m.Space = d.u32(), d.space()
	case msgNetwork:
		for m.Req, m.Network = d.u32(), []string{d.str()}; len(d.b) > 0; {
			m.Network = append(m.Network, d.str())
		}
	case msgHeld:
		m.Req, m.Held = d.u32(), &Held{d.str(), d.str()}
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
		e.str(m.Launched.Group)
		return e.b
	case m.Listed != nil:
		e := message(msgListed)
		e.u32(m.Req)
		e.strs(m.Listed.Keys)
		e.bool(m.Listed.More)
		return e.b
	case m.Mounted != nil:
		e := message(msgMounted)
		e.u32(m.Req)
		e.mounted(m.Mounted)
		return e.b
	case m.Hello != nil:
		e := message(msgHello)
		e.greeting(m.Hello)
		return e.b
	case m.Host != nil:
		e := message(msgHost)
		e.u32(m.Req)
		e.strs(m.Host.Controllers)
		for _, text := range []string{m.Host.NoGroups, m.Host.Workspaces, m.Host.Quota, m.Host.NoQuota, m.Host.QuotaHint} {
			e.str(text)
		}
		e.strs(m.Host.Bounds)
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
	e := message(msgDone)
	e.u32(m.Req)
	return e.b
}

// DecodeKeeperReply reads a message from the keeper.
func DecodeKeeperReply(b []byte) (*KeeperReply, error) {
	d := &decoder{b: b}
	m := &KeeperReply{}
	switch d.u8() {
	case msgHello:
		m.Hello = d.greeting()
	case msgFailed:
		m.Req = d.u32()
		m.Failed = d.stepError()
	case msgLaunched:
		m.Req = d.u32()
		m.Launched = &Launched{PID: d.u32(), IDBase: d.u32(), Group: d.str()}
	case msgHost:
		m.Req = d.u32()
		m.Host = &Host{Controllers: d.strs(), NoGroups: d.str(), Workspaces: d.str(), Quota: d.str(), NoQuota: d.str(), QuotaHint: d.str(), Bounds: d.strs()}
	case msgListed:
		m.Req = d.u32()
		m.Listed = &Listed{Keys: d.strs(), More: d.bool()}
	case msgMounted:
		m.Req, m.Mounted = d.u32(), d.mounted()
	case msgDone:
		m.Req, m.Done = d.u32(), true
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
