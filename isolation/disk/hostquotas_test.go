// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

func entries() []*entry {
	return []*entry{
		{state: bound, id: firstBound, dev: 1, ino: 1 << 60, limits: Limits{Bytes: 1 << 40, Inodes: 7}, path: "/srv/a", users: []string{"k1", "k2"}},
		{state: making, id: firstBound + 1, path: "/srv/a b\n\"c\" 7"},
		{state: lifting, id: firstBound + 2, path: "/srv/\xff"},
		{state: claiming, id: firstBound + IDCount - 1, path: "/x"},
	}
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

func TestTheQuotaIDTableIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	b, err := openIDTable(state)
	if err != nil || len(b.entries) != 0 {
		t.Fatalf("b = %v, err = %v, want no error and len(b.entries) == 0", b, err)
	}
	b.entries = entries()
	if err := b.write(); err != nil {
		t.Fatal(err)
	}
	if _, err := openIDTable(state); err == nil {
		t.Error("no error when two keepers open the same table of project ids")
	}
	b.close()
	b, err = openIDTable(state)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if diff := cmp.Diff(entries(), b.entries, cmp.AllowUnexported(entry{})); diff != "" {
		t.Error(diff)
	}
	if e := b.ofBox("k2", "/srv/a/sub"); e == nil || e.path != "/srv/a" || b.ofBox("k2", "/srv/ab") != nil || b.ofBox("k3", "/srv/a") != nil {
		t.Errorf(`e = %+v, want e != nil and e.path == "/srv/a" and b.ofBox("k2", "/srv/ab") == nil and b.ofBox("k3", "/srv/a") == nil`,
			e)
	}
}

// A damaged id table is left unchanged, and no directory gets a quota.
func TestADamagedQuotaIDTableIsNotTouched(t *testing.T) {
	t.Parallel()
	good := encode(entries()[:1])
	for name, text := range map[string]string{
		"of another version": strings.Replace(good, "1", "2", 1),
		"empty":              "",
		"cut off":            strings.TrimSuffix(good, "k2\n"),
		"another state":      strings.Replace(good, bound, "thought", 1),
		"an id of others":    strings.Replace(good, "1660944384", "7", 1),
		"an id twice":        good + strings.TrimPrefix(good, head),
		"a relative path":    strings.Replace(good, `"/srv`, `"srv`, 1),
		"no number":          strings.Replace(good, " 7 ", " x ", 1),
	} {
		if name == "cut off" {
			text = strings.TrimSuffix(text, " ")
			text = text[:len(text)-1]
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			path := filepath.Join(state, idTableName)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			h := OpenHostQuotas(state, []string{"/srv"}, quiet())
			defer h.Close()
			h.Reconcile(func(string) bool { return false })
			h.Release("k1")
			if found := h.Probe(); len(found) != 2 || found[0] != "/srv" || found[1] == "" {
				t.Errorf(`found = %q, want len(found) == 2 and found[0] == "/srv" and found[1] != ""`, found)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != text {
				t.Errorf("it is %q now, %v", now, err)
			}
			if err := RemoveHostQuotas(state, quiet()); err == nil {
				t.Error("no error when the quotas of a damaged table are removed")
			}
		})
	}
}

// Boxes that have ended are forgotten, the quota is not.
func TestBoxesThatHaveEndedAreForgotten(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	b, err := openIDTable(state)
	if err != nil {
		t.Fatal(err)
	}
	b.entries = entries()[:1]
	if err := b.write(); err != nil {
		t.Fatal(err)
	}
	b.close()
	users := func(h *HostQuotas) string { return strings.Join(h.ids.entries[0].users, " ") }
	h := OpenHostQuotas(state, nil, quiet())
	h.Reconcile(func(key string) bool { return key == "k2" })
	if got := users(h); got != "k2" {
		t.Errorf(`got %q, want "k2"`, got)
	}
	h.Release("k2")
	h.Close()
	h.Release("k2") // the keeper ends
	h = OpenHostQuotas(state, nil, quiet())
	defer h.Close()
	if got := users(h); got != "" || h.find(firstBound) == nil {
		t.Errorf(`got %q, want got == "" and h.find(firstBound) != nil`, got)
	}
}

// Work that an earlier keeper has left unfinished on a removed directory is dropped, unless its
// filesystem is not mounted.
func TestUnfinishedQuotaWorkOnARemovedDirectoryIsDropped(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	b, err := openIDTable(state)
	if err != nil {
		t.Fatal(err)
	}
	b.entries = []*entry{
		{state: claiming, id: firstBound, dev: st.Dev, path: dir + "/gone/deeper"},
		{state: making, id: firstBound + 1, dev: st.Dev + 1, path: dir + "/elsewhere"},
	}
	if err := b.write(); err != nil {
		t.Fatal(err)
	}
	b.close()
	h := OpenHostQuotas(state, nil, quiet())
	defer h.Close()
	h.Reconcile(func(string) bool { return true })
	if h.find(firstBound) != nil || h.find(firstBound+1) == nil {
		t.Errorf("encode(h.ids.entries) = %s, want h.find(firstBound) == nil and h.find(firstBound + 1) != nil",
			encode(h.ids.entries))
	}
}

