// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/process"
)

func TestStdinMayComeAsBase64(t *testing.T) {
	t.Parallel()
	req, err := execRequestOf(&api.ExecRequest{Stdin: "AP8=", StdinEncoding: "base64"})
	if err != nil || !bytes.Equal(req.Stdin, []byte{0, 255}) {
		t.Errorf("req = %v, err = %v, want no error and req.Stdin equal to []byte{0, 255}", req, err)
	}
	for field, bad := range map[string]api.ExecRequest{
		"stdin": {Stdin: "!", StdinEncoding: "base64"}, "stdin_encoding": {StdinEncoding: "hex"}, "encoding": {Encoding: "latin1"},
	} {
		_, err := execRequestOf(&bad)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != field {
			t.Errorf("%+v: err = %v, want ok == true and f.Field == field", bad, err)
		}
	}
}

func TestOutputIsTextOrBase64(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, encoding, want string }{
		{"aé\n", "", "aé\n"},
		{"a\xff\xfeb\xc3", "", "a�b�"},
		{"a\xff", encodingUTF8, "a�"},
		{"a\xff", encodingBase64, "Yf8="},
		{"", encodingBase64, ""},
	} {
		if got := encode([]byte(tc.in), tc.encoding); got != tc.want {
			t.Errorf("%q as %q: got %q, want %q", tc.in, tc.encoding, got, tc.want)
		}
	}
}

// An answer may contain megabytes of it.
func TestOutputOfTextIsNotCopied(t *testing.T) {
	t.Parallel()
	data := []byte("some words")
	if got := encode(data, ""); unsafe.StringData(got) != &data[0] {
		t.Error("text was copied")
	}
}

func TestStdioIsDirectOrLeftOut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "direct": true} {
		req, err := processRequestOf("p", &api.ProcessRequest{Stdio: text})
		if err != nil || req.Direct != want || processAnswer("s", process.Info{Direct: want}, nil).Stdio != text {
			t.Errorf(`%q: req = %+v, err = %v, want no error and req.Direct == %v and processAnswer("s", process.Info{Direct: want}, nil).Stdio == text`,
				text, req, err, want)
		}
	}
	for _, text := range []string{"kept", "Direct"} {
		_, err := processRequestOf("p", &api.ProcessRequest{Stdio: text})
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "stdio" {
			t.Errorf(`%q: err = %v, want ok == true and f.Field == "stdio"`, text, err)
		}
	}
}

// If a program fails to start because the box of an earlier boxd does not support a field, the error names that field.
func TestABoxOfAnEarlierBoxdSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	for want, step := range map[string]isolation.StepError{
		`merge_output = true: must be left out in a box of an earlier version of boxd`:            {Step: isolation.StepStdio, Item: isolation.ItemMerged, Errno: unix.EOPNOTSUPP},
		`user = "root": must be left out in a box of an earlier version of boxd`:                  {Step: isolation.StepUser, Item: "root", Errno: unix.EOPNOTSUPP},
		`spool is given: must be left out in a box of an earlier version of boxd`:                 {Step: isolation.StepStdio, Item: isolation.ItemSpooled, Errno: unix.EOPNOTSUPP},
		`cwd = "/x": must be given without cwd_must_exist in a box of an earlier version of boxd`: {Step: isolation.StepDirectory, Item: "/x", Errno: unix.EOPNOTSUPP},
	} {
		if f := startFailure(&step); f.Text != want || f.Hint != newPID1 || f.Errno != "ENOTSUP" {
			t.Errorf("%+v, want %q", f, want)
		}
	}
	refused := isolation.StepError{Step: isolation.StepUser, Item: "root", Errno: unix.ENOSPC}
	if f := startFailure(&refused); f.Text != `user = "root": must be left out, since this host lets the box have no root: no space left on device` || f.Hint != "" {
		t.Errorf("f = %+v, want f.Text == `user = \"root\": must be left out, since this host lets the box have no root: no space left on device` and f.Hint == \"\"",
			f)
	}
	full := isolation.StepError{Step: isolation.StepStdio, Item: "output", Errno: unix.EMFILE}
	if f := startFailure(&full); f.Text != full.Error() || f.Hint != "" {
		t.Errorf(`f = %+v, want f.Text == full.Error() and f.Hint == ""`, f)
	}
}
