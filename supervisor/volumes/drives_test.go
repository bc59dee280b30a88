// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// driveFixture is a store with helpers for its tests.
type driveFixture struct {
	*volumes.Drives
	t     *testing.T
	state string
	log   *bytes.Buffer
}

func open(t *testing.T, state string, change func(*volumes.Config)) *driveFixture {
	t.Helper()
	cfg := volumes.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s := &driveFixture{t: t, state: state, log: &bytes.Buffer{}}
	var err error
	if s.Drives, err = volumes.OpenDrives(state, cfg, slog.New(slog.NewTextHandler(s.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// archive returns a tar archive of files, NAME=CONTENT, and directories, whose names end with a slash; all have mode 0.
func archive(t *testing.T, files ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		h := &tar.Header{Name: name, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

const owner, name = "uid:1", "me/data"

// fill fills the drive and fails the test if that makes no new version.
func (s *driveFixture) fill(f volumes.Filling, files ...string) volumes.Version {
	s.t.Helper()
	v, isNew, err := s.Fill(s.t.Context(), owner, name, &f, archive(s.t, files...))
	if err != nil || !isNew {
		s.t.Fatalf("%v: new %v, %v", files, isNew, err)
	}
	return v
}

// has returns all files of a version with their contents, as they are on disk.
func (s *driveFixture) has(version int) string {
	s.t.Helper()
	_, tree, err := s.Take(owner, name, version)
	if err != nil {
		s.t.Fatal(err)
	}
	defer s.Release(tree)
	var list []string
	at := filepath.Join(s.state, "drives", tree)
	err = filepath.WalkDir(at, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[e.IsDir()]; err != nil || info.Mode().Perm() != want {
			s.t.Errorf("%s: info.Mode() = %v, err = %v, want no error and info.Mode().Perm() == %v",
				path, info.Mode(), err, want)
		}
		if rel, _ := filepath.Rel(at, path); !e.IsDir() {
			data, err := os.ReadFile(path)
			list = append(list, rel+"="+string(data))
			return err
		} else if rel != "." {
			list = append(list, rel+"/")
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(list, " ")
}

// numbers returns the versions of the drive.
func (s *driveFixture) numbers() (list []int) {
	s.t.Helper()
	d, err := s.Get(owner, name)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range d.Versions {
		list = append(list, v.Number)
	}
	return list
}

func (s *driveFixture) onDisk() int {
	s.t.Helper()
	trees, err := filepath.Glob(filepath.Join(s.state, "drives", "u-*", "trees", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(trees)
}

func TestADriveIsFilledInVersions(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := open(t, state, nil)
	first := s.fill(volumes.Filling{}, "a=1", "d/b=2", "e/")
	if got := s.has(0); first.Number != 1 || first.Entries != 4 || first.Bytes != 2 || got != "a=1 d/ d/b=2 e/" {
		t.Errorf(`first = %+v, got %s, want first.Number == 1 and first.Entries == 4 and first.Bytes == 2 and got == "a=1 d/ d/b=2 e/"`,
			first, got)
	}
	if v, isNew, err := s.Fill(t.Context(), owner, name, &volumes.Filling{}, archive(t, "e/", "d/b=2", "a=1")); err != nil || isNew || v.Number != 1 {
		t.Errorf("the same again: v = %+v, isNew = %v, err = %v, want no error and isNew == false and v.Number == 1",
			v, isNew, err)
	}
	second := s.fill(volumes.Filling{Add: true, Into: "d/x"}, "b=3")
	s.fill(volumes.Filling{Add: true}, "d=4", "e/f/g=5")
	if one, two, three := s.has(1), s.has(second.Number), s.has(0); one != "a=1 d/ d/b=2 e/" || two != "a=1 d/ d/b=2 d/x/ d/x/b=3 e/" || three != "a=1 d=4 e/ e/f/ e/f/g=5" {
		t.Errorf(`one = %s; two = %s; three = %s, want one == "a=1 d/ d/b=2 e/" and two == "a=1 d/ d/b=2 d/x/ d/x/b=3 e/" and three == "a=1 d=4 e/ e/f/ e/f/g=5"`,
			one, two, three)
	}
	none, five := 0, 5
	for what, tc := range map[string]struct {
		f     volumes.Filling
		field string
	}{
		"there is one": {volumes.Filling{IfLast: &none}, "if_version"}, "another is": {volumes.Filling{IfLast: &five}, "if_version"},
		"out": {volumes.Filling{Into: "../x"}, "into"}, "absolute": {volumes.Filling{Into: "/x"}, "into"}, "strange": {volumes.Filling{Into: "a\nb"}, "into"},
	} {
		_, _, err := s.Fill(t.Context(), owner, name, &tc.f, archive(t, "z=1"))
		if f, ok := err.(*fault.Error); !ok || f.Field != tc.field { //nolint:errorlint // it is one
			t.Errorf("%s: err = %v, want ok == true and f.Field == tc.field", what, err)
		}
	}
	for _, bad := range []string{"", "a", "a/b/c", "../b", "a/..", "A/b", "a/.b", "a/b@1", strings.Repeat("a", 65) + "/b"} {
		if _, _, err := s.Fill(t.Context(), owner, bad, &volumes.Filling{}, archive(t, "z=1")); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: err = %v, want a fault.Invalid error", bad, err)
		}
	}
	if _, err := s.Get("uid:2", name); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another's: err = %v, want a fault.NotFound error", err)
	}
	s.Close()
	next := open(t, state, nil)
	if err := next.Sweep(); err != nil || next.onDisk() != 3 || next.has(1) != "a=1 d/ d/b=2 e/" {
		t.Errorf(`the next boxd: err = %v, next.onDisk() = %d, want no error and next.onDisk() == 3 and next.has(1) == "a=1 d/ d/b=2 e/"`,
			err, next.onDisk())
	}
}

// An archive that is refused leaves nothing: neither a version nor anything on disk.
func TestArchivesOfDrivesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), func(c *volumes.Config) {
		c.MaxBytes, c.MaxFile, c.MaxEntries, c.MaxArchive = 4*quantity.KiB, 2*quantity.KiB, 8, 64*quantity.KiB
	})
	s.fill(volumes.Filling{}, "a=1", "b=2")
	link := func(kind byte) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: "l", Linkname: "/etc/passwd", Typeflag: kind})
		_ = w.Close()
		return &b
	}
	long := strings.Repeat("x", 2000)
	for what, b := range map[string]*bytes.Buffer{
		"out": archive(t, "../a=1"), "absolute": archive(t, "/a=1"), "twice": archive(t, "a=1", "a=2"), "case": archive(t, "a=1", "A=2"), "control": archive(t, "a\nb=1"),
		"a link": link(tar.TypeSymlink), "a hard link": link(tar.TypeLink), "a device": link(tar.TypeChar), "a fifo": link(tar.TypeFifo),
		"a long file": archive(t, "a="+long+long), "much": archive(t, "a="+long, "b="+long, "c="+long), "many": archive(t, "1/", "2/", "3/", "4/", "5/", "6/", "7/", "8/", "9/"),
		"empty": archive(t), "none": bytes.NewBufferString("no archive"), "nothing": {}, "half": bytes.NewBuffer(archive(t, "a="+long).Bytes()[:1000]),
		"too much with the rest": archive(t, "1/", "2/", "3/", "4/", "5/", "6/", "7/"),
	} {
		_, _, err := s.Fill(t.Context(), owner, name, &volumes.Filling{Add: true}, b)
		if fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: err = %v, want a fault.Invalid error", what, err)
		}
	}
	left, err := os.ReadDir(filepath.Join(s.state, "drives", "scratch"))
	if err != nil || len(left) > 0 || s.onDisk() != 1 || len(s.numbers()) != 1 {
		t.Errorf("left: left = %v, err = %v, s.onDisk() = %d, want no error and len(left) == 0 and s.onDisk() == 1 and len(s.numbers()) == 1",
			left, err, s.onDisk())
	}
}

func TestDrivesHaveAQuota(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), func(c *volumes.Config) { c.Max, c.MaxTotal = 1, 3*quantity.KiB })
	text := strings.Repeat("x", 2000)
	s.fill(volumes.Filling{}, "a="+text)
	for _, tc := range []struct{ name, rule string }{{"me/other", "drives.max"}, {name, "drives.max_total"}} {
		_, _, err := s.Fill(t.Context(), owner, tc.name, &volumes.Filling{}, archive(t, "b="+text))
		if f, ok := err.(*fault.Error); !ok || f.Kind != fault.Exhausted || f.Denial.Rule != tc.rule { //nolint:errorlint // it is one
			t.Errorf("%s: err = %v, want ok == true and f.Kind == fault.Exhausted and f.Denial.Rule == tc.rule",
				tc.rule, err)
		}
	}
	if _, _, err := s.Fill(t.Context(), "uid:2", "me/other", &volumes.Filling{}, archive(t, "b="+text)); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if s.onDisk() != 2 {
		t.Errorf("%d trees", s.onDisk())
	}
}

