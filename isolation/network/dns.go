// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// WordNames is in front of the rules, and says that the box has rules by name too: it asks at its own loopback, where
// somebody answers by sockets that were opened with WordSockets, and nobody else. What follows the word, up to eight
// hexadecimal digits that are not all zero, tells these rules from others: connections that were let through by a pin
// go on when that is over, but not when the rules by name are others.
const WordNames = rule.Names

// WordSockets opens the sockets that a box with rules by name asks at.
const WordSockets = "sockets"

// resolvAt is the resolv.conf(5) of a box with rules by name: a server on its own loopback, where it may not listen.
const resolvAt = "# Names are resolved by boxd, as the rules of this box allow.\nnameserver 127.0.0.1\n"

// asking is how a box resolves names: rules 0 is by asking the resolvers of the network. caps are what else is said
// before its rules.
type asking struct {
	rules  uint32
	strict bool
	caps   rule.Caps
}

// read takes apart what is said of the network of a box: how names are resolved, how much there may be, and the rules,
// which are held against what root has named.
func (h *Host) read(words []string) (asking, []rule.Rule, error) {
	as, words, err := readAsking(words)
	if err != nil {
		return as, nil, err
	}
	own, words, err := rule.TakeCaps(words)
	if err != nil {
		return as, nil, err
	}
	if what, more := own.Exceed(h.cfg.Most); more {
		return as, nil, &Failure{Reason: "no profile of box.toml lets a box have " + what, Errno: unix.EPERM}
	}
	as.caps = rule.Caps{Connections: cmp.Or(own.Connections, h.cfg.Connections), Bandwidth: cmp.Or(own.Bandwidth, h.cfg.Bandwidth)}
	rules, err := h.parse(words)
	return as, rules, err
}

// readAsking takes WordNames from the beginning of the rules, if it is there, and WordStrict behind it.
func readAsking(words []string) (asking, []string, error) {
	if len(words) == 0 {
		return asking{}, words, nil
	}
	digits, ok := strings.CutPrefix(words[0], WordNames)
	if !ok {
		return asking{}, words, nil
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n == 0 || strconv.FormatUint(n, 16) != digits {
		return asking{}, nil, &rule.Refusal{Part: "names", Value: words[0], Allowed: "a number"}
	}
	as, words := asking{rules: uint32(n)}, words[1:]
	if len(words) > 0 && words[0] == WordStrict {
		as.strict, words = true, words[1:]
	}
	return as, words, nil
}

// goOn lets connections go on that a pin has let through. It comes before all rules but those for loopback, and what
// asks other name servers is refused before it.
func (w *writer) goOn(as asking) {
	if as.rules == 0 {
		return
	}
	for _, p := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, port := range []uint16{53, 853} {
			w.refuse(transport(p), ports(rule.Ports{First: port, Last: port}))
		}
	}
	w.rule(answers(), []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, equal(as.mark())}, accept())
}

// remember marks the connection of a packet that a pin lets through.
func (as asking) remember() []expr.Any {
	if as.rules == 0 {
		return nil
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: as.mark()}, &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}
}

func (as asking) mark() []byte { return binary.NativeEndian.AppendUint32(nil, as.rules) }
