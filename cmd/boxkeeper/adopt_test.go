// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// A keeper that runs out of descriptors does not take a record for damaged, which would leave the
// box alone for good.
func TestARecordIsNotDamagedForLackOfDescriptors(t *testing.T) { //nolint:paralleltest // all of the process lacks room
	dir, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	key := strings.Repeat("k", isolation.KeyLen)
	listener, err := dir.Make(key)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	boxtest.RequireRoot(t) // creating a user namespace with such ids needs root
	r := &record{Key: key, IDBase: isolation.IDRange}
	ids := []syscall.SysProcIDMap{{HostID: int(r.IDBase), Size: isolation.IDRange}}
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := errors.Join(r.identify(cmd.Process.Pid, dir.boot), dir.Write(r)); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	k := &keeper{records: dir, damaged: map[string]bool{}, cfg: config{Log: log.New(io.Discard, "", 0)}}
	lacked := 0
	for room := range 16 { // until it finds the box; before that each step has run out of descriptors once
		next, err := unix.Dup(listener) // the lowest free descriptor
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(next)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + room), Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		_, pidfd, ferr := k.readRecord(key)
		if ferr != nil {
			err = k.adoptBoxes()
		}
		if lerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); lerr != nil {
			t.Fatal(lerr)
		}
		if ferr == nil {
			unix.Close(pidfd)
			break
		}
		lacked++
		if !errors.Is(err, unix.EMFILE) || len(k.damaged) > 0 {
			t.Fatalf("with %d free descriptors: %v, damaged are %v, want err is unix.EMFILE and len(k.damaged) == 0",
				room, err, k.damaged)
		}
	}
	if lacked < 2 {
		t.Errorf("it has lacked descriptors %d times", lacked)
	}
}

func TestListPagesAreCompleteAndFitAPacket(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, isolation.ListPage, isolation.ListPage + 1, 3*isolation.ListPage - 1} {
		var keys, got []string
		for i := range n {
			keys = append(keys, fmt.Sprintf("%032d", 2*i))
		}
		for after, more := "", true; more; {
			p := page(keys, after)
			if size := len(isolation.EncodeKeeperReply(1, p)); size > fdpass.MaxInline {
				t.Errorf("a page has %d bytes", size)
			}
			got = append(got, p.Keys...)
			if more = p.More; more {
				after = p.Keys[len(p.Keys)-1]
			}
		}
		if !slices.Equal(got, keys) {
			t.Errorf("%d boxes: %d are listed", n, len(got))
		}
	}
	// The box that the last page ended with may have died since.
	if p := page([]string{"b", "d"}, "c"); !slices.Equal(p.Keys, []string{"d"}) || p.More {
		t.Errorf(`p = %+v, want p.Keys == []string{"d"} and p.More == false`, p)
	}
}