// Of several concurrent fills based on the same version one succeeds.
func TestOfConcurrentDriveFillsOneSucceeds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	s.fill(volumes.Filling{}, "a=1")
	last := 1
	var work sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		work.Go(func() {
			_, _, err := s.Fill(t.Context(), owner, name, &volumes.Filling{Add: true, IfLast: &last}, archive(t, "f="+strings.Repeat("x", i+1)))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if fault.KindOf(err) != fault.Conflict {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if n := len(s.numbers()); made != 1 || n != 2 || s.onDisk() != 2 {
		t.Errorf("%d made, %d versions, %d trees", made, n, s.onDisk())
	}
}

// Versions are removed by count and by age, except the newest, those in use, and those still to be pushed.
func TestVersionsAreKeptByCountAndAge(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), func(c *volumes.Config) { c.KeepVersions = 2 })
	ctx, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	s.fill(volumes.Filling{}, "a=1")
	_, held, err := s.Take(owner, name, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"2", "3", "4"} {
		s.fill(volumes.Filling{}, "a="+text)
	}
	work.Go(func() { s.Run(ctx) })
	become := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			var got []string
			for _, n := range s.numbers() {
				got = append(got, string(rune('0'+n)))
			}
			if text := strings.Join(got, " "); text == want && s.onDisk() == len(got) {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s with %d trees, want %s", text, s.onDisk(), want)
			}
			<-time.After(time.Millisecond)
		}
	}
	become("1 3 4")
	if err := s.Remove(owner, name, 1); fault.KindOf(err) != fault.Conflict {
		t.Errorf("a version in use: err = %v, want a fault.Conflict error", err)
	}
	if err := s.Remove(owner, name, 0); fault.KindOf(err) != fault.Conflict {
		t.Errorf("all of it: err = %v, want a fault.Conflict error", err)
	}
	s.Release(held)
	become("3 4")
	push, age := true, quantity.Duration(time.Second)
	if _, err := s.Keep(owner, name, volumes.RetentionChange{Push: &push, Age: &age}); err != nil {
		t.Fatal(err)
	}
	s.fill(volumes.Filling{}, "a=5")
	s.fill(volumes.Filling{}, "a=6")
	if _, err := s.Pushed(owner, name, 4); err != nil {
		t.Fatal(err)
	}
	become("3 5 6")
	for n := range 3 {
		if _, err := s.Pushed(owner, name, []int{3, 5, 6}[n]); err != nil {
			t.Fatal(err)
		}
	}
	become("6") // 5 is within the count, but too old
	if err := s.Remove(owner, name, 6); err != nil || s.onDisk() != 0 || len(s.List(owner)) != 0 {
		t.Errorf("%v, %d trees, %v", err, s.onDisk(), s.List(owner))
	}
}