// A directory gets its quota or is refused, and outside of the roots boxd sets none.
func TestWhatCannotBeBoundedIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, root string
		bound      bool
		allowed    string // part of the message; "": no quota is called for
	}{
		{"below", root, true, "project quota"},
		{"a root that is a link", link, true, "project quota"},
		{"not below", root + "/other", true, "without symbolic links"},
		{"not asked for, where nothing could be bounded", root, false, ""},
		{"not asked for", "/nonexistent", false, ""},
	} {
		h := OpenHostQuotas(t.TempDir(), []string{tc.root}, quiet())
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = h.Take(t.Context(), "k", &isolation.Mount{Source: dir, Writable: true, Bound: tc.bound}, fd, Limits{Bytes: 1 << 20, Inodes: 16})
		unix.Close(fd)
		h.Close()
		step, ok := err.(*isolation.StepError) //nolint:errorlint // it is what the keeper sends
		if (err == nil) != (tc.allowed == "") || err != nil && (!ok || step.Refused == nil || step.Refused.Field != "workspace_quota" || !strings.Contains(step.Refused.Allowed, tc.allowed)) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if ok && len(h.Probe()) != 2 {
			t.Errorf("%s: h.Probe() = %q, want ok == false or len(h.Probe()) == 2", tc.name, h.Probe())
		}
	}
}

// A directory below a root but on another filesystem, which may hang, is recognized by its device
// number alone.
func TestADirectoryOnAnotherFilesystemIsNotAccessed(t *testing.T) {
	t.Parallel()
	h := OpenHostQuotas(t.TempDir(), []string{"/"}, quiet())
	defer h.Close()
	fd, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := &isolation.Mount{Source: "/proc/self", Writable: true, Bound: true}
	if err := h.Take(t.Context(), "k", m, fd, Limits{Bytes: 1 << 20, Inodes: 16}); err == nil || !strings.Contains(err.Error(), "on the filesystem of the mounts.quota_roots directory") {
		t.Error(err)
	}
	for path, want := range map[string]error{"/": nil, "/proc/self/fd": errMoved, "/nonexistent": unix.ENOENT} {
		fd, err := h.open(&entry{path: path})
		if !errors.Is(err, want) {
			t.Errorf("%s: err = %v, want err is %v", path, err, want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}

// Only one caller at a time works on a directory, and callers of other directories do not wait. Unfinished work on it is found by
// its path, unless a caller is still doing it.
func TestQuotaWorkOnADirectoryIsSerialized(t *testing.T) {
	t.Parallel()
	h := OpenHostQuotas(t.TempDir(), nil, quiet())
	defer h.Close()
	done, err := h.begin(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.begin(1, 2); !errors.Is(err, errBusy) {
		t.Error(err)
	}
	if other, err := h.begin(2, 2); err != nil {
		t.Error(err)
	} else {
		other()
	}
	done()
	if again, err := h.begin(1, 2); err != nil {
		t.Error(err)
	} else {
		again()
	}
	stale := &entry{path: "/a", state: lifting}
	h.ids.entries = []*entry{stale, {path: "/a", state: making, active: true}, {path: "/a", state: bound}, {path: "/b", state: making}}
	if got := h.unfinished("/a"); len(got) != 1 || got[0] != stale {
		t.Errorf("got %v, want len(got) == 1 and got[0] == stale", got)
	}
}

// Each kind of refusal has its message and its errno.
func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	want := Limits{Bytes: 1 << 20, Inodes: 16}
	for _, tc := range []struct {
		err   error
		errno syscall.Errno
		words string
	}{
		{&UsedError{Usage: Usage{Bytes: 77, Inodes: 5}}, unix.EDQUOT, "77 bytes and 5 files"},
		{&otherLimitError{Limits{Bytes: 99, Inodes: 9}}, unix.EBUSY, "99 bytes and 9 files"},
		{&UnavailableError{Reason: Off, Path: "/srv", Kind: "ext4"}, unix.EOPNOTSUPP, "prjquota"},
		{&reachError{Path: "a", What: "7 entries"}, unix.EOPNOTSUPP, "more than 7 entries"},
		{&walkError{Path: "a", Err: &otherError{ID: 7}}, unix.EOPNOTSUPP, "project 7"},
		{&walkError{Path: "a", Err: unix.EPERM}, unix.EOPNOTSUPP, "not permitted"},
		{errBusy, unix.EOPNOTSUPP, "another box"},
		{errForeign, unix.EOPNOTSUPP, "a project id that boxd did not set"},
	} {
		err := explainHostQuota("/srv/a", want, tc.err)
		step, ok := err.(*isolation.StepError) //nolint:errorlint // it is what the keeper sends
		if !ok || step.Errno != tc.errno || step.Refused == nil || !strings.Contains(step.Refused.Allowed, tc.words) {
			t.Errorf("%v: err = %v, want ok == true and step.Errno == tc.errno and step.Refused != nil and step.Refused.Allowed containing %q",
				tc.err, err, tc.words)
		}
	}
	if err := explainHostQuota("/srv/a", want, unix.EIO); err != unix.EIO { //nolint:errorlint // as it is
		t.Errorf("err = %v, want unix.EIO", err)
	}
}
