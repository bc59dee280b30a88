// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestEnvIsGivenOrPassedOn(t *testing.T) {
	t.Setenv("BOXCTL_TEST", "of boxctl")
	t.Setenv("BOXCTL_EMPTY", "")
	for _, tc := range []struct {
		list    []string
		want    map[string]string
		message string
	}{
		{nil, nil, ""},
		{[]string{"A=1", "B=x=y", "C="}, map[string]string{"A": "1", "B": "x=y", "C": ""}, ""},
		{[]string{"A=1", "A=2"}, map[string]string{"A": "2"}, ""},
		{[]string{"BOXCTL_TEST", "BOXCTL_EMPTY"}, map[string]string{"BOXCTL_TEST": "of boxctl", "BOXCTL_EMPTY": ""}, ""},
		{[]string{"=x"}, map[string]string{"": "x"}, ""}, // boxd refuses it
		{[]string{"A=1", "BOXCTL_ABSENT"}, nil, "--env BOXCTL_ABSENT: not in the environment of boxctl"},
		{[]string{""}, nil, "--env : not in the environment of boxctl"},
	} {
		got, err := parseEnv(tc.list)
		if !cmp.Equal(got, tc.want) || (err == nil) != (tc.message == "") || err != nil && !strings.Contains(err.Error(), tc.message) {
			t.Errorf(`%q: got %v, err = %v, want got == %v and (err == nil) == (tc.says == "") and (no error or err containing %q)`,
				tc.list, got, err, tc.want, tc.message)
		}
	}
}

func TestLabelsArePairs(t *testing.T) {
	t.Parallel()
	got, err := parsePairs("label", []string{"a=b", "c==", "d="})
	if want := map[string]string{"a": "b", "c": "=", "d": ""}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("got %v, err = %v, want no error and got == %v", got, err, want)
	}
	if got, err := parsePairs("label", nil); got != nil || err != nil {
		t.Errorf("got %v, err = %v, want got == nil and no error", got, err)
	}
	if got, err := parsePairs("label", []string{"a=b", "c"}); got != nil || err == nil || !strings.Contains(err.Error(), `--label c: must be NAME=value`) {
		t.Errorf("got %v, err = %v, want got == nil and an error containing `--label c: must be NAME=value`", got, err)
	}
}

func TestMountFlags(t *testing.T) {
	t.Parallel()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		flags   sessionFlags
		want    []api.Mount
		message string
	}{
		{sessionFlags{}, nil, ""},
		{sessionFlags{mounts: []string{"/a:/b", "/c:/d:ro", "/e:/f:rw:1000"}}, []api.Mount{
			{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/d", Mode: "ro"}, {Source: "/e", Target: "/f", Mode: "rw", Owner: 1000},
		}, ""},
		{sessionFlags{here: "ro", mounts: []string{"/a:/b"}}, []api.Mount{{Source: "/a", Target: "/b"}, {Source: dir, Target: "/workspace", Mode: "ro"}}, ""},
		{sessionFlags{mounts: []string{"/a:/b:rw:4294967295"}}, []api.Mount{{Source: "/a", Target: "/b", Mode: "rw", Owner: 1<<32 - 1}}, ""},
		{sessionFlags{mounts: []string{"/a"}}, nil, `-v /a: must be SOURCE:TARGET`},
		{sessionFlags{mounts: []string{""}}, nil, `-v '': must be SOURCE:TARGET`},
		{sessionFlags{mounts: []string{"/a:/b:rw:1:2"}}, nil, "must be SOURCE:TARGET"},
		{sessionFlags{mounts: []string{"/a:/b:rw:4294967296"}}, nil, "the owner must be a uid"},
		{sessionFlags{mounts: []string{"/a:/b:rw:-1"}}, nil, "the owner must be a uid"},
		{sessionFlags{mounts: []string{"/a:/b:rw:"}}, nil, "the owner must be a uid"},
	} {
		got, err := tc.flags.parseMounts()
		if !cmp.Equal(got, tc.want) || (err == nil) != (tc.message == "") || err != nil && !strings.Contains(err.Error(), tc.message) {
			t.Errorf(`%+v: got %+v, err = %v, want got == %+v and (err == nil) == (tc.says == "") and (no error or err containing %q)`,
				tc.flags, got, err, tc.want, tc.message)
		}
	}
}

