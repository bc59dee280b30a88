// SPDX-License-Identifier: Apache-2.0

// Messages between boxd and the egress proxy, over a SEQPACKET socket. boxd hands the proxy each box with two
// sockets that are in the box's netns, and is asked to allow every address. Neither end trusts the other further:
// boxd checks each address against its own rules.

package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
)

// The conversation:
//
//	boxd                               boxnames
//	Resolvers ───────────────────────►  asks these, if some are configured
//	Add{box} + UDP and TCP socket ───►  answers questions of that box from now on; of a strict one there are one
//	                                    or two more, whose connections are looked at
//	Change{box} ─────────────────────►  by these rules from now on
//	Secrets{key, …} ─────────────────►  puts these into requests of that box from now on; before its Add, and
//	                                    whenever they have changed
//	Remove{key} ─────────────────────►  closes its sockets, and forgets its secrets
//	         ◄──────────────────────── Pin{id, key, name, addresses}
//	Pinned{id, error} ───────────────►  the box is told the addresses, or that it failed
//	         ◄──────────────────────── Dial{id, key, name, address, port}
//	Dialed{id, error} + socket ──────►  passes bytes on by it
//	         ◄──────────────────────── Denied{key, …}
//	         ◄──────────────────────── Ended{key, error}: a socket of that box has failed
//
// When the connection ends the program closes all sockets that came by it.

// Request is a message from boxd; one of its fields is set.
type Request struct {
	// Resolvers are those that are asked for all boxes from now on; none are those of the host.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`

	Add    *Box   `json:"add,omitempty"`
	Change *Box   `json:"change,omitempty"`
	Remove string `json:"remove,omitempty"`
	// Secrets take the place of those that the box has; without any it has none.
	Secrets *Secrets `json:"secrets,omitempty"`
	Pinned  *Pinned  `json:"pinned,omitempty"`
	Dialed  *Dialed  `json:"dialed,omitempty"`
}

// Box is one whose questions are answered.
type Box struct {
	Key string `json:"key"`
	V6  bool   `json:"v6,omitempty"` // it has addresses of IPv6; of no meaning in a Change
	// Strict says that connections by a name to the ports of HTTP and TLS are looked at; of no meaning in a Change.
	Strict bool `json:"strict,omitempty"`

	Rules []Spec         `json:"rules"`
	Reach []netip.Prefix `json:"reach,omitempty"` // networks it may connect to by rules of their own
}

// Compile reads the rules.
func (b *Box) Compile() (*Rules, error) {
	r, err := CompileRules("rules", b.Rules)
	if err != nil {
		return nil, err
	}
	return r.Reaching(b.Reach), nil
}

// Secrets are what is put into requests of a strict box, to hosts that they are for. Nobody keeps them on a disk.
type Secrets struct {
	Key string `json:"key"`
	// Certificate is for all hosts of the list, in DER, and PrivateKey its key in PKCS 8. The box trusts who has made it.
	Certificate []byte   `json:"certificate,omitempty"`
	PrivateKey  []byte   `json:"private_key,omitempty"`
	List        []Secret `json:"list,omitempty"`
}

// Secret is one of them.
type Secret struct {
	Placeholder string `json:"placeholder"` // what the box has in its place
	Value       string `json:"value"`
	Hosts       []Name `json:"hosts"`
	Authorities string `json:"authorities,omitempty"` // who may have made the hosts' certificates, in PEM; "": as the system says
}

// Pinned is the answer to a Pin.
type Pinned struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"` // "": it is done
}

// Report is a message from the program; one of its fields is set.
type Report struct {
	Pin    *Pin    `json:"pin,omitempty"`
	Dial   *Dial   `json:"dial,omitempty"`
	Denied *Denied `json:"denied,omitempty"`
	Ended  *Ended  `json:"ended,omitempty"`
}

// Pin asks that a box may connect to addresses, as its rules for the name say.
type Pin struct {
	ID        uint64       `json:"id"`
	Key       string       `json:"key"`
	Name      Name         `json:"name"`
	Seconds   int64        `json:"seconds"`
	Addresses []netip.Addr `json:"addresses"`
}

// Dial asks for a connection out of a box, to an address that a name has led it to.
type Dial struct {
	ID   uint64         `json:"id"`
	Key  string         `json:"key"`
	Name Name           `json:"name"`
	To   netip.AddrPort `json:"to"`
}

// Dialed is the answer to a Dial.
type Dialed struct {
	ID     uint64 `json:"id"`
	Error  string `json:"error,omitempty"`   // "": the socket is there, and begins to connect
	NotLed bool   `json:"not_led,omitempty"` // the name has not led the box there, as far as boxd knows
}

// Denied is a name that a box did not get, or addresses, or a connection to one.
type Denied struct {
	Key       string       `json:"key"`
	Reason    string       `json:"reason"` // a Reason
	Asked     string       `json:"asked"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Port      uint16       `json:"port,omitempty"` // of a connection
	Setting   string       `json:"setting,omitempty"`
}

// Ended is a box whose questions are not answered any more.
type Ended struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// Encode returns the bytes of a message.
func Encode[M Request | Report](m *M) ([]byte, error) { return json.Marshal(m) }

// Decode reads a message that has nothing but what is known here.
func Decode[M Request | Report](b []byte) (*M, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	m := new(M)
	if err := d.Decode(m); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one message")
	}
	return m, nil
}

// Reason is why something was refused.
type Reason string

// The reasons. They may be extended, never renamed.
const (
	NotAllowed Reason = "name"    // no rule covers the name
	NotPublic  Reason = "address" // the name leads to addresses that are not public

	// Of a connection that was looked at.
	NotThere Reason = "connection" // no rule covers the name that it is for, at this port
	Astray   Reason = "elsewhere"  // the name has not led to its address
	NoName   Reason = "nameless"   // it does not say which name it is for
	Unspoken Reason = "protocol"   // it is for a host with secrets, and speaks HTTP/2 alone
)
