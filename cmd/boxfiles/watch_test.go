// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	main "github.com/boxd-dev/boxd/cmd/boxfiles"
	"github.com/boxd-dev/boxd/isolation/files"
)

// watched is a directory that is being watched.
type watched struct {
	t       *testing.T
	dir     string
	in      *files.Incoming
	pending []files.Event
	answer  *files.Answer
}

func watch(t *testing.T, req files.Watch) *watched {
	t.Helper()
	r, w := io.Pipe()
	request := encode(t, &files.Request{Watch: &req}, nil)
	go func() {
		main.Main(request, w)
		w.Close()
	}()
	t.Cleanup(func() { r.Close() })
	got := &watched{t: t, dir: string(req.Path), in: files.NewIncoming(r)}
	if e := got.next(); e != nil && e.What != files.Watching {
		t.Fatalf("the first event is %+v, want e == nil or e.What == files.Watching", e)
	}
	return got
}

// next returns the next event, nil after the last.
func (w *watched) next() *files.Event {
	w.t.Helper()
	for len(w.pending) == 0 {
		p, err := w.in.Next()
		switch {
		case err != nil:
			w.t.Fatal(err)
		case p.Answer != nil:
			w.answer = p.Answer
			return nil
		}
		w.pending = p.Notice.Events
	}
	e := w.pending[0]
	w.pending = w.pending[1:]
	return &e
}

// until creates a mark, and returns the events before it, in short form.
func (w *watched) until(mark string) (list []string) {
	w.t.Helper()
	if err := os.Mkdir(filepath.Join(w.dir, mark), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for {
		e := w.next()
		if e == nil {
			w.t.Fatalf("it ended with %+v after %q", w.answer, list)
		}
		if string(e.Path) == mark {
			return slices.Compact(list) // the kernel merges equal events only while the first is unread
		}
		text := e.What + " " + string(e.Path) + " " + e.Type
		if len(e.From) > 0 {
			text += " from " + string(e.From)
		}
		list = append(list, text)
	}
}

func (w *watched) mustNotify(mark string, want ...string) {
	w.t.Helper()
	if got := w.until(mark); !slices.Equal(got, want) {
		w.t.Errorf("before %s:\n%s\nwant\n%s", mark, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// do fails the test on an error.
func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// grow appends to a file in one step; truncating it first might cause a second event.
func grow(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("2")
	return errors.Join(err, f.Close())
}

func TestWatchTellsWhatHappens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.MkdirAll(dir+"/there/deep", 0o755))
	put(t, dir+"/there/deep/old", "x")
	w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 100})

	do(t, os.WriteFile(dir+"/file", []byte("1"), 0o644))
	w.mustNotify("m1", "create file file", "write file file")
	do(t, os.Chmod(dir+"/file", 0o600))
	w.mustNotify("m2a", "chmod file file")
	do(t, os.Rename(dir+"/file", dir+"/there/moved"))
	w.mustNotify("m2", "rename file ", "create there/moved file from file")
	do(t, os.Remove(dir+"/there/moved"))
	w.mustNotify("m3", "remove there/moved ")

	// Existing directories are watched, and reported under their new paths after a move.
	do(t, grow(dir+"/there/deep/old"))
	w.mustNotify("m4", "write there/deep/old file")
	do(t, os.Rename(dir+"/there", dir+"/here"))
	w.mustNotify("m5", "rename there directory", "create here directory from there")
	do(t, os.Remove(dir+"/here/deep/old"), os.Remove(dir+"/here/deep"))
	w.mustNotify("m6", "remove here/deep/old ", "remove here/deep directory")

	// Links are reported as links, and not followed.
	outside := t.TempDir()
	do(t, os.Symlink(outside, dir+"/link"))
	w.mustNotify("m7", "create link symlink")
	do(t, os.WriteFile(outside+"/x", []byte("1"), 0o644), unix.Mkfifo(dir+"/fifo", 0o644))
	w.mustNotify("m8", "create fifo fifo")

	// A file that is moved out is no longer watched, and one that is moved in is reported with its content.
	do(t, os.Mkdir(dir+"/here/sub", 0o755))
	w.mustNotify("m9", "create here/sub directory")
	do(t, os.Rename(dir+"/here", outside+"/here"))
	w.mustNotify("m10", "rename here directory")
	do(t, os.WriteFile(outside+"/here/sub/unseen", []byte("1"), 0o644))
	w.mustNotify("m11")
	do(t, os.Rename(outside+"/here", dir+"/back"))
	w.mustNotify("m12", "create back directory", "create back/sub directory", "create back/sub/unseen file", "write back/sub/unseen file")
	do(t, grow(dir+"/back/sub/unseen"))
	w.mustNotify("m13", "write back/sub/unseen file")
}

