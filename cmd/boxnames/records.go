// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// records are the records of an answer that matter, by owner name.
type records struct {
	aliases   map[string]alias
	addresses map[string][]address
}

type alias struct {
	to  string
	ttl time.Duration
}

type address struct {
	ip  netip.Addr
	ttl time.Duration
}

// read takes aliases, and addresses of one kind, from the answer section.
func (rr *records) read(p *dnsmessage.Parser, kind dnsmessage.Type) error {
	for range maxRecords {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := rr.take(p, &h, kind); err != nil {
			return err
		}
	}
	return errTooManyRecords
}

func (rr *records) take(p *dnsmessage.Parser, h *dnsmessage.ResourceHeader, kind dnsmessage.Type) error {
	owner, ttl := strings.ToLower(h.Name.String()), seconds(h.TTL)
	switch {
	case h.Class != dnsmessage.ClassINET:
	case h.Type == dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		if err != nil {
			return err
		}
		to := strings.ToLower(r.CNAME.String())
		if old, ok := rr.aliases[owner]; ok && old.to != to {
			return errTwoNames
		}
		rr.aliases[owner] = alias{to, ttl}
		return nil
	case h.Type == dnsmessage.TypeA && kind == dnsmessage.TypeA:
		r, err := p.AResource()
		if err != nil {
			return err
		}
		rr.addresses[owner] = append(rr.addresses[owner], address{netip.AddrFrom4(r.A), ttl})
		return nil
	case h.Type == dnsmessage.TypeAAAA && kind == dnsmessage.TypeAAAA:
		r, err := p.AAAAResource()
		if err != nil {
			return err
		}
		rr.addresses[owner] = append(rr.addresses[owner], address{netip.AddrFrom16(r.AAAA), ttl})
		return nil
	}
	return p.SkipAnswer()
}

// follow follows aliases from a name to its addresses. A chain that ends in a name without
// addresses has none.
func (rr *records) follow(name string) (*found, error) {
	f := &found{ttl: seconds(1<<31 - 1)}
	for range maxAliases {
		for _, a := range rr.addresses[name] {
			f.addresses = append(f.addresses, a.ip)
			f.ttl = min(f.ttl, a.ttl)
		}
		next, ok := rr.aliases[name]
		if len(f.addresses) > 0 || !ok {
			return f, nil
		}
		f.ttl = min(f.ttl, next.ttl)
		name = next.to
	}
	return nil, errAliases
}

// seconds returns a TTL; one that would be negative counts as zero (RFC 2181, section 8).
func seconds(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}
