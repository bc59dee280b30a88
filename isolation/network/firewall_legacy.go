// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Constants of x_tables (linux/netfilter_ipv4/ip_tables.h, and its counterpart for IPv6).
const (
	askInfo, askEntries = 64, 65
	nameSize            = 32
	infoSize            = nameSize + 4 + 2*5*4 + 4 + 4 // valid hooks, the start and end of each, number of entries, bytes
	headSize            = nameSize + 8                 // before the entries
	hookForward         = 2
	ifaceSize           = unix.IFNAMSIZ
	partHead            = 32 // of a match or a target: its size, name and revision
	invertIn, invertOut = 1, 2
	verdictDrop         = -1
	verdictAccept       = -2
	verdictReturn       = -5
)

// legacyLayout says at which offsets an entry of one family has its fields.
type legacyLayout struct {
	family                      nftables.TableFamily
	domain, level               int
	names                       string
	program                     string
	size, masks, masksEnd       int
	ifaces, protocol            int
	flags, gotoFlag, conditions int // one flag means goto instead of jump; the others are conditions
	targetOffset, nextOffset    int
}

func legacyLayouts(ipv6 bool) []legacyLayout {
	list := []legacyLayout{{
		family: nftables.TableFamilyIPv4, domain: unix.AF_INET, level: unix.IPPROTO_IP, names: "ip_tables_names", program: "iptables-legacy",
		size: 112, masks: 8, masksEnd: 16, ifaces: 16, protocol: 80, flags: 82, gotoFlag: 2, conditions: 1, targetOffset: 88, nextOffset: 90,
	}}
	if ipv6 {
		list = append(list, legacyLayout{
			family: nftables.TableFamilyIPv6, domain: unix.AF_INET6, level: unix.IPPROTO_IPV6, names: "ip6_tables_names", program: "ip6tables-legacy",
			size: 168, masks: 32, masksEnd: 64, ifaces: 64, protocol: 128, flags: 131, gotoFlag: 4, conditions: 2, targetOffset: 140, nextOffset: 142,
		})
	}
	return list
}

// findLegacy is findBlocking for the tables of iptables-legacy, which nf_tables does not show. It queries
// only tables that exist: to query another creates it, and loads the modules for it.
func findLegacy(tag string, ipv6 bool) (blocking []blockingChain, err error) {
	for _, l := range legacyLayouts(ipv6) {
		names, err := os.ReadFile("/proc/thread-self/net/" + l.names)
		if errors.Is(err, os.ErrNotExist) { // the kernel has no such tables
			continue
		}
		if err != nil {
			return blocking, err
		}
		for name := range strings.FieldsSeq(string(names)) {
			info, entries, err := l.query(name)
			if err != nil {
				return blocking, fmt.Errorf("table %s of %s: %w", name, l.program, err)
			}
			t, err := l.read(info, entries)
			if err != nil {
				return blocking, fmt.Errorf("table %s of %s: %w", name, l.program, err)
			}
			if t == nil {
				continue
			}
			w, err := t.blockingChain(legacyForward, tag, false)
			if err != nil {
				return blocking, err
			}
			if w != nil {
				w.Table, w.Hint = family(l.family)+" "+name+" of "+l.program, t.legacyHint(&l, name, tag)
				blocking = append(blocking, *w)
			}
		}
	}
	return blocking, nil
}

// legacyForward is the base chain of the forward hook in each table that has one.
const legacyForward = "FORWARD"

// legacyHint is hint for such a table.
func (t *firewallTable) legacyHint(l *legacyLayout, name, tag string) string {
	chain, ip := legacyForward, l.program
	switch {
	case t.chains["ufw-before-forward"] != nil || t.chains["ufw6-before-forward"] != nil:
		return "ufw route allow in on " + tag + "+"
	case t.chains["DOCKER-USER"] != nil:
		chain = "DOCKER-USER"
	}
	if name != "filter" {
		ip += " -t " + name
	}
	return letThrough(ip, chain, tag)
}

