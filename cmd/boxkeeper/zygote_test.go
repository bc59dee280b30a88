// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// The keeper starts zygotes by its own program, which is this one here.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == zygoteCommand {
		play(os.Args[2])
	}
	if os.Args[0] == "boxnet" {
		fakeBoxnet()
	}
	os.Exit(m.Run())
}

// play is a zygote that dies while it is made, as often as there are files in a directory: it takes one away each time. Then
// it answers every request with EXDEV.
func play(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 && os.Remove(filepath.Join(dir, entries[0].Name())) != nil {
		os.Exit(2)
	}
	if len(entries) > 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	_ = fdpass.Send(zygoteSocket, nil)
	buf := fdpass.NewBuffer(64)
	for {
		_, files, err := fdpass.Recv(zygoteSocket, buf, true)
		if err != nil {
			os.Exit(0)
		}
		fdpass.CloseAll(files)
		var answer [8]byte
		binary.LittleEndian.PutUint32(answer[4:], uint32(unix.EXDEV))
		_ = fdpass.Send(zygoteSocket, answer[:])
	}
}

// A zygote that is killed while it is made is noticed at once, and made once more; one that dies again is an error.
func TestAZygoteKilledDuringItsStartIsRetriedOnce(t *testing.T) {
	t.Parallel()
	for deaths, want := range map[int]error{0: unix.EXDEV, 1: unix.EXDEV, 2: errZygoteGone} {
		dir := t.TempDir()
		for i := range deaths {
			if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		z := &zygote{BoxInit: int(null.Fd()), BoxFiles: int(null.Fd()), Etc: []string{dir}}
		control, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		c, err := z.Request(idRange{Lock: int(null.Fd())}, control, noGroup, false)
		if err == nil {
			_, _, err = c.Await()
		}
		z.Close()
		if step, ok := errors.AsType[*isolation.StepError](err); !errors.Is(err, want) || deaths == 2 && (!ok || step.Step != isolation.StepZygote) {
			t.Errorf("after %d deaths: %v, want %v", deaths, err, want)
		}
		if elapsed := time.Since(start); elapsed > zygoteTimeout {
			t.Errorf("after %d deaths the restart took %v", deaths, elapsed)
		}
	}
}

// That it has died since it was last used does not count for that.
func TestAZygoteFoundDeadIsStillRetriedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	z := &zygote{BoxInit: int(null.Fd()), BoxFiles: int(null.Fd()), Etc: []string{dir}}
	defer z.Close()
	ask := func() error {
		control, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c, err := z.Request(idRange{Lock: int(null.Fd())}, control, noGroup, false)
		if err == nil {
			_, _, err = c.Await()
		}
		return err
	}
	if err := ask(); !errors.Is(err, unix.EXDEV) {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), nil, 0o600), unix.PidfdSendSignal(z.pidfd, unix.SIGKILL, nil, 0)); err != nil {
		t.Fatal(err)
	}
	for err := error(unix.EINTR); errors.Is(err, unix.EINTR); { // until it is gone (pidfd_open(2))
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(z.pidfd), Events: unix.POLLIN}}, -1)
	}
	if err := ask(); !errors.Is(err, unix.EXDEV) {
		t.Errorf("it had died, and once more while it was made: err = %v, want err is unix.EXDEV", err)
	}
}
