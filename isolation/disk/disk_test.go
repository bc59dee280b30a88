// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

func TestQuotaStructuresMatchTheKernels(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what      string
		got, want uintptr
	}{
		{"struct if_nextdqblk", unsafe.Sizeof(dqblk{}), 72},
		{"dqb_curspace", unsafe.Offsetof(dqblk{}.space), 16},
		{"dqb_curinodes", unsafe.Offsetof(dqblk{}.inodes), 40},
		{"dqb_valid", unsafe.Offsetof(dqblk{}.valid), 64},
		{"dqb_id", unsafe.Offsetof(dqblk{}.id), 68},
		{"struct fsxattr", unsafe.Sizeof(fsxattr{}), 28},
		{"fsx_projid", unsafe.Offsetof(fsxattr{}.project), 12},
		{"size in FS_IOC_FSGETXATTR", fsGetXattr >> 16 & 0x3fff, unsafe.Sizeof(fsxattr{})},
		{"size in FS_IOC_FSSETXATTR", fsSetXattr >> 16 & 0x3fff, unsafe.Sizeof(fsxattr{})},
		{"size in EXT4_IOC_RESIZE_FS", ext4ResizeFS >> 16 & 0x3fff, 8},
		{"size in XFS_IOC_FSGROWFSDATA", xfsGrowFS >> 16 & 0x3fff, unsafe.Sizeof(xfsSize{})},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, tc.got, tc.want)
		}
	}
}

// accounts is a filesystem's list of projects, in the order in which the kernel returns it.
type accounts []dqblk

func (a accounts) entry(id uint32) (*dqblk, error) {
	for _, d := range a {
		if d.id >= id {
			return &d, nil
		}
	}
	return nil, nil
}

func TestFreeIDIsOneNobodyUses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		accounts
		from, want uint32
		err        error
	}{
		{name: "the first", want: 0},
		{name: "where it was left", from: 2, want: 2},
		{name: "round again", from: 4, want: 0},
		{name: "not one with limits", accounts: accounts{{id: 100, inodesHard: 9}}, want: 1},
		{name: "not one that holds bytes", accounts: accounts{{id: 100, space: 1}}, want: 1},
		{name: "not one that holds inodes", accounts: accounts{{id: 100, inodes: 1}}, want: 1},
		{name: "not one with soft limits", accounts: accounts{{id: 100, spaceSoft: 1}}, want: 1},
		{name: "one with an empty account", accounts: accounts{{id: 100}}, want: 0},
		{name: "before another's", accounts: accounts{{id: 0, space: 9}, {id: 102, space: 1}, {id: 200, space: 1}}, want: 0},
		{name: "round again for the only one", from: 3, accounts: accounts{{id: 100, space: 1}, {id: 102, space: 1}, {id: 103, space: 1}}, want: 1},
		{name: "none", accounts: accounts{{id: 100, space: 1}, {id: 101, space: 1}, {id: 102, space: 1}, {id: 103, inodes: 1}}, err: errNoID},
	} {
		got, err := firstFree(100, 4, tc.from, tc.entry)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: got %d, err = %v, want got == %v and err is %v", tc.name, got, err, tc.want, tc.err)
		}
	}
	broken := func(uint32) (*dqblk, error) { return nil, unix.EIO }
	if _, err := firstFree(100, 4, 0, broken); !errors.Is(err, unix.EIO) {
		t.Errorf("unreadable accounts: err = %v, want err is unix.EIO", err)
	}
}

func TestLimitsOfUnusedProjectIDsAreLeftOver(t *testing.T) {
	t.Parallel()
	a := accounts{
		{id: 99, spaceHard: 1},
		{id: 100, spaceHard: 1},
		{id: 101, spaceHard: 1, inodes: 1},
		{id: 102, space: 1, inodesHard: 1},
		{id: 103, inodesHard: 1},
		{id: 104},
		{id: 105, spaceHard: 1},
		{id: 106, spaceHard: 1},
	}
	got, err := leftOver(100, 6, a.entry)
	if want := []uint32{100, 103, 105}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	stuck := func(uint32) (*dqblk, error) { return &dqblk{id: 100, spaceHard: 1}, nil }
	if got, err := leftOver(100, 6, stuck); err != nil || len(got) != 1 {
		t.Errorf("a list without a next entry: got %v, err = %v, want no error and len(got) == 1", got, err)
	}
}

