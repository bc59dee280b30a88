// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// Bounds on what an upstream resolver may send.
const (
	maxAnswer  = 16 << 10 // bytes over TCP
	maxPacket  = 4 << 10  // bytes over UDP, of which 512 can be an answer
	maxRecords = 256
	maxAliases = 10 // aliases in a chain
	maxStrays  = 32 // unrelated packets during the wait for an answer
	rounds     = 2
)

var (
	errTooLong        = errors.New("the message is too long")
	errStrays         = errors.New("too many unrelated packets")
	errAliases        = errors.New("too many CNAME records, or a loop of them")
	errTwoNames       = errors.New("a name with two CNAME records")
	errTooManyRecords = errors.New("too many records")
	errNoAnswer       = errors.New("no DNS server of the host has answered")
	errNotAnswer      = errors.New("the message does not answer the question")
)

// found is a resolver's answer about a name.
type found struct {
	code      dnsmessage.RCode // success or name error
	addresses []netip.Addr
	ttl       time.Duration // the shortest of all records in the chain
}

// query queries one resolver after the other, twice, until one answers.
func (r *resolver) query(ctx context.Context, name egress.Name, kind dnsmessage.Type) (*found, error) {
	last := errNoAnswer
	for range rounds {
		for _, at := range r.cfg.Upstreams() {
			if ctx.Err() != nil {
				return nil, errors.Join(last, ctx.Err())
			}
			f, err := r.attempt(ctx, at, name, kind)
			if err == nil {
				return f, nil
			}
			last = err
		}
	}
	return nil, last
}

func (r *resolver) attempt(ctx context.Context, at netip.AddrPort, name egress.Name, kind dnsmessage.Type) (*found, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Attempt)
	defer cancel()
	q, err := newQuestion(name, kind)
	if err != nil {
		return nil, err
	}
	msg, err := q.exchange(ctx, "udp", at)
	if err == nil && truncated(msg) {
		msg, err = q.exchange(ctx, "tcp", at)
	}
	if err != nil {
		return nil, err
	}
	return q.read(msg)
}

// question is a query to an upstream resolver.
type question struct {
	id  uint16
	q   dnsmessage.Question
	msg []byte
}

// newQuestion builds a query with an unpredictable id. Each is sent from a socket of its own, so
// that its port is unpredictable too.
func newQuestion(name egress.Name, kind dnsmessage.Type) (*question, error) {
	full, err := dnsmessage.NewName(string(name) + ".")
	if err != nil {
		return nil, err
	}
	var id [2]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	q := &question{id: binary.BigEndian.Uint16(id[:]), q: dnsmessage.Question{Name: full, Type: kind, Class: dnsmessage.ClassINET}}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.id, RecursionDesired: true}, Questions: []dnsmessage.Question{q.q}}
	q.msg, err = m.Pack()
	return q, err
}

// exchange sends the query and waits for the answer.
func (q *question) exchange(ctx context.Context, network string, at netip.AddrPort) ([]byte, error) {
	// A connected socket receives packets of that peer only.
	c, err := (&net.Dialer{}).DialContext(ctx, network, at.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if network == "tcp" {
		if _, err := c.Write(framed(q.msg)); err != nil {
			return nil, err
		}
		msg, err := readStream(c, maxAnswer)
		if err == nil && !q.isAnsweredBy(msg) {
			err = errNotAnswer
		}
		return msg, err
	}
	if _, err := c.Write(q.msg); err != nil {
		return nil, err
	}
	buf := make([]byte, maxPacket)
	for range maxStrays {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if q.isAnsweredBy(buf[:n]) {
			return buf[:n], nil
		}
	}
	return nil, errStrays
}

// isAnsweredBy reports whether a message answers this query, whatever the answer is.
func (q *question) isAnsweredBy(msg []byte) bool {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.ID != q.id || !h.Response || h.OpCode != 0 {
		return false
	}
	back, err := p.Question()
	if err != nil || back.Type != q.q.Type || back.Class != q.q.Class || !strings.EqualFold(back.Name.String(), q.q.Name.String()) {
		return false
	}
	_, err = p.Question()
	return errors.Is(err, dnsmessage.ErrSectionDone)
}

func truncated(msg []byte) bool {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	return err == nil && h.Truncated
}

// read takes the addresses from an answer. They belong to the name in the query, by way of its
// aliases, which need not be allowed: a rule that allows a name allows what its owner points it
// to.
func (q *question) read(msg []byte) (*found, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil, err
	}
	if h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
		return nil, fmt.Errorf("the resolver says %s", h.RCode)
	}
	if h.Truncated {
		return nil, errTooLong // over TCP
	}
	if err := p.SkipAllQuestions(); err != nil {
		return nil, err
	}
	rr := records{aliases: map[string]alias{}, addresses: map[string][]address{}}
	if err := rr.read(&p, q.q.Type); err != nil {
		return nil, err
	}
	f, err := rr.follow(strings.ToLower(q.q.Name.String()))
	if err != nil {
		return nil, err
	}
	if f.code = h.RCode; f.code != dnsmessage.RCodeSuccess {
		f.addresses = nil
	}
	return f, nil
}
