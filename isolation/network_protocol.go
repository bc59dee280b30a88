// SPDX-License-Identifier: Apache-2.0

package isolation

import "bytes"

// NetworkKind is one of the kinds of network that a box can have.
type NetworkKind uint8

// The networks.
const (
	NetworkNone   NetworkKind = iota
	NetworkEgress             // its programs can connect to other hosts, as rules allow
	NetworkHost               // that of the host, to which no rules apply
)

// NetworkSpec says what network a box has.
type NetworkSpec struct {
	Kind        NetworkKind
	NamesOnly   bool     // names are resolved only by boxd, which the box queries at its own loopback; set whenever there are rules by name
	Names       uint32   // distinguishes rules by name for the keeper, which does not know them; zero unless NamesOnly
	Strict      bool     // with rules by name: connections to ports 80 and 443 of resolved addresses go through the proxy
	Connections uint32   // at a time; 0: the keeper's default
	Bandwidth   uint64   // in each direction, in bytes per second; 0: the keeper's default
	Rules       []string // in the form of isolation/network/rule; inside boxd also rules by name, in that of isolation/egress
}

// Equal reports whether two specifications are the same.
func (n *NetworkSpec) Equal(o *NetworkSpec) bool {
	one, other := &codec{}, &codec{}
	n.fields(one)
	o.fields(other)
	return bytes.Equal(one.b, other.b)
}

// Endpoint is an IPv4 or IPv6 address, in its 4 or 16 bytes, and a port. PID 1 of every box links
// this package, so it does not use net/netip.
type Endpoint struct {
	Address []byte
	Port    uint16
}

// SetNetwork changes the network rules of a live box. They apply to existing connections too, and
// all pins end.
type SetNetwork struct {
	Key     string
	Network NetworkSpec
}

// MaxPins is how many a PinAddresses has at most. The keeper's nf_tables library loses elements
// of larger messages.
const MaxPins = 250

// PinAddresses allows a live box to connect for some time to addresses that a name has resolved
// to.
type PinAddresses struct {
	Key  string
	Pins []Pin
}

// Pin is one of them.
type Pin struct {
	To      Endpoint
	UDP     bool // UDP instead of TCP
	Seconds uint32
}

// ReadTraffic asks for the traffic of a live box since it was made.
type ReadTraffic struct{ Key string }

// Traffic is the reply.
type Traffic struct {
	Addresses      [][]byte // addresses of the box, each as in an Endpoint
	Received, Sent Amount   // as seen from the box
}

// Amount is an amount of traffic.
type Amount struct{ Bytes, Packets uint64 }

// ReadRefusals asks what a live box was refused.
type ReadRefusals struct{ Key string }

// Refusals is the reply: what a box was refused since it was made.
type Refusals struct {
	Packets uint64
	Crowded uint64               // of these, packets that would have opened more connections than the box may have
	Lately  []RefusedDestination // the destinations
}

// RefusedDestination is a destination that the rules of a box do not allow, and how many packets
// have tried it.
type RefusedDestination struct {
	To      Endpoint
	UDP     bool // UDP instead of TCP
	Packets uint64
}

// OpenSockets asks for the sockets in the network of a live box that receive its DNS queries, and
// with Strict those that its web connections are redirected to.
type OpenSockets struct {
	Key    string
	Strict bool
}

// SocketsOpened is the reply. The sockets come with it.
type SocketsOpened struct {
	IPv6 bool // the box has IPv6 addresses
}

// Dial asks for a connection out of a live box to an address that can be pinned, for the proxy of
// its connections.
type Dial struct {
	Key string
	To  Endpoint
}

// DialLoopback asks for a connection to a port of the loopback of a live box, whatever network it
// has.
type DialLoopback struct {
	Key string
	To  Endpoint
}

// Dialed is the reply to both. The connection comes with it and may still be connecting: the
// receiver has to wait for that.
type Dialed struct{}

// The protocol between the keeper and boxnet, its child for the network, over their socket: the keeper forwards requests about
// the network of a running box, with a descriptor of the box's network namespace, and has these of its own. Replies are those to
// boxd, except as below; each request has a number, as there.
//
//	AttachNetwork, SetNetwork   Attached
//	DetachNetwork               Done
//	AdoptNetworks               Listed: which of the boxes have a link
//	CheckNetwork                Checked
//
// Both have the same version: the keeper executes the program that it opened at its start.

// NetworkLock is the file in KeeperDir that boxnet locks. It is empty while the host's network has nothing of boxes.
const NetworkLock = "network-lock"