func TestLimitsAreRoundedDown(t *testing.T) {
	t.Parallel()
	q := &Quotas{block: 4096}
	for _, tc := range []struct {
		in, want Limits
		ok       bool
	}{
		{in: Limits{Bytes: 1 << 20, Inodes: 100}, want: Limits{Bytes: 1 << 20, Inodes: 100}, ok: true},
		{in: Limits{Bytes: 3*4096 - 1, Inodes: 2}, want: Limits{Bytes: 2 * 4096, Inodes: 2}, ok: true},
		{in: Limits{Bytes: 2*4096 - 1, Inodes: 100}},
		{in: Limits{Inodes: 100}}, // zero would mean no limit
		{in: Limits{Bytes: 1 << 20}},
		{in: Limits{Bytes: 1 << 20, Inodes: 1}},
	} {
		got, err := q.round(tc.in)
		if got != tc.want || (err == nil) != tc.ok || err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%v: got %v, err = %v, want got == %v and (err == nil) == %v and (no error or err is unix.EINVAL)",
				tc.in, got, err, tc.want, tc.ok)
		}
	}
}

func TestEveryReasonHasWordsAndAHint(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for r := NoKernel; r <= NoMount; r++ {
		e := &UnavailableError{Reason: r, Path: "/state", Kind: "ext4", Err: unix.ESRCH}
		if text := e.what(); seen[text] || text == (&UnavailableError{}).what() {
			t.Errorf("reason %d: %q", r, text)
		} else {
			seen[text] = true
		}
		if e.Hint() == "" || !strings.HasPrefix(e.Error(), "/state: ") || !errors.Is(e, unix.ESRCH) {
			t.Errorf("%v, hint %q", e, e.Hint())
		}
	}
	e := &UnavailableError{Reason: NotEnforced, Path: "/state", Kind: "xfs"}
	if got := e.Error(); got != "/state: project quota on this xfs is counted, but not enforced" {
		t.Error(got)
	}
}

func TestUsedErrorSaysHowMuch(t *testing.T) {
	t.Parallel()
	e := &UsedError{ID: 7, Usage: Usage{Bytes: 8192, Inodes: 3}, Want: Limits{Bytes: 4096, Inodes: 9}}
	if got := e.Error(); got != "project 7 uses 8192 bytes and 3 inodes: more than 4096 bytes or 9 inodes" {
		t.Error(got)
	}
	e.Want = Limits{}
	if got := e.Error(); got != "project 7 is still in use: 8192 bytes, 3 inodes" {
		t.Error(got)
	}
}

func TestMemoryFilesystemHasNoProjectQuota(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = OpenQuotas(root)
	why, ok := errors.AsType[*UnavailableError](err)
	if !ok || why.Reason != NoKind || why.Kind != "tmpfs" || why.Path != "/dev/shm" {
		t.Errorf(`err = %v, want ok == true and why.Reason == NoKind and why.Kind == "tmpfs" and why.Path == "/dev/shm"`,
			err)
	}
}

func TestEmptyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 { // the second time shows that the offset has not moved
		if empty, err := linux.IsEmpty(int(f.Fd()), "."); !empty || err != nil {
			t.Errorf("empty: empty = %v, err = %v, want empty == true and no error", empty, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".hidden"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if empty, err := linux.IsEmpty(int(f.Fd()), "."); empty || err != nil {
		t.Errorf("not empty: empty = %v, err = %v, want empty == false and no error", empty, err)
	}
}

func TestExperimentRunsWithoutTheRightToExceed(t *testing.T) {
	t.Parallel()
	effective := func() (uint32, error) {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		return data[0].Effective, err
	}
	before, err := effective()
	if err != nil {
		t.Fatal(err)
	}
	err = asUser(func() error {
		during, err := effective()
		if during != before&^(1<<unix.CAP_SYS_RESOURCE) {
			t.Errorf("%#x, outside %#x", during, before)
		}
		return errors.Join(err, unix.EDQUOT)
	})
	if !errors.Is(err, unix.EDQUOT) {
		t.Errorf("its error is lost: err = %v, want err is unix.EDQUOT", err)
	}
}

func TestWritingUntilFullEndsOnlyAtALimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		fits int
		then error
		want error
	}{
		{name: "ext4", fits: 3, then: unix.EDQUOT},
		{name: "xfs", fits: 4, then: unix.ENOSPC},
		{name: "nothing", fits: 9, want: errNoLimit},
		{name: "broken", fits: 2, then: unix.EIO, want: unix.EIO},
	} {
		n := 0
		err := untilFull(4, func() error {
			if n++; n > tc.fits {
				return tc.then
			}
			return nil
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: err = %v, want err is %v", tc.name, err, tc.want)
		}
	}
}
