// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// idRange is a range of host ids.
type idRange struct{ first, end uint32 }

// Every box has this many host ids; boxes of the built-in configuration have them in this range.
const (
	idsOfBox = 1 << 16
	firstID  = 0x70000000
	endID    = 0x80000000
)

// idsOfDaemon is how many ids one test's daemon gets: enough for as many boxes as the built-in
// sessions.max.
const idsOfDaemon = 256 * idsOfBox

func (r idRange) boxes() uint32 { return (r.end - r.first) / idsOfBox }

func allIDs() idRange { return idRange{firstID, endID} }

// takenIDs is not in $TMPDIR, which each suite has one of its own.
const takenIDs = "/tmp/boxd-test-ids"

// takeIDs reserves ids until the end of the test, among all test processes of the host: a byte of
// a shared file is locked for each range.
func takeIDs(t testing.TB) idRange {
	t.Helper()
	f, err := os.OpenFile(takenIDs, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for n := range int64((endID - firstID) / idsOfDaemon) {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: n, Len: 1}
		if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock) == nil {
			first := firstID + uint32(n)*idsOfDaemon
			return idRange{first, first + idsOfDaemon}
		}
	}
	t.Fatal("every range of ids is in use by another test's boxd")
	return idRange{}
}

// IDs reserves host ids until the end of the test, for boxes that no Daemon starts.
func IDs(t testing.TB) (base, count uint32) {
	t.Helper()
	r := takeIDs(t)
	return r.first, r.boxes()
}
