// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// maxQuery is the longest query that is read, in bytes: one question, and whatever a program adds
// after it, which is ignored.
const maxQuery = 1232

// maxUDP is the longest answer over UDP, in bytes. There is no EDNS here, so every program
// understands it.
const maxUDP = 512

// query is a question and the answer to it.
type query struct {
	id        uint16
	op        dnsmessage.OpCode
	recurse   bool
	parsed    bool // q was parsed
	q         dnsmessage.Question
	code      dnsmessage.RCode
	addresses []netip.Addr
	ttl       time.Duration
}

// readQuery parses the header and the question. It returns false for a message that gets no
// answer, because it is malformed or an answer itself.
func readQuery(msg []byte) (*query, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return nil, false
	}
	q := &query{id: h.ID, op: h.OpCode, recurse: h.RecursionDesired}
	if h.OpCode != 0 {
		q.code = dnsmessage.RCodeNotImplemented
		return q, true
	}
	first, err := p.Question()
	if err == nil {
		_, err = p.Question()
	}
	if !errors.Is(err, dnsmessage.ErrSectionDone) || first.Name.Length == 0 {
		q.code = dnsmessage.RCodeFormatError
		return q, true
	}
	q.q, q.parsed = first, true
	if first.Class != dnsmessage.ClassINET {
		q.code = dnsmessage.RCodeRefused
	}
	return q, true
}

// reply returns the answer as a message; nil if there can be none. An answer too long for UDP is
// empty but for the truncation flag.
func (q *query) reply(overUDP bool) []byte {
	msg := q.pack(false)
	if overUDP && len(msg) > maxUDP {
		msg = q.pack(true)
	}
	return msg
}

func (q *query) pack(truncated bool) []byte {
	b := dnsmessage.NewBuilder(make([]byte, 0, maxUDP), dnsmessage.Header{
		ID: q.id, Response: true, OpCode: q.op, RecursionDesired: q.recurse, RecursionAvailable: true, RCode: q.code, Truncated: truncated,
	})
	b.EnableCompression()
	if b.StartQuestions() != nil {
		return nil
	}
	if q.parsed && b.Question(q.q) != nil {
		return nil
	}
	if b.StartAnswers() != nil {
		return nil
	}
	h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: uint32(q.ttl / time.Second)}
	for _, ip := range q.addresses {
		var err error
		switch {
		case truncated:
		case ip.Is4():
			err = b.AResource(h, dnsmessage.AResource{A: ip.As4()})
		default:
			err = b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
		if err != nil {
			return nil
		}
	}
	msg, err := b.Finish()
	if err != nil {
		return nil
	}
	return msg
}
