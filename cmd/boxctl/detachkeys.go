// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
)

// parseKeys parses a key sequence such as "ctrl-p,ctrl-q": characters, or ctrl- and one of a to z and @[\]^_, separated
// by commas. The empty sequence has no keys.
func parseKeys(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(text, ",") {
		char, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case ctrl && len(char) == 1 && (char[0] >= 'a' && char[0] <= 'z' || strings.Contains(`@[\]^_`, char)):
			keys = append(keys, char[0]&0x1f)
		case len(name) == 1 && name[0] > ' ' && name[0] < 0x7f:
			keys = append(keys, name[0])
		default:
			return nil, fmt.Errorf("%q is not a key: use characters, or ctrl- with one of a-z and @[\\]^_, separated by commas", name)
		}
	}
	return keys, nil
}

// detacher reads typed input until the detach keys have been pressed in order; then it returns detached. A possible beginning
// of the sequence is held back until it cannot be one any more.
type detacher struct {
	in       io.Reader
	keys     []byte
	detached error
	matched  int    // keys[:matched] have been pressed
	out      []byte // for the next Read
	err      error  // returned after out
}

// newDetacher returns a detacher; without keys it passes everything on.
func newDetacher(in io.Reader, keys []byte, detached error) *detacher {
	return &detacher{in: in, keys: keys, detached: detached}
}

// Read returns typed input.
func (d *detacher) Read(p []byte) (int, error) {
	if len(d.keys) == 0 {
		return d.in.Read(p)
	}
	for len(d.out) == 0 && d.err == nil {
		n, err := d.in.Read(p)
		if slices.ContainsFunc(p[:n], d.press) {
			d.err = d.detached
		}
		if err != nil && d.err == nil {
			d.out, d.matched, d.err = append(d.out, d.keys[:d.matched]...), 0, err
		}
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	if n == 0 && len(p) > 0 {
		return 0, d.err
	}
	return n, nil
}

// press handles a key, and reports whether it completes the sequence.
func (d *detacher) press(b byte) bool {
	pressed := append(bytes.Clone(d.keys[:d.matched]), b)
	for !bytes.HasPrefix(d.keys, pressed) { // drop what cannot be part of the sequence
		d.out = append(d.out, pressed[0])
		pressed = pressed[1:]
	}
	d.matched = len(pressed)
	return d.matched == len(d.keys)
}
