// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// parts returns the elements of a list, or the keys and values of an object in turn, from valid JSON. It copies and
// allocates nothing, however many there are.
func parts(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		rest := raw[1 : len(raw)-1]
		for {
			rest = bytes.TrimLeft(rest, " \t\r\n,:")
			if len(rest) == 0 {
				return
			}
			n := lengthOf(rest)
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

func count(raw []byte) (n int) {
	for range parts(raw) {
		n++
	}
	return n
}

// lengthOf returns the length of the value at the start of valid JSON.
func lengthOf(raw []byte) int {
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i += lengthOfText(raw[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ' ', '\t', '\r', '\n', ',', ':':
			if depth == 0 {
				return i // after a number, true, false or null
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(raw)
}

// lengthOfText returns the length of the string at the start of valid JSON, with its quotes.
func lengthOfText(raw []byte) int {
	for i := 1; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(raw)
}

// somethingElse stands for a value that no error shows.
const somethingElse = fault.Word("something else")

// given returns a JSON value as an error shows it: a string by its content, anything else as it was sent.
func given(raw []byte) any {
	var s string
	if json.Unmarshal(raw, &s) == nil && raw[0] == '"' {
		return s
	}
	return truncated(string(raw[:min(len(raw), 2*maxShown)]))
}

// maxShown is how many bytes of a value or a key an error shows.
const maxShown = 64

func truncated(s string) fault.Word {
	if len(s) <= maxShown {
		return fault.Word(s)
	}
	return fault.Word(strings.ToValidUTF8(s[:maxShown], "") + "…")
}