func TestOnlyFlagsThatWereGivenAreAskedFor(t *testing.T) {
	t.Parallel()
	parse := func(args ...string) (*api.SessionRequest, error) {
		var f sessionFlags
		cmd := &cobra.Command{}
		f.add(cmd)
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return f.request("id")
	}
	// A field that is set is a request, which a profile may lock; so is zero.
	for _, tc := range []struct {
		args []string
		want api.SessionRequest
	}{
		{nil, api.SessionRequest{}},
		{[]string{"--cpus=0", "--pids=0", "--network=", "--image="}, api.SessionRequest{Patch: limits.Patch{CPUs: new(0.0), Pids: new(0)}, Network: new(""), Image: new("")}},
		{[]string{"-p", "x", "-m", "64MiB", "--tmp=0", "--workspace-quota=1GiB", "--ttl=0s", "--max-lifetime=1h"}, api.SessionRequest{
			Profile: "x", Patch: limits.Patch{
				Memory: new(64 * quantity.MiB), WorkspaceQuota: new(quantity.GiB), TTL: new(quantity.Duration(0)),
				MaxLifetime: new(quantity.Duration(time.Hour)),
			}, Tmp: new(quantity.Size(0)),
		}},
	} {
		tc.want.ID = "id"
		if got, err := parse(tc.args...); err != nil || !cmp.Equal(got, &tc.want) {
			t.Errorf("%q: err = %v, (-want +got) %s, want no error and got == &tc.want",
				tc.args, err, cmp.Diff(&tc.want, got))
		}
	}
	_, err := parse("-m", "x", "--ttl", "y", "--label", "z", "-v", "w")
	if _, ok := errors.AsType[*usageError](err); !ok || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf(`not every mistake is reported: err = %v, want ok == true and strings.Count(err.Error(), "\n") == 3`, err)
	}
}

