// SPDX-License-Identifier: Apache-2.0

package isolation

import "bytes"

// NetworkKind is one of the networks that a box can have.
type NetworkKind uint8

// The networks.
const (
	NetworkNone   NetworkKind = iota
	NetworkEgress             // its programs connect to other hosts, by rules
	NetworkHost               // that of the host, in which no rule is about them
)

// NetworkSpec says what network a box has.
type NetworkSpec struct {
	Kind        NetworkKind
	NamesOnly   bool     // boxd alone resolves names for the box, which asks at its own loopback. So it is wherever there are rules by name
	Names       uint32   // for the keeper, which knows no rules by name: tells these from others, and is zero unless NamesOnly
	Strict      bool     // of a box with rules by name: connections to ports 80 and 443 of what a name has led to are looked at
	Connections uint32   // at a time; 0: what the keeper lets every box have
	Bandwidth   uint64   // in each direction, in bytes a second; 0: the same
	Rules       []string // as isolation/network/rule has them; for boxd's own part also rules by name, as isolation/egress has them
}

// Equal reports whether two specifications are the same.
func (n *NetworkSpec) Equal(o *NetworkSpec) bool {
	one, other := &codec{}, &codec{}
	n.fields(one)
	o.fields(other)
	return bytes.Equal(one.b, other.b)
}

// Endpoint is an address of IPv4 or IPv6, in its 4 or 16 bytes, and a port. PID 1 of every box links this package, so it
// knows no more of addresses.
type Endpoint struct {
	Address []byte
	Port    uint16
}

// SetNetwork asks for other rules of the network of a living box. They are in force for connections that are there
// already, and no pin outlives them.
type SetNetwork struct {
	Key     string
	Network NetworkSpec
}

// MaxPins is how many a PinAddresses has at most. The keeper's library of nf_tables loses elements of larger messages.
const MaxPins = 250

// PinAddresses asks that a living box may connect to addresses for a time, to which a name has led.
type PinAddresses struct {
	Key  string
	Pins []Pin
}

// Pin is one of them.
type Pin struct {
	To      Endpoint
	UDP     bool // and not TCP
	Seconds uint32
}

// ReadTraffic asks what has gone over the network of a living box since that was made.
type ReadTraffic struct{ Key string }

// Traffic is the reply.
type Traffic struct {
	Addresses      [][]byte // of the box, each as in an Endpoint
	Received, Sent Amount   // by the box
}

// Amount is an amount of traffic.
type Amount struct{ Bytes, Packets uint64 }

// ReadRefusals asks what a living box was refused.
type ReadRefusals struct{ Key string }

// Refusals is the reply: what a box was refused since it was made.
type Refusals struct {
	Packets uint64
	Crowded uint64               // of them: packets that would have begun one connection more than the box may have
	Lately  []RefusedDestination // where to
}

// RefusedDestination is where the rules of a box did not let it connect to, and how many packets have tried.
type RefusedDestination struct {
	To      Endpoint
	UDP     bool // and not TCP
	Packets uint64
}

// OpenSockets asks for the sockets in the network of a living box that it asks for names at, and with Strict those where
// its connections are looked at.
type OpenSockets struct {
	Key    string
	Strict bool
}

// SocketsOpened is the reply. The sockets come with it.
type SocketsOpened struct {
	IPv6 bool // the box has addresses of IPv6
}

// Dial asks for a connection out of a living box to what a pin could be about, for whoever looks at its connections.
type Dial struct {
	Key string
	To  Endpoint
}

// DialLoopback asks for a connection to a port of the loopback of a living box, whatever network that has.
type DialLoopback struct {
	Key string
	To  Endpoint
}

// Dialed is the reply to both. The connection comes with it, and may not be there yet: whoever gets it waits for that.
type Dialed struct{}

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

// address is one of IPv4 or IPv6.
func (c *codec) address(p *[]byte) {
	c.bytes(p)
	c.refuse(len(*p) != 4 && len(*p) != 16)
}