// AttachNetwork makes the link of a box in which no program runs yet. The descriptor of its network namespace comes with
// it. If it fails it leaves nothing behind.
type AttachNetwork struct {
	Key     string
	Network NetworkSpec
}

// Attached is the reply: the text of the resolv.conf(5) of the box.
type Attached struct{ Resolv string }

// DetachNetwork removes the link of a box, if it has one.
type DetachNetwork struct{ Key string }

// AdoptNetworks takes over the links of these boxes, and removes all others. It comes first.
type AdoptNetworks struct{ Keys []string }

// CheckNetwork asks whether boxes can have a network on this host.
type CheckNetwork struct{}

func (*AttachNetwork) requestKind() uint8 { return msgAttachNetwork }
func (*DetachNetwork) requestKind() uint8 { return msgDetachNetwork }
func (*AdoptNetworks) requestKind() uint8 { return msgAdoptNetworks }
func (*CheckNetwork) requestKind() uint8  { return msgCheckNetwork }
func (*Attached) replyKind() uint8        { return msgAttached }

func (m *AttachNetwork) fields(c *codec) {
	c.str(&m.Key)
	m.Network.fields(c)
}

func (m *Attached) fields(c *codec)      { c.str(&m.Resolv) }
func (m *DetachNetwork) fields(c *codec) { c.str(&m.Key) }
func (m *AdoptNetworks) fields(c *codec) { c.strs(&m.Keys) }
func (*CheckNetwork) fields(*codec)      {}

func (*SetNetwork) requestKind() uint8   { return msgSetNetwork }
func (*PinAddresses) requestKind() uint8 { return msgPinAddresses }
func (*ReadTraffic) requestKind() uint8  { return msgReadTraffic }
func (*ReadRefusals) requestKind() uint8 { return msgReadRefusals }
func (*OpenSockets) requestKind() uint8  { return msgOpenSockets }
func (*Dial) requestKind() uint8         { return msgDial }
func (*DialLoopback) requestKind() uint8 { return msgDialLoopback }

func (*Traffic) replyKind() uint8       { return msgTraffic }
func (*Refusals) replyKind() uint8      { return msgRefusals }
func (*SocketsOpened) replyKind() uint8 { return msgSocketsOpened }
func (*Dialed) replyKind() uint8        { return msgDialed }

func (n *NetworkSpec) fields(c *codec) {
	small(c, &n.Kind)
	c.bool(&n.NamesOnly)
	c.u32(&n.Names)
	c.bool(&n.Strict)
	c.u32(&n.Connections)
	c.u64(&n.Bandwidth)
	c.strs(&n.Rules)
	c.refuse(n.Kind > NetworkHost)
}

func (m *SetNetwork) fields(c *codec) {
	c.str(&m.Key)
	m.Network.fields(c)
}

func (m *PinAddresses) fields(c *codec) {
	c.str(&m.Key)
	list(c, &m.Pins, 15)
	c.refuse(len(m.Pins) > MaxPins)
}

func (p *Pin) fields(c *codec) {
	p.To.fields(c)
	c.bool(&p.UDP)
	c.u32(&p.Seconds)
}

func (m *ReadTraffic) fields(c *codec) { c.str(&m.Key) }

func (m *Traffic) fields(c *codec) {
	listOf(c, &m.Addresses, 8, func(a *[]byte) { c.address(a) })
	c.u64(&m.Received.Bytes, &m.Received.Packets, &m.Sent.Bytes, &m.Sent.Packets)
}

func (m *ReadRefusals) fields(c *codec) { c.str(&m.Key) }

func (m *Refusals) fields(c *codec) {
	c.u64(&m.Packets, &m.Crowded)
	list(c, &m.Lately, 19)
}

func (r *RefusedDestination) fields(c *codec) {
	r.To.fields(c)
	c.bool(&r.UDP)
	c.u64(&r.Packets)
}

func (m *OpenSockets) fields(c *codec) {
	c.str(&m.Key)
	c.bool(&m.Strict)
}

func (m *SocketsOpened) fields(c *codec) { c.bool(&m.IPv6) }

func (m *Dial) fields(c *codec) {
	c.str(&m.Key)
	m.To.fields(c)
}

func (m *DialLoopback) fields(c *codec) {
	c.str(&m.Key)
	m.To.fields(c)
}

func (*Dialed) fields(*codec) {}

func (e *Endpoint) fields(c *codec) {
	c.address(&e.Address)
	c.u16(&e.Port)
}

// address encodes an IPv4 or IPv6 address.
func (c *codec) address(p *[]byte) {
	c.bytes(p)
	c.refuse(len(*p) != 4 && len(*p) != 16)
}