func TestEveryEndHasItsCodeAndItsWords(t *testing.T) {
	t.Parallel()
	failed := func(step, errno string) *api.StartFailure {
		return &api.StartFailure{Step: step, Errno: errno, Text: step + ": " + errno}
	}
	for _, tc := range []struct {
		result  api.ExecResult
		caught  syscall.Signal
		code    int
		message string
	}{
		{api.ExecResult{Status: "exited", ExitCode: new(0)}, 0, 0, ""},
		{api.ExecResult{Status: "exited", ExitCode: new(42)}, 0, 42, ""},
		{api.ExecResult{Status: "exited", ExitCode: new(7)}, syscall.SIGINT, 7, ""}, // it has caught the signal itself
		{api.ExecResult{Status: "signaled", Signal: "SIGSEGV"}, 0, 139, ""},
		{api.ExecResult{Status: "signaled", Signal: "SIGKILL"}, syscall.SIGINT, 137, ""},
		{api.ExecResult{Status: "timed_out", Timeout: quantity.Duration(time.Minute)}, 0, 124, "boxctl: timed out after 1m\nhint: --timeout gives it longer, up to the profile's max_timeout\n"},
		{
			api.ExecResult{Status: "timed_out", Timeout: quantity.Duration(time.Minute), Clamped: []api.Clamp{{Field: "timeout", Asked: "1h", Got: "1m", By: "profiles.p.max_timeout"}}},
			0, 124,
			"boxctl: timeout 1h: limited to 1m (profiles.p.max_timeout)\nboxctl: timed out after 1m\n",
		},
		{api.ExecResult{Status: "oom_killed"}, 0, 137, "boxctl: killed: out of memory\nhint: --memory gives a box more\n"},
		{
			api.ExecResult{Status: "oom_killed", OOM: &api.OOM{Of: "session", Limit: 64 * quantity.MiB, Names: []string{"cc1\a"}}},
			0, 137,
			"boxctl: killed: out of memory, the session may have 64MiB; the kernel chose \"cc1\\a\"\nhint: --memory gives a box more\n",
		},
		{api.ExecResult{Status: "canceled"}, 0, 125, "boxctl: canceled\n"},
		{api.ExecResult{Status: "canceled"}, syscall.SIGTERM, 143, "boxctl: canceled\n"},
		{api.ExecResult{Status: "lost"}, 0, 125, "boxctl: the box was lost while the program ran\n"},
		{api.ExecResult{Status: "of a later version"}, 0, 125, ""},
		{api.ExecResult{Status: "start_failed", Failure: failed("lookup", "ENOENT")}, 0, 127, "boxctl: lookup: ENOENT\n"},
		{api.ExecResult{Status: "start_failed", Failure: failed("exec", "ENOENT")}, 0, 127, "boxctl: exec: ENOENT\n"},
		{api.ExecResult{Status: "start_failed", Failure: failed("exec", "EACCES")}, 0, 126, "boxctl: exec: EACCES\n"},
		{api.ExecResult{Status: "start_failed", Failure: failed("exec", "E2BIG")}, 0, 126, "boxctl: exec: E2BIG\n"},
		{api.ExecResult{Status: "start_failed", Failure: failed("directory", "ENOENT")}, 0, 126, "boxctl: directory: ENOENT\n"},
		{api.ExecResult{Status: "start_failed", Failure: failed("fork", "EAGAIN")}, 0, 125, "boxctl: fork: EAGAIN\n"},
		{api.ExecResult{Status: "exited", ExitCode: new(0), LeftoversKilled: 1}, 0, 0, "boxctl: killed a process it left running\n"},
		{api.ExecResult{Status: "exited", ExitCode: new(0), LeftoversKilled: 3}, 0, 0, "boxctl: killed 3 processes it left running\n"},
	} {
		var errOut bytes.Buffer
		a := &app{stderr: &errOut}
		code := a.report(a.conclude(&tc.result, nil, tc.caught))
		if code != tc.code || errOut.String() != tc.message {
			t.Errorf("%+v: code = %d, errOut = %q, want code == %v and errOut.String() == %q",
				tc.result, code, errOut.String(), tc.code, tc.message)
		}
	}
}

func TestErrorsHaveACodeAndAHint(t *testing.T) {
	t.Parallel()
	const noBoxd = "is boxd running? "
	refused := &client.Error{Problem: api.Problem{Detail: "no", Hint: "do that"}}
	connect := func(err error) error { return &client.ConnectError{Socket: "/s", Err: err} }
	for _, tc := range []struct {
		err     error
		code    int
		message string
	}{
		{nil, 0, ""},
		{exitError(9), 9, ""},
		{errors.New("x"), 1, "boxctl: x\n"},
		{errors.Join(errors.New("x"), errors.New("y")), 1, "boxctl: x\nboxctl: y\n"},
		{refused, 1, "boxctl: no\nhint: do that\n"},
		{programError{refused}, 125, "boxctl: no\nhint: do that\n"},
		{programError{errors.New("x")}, 125, "boxctl: x\n"},
		{&usageError{err: errors.New("x")}, 2, "boxctl: x\nhint: boxctl --help\n"},
		{connect(syscall.ENOENT), 1, noBoxd},
		{connect(syscall.ECONNREFUSED), 1, noBoxd},
		{programError{fmt.Errorf("run: %w", connect(fs.ErrNotExist))}, 125, noBoxd},
		{connect(syscall.EACCES), 1, "usermod -aG boxd "},
		{connect(syscall.EMFILE), 1, "boxctl: connect to /s: too many open files\n"},
	} {
		var errOut bytes.Buffer
		got := (&app{stderr: &errOut}).report(tc.err)
		says := errOut.String()
		exact := strings.HasPrefix(tc.message, "boxctl: ") || tc.message == ""
		if got != tc.code || exact && says != tc.message || !strings.Contains(says, tc.message) {
			t.Errorf("%v: got %d, says = %q, want got == %v and (exact == false or says == %q) and says containing %q",
				tc.err, got, says, tc.code, tc.message, tc.message)
		}
	}
}

