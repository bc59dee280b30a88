// SPDX-License-Identifier: Apache-2.0

package isolation

import "github.com/boxd-dev/boxd/cgroup"

// The protocol between boxd and the keeper, over the SEQPACKET socket that the keeper listens on.
// One boxd is served at a time; when its end closes, the keeper waits for the next. Each request
// has a type, and a number that its reply repeats: replies come in any order, each either the
// reply of its type or a StepError. Everything a box needs after its start bypasses the keeper.
//
//	request                  reply
//	Hello                    Greeting, see there
//	Launch                   Launched + control socket, pidfd: PID 1 runs and has its Setup, see box_protocol.go
//	Adopt                    Launched + the same, of a living box
//	EndBox                   Done, when nothing of the box is left
//	ListBoxes                Listed, page by page
//	WhyEnded                 Ended
//	SetLimits                Done
//	SetOwnerLimits           Done
//	SetHostname              Done
//	Reclaim                  Done
//	ChangeMount              Mounted
//	ChangeSpace              Done
//	ChangeSnapshots          Snapshots, see snapshots.go
//	KeepTree, RemoveTree     Done
//	ReadQuota                Disk
//	ReadTraffic              Traffic, see network_protocol.go for this and the next
//	ReadRefusals             Refusals
//	SetNetwork               Done
//	PinAddresses             Done
//	OpenSockets              SocketsOpened + the sockets
//	Dial, DialLoopback       Dialed + the connection
//	LookHost                 Host
//	CheckHost                Checked
//	Leave                    none: the keeper exits, and leaves the boxes to the next one
//	Quit                     Done, if the keeper stays: it ends every box, and exits unless it is to linger
//
// If boxd goes before it receives a Launched, that box is ended.

// KeeperVersion is the version of this protocol; both sides must have the same.
const KeeperVersion = 27

// ListPage is how many keys a Listed has at most, so that it fits a packet.
const ListPage = 1024

// HoldCommand is the argument that makes the keeper's program wait for the end of its standard
// input and do nothing else: it holds a user namespace, which cannot be made without a process.
const HoldCommand = "hold"

// KeeperRequest is a message from boxd to the keeper.
type KeeperRequest interface {
	requestKind() uint8
	fields(c *codec)
}

// KeeperReply is a message from the keeper to boxd.
type KeeperReply interface {
	replyKind() uint8
	fields(c *codec)
}

// Hello asks for the keeper's Greeting. Neither has a number.
type Hello struct{ Version uint32 }

// Launch starts a box.
type Launch struct{ Spec Spec }

// Adopt opens a new connection to a living box.
type Adopt struct{ Key string }

// EndBox ends a box.
type EndBox struct {
	Key        string
	RemoveWork bool // remove its files on disk too; otherwise they are synced, for a Spec with Resume
}

// KeepTree ends a box, and turns its workspace into the tree of an image with this name, or into
// SpacesDir/KEY.
type KeepTree struct{ Key, Tree string }

// RemoveTree removes the tree of an image. EBUSY: a box uses it.
type RemoveTree struct{ Tree string }

// ListBoxes asks for the keys of living boxes that sort after one.
type ListBoxes struct{ After string }

// WhyEnded asks whether the keeper has ended a box by itself, lately, and why.
type WhyEnded struct{ Key string }

// SetLimits changes the limits of a living box: those of its cgroups, if it has any, and those of
// its workspace, if that has any.
type SetLimits struct {
	Key    string
	Limits cgroup.Limits
	Work   Quota
}

// SetOwnerLimits changes the limits for all boxes of an owner together.
type SetOwnerLimits struct{ Owner cgroup.Owner }

// Reclaim takes back memory of a living box that its programs do not need.
type Reclaim struct{ Key string }

// LookHost asks what can be enforced on this host.
type LookHost struct{}

// CheckHost tests what boxes need on this host.
type CheckHost struct{}

// Leave asks the keeper to exit, and to leave the boxes to the next one.
type Leave struct{}

// Quit asks the keeper to end every box and to exit; a keeper that lingers stays.
type Quit struct{}

// Done is the reply to a request that has no result.
type Done struct{}

// Listed is a page of the keys of living boxes, sorted.
type Listed struct {
	Keys []string
	More bool
}

// EndCause is why the keeper has ended a box by itself.
type EndCause uint8

// The causes.
const (
	CauseNone      EndCause = iota // it has not, as far as it remembers
	CauseFileLocks                 // more than KeeperConfig.FileLocks
)

// Ended is the reply to a WhyEnded.
type Ended struct{ Cause EndCause }

// Launched describes a started box as the host sees it. The box's control socket and its pidfd
// come with it, in this order.
type Launched struct {
	PID    uint32
	IDBase uint32 // first of the IDRange host ids
	Group  string // path of the box's cgroup, "" if it has none
}

