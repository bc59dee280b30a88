// SPDX-License-Identifier: Apache-2.0

// Package hashchain is a log in which every record contains the hash of the one before, so that
// none can be changed, removed or moved unnoticed. It knows the form of a line and reads
// directories of such logs; it writes none.
package hashchain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxLine bounds a line, in bytes.
const MaxLine = 1 << 20

// Sum is a SHA-256.
type Sum [sha256.Size]byte

// String returns the sum in lower-case hexadecimal digits.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

func parseSum(text []byte) (s Sum, ok bool) {
	if len(text) != hex.EncodedLen(len(s)) || strings.Trim(string(text), "0123456789abcdef") != "" {
		return s, false
	}
	_, err := hex.Decode(s[:], text)
	return s, err == nil
}

// Link is the place of a record in the chain. The zero Link comes before the first record.
type Link struct {
	Seq  uint64 // from 1
	Prev Sum    // hash of the previous record
	Hash Sum
}

// String returns "17:9f86d0…": keep it elsewhere to be able to check later that nothing was cut
// off.
func (l Link) String() string { return strconv.FormatUint(l.Seq, 10) + ":" + l.Hash.String() }

// ParseLink parses what String has returned. The link has no Prev.
func ParseLink(s string) (Link, error) {
	number, sum, ok := strings.Cut(s, ":")
	seq, err := strconv.ParseUint(number, 10, 64)
	hash, valid := parseSum([]byte(sum))
	if !ok || err != nil || !valid || number != strconv.FormatUint(seq, 10) {
		return Link{}, fmt.Errorf("invalid place %q in an audit log: must be NUMBER:HASH, as printed by boxctl audit verify and written to the journal", s)
	}
	return Link{Seq: seq, Hash: hash}, nil
}

// The fixed parts of a line: {"seq":1,"prev":"…",RECORD,"hash":"…"}.
const (
	partSeq  = `{"seq":`
	partPrev = `,"prev":"`
	partHash = `,"hash":"`
	partEnd  = `"}`
	sumLen   = 2 * sha256.Size
	tailLen  = len(partHash) + sumLen + len(partEnd)
)

// errRecord means that what is to be sealed is not a record.
var errRecord = errors.New("a record must be a non-empty JSON object on one line")

// Seal returns the line, with its newline, of a record that follows another. The record is a JSON
// object.
func Seal(prev Link, record []byte) ([]byte, Link, error) {
	if len(record) < len(`{"a":0}`) || record[0] != '{' || record[len(record)-1] != '}' || bytes.IndexByte(record, '\n') >= 0 {
		return nil, Link{}, errRecord
	}
	link := Link{Seq: prev.Seq + 1, Prev: prev.Hash}
	line := make([]byte, 0, len(record)+2*sumLen+64)
	line = append(line, partSeq...)
	line = strconv.AppendUint(line, link.Seq, 10)
	line = append(line, partPrev...)
	line = hex.AppendEncode(line, link.Prev[:])
	line = append(line, `",`...)
	line = append(line, record[1:len(record)-1]...)
	link.Hash = sha256.Sum256(line)
	line = append(line, partHash...)
	line = hex.AppendEncode(line, link.Hash[:])
	line = append(line, partEnd...)
	if line = append(line, '\n'); len(line) > MaxLine {
		return nil, Link{}, fmt.Errorf("a record of %d bytes, more than %d", len(line), MaxLine)
	}
	return line, link, nil
}

// errEdited means that a line is not what was written.
var errEdited = errors.New("it was modified")

// Unseal parses the place of a line, without its newline, and checks the line against its own
// hash.
func Unseal(line []byte) (Link, error) {
	var link Link
	body := len(line) - tailLen
	if body < 0 || !bytes.HasPrefix(line, []byte(partSeq)) || !bytes.HasSuffix(line, []byte(partEnd)) || !bytes.HasPrefix(line[body:], []byte(partHash)) {
		return link, errEdited
	}
	number, rest, ok := bytes.Cut(line[len(partSeq):body], []byte(partPrev))
	seq, err := strconv.ParseUint(string(number), 10, 64)
	if !ok || err != nil || seq == 0 || strconv.FormatUint(seq, 10) != string(number) || len(rest) < sumLen {
		return link, errEdited
	}
	prev, ok1 := parseSum(rest[:sumLen])
	hash, ok2 := parseSum(line[body+len(partHash) : body+len(partHash)+sumLen])
	if !ok1 || !ok2 || hash != sha256.Sum256(line[:body]) {
		return link, errEdited
	}
	return Link{seq, prev, hash}, nil
}
