// SPDX-License-Identifier: Apache-2.0

// Which host names a box may resolve: one strict parser of names, rules by name, and which
// addresses an answer may contain. Nothing here opens a connection.

package egress

import (
	"strings"

	"golang.org/x/net/idna"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Limits of the DNS on a name, in octets.
const (
	maxName  = 253
	maxLabel = 63
)

// Name is a host name in the canonical form that is compared: lower case, A-labels, without a
// trailing dot.
type Name string

// allowed says what a name must be; it is part of every error about one.
const allowed = "a host name of at most 253 octets in labels of 1 to 63 letters, digits, - and _, such as \"pypi.org\""

// ParseName parses a name as people write it: in any case, with or without a trailing dot, and
// with letters of any language, which become A-labels. It refuses a name that looks like another
// one (because letters are mapped to others), and an address in any of the spellings that
// programs accept as one. Errors name field.
func ParseName(field, text string) (Name, error) {
	plain := strings.TrimSuffix(text, ".")
	if !ascii(plain) || strings.Contains(strings.ToLower(plain), "xn--") {
		a, ok := alabels(plain)
		if !ok {
			return "", fault.Field(field, text, allowed).WithHint("write the name with letters, digits and hyphens, or in its A-label form (xn--…)")
		}
		plain = a
	}
	n, ok := canonical(plain)
	switch {
	case !ok:
		return "", fault.Field(field, text, allowed)
	case numeric(n):
		return "", fault.Field(field, text, allowed+", not an address").WithHint("for an address, use a CIDR rule such as \"203.0.113.7/32 tcp 443\"")
	}
	return n, nil
}

// FromQuery parses the name of a DNS query, which ends with a dot. It returns false if that is no
// host name.
func FromQuery(text string) (Name, bool) {
	rest, ok := strings.CutSuffix(text, ".")
	if !ok {
		return "", false
	}
	n, ok := canonical(rest)
	return n, ok && !numeric(n)
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// alabels turns a name into A-labels. Converting back must give what was written: otherwise
// letters were mapped or dropped, and a reader of the rule would see another name than the one
// that is allowed.
func alabels(text string) (string, bool) {
	a, err := idna.Lookup.ToASCII(text)
	if err != nil {
		return "", false
	}
	u, err := idna.Lookup.ToUnicode(a)
	written := strings.ToLower(text)
	return a, err == nil && (written == u || written == a)
}

// canonical returns the canonical form of a name without a trailing dot.
func canonical(text string) (Name, bool) {
	if text == "" || len(text) > maxName {
		return "", false
	}
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
		for _, c := range []byte(label) {
			letter := 'a' <= c|0x20 && c|0x20 <= 'z'
			if !letter && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", false
			}
		}
	}
	return Name(strings.ToLower(text)), true
}

// numeric reports whether programs take a name for an IPv4 address: its last label is a decimal,
// octal or hexadecimal number.
func numeric(n Name) bool {
	last := string(n[strings.LastIndexByte(string(n), '.')+1:])
	digits, hex := strings.CutPrefix(last, "0x")
	if hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
