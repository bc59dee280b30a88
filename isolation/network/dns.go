// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"encoding/binary"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// resolvAt is the resolv.conf(5) of a box with rules by name: a server on its own loopback, at a
// port where programs may not listen.
const resolvAt = "# Names are resolved by boxd, as the rules of this box allow.\nnameserver 127.0.0.1\n"

// dnsMode is how a box resolves names, and what its network is limited to.
//
// rules is 0 if the box queries the resolvers of the network. Otherwise it can query only its own
// loopback, where the sockets of OpenSockets answer, and rules distinguishes its rules by name
// from others: connections that a pin has let through continue after the pin has expired, but not
// under other rules.
//
// strict says that connections to ports 80 and 443 of resolved addresses are redirected to the
// proxy, which checks their host name. caps are the limits of the network.
type dnsMode struct {
	rules  uint32
	strict bool
	caps   rule.Caps
}

// read checks the network of a box: how names are resolved, its limits, and its rules, which are
// checked against the configuration.
func (h *Host) read(spec *isolation.NetworkSpec) (dnsMode, []rule.Rule, error) {
	as := dnsMode{rules: spec.Names, strict: spec.Strict}
	switch {
	case spec.Kind != isolation.NetworkEgress:
		return as, nil, &failure{Reason: "the network has no rules", Errno: unix.EINVAL}
	case spec.NamesOnly != (spec.Names != 0), spec.Strict && !spec.NamesOnly:
		return as, nil, &rule.Refusal{Part: "names", Value: strconv.FormatUint(uint64(spec.Names), 16), Allowed: "a number, of a box that asks boxd alone"}
	}
	caps := rule.Caps{Connections: int(spec.Connections), Bandwidth: spec.Bandwidth}
	if err := caps.Check(); err != nil {
		return as, nil, err
	}
	if what, more := caps.Exceed(h.cfg.Most); more {
		return as, nil, &failure{Reason: "no profile in box.toml lets a box have " + what, Errno: unix.EPERM}
	}
	as.caps = rule.Caps{Connections: cmp.Or(caps.Connections, h.cfg.Connections), Bandwidth: cmp.Or(caps.Bandwidth, h.cfg.Bandwidth)}
	rules, err := h.parse(spec.Rules)
	return as, rules, err
}

// continuePinned lets connections continue that a pin has let through. It comes before all rules but those
// for loopback, and refuses queries to other name servers first.
func (w *writer) continuePinned(as dnsMode) {
	if as.rules == 0 {
		return
	}
	for _, p := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, port := range []uint16{53, 853} {
			w.refuse(transport(p), ports(rule.Ports{First: port, Last: port}))
		}
	}
	w.rule(established(), []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, equal(as.mark())}, accept())
}

// remember marks the connection of a packet that a pin lets through.
func (as dnsMode) remember() []expr.Any {
	if as.rules == 0 {
		return nil
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: as.mark()}, &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}
}

func (as dnsMode) mark() []byte { return binary.NativeEndian.AppendUint32(nil, as.rules) }