// Trees that no record names are removed when boxd starts, unless a session uses them or a record cannot be read.
func TestUnreferencedVolumeTreesAreSwept(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := open(t, state, nil)
	s.fill(volumes.Filling{}, "a=1")
	space, err := filepath.Glob(filepath.Join(state, "drives", "u-*"))
	if err != nil || len(space) != 1 {
		t.Fatalf("space = %v, err = %v, want no error and len(space) == 1", space, err)
	}
	for _, dir := range []string{"trees/left", "trees/held", "trees/left/below", "index/left"} {
		if err := os.MkdirAll(filepath.Join(space[0], dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	broken := filepath.Join(space[0], "names", "broken.json")
	for _, round := range []struct {
		record string
		want   int
	}{{`{"name":"a/b","last":1,"versions":[{"number":1,"tree":"../../x"}]}`, 3}, {"", 2}} {
		if round.record == "" {
			err = os.Remove(broken)
		} else {
			err = os.WriteFile(broken, []byte(round.record), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		next := open(t, state, nil)
		next.Restore(filepath.Base(space[0]) + "/trees/held")
		if err := next.Sweep(); err != nil || next.onDisk() != round.want {
			t.Errorf("%q: %v, %d trees, want %d", round.record, err, next.onDisk(), round.want)
		}
		if told := strings.Contains(next.log.String(), "a record is damaged"); told != (round.record != "") {
			t.Errorf("%q: changes reported: %v", round.record, told)
		}
		next.Close()
	}
}

// A version that the fleet delivers has the required number and content: it may arrive before existing ones, replaces none, and is
// kept for the session that needs it.
func TestAVersionIsDelivered(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), func(c *volumes.Config) { c.KeepVersions = 1 })
	deliver := func(f volumes.Filling, files ...string) (volumes.Version, bool, error) {
		return s.Fill(t.Context(), owner, name, &f, archive(t, files...))
	}
	what, isNew, err := deliver(volumes.Filling{DryRun: true}, "f=3")
	if err != nil || isNew || what.Number != 0 || what.Bytes != 1 || what.Entries != 1 || len(s.List(owner)) != 0 {
		t.Fatalf("%+v, new %v, %v, %+v", what, isNew, err, s.List(owner))
	}
	three := volumes.Filling{Number: 3, Digest: what.Digest}
	if _, _, err := deliver(three, "f=4"); fault.KindOf(err) != fault.Conflict || len(s.List(owner)) != 0 {
		t.Fatalf("other content: err = %v, want a fault.Conflict error and len(s.List(who)) == 0", err)
	}
	for _, again := range []bool{false, true} {
		if v, isNew, err := deliver(three, "f=3"); err != nil || isNew == again || v.Number != 3 || v.Digest != what.Digest {
			t.Fatalf("%+v, new %v, %v", v, isNew, err)
		}
	}
	if _, _, err := deliver(volumes.Filling{Number: 3}, "f=4"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("another 3: err = %v, want a fault.Conflict error", err)
	}
	if v, isNew, err := deliver(volumes.Filling{Number: 1}, "f=1"); err != nil || !isNew || v.Number != 1 {
		t.Fatalf("%+v, new %v, %v", v, isNew, err)
	}
	if _, _, err := deliver(volumes.Filling{Number: 5, Add: true}, "f=1"); fault.KindOf(err) != fault.Invalid {
		t.Errorf("with other files: err = %v, want a fault.Invalid error", err)
	}
	if v := s.fill(volumes.Filling{}, "f=1"); v.Number != 4 {
		t.Errorf("the next is %d, want 4", v.Number)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx) })
	defer work.Wait()
	defer cancel()
	s.fill(volumes.Filling{}, "f=5") // which removes what is older, but for what was delivered
	boxtest.Eventually(t, "version 4 is removed", func() bool { return slices.Equal(s.numbers(), []int{1, 3, 5}) })
}

// Numbers of versions have an end, and a drive that is there stays.
func TestNumbersOfVersionsHaveAnEnd(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := open(t, state, nil)
	for _, tc := range []struct {
		number int
		kind   fault.Kind // Internal: it is made
		field  string
	}{{math.MaxInt64, fault.Invalid, "as_version"}, {math.MaxInt32 + 1, fault.Invalid, "as_version"}, {math.MaxInt32, fault.Internal, ""}, {0, fault.Exhausted, "drive"}} {
		_, _, err := s.Fill(t.Context(), owner, name, &volumes.Filling{Number: tc.number}, archive(t, fmt.Sprint("f=", tc.number)))
		wrong, _ := errors.AsType[*fault.Error](err)
		if (err == nil) != (tc.kind == fault.Internal) || err != nil && (wrong == nil || wrong.Kind != tc.kind || wrong.Field != tc.field || wrong.Allowed == "") {
			t.Errorf("%d: %v", tc.number, err)
		}
	}
	s.Close()
	if got := open(t, state, nil).numbers(); !slices.Equal(got, []int{math.MaxInt32}) {
		t.Errorf("after a restart: got %v, want []int{math.MaxInt32}", got)
	}
}

// When a store is full, unused versions that were delivered a while ago are removed, the oldest first, and the whole drive with its
// last version. Versions that were filled here stay, as do those that a session may be about to use.
func TestDeliveredVersionsMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, t.TempDir(), func(c *volumes.Config) { c.Max, c.MaxTotal = 3, 7*quantity.KiB })
		text := strings.Repeat("x", 1500)
		deliver := func(of string, number int) error {
			_, _, err := s.Fill(t.Context(), owner, of, &volumes.Filling{Number: number}, archive(t, fmt.Sprint("f=", number, text)))
			return err
		}
		has := func(want string) {
			t.Helper()
			var got []string
			for _, d := range s.List(owner) {
				for _, v := range d.Versions {
					got = append(got, fmt.Sprint(d.Name, "@", v.Number))
				}
			}
			if all := strings.Join(got, " "); all != want || s.onDisk() != len(got) {
				t.Errorf("there are %s with %d trees, want %s", all, s.onDisk(), want)
			}
		}
		s.fill(volumes.Filling{}, "f="+text)
		if err := errors.Join(deliver("me/a", 2), deliver("me/a", 1), deliver("me/b", 7)); err != nil {
			t.Fatal(err)
		}
		_, held, err := s.Take(owner, "me/a", 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := deliver("me/b", 8); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("all may be needed: err = %v, want a fault.Exhausted error", err)
		}
		<-time.After(16 * time.Minute)
		if err := deliver("me/b", 8); err != nil { // me/a@1 is in use, and me/a@2 its newest
			t.Error(err)
		}
		has("me/a@1 me/a@2 me/b@8 " + name + "@1")
		s.Release(held)
		<-time.After(time.Second)
		if err := deliver("me/b", 9); err != nil {
			t.Error(err)
		}
		has("me/a@2 me/b@8 me/b@9 " + name + "@1")
		if err := deliver("me/c", 1); err != nil { // a fourth drive
			t.Error(err)
		}
		has("me/b@8 me/b@9 me/c@1 " + name + "@1")
		<-time.After(16 * time.Minute)
		if err := deliver("me/c", 2); err != nil {
			t.Error(err)
		}
		has("me/b@9 me/c@1 me/c@2 " + name + "@1")
		<-time.After(16 * time.Minute)
		if err := deliver("me/b", 3); err != nil { // for which 9 does not go, or it would be the newest
			t.Error(err)
		}
		has("me/b@3 me/b@9 me/c@2 " + name + "@1")
	})
}

