// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// Every way in which a process ends is reported in the terms that the SDKs know.
func TestEveryEndOfAProcessIsTold(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"templateID":"base","envVars":{"X":"1"}}`)
	for name, tc := range map[string]struct {
		req        *protocol.StartRequest
		code       int32
		exited     bool
		status     string
		out, wrong string
	}{
		"well":              {shell(`echo "$X"; echo err >&2`), 0, true, "exit status 0", "1\n", "err\n"},
		"with a status":     {shell("exit 3"), 3, true, "exit status 3", "", ""},
		"by a signal":       {shell("kill -9 $$"), -1, false, "signal: killed", "", ""},
		"its own variables": {&protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "printenv", Args: []string{"Y"}, Envs: map[string]string{"Y": "a\nb"}}}, 0, true, "exit status 0", "a\nb\n", ""},
		"in its directory":  {&protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "pwd", Cwd: new("/tmp")}}, 0, true, "exit status 0", "/tmp\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for codec, options := range map[string][]connect.ClientOption{"proto": nil, "json": {connect.WithProtoJSON()}} {
				o, err := sb.start(t.Context(), tc.req, options...)
				if err != nil || o.end == nil {
					t.Fatalf("%s: err = %v, o = %+v, want no error and o.end != nil", codec, err, o)
				}
				if o.pid == 0 || o.end.ExitCode != tc.code || o.end.Exited != tc.exited || o.end.Status != tc.status || (o.end.Error == nil) != (tc.code == 0) || o.stdout.String() != tc.out || o.stderr.String() != tc.wrong {
					t.Errorf("%s: pid %d, %v, %q, %q", codec, o.pid, o.end, o.stdout.String(), o.stderr.String())
				}
			}
		})
	}
	boxtest.Eventually(t, "the process that has ended is not listed", func() bool {
		list, err := sb.processes().List(t.Context(), &protocol.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Processes) == 0
	})
}

// A process that cannot be started is reported as an invalid request, and leaves nothing.
func TestWhatCannotBeStartedIsRefused(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	for name, tc := range map[string]struct {
		req  *protocol.StartRequest
		code connect.Code
	}{
		"no such program":   {&protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "/nonexistent"}}, connect.CodeInvalidArgument},
		"no program":        {&protocol.StartRequest{}, connect.CodeInvalidArgument},
		"no size":           {&protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "true"}, Pty: &protocol.PTY{}}, connect.CodeInvalidArgument},
		"missing directory": {&protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "true", Cwd: new("/nonexistent")}}, connect.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := sb.start(t.Context(), tc.req)
			if connect.CodeOf(err) != tc.code {
				t.Errorf("err = %v, o = %+v, want connect.CodeOf(err) == tc.code", err, o)
			}
		})
	}
	if list := h.Raw(t, "GET", "/v1/sessions/"+sb.ID+"/processes?owner=agent", ""); !strings.Contains(string(list.Body), `"processes":[]`) {
		t.Errorf("something was left: list.Body = %s, want list.Body containing `\"processes\":[]`", list.Body)
	}
}

// A process survives the stream that started it, and is found by pid and by tag. Another stream has what it writes from then on.
func TestAProcessOutlivesItsStream(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := sb.processes().Start(ctx, &protocol.StartRequest{Tag: new("one"), Process: &protocol.ProcessConfig{Cmd: "cat"}})
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	before := &protocol.ProcessInput{Input: &protocol.ProcessInput_Stdin{Stdin: []byte("before\n")}}
	if _, err := sb.processes().SendInput(t.Context(), &protocol.SendInputRequest{Process: &protocol.ProcessSelector{Selector: &protocol.ProcessSelector_Pid{Pid: pid}}, Input: before}); err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || string(stream.Msg().GetEvent().GetData().GetStdout()) != "before\n" { // which the next stream has not
		t.Fatalf(`stream.Err() = %v, stream.Msg() = %v, want stream.Receive() and stream.Msg().GetEvent().GetData().GetStdout() == "before\n"`,
			stream.Err(), stream.Msg())
	}
	cancel()
	by := &protocol.ProcessSelector{Selector: &protocol.ProcessSelector_Tag{Tag: "one"}}
	again, err := sb.processes().Connect(t.Context(), &protocol.ConnectRequest{Process: by})
	if err != nil || !again.Receive() || again.Msg().GetEvent().GetStart().GetPid() != pid {
		t.Fatalf("err = %v, again.Err() = %v, again.Msg() = %v, want no error and again.Receive() and again.Msg().GetEvent().GetStart().GetPid() == %v",
			err, again.Err(), again.Msg(), pid)
	}
	defer again.Close()
	in := &protocol.ProcessInput{Input: &protocol.ProcessInput_Stdin{Stdin: []byte("hello\n")}}
	if _, err := sb.processes().SendInput(t.Context(), &protocol.SendInputRequest{Process: &protocol.ProcessSelector{Selector: &protocol.ProcessSelector_Pid{Pid: pid}}, Input: in}); err != nil {
		t.Fatal(err)
	}
	if !again.Receive() || string(again.Msg().GetEvent().GetData().GetStdout()) != "hello\n" {
		t.Fatalf(`again.Err() = %v, again.Msg() = %v, want again.Receive() and again.Msg().GetEvent().GetData().GetStdout() == "hello\n"`,
			again.Err(), again.Msg())
	}
	for range 2 { // can be repeated while it runs
		if _, err := sb.processes().CloseStdin(t.Context(), &protocol.CloseStdinRequest{Process: by}); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			t.Fatal(err)
		}
	}
	if !again.Receive() || again.Msg().GetEvent().GetEnd().GetStatus() != "exit status 0" {
		t.Fatalf(`again.Err() = %v, again.Msg() = %v, want again.Receive() and again.Msg().GetEvent().GetEnd().GetStatus() == "exit status 0"`,
			again.Err(), again.Msg())
	}
	if _, err := sb.processes().SendSignal(t.Context(), &protocol.SendSignalRequest{Process: by, Signal: protocol.Signal_SIGNAL_SIGKILL}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a signal to an ended process: err = %v, want connect.CodeOf(err) == connect.CodeNotFound", err)
	}
}