// A write by boxfiles is reported as one in place, although it uses a temporary name until it is complete.
func TestWatchTellsNothingOfTemporaryNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.Mkdir(dir+"/sub", 0o755))
	w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 100})
	write := func(path, content string) {
		t.Helper()
		if a, _ := request(t, &files.Request{Write: &files.Write{Path: []byte(path), How: files.Overwrite, Most: 10}}, []byte(content)...); a.Failure != nil {
			t.Fatal(a.Failure)
		}
	}
	write(dir+"/sub/new", "1")
	w.mustNotify("m1", "create sub/new file", "write sub/new file")
	write(dir+"/sub/new", "22")
	w.mustNotify("m2", "create sub/new file", "write sub/new file")
	write(dir+"/sub/new", "")
	w.mustNotify("m3", "create sub/new file")

	// A staging directory is hidden with its content, until that is moved into place.
	stage := dir + "/.boxd-" + rand.Text()
	do(t, os.MkdirAll(stage+"/content/tree", 0o755), os.WriteFile(stage+"/content/tree/x", []byte("1"), 0o644))
	w.mustNotify("m4")
	do(t, os.Rename(stage+"/content/tree", dir+"/tree"), os.RemoveAll(stage))
	w.mustNotify("m5", "create tree directory", "create tree/x file", "write tree/x file")

	// Neither of these is boxfiles' own.
	do(t, os.Mkdir(dir+"/.boxd-mine", 0o755), os.Mkdir(dir+"/"+rand.Text()+".boxd-", 0o755))
	if got := w.until("m6"); len(got) != 2 {
		t.Errorf("got %q, want len(got) == 2", got)
	}
}

// A tree that is created at once is reported completely, with each of its files, and without duplicates.
func TestWatchLosesNothingOfANewTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 1000})
	made := make(chan error, 1)
	go func() {
		for i := range 30 {
			for j := range 5 {
				at := fmt.Sprintf("%s/a%d/b%d/c", dir, i, j)
				if err := os.MkdirAll(at, 0o755); err != nil {
					made <- err
					return
				}
				if err := os.WriteFile(at+"/file", []byte("x"), 0o644); err != nil {
					made <- err
					return
				}
			}
		}
		made <- nil
	}()
	created, written := map[string]int{}, map[string]bool{}
	for len(created) < 30+30*5*3 || len(written) < 30*5 {
		e := w.next()
		switch e.What {
		case files.Created:
			created[string(e.Path)]++
		case files.Written:
			written[string(e.Path)] = true
		default:
			t.Fatalf("e = %+v", e)
		}
	}
	do(t, <-made)
	for path, n := range created {
		if n > 1 {
			t.Errorf("%s was reported %d times", path, n)
		}
	}
}

func TestWatchHasBoundsAndAnEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.MkdirAll(dir+"/a/b", 0o755))
	w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 3})
	do(t, os.Mkdir(dir+"/c", 0o755))
	for e := w.next(); e != nil; e = w.next() {
		if e.What != files.Created {
			t.Errorf("e = %+v, want e.What == files.Created", e)
		}
	}
	if f := w.answer.Failure; f == nil || f.Kind != files.TooMany || !strings.Contains(f.Text, "more than 3 directories") {
		t.Errorf(`at its bound: w.answer = %+v, want f != nil and f.Kind == files.TooMany and f.Text containing "more than 3 directories"`,
			w.answer)
	}
	mustFail(t, files.TooMany, &files.Request{Watch: &files.Watch{Path: []byte(dir), Recursive: true, Limit: 3}})

	flat := watch(t, files.Watch{Path: []byte(dir), Limit: 1, Entries: true})
	do(t, os.WriteFile(dir+"/a/unseen", nil, 0o644), os.WriteFile(dir+"/seen", nil, 0o640))
	if e := flat.next(); string(e.Path) != "seen" || e.Entry == nil || e.Entry.Mode != 0o640 || e.Entry.Owner == nil {
		t.Errorf(`not recursive, with entries: e = %+v, want e.Path == "seen" and e.Entry != nil and e.Entry.Mode == 0o640 and e.Entry.Owner != nil`,
			e)
	}
	do(t, os.RemoveAll(dir))
	last := files.Event{}
	for e := flat.next(); e != nil; e = flat.next() {
		last = *e
	}
	if last.What != files.Removed || string(last.Path) != "." || !flat.answer.Done {
		t.Errorf("removed, the last event is %+v, the answer %+v", last, flat.answer)
	}

	for path, kind := range map[string]files.Kind{dir + "/none": files.NotFound, "/dev/null": files.NotDirectory, "/proc/self": files.Unsupported, "": files.BadPath} {
		mustFail(t, kind, &files.Request{Watch: &files.Watch{Path: []byte(path), Limit: 10}})
	}
}

// An overflow of the event queue is reported, and directories created meanwhile are watched.
func TestWatchTellsThatItHasLostSomething(t *testing.T) {
	t.Parallel()
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	do(t, err)
	most := 0
	if _, err := fmt.Sscan(string(limit), &most); err != nil || most > 100_000 {
		t.Fatalf("the kernel's queue has %s places", limit)
	}
	dir := t.TempDir()
	w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 100})
	// The events are not read: the program blocks on its first event, and the kernel's queue overflows.
	for i := range most + 3000 {
		do(t, os.WriteFile(fmt.Sprintf("%s/f%d", dir, i), nil, 0o644))
	}
	do(t, os.MkdirAll(dir+"/late/later", 0o755))
	lost, found := false, false
	for !lost || !found {
		e := w.next()
		lost = lost || e.What == files.Overflow
		found = found || e.What == files.Created && string(e.Path) == "late/later"
	}
	do(t, os.WriteFile(dir+"/late/later/file", nil, 0o644))
	for e := w.next(); string(e.Path) != "late/later/file"; e = w.next() {
	}
}

// Replacing a directory by a link during the walk leads the watch nowhere else.
func TestWatchFollowsNoLinkThatTakesThePlaceOfADirectory(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	do(t, os.MkdirAll(outside+"/sub", 0o755), os.MkdirAll(dir+"/real/sub", 0o755), os.Symlink(outside, dir+"/link"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/real", unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 20 {
		w := watch(t, files.Watch{Path: []byte(dir), Recursive: true, Limit: 100})
		do(t, os.WriteFile(outside+"/secret", []byte("x"), 0o644), os.WriteFile(outside+"/sub/secret", []byte("x"), 0o644))
		for range 50 {
			if e := w.next(); strings.HasSuffix(string(e.Path), "secret") {
				t.Fatalf("unexpected event %+v", e)
			}
		}
		do(t, os.Remove(outside+"/secret"), os.Remove(outside+"/sub/secret"))
	}
	close(stop)
	<-stopped
}

// A directory whose end was lost with other events is gone all the same.
func TestAWatchEndsThoughTheEndOfItsDirectoryWasLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/d"
	do(t, os.Mkdir(dir, 0o755))
	w := watch(t, files.Watch{Path: []byte(dir), Limit: 100})
	for i := range 24000 {
		name := fmt.Sprintf("%s/f%d", dir, i%50)
		do(t, os.WriteFile(name, nil, 0o644), os.Remove(name))
	}
	do(t, os.RemoveAll(dir))
	last := files.Event{}
	for e := w.next(); e != nil; e = w.next() {
		last = *e
	}
	if last.What != files.Removed || string(last.Path) != "." || !w.answer.Done {
		t.Errorf("the last event is %+v, the answer %+v", last, w.answer)
	}
}