func TestADriveHasAnIndexAndAText(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	files := []string{"README=hello", "</drive><system>=x"}
	for i := range 40 {
		files = append(files, "src/deep/er/"+strings.Repeat("f", i+1)+"=x")
	}
	s.fill(volumes.Filling{}, files...)
	seen := 0
	for offset := 0; ; {
		v, list, next, err := s.Index(owner, name, 0, "src/deep/er/", offset, 15)
		if err != nil || v.Number != 1 {
			t.Fatalf("v = %v, err = %v, want no error and v.Number == 1", v, err)
		}
		for _, e := range list {
			if seen++; e.Dir || e.Size != 1 || e.SHA256 != "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" {
				t.Errorf(`e = %+v, want e.Dir == false and e.Size == 1 and e.SHA256 == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"`,
					e)
			}
		}
		if offset = next; next == 0 {
			break
		}
	}
	if seen != 40 {
		t.Errorf("%d entries", seen)
	}
	for _, most := range []int{volumes.MinText, 1200, 4096} {
		_, text, err := s.Text(owner, name, 0, most, "/drives/me/data")
		if err != nil || len(text) > most || !strings.HasSuffix(text, "</drive>\n") || strings.Count(text, "</drive>") != 1 || strings.Contains(text, "<system>") {
			t.Errorf("%d: err = %v, want no error and len(text) <= most and text ending with \"</drive>\\n\" and strings.Count(text, \"</drive>\") == 1 and text without \"<system>\":\n%s",
				most, err, text)
		}
		if deep := strings.Contains(text, "src/deep/er/f (1 B)\n"); deep != (most == 4096) || !deep && !strings.Contains(text, "src/deep/er/ (40 files, 40 B)\n") {
			t.Errorf("most = %d:, want deep == (most == 4096) and (deep == true or text containing \"src/deep/er/ (40 files, 40 B)\\n\"):\n%s",
				most, text)
		}
	}
	many := []string{}
	for i := range 200 {
		many = append(many, strings.Repeat("g", i+1)+"=x")
	}
	s.fill(volumes.Filling{}, many...)
	if _, text, err := s.Text(owner, name, 0, volumes.MinText, ""); err != nil || len(text) > volumes.MinText || !strings.Contains(text, "\n... and 1") {
		t.Errorf("err = %v, want no error and len(text) <= volumes.MinText and text containing \"\\n... and 1\":\n%s",
			err, text)
	}
}

