// SPDX-License-Identifier: Apache-2.0

// Which host names a box may resolve: one strict parser of names, rules by name, and which addresses an answer may
// contain. Nothing here connects to anybody.

package egress

import (
	"strings"

	"golang.org/x/net/idna"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of a name, as the DNS has them, in octets.
const (
	maxName  = 253
	maxLabel = 63
)

// Name is a host name in the one form that is compared: lower case, A-labels, without the dot at its end.
type Name string

// allowed says what a name may be; it is in every error about one.
const allowed = "a host name of at most 253 octets in labels of 1 to 63 letters, digits, - and _, such as \"pypi.org\""

// ParseName reads a name as people write it: in any case, with a dot at its end or without, and with letters of any
// language, which become A-labels. It refuses what looks like another name than it is (letters that only stand for
// others) and what is an address in any of the spellings that programs take for one. Errors name field.
func ParseName(field, text string) (Name, error) {
	plain := strings.TrimSuffix(text, ".")
	if !ascii(plain) || strings.Contains(strings.ToLower(plain), "xn--") {
		a, ok := alabels(plain)
		if !ok {
			return "", fault.Field(field, text, allowed).WithHint("write the name as its owner does, or in its A-label form (xn--…)")
		}
		plain = a
	}
	n, ok := canonical(plain)
	switch {
	case !ok:
		return "", fault.Field(field, text, allowed)
	case numeric(n):
		return "", fault.Field(field, text, allowed+", no address").WithHint("a rule for an address names it as cidr")
	}
	return n, nil
}

// FromQuery reads the name of a question, which ends with a dot. A name that is no host name is nobody's: false.
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

// alabels turns a name into A-labels. The way back must lead to what was written: otherwise letters were replaced or
// left out on the way, and a reader of the rule would see another name than the one that is allowed.
func alabels(text string) (string, bool) {
	a, err := idna.Lookup.ToASCII(text)
	if err != nil {
		return "", false
	}
	u, err := idna.Lookup.ToUnicode(a)
	written := strings.ToLower(text)
	return a, err == nil && (written == u || written == a)
}

// canonical is the form that is compared, of a name without a dot at its end.
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

// numeric says that programs take a name for an IPv4 address: its last label is a decimal, octal or hexadecimal number.
func numeric(n Name) bool {
	last := string(n[strings.LastIndexByte(string(n), '.')+1:])
	digits, hex := strings.CutPrefix(last, "0x")
	if hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