// Input that several clients send at once arrives in whole messages, one after the other.
func TestInputOfSeveralClientsIsNotMixed(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	const clients, each = 8, 200_000 // more than a pipe holds, for a program that reads slowly
	stream, err := sb.processes().Start(t.Context(), &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "sh", Args: []string{"-c", "sleep 0.2; exec tr -s a-h"}}})
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	defer stream.Close()
	by := &protocol.ProcessSelector{Selector: &protocol.ProcessSelector_Pid{Pid: stream.Msg().GetEvent().GetStart().GetPid()}}
	errs := make(chan error, clients)
	for n := range clients {
		go func() { // ends with its message
			in := &protocol.ProcessInput{Input: &protocol.ProcessInput_Stdin{Stdin: bytes.Repeat([]byte{byte('a' + n)}, each)}}
			_, err := sb.processes().SendInput(t.Context(), &protocol.SendInputRequest{Process: by, Input: in})
			errs <- err
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, err := sb.processes().CloseStdin(t.Context(), &protocol.CloseStdinRequest{Process: by}); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for stream.Receive() {
		out = append(out, stream.Msg().GetEvent().GetData().GetStdout()...)
	}
	if slices.Sort(out); string(out) != "abcdefgh" {
		t.Errorf("the program has read %q", out)
	}
}

// A terminal has the requested size, also after it was changed.
func TestATerminalHasItsSize(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	stream, err := sb.processes().Start(t.Context(), &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "sh", Args: []string{"-c", "stty size; read line; stty size"}}, Pty: &protocol.PTY{Size: &protocol.PTY_Size{Cols: 90, Rows: 30}}})
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	defer stream.Close()
	by := &protocol.ProcessSelector{Selector: &protocol.ProcessSelector_Pid{Pid: stream.Msg().GetEvent().GetStart().GetPid()}}
	var out strings.Builder
	for !strings.Contains(out.String(), "30 90") && stream.Receive() {
		out.Write(stream.Msg().GetEvent().GetData().GetPty())
	}
	if _, err := sb.processes().Update(t.Context(), &protocol.UpdateRequest{Process: by, Pty: &protocol.PTY{Size: &protocol.PTY_Size{Cols: 70, Rows: 20}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.processes().SendInput(t.Context(), &protocol.SendInputRequest{Process: by, Input: &protocol.ProcessInput{Input: &protocol.ProcessInput_Pty{Pty: []byte("\n")}}}); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
		out.Write(stream.Msg().GetEvent().GetData().GetPty())
	}
	if stream.Err() != nil || !strings.Contains(out.String(), "20 70") {
		t.Errorf(`stream.Err() = %v, out = %q, want stream.Err() == nil and out.String() containing "20 70"`,
			stream.Err(), out.String())
	}
}

// The timeout that a client sets ends the process, with its children.
func TestTheTimeOfAClientEndsItsProcess(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	_, err := sb.start(ctx, shell("sleep 3600"))
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("err = %v, want connect.CodeOf(err) == connect.CodeDeadlineExceeded", err)
	}
	boxtest.Eventually(t, "no process runs", func() bool {
		list, err := sb.processes().List(t.Context(), &protocol.ListRequest{})
		return err == nil && len(list.Processes) == 0
	})
}

// A stream without output sends keepalives as often as its client requests.
func TestASilentStreamShowsSignsOfLife(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	const body = `{"process":{"cmd":"sh","args":["-c","until [ -e heard ]; do sleep 0.1; done"],"cwd":"/tmp"}}`
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+h.address+"/process.Process/Start", strings.NewReader("\x00\x00\x00\x00"+string(rune(len(body)))+body))
	if err != nil {
		t.Fatal(err)
	}
	for list := append(sb.of("49983"), "Content-Type", "application/connect+json", "Keepalive-Ping-Interval", "1"); len(list) > 0; list = list[2:] {
		req.Header.Set(list[0], list[1])
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, part := "", make([]byte, 4096)
	for ended := false; err == nil; {
		var n int
		n, err = r.Body.Read(part)
		text += string(part[:n])
		if !ended && strings.Count(text, `"keepalive"`) >= 2 {
			ended = true
			sb.sh(t, "touch /tmp/heard")
		}
	}
	if r.StatusCode != http.StatusOK || !errors.Is(err, io.EOF) || !strings.Contains(text, "exit status 0") {
		t.Errorf(`r.StatusCode = %d, text = %q, err = %v, want r.StatusCode == 200 and err is io.EOF and text containing "exit status 0"`,
			r.StatusCode, text, err)
	}
}

// All output of a process arrives, however much it is.
func TestNothingOfTheOutputIsLost(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	o := sb.sh(t, "head -c 20000000 /dev/zero; echo end >&2")
	if o.stdout.Len() != 20_000_000 || o.stderr.String() != "end\n" {
		t.Errorf("%d bytes, %q", o.stdout.Len(), o.stderr.String())
	}
}