// passing runs a signalPasser with signals from a user and a stream. It returns what the stream was handed, with the time of
// each, and when the passer hung up, or zero.
func passing(t *testing.T, takes int, life time.Duration, signals map[time.Duration]syscall.Signal) (handed []string, hungUp time.Duration, first syscall.Signal) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), life) // the program ends by itself
		defer cancel()
		from, to := make(chan os.Signal, 4), make(chan string)
		for at, sig := range signals {
			time.AfterFunc(at, func() { from <- sig })
		}
		go func() { // the stream
			for range takes {
				select {
				case name := <-to:
					handed = append(handed, fmt.Sprint(name, " ", time.Since(start)))
				case <-ctx.Done():
					return
				}
			}
		}()
		p := &signalPasser{from: from, to: to}
		p.run(ctx, func() {
			hungUp = time.Since(start)
			cancel()
		})
		first = p.signal
		synctest.Wait()
	})
	return handed, hungUp, first
}

func TestSignalsAreHandedOnUntilTheProgramHasEnded(t *testing.T) {
	t.Parallel()
	const long = time.Hour
	type at = map[time.Duration]syscall.Signal
	for _, tc := range []struct {
		name    string
		takes   int
		life    time.Duration
		signals at
		handed  []string
		hungUp  time.Duration
		first   syscall.Signal
	}{
		{"none", 9, time.Minute, nil, nil, 0, 0},
		{"it ends by the first", 9, 3 * time.Second, at{2 * time.Second: syscall.SIGTERM}, []string{"SIGTERM 2s"}, 0, syscall.SIGTERM},
		{"a second one kills", 9, 4 * time.Second, at{2 * time.Second: syscall.SIGINT, 3 * time.Second: syscall.SIGINT}, []string{"SIGINT 2s", "SIGKILL 3s"}, 0, syscall.SIGINT},
		{"any second one does", 9, 4 * time.Second, at{2 * time.Second: syscall.SIGHUP, 3 * time.Second: syscall.SIGTERM}, []string{"SIGHUP 2s", "SIGKILL 3s"}, 0, syscall.SIGHUP},
		{"patience does", 9, 8 * time.Second, at{2 * time.Second: syscall.SIGINT}, []string{"SIGINT 2s", "SIGKILL 7s"}, 0, syscall.SIGINT},
		{"boxd does not report the end", 9, long, at{2 * time.Second: syscall.SIGINT}, []string{"SIGINT 2s", "SIGKILL 7s"}, 17 * time.Second, syscall.SIGINT},
		{"there is no stream yet", 0, long, at{2 * time.Second: syscall.SIGINT}, nil, 3 * time.Second, syscall.SIGINT},
		{"the stream stops taking", 1, long, at{2 * time.Second: syscall.SIGINT, 3 * time.Second: syscall.SIGINT}, []string{"SIGINT 2s"}, 4 * time.Second, syscall.SIGINT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			handed, hungUp, first := passing(t, tc.takes, tc.life, tc.signals)
			if !cmp.Equal(handed, tc.handed) || hungUp != tc.hungUp || first != tc.first {
				t.Errorf("passed on %q, canceled at %v, first result %v", handed, hungUp, first)
			}
		})
	}
}

func TestPathsMayNameTheirBox(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"work /a": "work /a", "work:/a": "work /a", "work:/a work:/b": "work /a /b", "work:/a /b": "work:/a /b", "chat:1 a": "chat:1 a", "chat:1:/a": "chat:1 /a",
		"http://x": "http://x", "http://x/y:/a": "http://x/y /a", ":/a": ":/a", "": "", "work:a": "work:a",
	} {
		if got := strings.Join(apart(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
