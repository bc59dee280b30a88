// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/api"
)

// longOutput is from how many bytes on an output is decoded apart. encoding/json looks at each byte of a string three times: for
// a MiB of output that takes longer than the program that has written it, and the rest of its execution.
const longOutput = 16 << 10

// decodeResult does what json.Unmarshal does.
func decodeResult(data []byte, r *api.ExecResult) error {
	o := outputs{all: data}
	if len(data) < longOutput || !o.cut() {
		return json.Unmarshal(data, r)
	}
	if err := json.Unmarshal(append(o.others, data[o.copied:]...), r); err != nil {
		return err
	}
	for i, to := range [...]*string{&r.Stdout, &r.Stderr} {
		if o.cuts[i] {
			*to = o.texts[i]
		}
	}
	return nil
}

// outputs are the long outputs in the JSON of a result, which are cut out of it.
type outputs struct {
	all    []byte
	others []byte // all up to copied, with "" where an output was
	copied int
	texts  [2]string // stdout and stderr
	cuts   [2]bool   // which were cut out
}

// cut cuts them out. It reports whether there is one, and whether they were written plainly: otherwise json.Unmarshal gets all of it.
func (o *outputs) cut() bool {
	var seen [2]bool
	which, depth := -1, 0 // -1: the string to come is no output
	for at := 0; at < len(o.all); {
		switch o.all[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := stringEnd(o.all, at+1)
			if end < 0 {
				return false
			}
			text := o.all[at+1 : end]
			begun := at
			at = end + 1
			if depth != 1 {
				continue
			}
			if at < len(o.all) && strings.IndexByte(" \t\r\n", o.all[at]) >= 0 {
				return false // it may be a name
			}
			if at < len(o.all) && o.all[at] == ':' {
				var plain bool
				if which, plain = outputOf(text); !plain || which >= 0 && seen[which] {
					return false
				}
				if which >= 0 {
					seen[which] = true
				}
				continue
			}
			if which >= 0 && len(text) >= longOutput {
				var ok bool
				if o.texts[which], ok = unquote(text); !ok {
					return false
				}
				o.cuts[which] = true
				o.others = append(append(o.others, o.all[o.copied:begun+1]...), '"')
				o.copied = at
			}
			which = -1
			continue
		}
		at++
	}
	return o.cuts[0] || o.cuts[1]
}

// outputOf returns which output the name of a field stands for, -1 if none. It is plain if no other spelling is meant.
func outputOf(name []byte) (which int, plain bool) {
	for i, output := range [...]string{"stdout", "stderr"} {
		if string(name) == output {
			return i, true
		}
		if strings.EqualFold(string(name), output) { // as json.Unmarshal takes it
			return -1, false
		}
	}
	return -1, bytes.IndexByte(name, '\\') < 0
}

// stringEnd returns where the quote is that ends a string, -1 if there is none.
func stringEnd(data []byte, at int) int {
	for from := at; ; {
		n := bytes.IndexByte(data[from:], '"')
		if n < 0 {
			return -1
		}
		end, escapes := from+n, 0
		for end-escapes > at && data[end-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		from = end + 1
	}
}

// unquote decodes what is between the quotes of a string; ok is false if that is no JSON, or no UTF-8.
func unquote(text []byte) (decoded string, ok bool) {
	out := make([]byte, 0, len(text))
	for {
		n := bytes.IndexByte(text, '\\')
		if n < 0 {
			n = len(text)
		}
		for _, c := range text[:n] {
			if c < ' ' {
				return "", false
			}
		}
		out = append(out, text[:n]...)
		if text = text[n:]; len(text) == 0 {
			return string(out), utf8.Valid(out)
		}
		if out, text, ok = unescape(out, text[1:]); !ok {
			return "", false
		}
	}
}

// escapes are the characters after a backslash that stand for another; unescaped are those.
const (
	escapes   = `"\/bfnrt`
	unescaped = "\"\\/\b\f\n\r\t"
)

// unescape decodes what follows a backslash.
func unescape(out, text []byte) (longer, left []byte, ok bool) {
	if len(text) == 0 {
		return out, text, false
	}
	if i := strings.IndexByte(escapes, text[0]); i >= 0 {
		return append(out, unescaped[i]), text[1:], true
	}
	first, ok := codeUnit(text)
	if !ok {
		return out, text, false
	}
	text = text[5:]
	if !utf16.IsSurrogate(first) {
		return utf8.AppendRune(out, first), text, true
	}
	if len(text) > 0 && text[0] == '\\' {
		if second, ok := codeUnit(text[1:]); ok {
			if both := utf16.DecodeRune(first, second); both != utf8.RuneError {
				return utf8.AppendRune(out, both), text[6:], true
			}
		}
	}
	return utf8.AppendRune(out, utf8.RuneError), text, true
}

// codeUnit returns the code unit of u and four digits.
func codeUnit(text []byte) (rune, bool) {
	if len(text) < 5 || text[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[1:5]), 16, 16)
	return rune(n), err == nil
}