// query reads an existing table from the kernel. It repeats if the table changes before its entries
// are read.
func (l *legacyLayout) query(name string) (info, entries []byte, err error) {
	fd, err := unix.Socket(l.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for range 5 {
		info = make([]byte, infoSize)
		copy(info[:nameSize-1], name)
		if err = l.get(fd, askInfo, info); err != nil {
			break
		}
		size := info[infoSize-4:]
		all := make([]byte, headSize+int(binary.NativeEndian.Uint32(size)))
		copy(all[:nameSize-1], name)
		copy(all[nameSize:], size)
		if err = l.get(fd, askEntries, all); err == nil {
			return info, all[headSize:], nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, nil, err
}

func (l *legacyLayout) get(fd, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(l.level), uintptr(option), uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}

var errLegacyLayout = errors.New("the kernel's answer is not understood")

// read converts entries to rules as of nf_tables; nil: the table does not see forwarded packets.
// Anything unknown becomes a condition that may not hold.
func (l *legacyLayout) read(info, entries []byte) (*firewallTable, error) {
	number := func(at int) int { return int(binary.NativeEndian.Uint32(info[at:])) }
	if len(info) != infoSize || number(nameSize)&(1<<hookForward) == 0 {
		return nil, nil
	}
	begin := number(nameSize + 4 + 4*hookForward)
	heads := map[int]string{begin: legacyForward} // names of chains, by the offset of their first rule
	err := l.each(entries, func(at, next int, target []byte) {
		if bytes.HasPrefix(target[2:], []byte("ERROR\x00")) && next < len(entries) {
			heads[next] = nameText(target[partHead:])
		}
	})
	if err != nil {
		return nil, err
	}
	rules, chain := map[string][]*nftables.Rule{}, ""
	err = l.each(entries, func(at, next int, target []byte) {
		if name, ok := heads[at]; ok {
			chain = name
		}
		if chain != "" {
			rules[chain] = append(rules[chain], &nftables.Rule{Exprs: l.rule(entries[at:next], target, heads)})
		}
		if at == number(nameSize+4+4*5+4*hookForward) { // the policy of the chain: what follows belongs to another
			chain = ""
		}
	})
	t := &firewallTable{chains: map[string]*nftables.Chain{}, rules: func(ch *nftables.Chain) ([]*nftables.Rule, error) { return rules[ch.Name], nil }}
	for _, name := range heads {
		t.chains[name] = &nftables.Chain{Name: name}
	}
	return t, err
}

// each calls f for each entry, with its offset, the offset of the next one, and its target.
func (l *legacyLayout) each(entries []byte, f func(at, next int, target []byte)) error {
	for at := 0; at < len(entries); {
		if len(entries)-at < l.size {
			return errLegacyLayout
		}
		target := at + int(binary.NativeEndian.Uint16(entries[at+l.targetOffset:]))
		next := at + int(binary.NativeEndian.Uint16(entries[at+l.nextOffset:]))
		if target < at+l.size || next < target+partHead || next > len(entries) {
			return errLegacyLayout
		}
		f(at, next, entries[target:next])
		at = next
	}
	return nil
}

// rule converts an entry to expressions of nf_tables.
func (l *legacyLayout) rule(entry, target []byte, heads map[int]string) (parts []expr.Any) {
	inverted := entry[l.flags+1]
	for i, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		iface, mask := entry[l.ifaces+i*ifaceSize:][:ifaceSize], entry[l.ifaces+(2+i)*ifaceSize:][:ifaceSize]
		n := 0
		for n < ifaceSize && mask[n] != 0 {
			n++
		}
		if n == 0 {
			continue
		}
		op := expr.CmpOpEq
		if inverted&[]byte{invertIn, invertOut}[i] != 0 {
			op = expr.CmpOpNeq
		}
		parts = append(parts, &expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: iface[:n]})
	}
	isSet := func(b byte) bool { return b != 0 }
	if slices.ContainsFunc(entry[l.masks:l.masksEnd], isSet) || slices.ContainsFunc(entry[l.protocol:l.protocol+2], isSet) || int(entry[l.flags])&l.conditions != 0 {
		parts = append(parts, &expr.Payload{})
	}
	for at, end := l.size, len(entry)-len(target); at+partHead <= end; {
		size := int(binary.NativeEndian.Uint16(entry[at:]))
		if size < partHead {
			break
		}
		parts = append(parts, &expr.Match{Name: nameText(entry[at+2 : at+partHead-1])})
		at += size
	}
	name := nameText(target[2 : partHead-1])
	if name != "" || len(target) < partHead+4 {
		return append(parts, &expr.Target{Name: name})
	}
	switch v := int(int32(binary.NativeEndian.Uint32(target[partHead:]))); {
	case v == verdictReturn:
		parts = append(parts, &expr.Verdict{Kind: expr.VerdictReturn})
	case v == verdictAccept:
		parts = append(parts, &expr.Verdict{Kind: expr.VerdictAccept})
	case v == verdictDrop:
		parts = append(parts, &expr.Verdict{Kind: expr.VerdictDrop})
	case heads[v] != "": // other values continue with the next rule
		kind := expr.VerdictJump
		if int(entry[l.flags])&l.gotoFlag != 0 {
			kind = expr.VerdictGoto
		}
		parts = append(parts, &expr.Verdict{Kind: kind, Chain: heads[v]})
	}
	return parts
}

// nameText returns what comes before the first NUL.
func nameText(b []byte) string {
	whole, _, _ := bytes.Cut(b, []byte{0})
	return string(whole)
}
