// SPDX-License-Identifier: Apache-2.0

// Messages between boxd and the egress proxy, over a SEQPACKET socket. boxd passes each box to
// the proxy with two sockets that are in the box's netns, and the proxy asks boxd to allow every
// address. Neither end trusts the other further: boxd checks each address against its own rules.

package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
)

// The messages:
//
//	boxd                               boxnames
//	Resolvers ───────────────────────►  asks these, if some are configured
//	Add{box} + UDP and TCP socket ───►  answers that box's queries from now on; for a strict box there are one
//	                                    or two more sockets, whose connections it checks
//	Change{box} ─────────────────────►  applies these rules from now on
//	Secrets{key, …} ─────────────────►  puts these into that box's requests from now on; sent before its Add, and
//	                                    whenever they have changed
//	Remove{key} ─────────────────────►  closes its sockets, and forgets its secrets
//	         ◄──────────────────────── Pin{id, key, name, addresses}
//	Pinned{id, error} ───────────────►  sends the box the addresses, or that it failed
//	         ◄──────────────────────── Dial{id, key, name, address, port}
//	Dialed{id, error} + socket ──────►  forwards bytes over it
//	         ◄──────────────────────── Denied{key, …}
//	         ◄──────────────────────── Ended{key, error}: a socket of that box has failed
//
// When the connection ends, the program closes all sockets that came over it.

// Request is a message from boxd; one of its fields is set.
type Request struct {
	// Resolvers are the upstream servers for all boxes from now on; if empty, those of the host.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`

	Add    *Box   `json:"add,omitempty"`
	Change *Box   `json:"change,omitempty"`
	Remove string `json:"remove,omitempty"`
	// Secrets replace those that the box has; an empty list removes them.
	Secrets *Secrets `json:"secrets,omitempty"`
	Pinned  *Pinned  `json:"pinned,omitempty"`
	Dialed  *Dialed  `json:"dialed,omitempty"`
}

// Box is a box whose DNS queries are answered.
type Box struct {
	Key string `json:"key"`
	V6  bool   `json:"v6,omitempty"` // the box has IPv6 addresses; ignored in a Change
	// Strict says that connections to the HTTP and TLS ports are checked for their host name;
	// ignored in a Change.
	Strict bool `json:"strict,omitempty"`

	Rules []Spec         `json:"rules"`
	Reach []netip.Prefix `json:"reach,omitempty"` // networks it may connect to by its rules for addresses
}

// Compile compiles the box's rules.
func (b *Box) Compile() (*Rules, error) {
	r, err := CompileRules("rules", b.Rules)
	if err != nil {
		return nil, err
	}
	return r.Reaching(b.Reach), nil
}

// Secrets are inserted into requests of a strict box to the hosts they are for. They are never
// written to disk.
type Secrets struct {
	Key string `json:"key"`
	// Certificate is for all hosts of the list, in DER, and PrivateKey its key in PKCS 8. The box
	// trusts its issuer.
	Certificate []byte   `json:"certificate,omitempty"`
	PrivateKey  []byte   `json:"private_key,omitempty"`
	List        []Secret `json:"list,omitempty"`
}

// Secret is one secret and the hosts it is for.
type Secret struct {
	Placeholder string `json:"placeholder"` // what programs of the box use in its place
	Value       string `json:"value"`
	Hosts       []Name `json:"hosts"`
	Authorities string `json:"authorities,omitempty"` // CA certificates for these hosts, in PEM; "": those of the system
}

// Pinned is the answer to a Pin.
type Pinned struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"` // "": the addresses are allowed
}

// Report is a message from the program; one of its fields is set.
type Report struct {
	Pin    *Pin    `json:"pin,omitempty"`
	Dial   *Dial   `json:"dial,omitempty"`
	Denied *Denied `json:"denied,omitempty"`
	Ended  *Ended  `json:"ended,omitempty"`
}

// Pin asks boxd to allow a box to connect to addresses, as its rules for the name say.
type Pin struct {
	ID        uint64       `json:"id"`
	Key       string       `json:"key"`
	Name      Name         `json:"name"`
	Seconds   int64        `json:"seconds"`
	Addresses []netip.Addr `json:"addresses"`
}

// Dial asks for a connection out of a box, to an address that a name has resolved to.
type Dial struct {
	ID   uint64         `json:"id"`
	Key  string         `json:"key"`
	Name Name           `json:"name"`
	To   netip.AddrPort `json:"to"`
}

// Dialed is the answer to a Dial.
type Dialed struct {
	ID     uint64 `json:"id"`
	Error  string `json:"error,omitempty"`   // "": the socket comes with the message, and is connecting
	NotLed bool   `json:"not_led,omitempty"` // as far as boxd knows, the name did not resolve to that address for the box
}

// Denied reports a name, addresses or a connection that a box was refused.
type Denied struct {
	Key       string       `json:"key"`
	Reason    string       `json:"reason"` // a Reason
	Asked     string       `json:"asked"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Port      uint16       `json:"port,omitempty"` // for a connection
	Setting   string       `json:"setting,omitempty"`
}

// Ended reports that a box's queries are not answered any more.
type Ended struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// Encode returns the bytes of a message.
func Encode[M Request | Report](m *M) ([]byte, error) { return json.Marshal(m) }

// Decode decodes a message and refuses unknown fields.
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
	NotAllowed Reason = "name"    // no rule allows the name
	NotPublic  Reason = "address" // the name resolves to addresses that are not public

	// For a connection that was checked.
	NotThere Reason = "connection" // no rule allows its host name at this port
	Astray   Reason = "elsewhere"  // its host name has not resolved to its address
	NoName   Reason = "nameless"   // it names no host
	Unspoken Reason = "protocol"   // it is for a host with secrets, and speaks only HTTP/2
)