// Host says what can be enforced on this host, as found out by trying.
type Host struct {
	Controllers []string // cgroup controllers of the boxes; empty if there are no cgroups
	NoGroups    string   // why there are no cgroups
	Workspaces  string   // the directory that holds the managed workspaces
	Quota       string   // what enforces their quotas, QuotaProject or QuotaStore; "": nothing
	NoQuota     string   // why nothing does
	QuotaHint   string   // what to do about that
	Bounds      []string // for each of KeeperConfig.QuotaRoots its path, and why nothing below it can have a quota; "": it can
}

// What enforces quotas of workspaces.
const (
	QuotaProject = "project-quota" // project quota of the state directory's filesystem
	QuotaStore   = "store"         // project quota of boxd's own filesystem, in a file there
)

// Checked is the result of a CheckHost.
type Checked struct{ Checks []Check }

func (*Hello) requestKind() uint8           { return msgHello }
func (*Launch) requestKind() uint8          { return msgLaunch }
func (*Adopt) requestKind() uint8           { return msgAdopt }
func (*EndBox) requestKind() uint8          { return msgEndBox }
func (*KeepTree) requestKind() uint8        { return msgKeepTree }
func (*RemoveTree) requestKind() uint8      { return msgRemoveTree }
func (*ListBoxes) requestKind() uint8       { return msgListBoxes }
func (*WhyEnded) requestKind() uint8        { return msgWhyEnded }
func (*SetLimits) requestKind() uint8       { return msgSetLimits }
func (*SetOwnerLimits) requestKind() uint8  { return msgSetOwnerLimits }
func (*SetHostname) requestKind() uint8     { return msgSetHostname }
func (*Reclaim) requestKind() uint8         { return msgReclaim }
func (*ChangeMount) requestKind() uint8     { return msgChangeMount }
func (*ChangeSpace) requestKind() uint8     { return msgChangeSpace }
func (*ChangeSnapshots) requestKind() uint8 { return msgChangeSnapshots }
func (*ReadQuota) requestKind() uint8       { return msgReadQuota }
func (*LookHost) requestKind() uint8        { return msgLookHost }
func (*CheckHost) requestKind() uint8       { return msgCheckHost }
func (*Leave) requestKind() uint8           { return msgLeave }
func (*Quit) requestKind() uint8            { return msgQuit }

func (*Greeting) replyKind() uint8  { return msgHello }
func (*StepError) replyKind() uint8 { return msgFailed }
func (*Done) replyKind() uint8      { return msgDone }
func (*Launched) replyKind() uint8  { return msgLaunched }
func (*Listed) replyKind() uint8    { return msgListed }
func (*Ended) replyKind() uint8     { return msgEnded }
func (*Mounted) replyKind() uint8   { return msgMounted }
func (*Disk) replyKind() uint8      { return msgQuotaUse }
func (*Snapshots) replyKind() uint8 { return msgSnapshots }
func (*Host) replyKind() uint8      { return msgHost }
func (*Checked) replyKind() uint8   { return msgChecked }

func (m *Hello) fields(c *codec)      { c.u32(&m.Version) }
func (m *Launch) fields(c *codec)     { m.Spec.fields(c) }
func (m *Adopt) fields(c *codec)      { c.str(&m.Key) }
func (m *KeepTree) fields(c *codec)   { c.str(&m.Key, &m.Tree) }
func (m *RemoveTree) fields(c *codec) { c.str(&m.Tree) }
func (m *ListBoxes) fields(c *codec)  { c.str(&m.After) }
func (m *Reclaim) fields(c *codec)    { c.str(&m.Key) }
func (m *WhyEnded) fields(c *codec)   { c.str(&m.Key) }
func (m *Ended) fields(c *codec)      { small(c, &m.Cause) }
func (*LookHost) fields(*codec)       {}
func (*CheckHost) fields(*codec)      {}
func (*Leave) fields(*codec)          {}
func (*Quit) fields(*codec)           {}
func (*Done) fields(*codec)           {}

func (m *EndBox) fields(c *codec) {
	c.str(&m.Key)
	c.bool(&m.RemoveWork)
}

func (m *SetLimits) fields(c *codec) {
	c.str(&m.Key)
	limits(c, &m.Limits)
	m.Work.fields(c)
}

func (m *SetOwnerLimits) fields(c *codec) { owner(c, &m.Owner) }

func (m *Listed) fields(c *codec) {
	c.strs(&m.Keys)
	c.bool(&m.More)
}

func (m *Launched) fields(c *codec) {
	c.u32(&m.PID, &m.IDBase)
	c.str(&m.Group)
}

func (m *Host) fields(c *codec) {
	c.strs(&m.Controllers)
	c.str(&m.NoGroups, &m.Workspaces, &m.Quota, &m.NoQuota, &m.QuotaHint)
	c.strs(&m.Bounds)
}

func (m *Checked) fields(c *codec) { list(c, &m.Checks, 13) }

func (m *Check) fields(c *codec) {
	small(c, &m.Level)
	c.str(&m.Name, &m.Detail, &m.Hint)
}
