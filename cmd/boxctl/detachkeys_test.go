// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestKeysAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want []byte
		ok   bool
	}{
		{"", nil, true},
		{"ctrl-p,ctrl-q", []byte{0x10, 0x11}, true},
		{"CTRL-P,a,Z,~", []byte{0x10, 'a', 'Z', '~'}, true},
		{"ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_", []byte{0, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f}, true},
		{",", nil, false},
		{"ctrl-", nil, false},
		{"ctrl-1", nil, false},
		{"ctrl-pq", nil, false},
		{"ab", nil, false},
		{"é", nil, false},
		{"\x10", nil, false},
		{"a,", nil, false},
	} {
		got, err := parseKeys(tc.text)
		if !bytes.Equal(got, tc.want) || (err == nil) != tc.ok {
			t.Errorf("%q: got %q, err = %v, want got equal to %q and (err == nil) == %v", tc.text, got, err, tc.want, tc.ok)
		}
	}
}

func TestKeysDetachAndNothingElseIsLost(t *testing.T) {
	t.Parallel()
	detached := errors.New("detached")
	const pq, ppq = "\x10\x11", "\x10\x10\x11"
	for _, tc := range []struct {
		keys, typed, want string
		detaches          bool
	}{
		{pq, "", "", false},
		{pq, "abc", "abc", false},
		{pq, pq, "", true},
		{pq, "abc" + pq + "def", "abc", true},
		{pq, "\x10a\x10", "\x10a\x10", false}, // the last key is held back only while more may follow
		{pq, "\x11\x10", "\x11\x10", false},
		{pq, ppq, "\x10", true},
		{ppq, "\x10" + ppq, "\x10", true},
		{ppq, "\x10\x10a" + ppq, "\x10\x10a", true},
		{"aab", "aaaab", "aa", true},
		{"abab", "abaabab", "aba", true},
		{"x", "yx", "y", true},
		{"", pq, pq, false},
	} {
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(tc.typed), "key by key": iotest.OneByteReader(strings.NewReader(tc.typed)), "with the end": iotest.DataErrReader(strings.NewReader(tc.typed))} {
			got, err := io.ReadAll(newDetacher(in, []byte(tc.keys), detached))
			if string(got) != tc.want || errors.Is(err, detached) != tc.detaches || err != nil && !tc.detaches {
				t.Errorf("%q %s, keys %q: got %q, err = %v, want got == tc.want and errors.Is(err, detached) == %v and (no error or tc.detaches == true)",
					tc.typed, name, tc.keys, got, err, tc.detaches)
			}
		}
	}
}
