// SPDX-License-Identifier: Apache-2.0

// Package host_test tests what only a host with systemd, cgroup v2 and project quota can show.
package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/disk"
)

// quotaDisk is the mount point of the machine's disk with project quota.
const quotaDisk = "/var/lib/boxd"

// place is a directory with quota, like a keeper's for its workspaces.
type place struct {
	t      *testing.T
	path   string
	root   *os.Root
	quotas *disk.Quotas
}

func newPlace(t *testing.T) *place {
	t.Helper()
	boxtest.RequireRoot(t)
	path := filepath.Join(quotaDisk, t.Name())
	if err := os.Mkdir(path, 0o700); errors.Is(err, os.ErrNotExist) {
		boxtest.Missing(t, "a disk with project quota at "+quotaDisk)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return placeAt(t, path)
}

// require fails a test on an error, unless the error says what the host lacks.
func require(t *testing.T, err error) {
	t.Helper()
	if why, ok := errors.AsType[*disk.UnavailableError](err); ok {
		boxtest.Missing(t, why.Error()+" ("+why.Hint()+")")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func placeAt(t *testing.T, path string) *place {
	t.Helper()
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	q, err := disk.OpenQuotas(root)
	require(t, err)
	t.Cleanup(q.Close)
	return &place{t: t, path: path, root: root, quotas: q}
}

// work is a workspace of the user.
type work struct {
	place *place
	name  string
	dir   *os.File
	id    uint32
}

// plain creates a workspace without limits.
func (p *place) plain(name string) *work {
	p.t.Helper()
	path := filepath.Join(p.path, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chown(path, user, user); err != nil {
		p.t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { dir.Close() })
	return &work{place: p, name: name, dir: dir}
}

func (p *place) make(name string, l disk.Limits) *work {
	p.t.Helper()
	w := p.plain(name)
	id, err := p.quotas.Make(int(w.dir.Fd()), l)
	if err != nil {
		p.t.Fatal(err)
	}
	w.id = id
	p.t.Cleanup(func() {
		w.dir.Close()
		if err := p.root.RemoveAll(name); err != nil {
			p.t.Error(err)
		}
		// A file that had mapped pages may be in use by the kernel for a moment after its removal.
		var err error
		boxtest.Eventually(p.t, "the project id is not in use", func() bool {
			err = p.quotas.Remove(id)
			return !errors.As(err, new(*disk.UsedError))
		})
		if err != nil {
			p.t.Error(err)
		}
	})
	return w
}

func (w *work) usage() disk.Usage {
	w.place.t.Helper()
	u, err := w.place.quotas.Usage(w.id)
	if err != nil {
		w.place.t.Fatal(err)
	}
	return u
}

func (w *work) as(act string, more ...*os.File) outcome {
	w.place.t.Helper()
	return as(w.place.t, act, append([]*os.File{w.dir}, more...)...)
}

// expect checks the outcome of an act and the usage after it.
func (w *work) expect(act string, want outcome, bytes, inodes uint64) {
	w.place.t.Helper()
	got := w.as(act)
	if u := w.usage(); got != want || u.Bytes != bytes || u.Inodes != inodes {
		w.place.t.Errorf("%s: %+v with %d bytes and %d inodes, want %+v with %d and %d", act, got, u.Bytes, u.Inodes, want, bytes, inodes)
	}
}

const (
	bytesHere  = 256 * block
	inodesHere = 20
)

func here() disk.Limits { return disk.Limits{Bytes: bytesHere, Inodes: inodesHere} }

// TestDiskLimitsHoldToTheBlock: the directory itself takes one block and one inode of the limit.
func TestDiskLimitsHoldToTheBlock(t *testing.T) {
	p := newPlace(t)
	for _, tc := range []struct {
		act    string
		want   outcome
		bytes  uint64
		inodes uint64
	}{
		{"write f", outcome{255, "EDQUOT"}, bytesHere, 2},
		{"fallocate f " + strconv.Itoa(bytesHere-block), outcome{}, bytesHere, 2},
		{"touch f " + strconv.Itoa(bytesHere-block), outcome{255, ""}, bytesHere, 2},
		{"files", outcome{inodesHere - 1, "EDQUOT"}, block, inodesHere},
		{"symlinks", outcome{inodesHere - 1, "EDQUOT"}, block, inodesHere},
		{"dirs", outcome{inodesHere - 1, "EDQUOT"}, inodesHere * block, inodesHere},
	} {
		t.Run(strings.Fields(tc.act)[0], func(t *testing.T) {
			p := &place{t: t, path: p.path, root: p.root, quotas: p.quotas}
			p.make("w", here()).expect(tc.act, tc.want, tc.bytes, tc.inodes)
		})
	}
}

func TestDiskOneBlockTooMuchIsRefused(t *testing.T) {
	p := newPlace(t)
	w := p.make("w", here())
	if got := w.as("fallocate f " + strconv.Itoa(bytesHere)); got.err != "EDQUOT" {
		t.Errorf(`fallocate: got %+v, want got.err == "EDQUOT"`, got)
	}
	if err := p.root.Remove("w/f"); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := run(t.Context(), "touch f "+strconv.Itoa(bytesHere), w.dir)
	if err == nil || !strings.Contains(stderr, "SIGBUS") {
		t.Errorf(`mapped memory beyond the limit: err = %v, stderr = %s, want an error and stderr containing "SIGBUS"`,
			err, stderr)
	}
	if u := w.usage(); u.Bytes != bytesHere {
		t.Errorf("%d bytes were touched before the signal, want %d", u.Bytes, bytesHere)
	}
}

func TestDiskSparseFilesCountWhatTheyHold(t *testing.T) {
	w := newPlace(t).make("w", here())
	got := w.as("sparse f")
	u := w.usage()
	// Scattered blocks need a few more for the file's own index.
	if got.err != "EDQUOT" || got.n < 245 || got.n > 255 || u.Bytes > bytesHere || u.Bytes < bytesHere-block {
		t.Errorf("%+v, %d bytes used", got, u.Bytes)
	}
	info, err := w.place.root.Stat("w/f")
	if err != nil || info.Size() != 1<<30 {
		t.Errorf("info = %v, err = %v, want no error and info.Size() == 1 << 30", info, err)
	}
}

func TestDiskHardLinksTakeNoInodesButTheirNames(t *testing.T) {
	w := newPlace(t).make("w", disk.Limits{Bytes: 32 * block, Inodes: 2})
	got := w.as("hardlinks f")
	u := w.usage()
	if got.err != "EDQUOT" || got.n < 200 || u.Inodes != 2 || u.Bytes > 32*block {
		t.Errorf("%+v, used %+v", got, u)
	}
}

func TestDiskProjectCannotBeLeft(t *testing.T) {
	p := newPlace(t)
	w, other := p.make("w", here()), p.make("other", here())
	w.expect("write f", outcome{255, "EDQUOT"}, bytesHere, 2)
	for _, tc := range []struct{ act, want string }{
		{"project . 0 0", "EINVAL"},
		{"project f 0 0", "EINVAL"},
		{"project . " + strconv.Itoa(int(other.id)) + " 0", "EINVAL"},
		{"project f " + strconv.Itoa(int(other.id)) + " 0", "EINVAL"},
		{"project . 0 0x200", "EINVAL"}, // FS_XFLAG_PROJINHERIT
	} {
		// Only the initial user namespace may do that; a box is never in it.
		if got := inUserNamespace(t, tc.act, w.dir); got != (outcome{0, tc.want}) {
			t.Errorf("%s: got %+v, want outcome{0, tc.want}", tc.act, got)
		}
	}
	for _, act := range []string{"rename f", "link f"} {
		if got := w.as(act, other.dir); got != (outcome{0, "EXDEV"}) {
			t.Errorf(`%s into another project: got %+v, want outcome{0, "EXDEV"}`, act, got)
		}
	}
	if u := w.usage(); u.Bytes != bytesHere || u.Inodes != 2 {
		t.Errorf("after all that: u = %+v, want u.Bytes == bytesHere and u.Inodes == 2", u)
	}
	plain := p.plain("plain")
	if got := w.as("rename f", plain.dir); got.err != "" {
		t.Errorf(`out into no project, which only the host can reach: got %+v, want got.err == ""`, got)
	}
	if u := w.usage(); u.Bytes != bytesHere || u.Inodes != 2 {
		t.Errorf("a file that was moved out still counts: u = %+v, want u.Bytes == bytesHere and u.Inodes == 2", u)
	}
	if err := p.root.RemoveAll("plain"); err != nil {
		t.Fatal(err)
	}
}

func TestDiskDeletedFilesCountWhileOpen(t *testing.T) {
	p := newPlace(t)
	w := p.make("w", here())
	w.expect("write f", outcome{255, "EDQUOT"}, bytesHere, 2)
	f, err := p.root.Open("w/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.root.Remove("w/f"); err != nil {
		t.Fatal(err)
	}
	w.expect("write g", outcome{0, "EDQUOT"}, bytesHere, 3)
	w.dir.Close()
	if err := p.root.RemoveAll("w"); err != nil {
		t.Fatal(err)
	}
	err = p.quotas.Remove(w.id)
	used, ok := errors.AsType[*disk.UsedError](err)
	// An open file also keeps the directory that it was in.
	if !ok || used.Usage.Bytes != bytesHere || used.Usage.Inodes != 2 || w.usage().Limits != here() {
		t.Errorf("quota removed while a file is open: err = %v, w.usage() = %+v, want ok == true and used.Usage.Bytes == bytesHere and used.Usage.Inodes == 2 and w.usage().Limits == here()",
			err, w.usage())
	}
	f.Close()
	if err := p.quotas.Sweep(); err != nil {
		t.Fatal(err)
	}
	if u := w.usage(); u != (disk.Usage{}) {
		t.Errorf("after the sweep: u = %+v, want disk.Usage{}", u)
	}
}

func TestDiskLimitsChangeWhileUsed(t *testing.T) {
	p := newPlace(t)
	w := p.make("w", here())
	w.expect("write f", outcome{255, "EDQUOT"}, bytesHere, 2)
	for _, l := range []disk.Limits{{Bytes: bytesHere - block, Inodes: 20}, {Bytes: bytesHere + 9*block - 1, Inodes: 2}} {
		err := p.quotas.Set(w.id, l)
		_, used := errors.AsType[*disk.UsedError](err)
		if want := l.Bytes < bytesHere; used != want || !want && err != nil {
			t.Errorf("%+v: err = %v, want used == want and (want == true or no error)", l, err)
		}
	}
	if u := w.usage(); u.Limits != (disk.Limits{Bytes: bytesHere + 8*block, Inodes: 2}) {
		t.Errorf("u = %+v, want u.Limits == disk.Limits{Bytes: bytesHere + 8*block, Inodes: 2}", u)
	}
	w.expect("append f", outcome{8, "EDQUOT"}, bytesHere+8*block, 2)
	w.expect("files", outcome{0, "EDQUOT"}, bytesHere+8*block, 2)
	if err := p.quotas.Set(w.id+1, here()); !errors.Is(err, disk.ErrForeign) {
		t.Errorf("an id without limits: err = %v, want err is disk.ErrForeign", err)
	}
	if err := p.quotas.Set(1000, here()); !errors.Is(err, disk.ErrForeign) {
		t.Errorf("an id of another directory: err = %v, want err is disk.ErrForeign", err)
	}
}

func TestDiskMakeWantsAFreshDirectory(t *testing.T) {
	p := newPlace(t)
	w := p.make("w", here())
	if _, err := p.quotas.Make(int(w.dir.Fd()), here()); !errors.Is(err, unix.EEXIST) {
		t.Errorf("twice: err = %v, want err is unix.EEXIST", err)
	}
	full := p.plain("full")
	if got := full.as("files"); got.n != most {
		t.Fatalf("got %+v, want got.n == most", got)
	}
	if _, err := p.quotas.Make(int(full.dir.Fd()), here()); !errors.Is(err, disk.ErrNotEmpty) {
		t.Errorf("not empty: err = %v, want err is disk.ErrNotEmpty", err)
	}
	away, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if _, err := p.quotas.Make(int(away.Fd()), here()); !errors.Is(err, disk.ErrForeign) {
		t.Errorf("on another filesystem: err = %v, want err is disk.ErrForeign", err)
	}
	if _, err := p.quotas.ID(int(full.dir.Fd())); !errors.Is(err, disk.ErrForeign) {
		t.Errorf("id of a directory without: err = %v, want err is disk.ErrForeign", err)
	}
}