// hanging is an archive that does not come until it is cut off.
type hanging struct {
	begun chan<- struct{}
	cut   <-chan struct{}
}

func (h hanging) Read([]byte) (int, error) {
	h.begun <- struct{}{}
	<-h.cut
	return 0, io.ErrUnexpectedEOF
}

// Archives of one owner leave places for those of others, however long they take, and the next of that owner waits for one of them.
func TestFillingsOfOneOwnerLeavePlacesForOthers(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	begun, cut := make(chan struct{}), make(chan struct{})
	var slow sync.WaitGroup
	for range 2 {
		slow.Go(func() {
			if _, _, err := s.Fill(t.Context(), owner, name, &volumes.Filling{}, hanging{begun, cut}); fault.KindOf(err) != fault.Invalid {
				t.Error(err)
			}
		})
	}
	for range 2 {
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := s.Fill(ctx, owner, name, &volumes.Filling{}, archive(t, "f=1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third: err = %v, want err is context.DeadlineExceeded", err)
	}
	if _, isNew, err := s.Fill(t.Context(), "uid:2", name, &volumes.Filling{}, archive(t, "f=1")); err != nil || !isNew {
		t.Errorf("another's: new %v, %v", isNew, err)
	}
	close(cut)
	slow.Wait()
	s.fill(volumes.Filling{}, "f=2")
}
