// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// nothingRuns waits until the session has no running program.
func nothingRuns(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	boxtest.Eventually(t, "no program runs", func() bool {
		s, err := d.Session(t.Context(), "s")
		return err == nil && s.Running == 0
	})
}

func TestDirectoriesAreMadeAndDescribed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	ctx := t.Context()
	made, err := d.MakeDirectory(ctx, "s", &api.FileMkdir{Path: "a/b"})
	if err != nil || !made.Created || made.File.Type != "directory" || made.File.Mode != "0755" {
		t.Fatalf("made %+v, %v", made, err)
	}
	d.Sh(t, "s", "echo x >a/file; ln -s a/file link; ln -s /etc/passwd far; ln -s nowhere dangling")
	for path, want := range map[string]string{"a/b": "exists", "a/file": "not_directory", "a/file/c": "not_directory", "link": "not_directory", "dangling": "not_directory"} {
		_, err := d.MakeDirectory(ctx, "s", &api.FileMkdir{Path: path})
		if k := fileKind(t, err); k != want {
			t.Errorf("mkdir %s: %q, want %q", path, k, want)
		}
	}
	if again, err := d.MakeDirectory(ctx, "s", &api.FileMkdir{Path: "a/b", ExistOK: true, Mode: "0700"}); err != nil || again.Created || again.File.Mode != "0755" {
		t.Errorf(`made again: again = %+v, err = %v, want no error and again.Created == false and again.File.Mode == "0755"`,
			again, err)
	}
	_, err = d.MakeDirectory(ctx, "s", &api.FileMkdir{Path: "c", Mode: "1777"})
	boxtest.Refused(t, err, 400, "mode")

	list, err := d.ListFiles(ctx, "s", &api.FileList{})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]api.File{}
	for _, e := range list.Entries {
		by[e.Path] = e
		if e.User != "box" || e.Group != "box" || e.UID == nil || *e.UID != 1000 || e.GID == nil || *e.GID != 1000 {
			t.Errorf("%s belongs to %q and %q", e.Path, e.User, e.Group)
		}
	}
	for path, want := range map[string][3]string{"link": {"/workspace/a/file", "file", "0644"}, "far": {"/etc/passwd", "file", "0644"}, "dangling": {}} {
		if e := by[path]; e.Resolved != want[0] || e.TargetType != want[1] || e.TargetMode != want[2] || e.Type != "symlink" {
			t.Errorf("%s leads to %q, a %q with mode %q, want %q", path, e.Resolved, e.TargetType, e.TargetMode, want)
		}
	}
	root, err := d.StatFile(ctx, "s", &api.FileStat{Path: "/etc/passwd"})
	if err != nil || root.User == "box" || root.UID == nil || *root.UID == 1000 { // owned by a host user, who is unmapped here
		t.Errorf(`/etc/passwd: root = %+v, err = %v, want no error and root.User != "box" and root.UID != nil and *root.UID != 1000`,
			root, err)
	}
}

// Extended attributes that an agent sets stay with their file, and programs in the box see them.
func TestAttributesComeWithAFile(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	ctx, b64 := t.Context(), func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	to := client.PutFile{Path: "f", XattrsPrefix: "user.app.", Xattrs: map[string]string{"user.app.author": b64("me"), "user.app.raw": b64("\x00\xff")}}
	if _, err := d.PutFile(ctx, "s", to, strings.NewReader("one")); fileKindOrNone(err) == "unsupported" {
		boxtest.Missing(t, "extended attributes in the workspace")
	} else if err != nil {
		t.Fatal(err)
	}
	told := func() map[string]string {
		f, err := d.StatFile(ctx, "s", &api.FileStat{Path: "f", Xattrs: true})
		if err != nil {
			t.Fatal(err)
		}
		return f.Xattrs
	}
	if got := told(); len(got) != 2 || got["user.app.raw"] != b64("\x00\xff") {
		t.Errorf("attributes %v", got)
	}
	if _, err := d.WriteFile(ctx, "s", &api.FileWrite{Path: "f", Content: "two", XattrsPrefix: "user.app.", Xattrs: map[string]string{"user.app.author": b64("you")}}); err != nil {
		t.Fatal(err)
	}
	if got := told(); len(got) != 1 || got["user.app.author"] != b64("you") {
		t.Errorf(`replaced, the attributes are %v, want len(got) == 1 and got["user.app.author"] == b64("you")`, got)
	}
	_, err := d.WriteFile(ctx, "s", &api.FileWrite{Path: "f", Content: "x", Xattrs: map[string]string{"user.a": ""}})
	boxtest.Refused(t, err, 400, "xattrs_prefix")
	_, err = d.PutFile(ctx, "s", client.PutFile{Path: "f", XattrsPrefix: "security."}, strings.NewReader("x"))
	if k := fileKind(t, err); k != "bad_request" {
		t.Errorf(`attributes that are not the user's: k = %q, want "bad_request"`, k)
	}
}

func fileKindOrNone(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok && e.File != nil {
		return e.File.Kind
	}
	return ""
}

// A file of any size is streamed through boxd in both directions, and boxd never buffers much of it.
func TestAFileOfAnySizeIsStreamed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	const size = 2 << 30
	d.Sh(t, "s", fmt.Sprintf("truncate -s %d big; printf end >>big", size))
	before := boxtest.Memory(t, d.PID(), "VmHWM")
	f, err := d.OpenFile(t.Context(), "s", "big", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Length != size+3 || f.ModifiedAt.IsZero() {
		t.Errorf("before the first byte: %d bytes, of %v", f.Length, f.ModifiedAt)
	}
	if n, err := io.Copy(io.Discard, f); err != nil || n != size+3 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if more := boxtest.Memory(t, d.PID(), "VmHWM") - before; more > 64<<20 {
		t.Errorf("boxd took %d bytes more for that", more)
	}

	const part = 64 << 20
	done, err := d.PutFile(t.Context(), "s", client.PutFile{Path: "new/one"}, io.LimitReader(zeros{}, part)) // of undeclared length
	if err != nil || !done.Created || done.File.Size != part || done.File.Mode != "0644" {
		t.Errorf("wrote %+v, %v", done, err)
	}
	if more := boxtest.Memory(t, d.PID(), "VmHWM") - before; more > 64<<20 {
		t.Errorf("boxd took %d bytes more for both", more)
	}
	d.Sh(t, "s", "chmod 700 new/one; ln new/one other")
	if done, err = d.PutFile(t.Context(), "s", client.PutFile{Path: "other"}, strings.NewReader("short")); err != nil || done.Created || done.File.Mode != "0700" {
		t.Errorf(`wrote again: done = %+v, err = %v, want no error and done.Created == false and done.File.Mode == "0700"`,
			done, err)
	}
	if got := d.Sh(t, "s", "cat new/one"); got != "short" {
		t.Errorf(`by its other name it is %q, want "short"`, got)
	}
	nothingRuns(t, d)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A file that the client already has is not sent again; a range request for a file that has changed meanwhile gets the whole file.
func TestAFileIsSentIfItHasChanged(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "printf 0123456789 > f; touch -d @1700000000.5 f")
	const seen, before = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT"
	const tag, other, all = `"17979cfe53f76500-a"`, `"17979cfe53f76501-a"`, "0123456789"
	for name, tc := range map[string]struct {
		header []string
		code   int
		body   string
	}{
		"unchanged since":            {[]string{"If-Modified-Since", seen}, 304, ""},
		"changed since":              {[]string{"If-Modified-Since", before}, 200, all},
		"another tag":                {[]string{"If-None-Match", other, "If-Modified-Since", seen}, 200, all},
		"its tag among others":       {[]string{"If-None-Match", other + ", " + tag}, 304, ""},
		"a part of what is there":    {[]string{"If-None-Match", tag, "Range", "bytes=8-"}, 304, ""},
		"unmodified since":           {[]string{"If-Unmodified-Since", seen}, 200, all},
		"modified since":             {[]string{"If-Unmodified-Since", before}, 412, ""},
		"only its tag":               {[]string{"If-Match", tag}, 200, all},
		"only another tag":           {[]string{"If-Match", other}, 412, ""},
		"the rest of its tag":        {[]string{"If-Range", tag, "Range", "bytes=8-"}, 206, "89"},
		"the rest of another tag":    {[]string{"If-Range", other, "Range", "bytes=8-"}, 200, all},
		"the rest of the same time":  {[]string{"If-Range", seen, "Range", "bytes=8-"}, 206, "89"},
		"the rest of another time":   {[]string{"If-Range", before, "Range", "bytes=8-"}, 200, all},
		"the rest, if it is another": {[]string{"If-None-Match", other, "Range", "bytes=8-"}, 206, "89"},
	} {
		var lines []string
		for pair := range slices.Chunk(tc.header, 2) {
			lines = append(lines, pair[0]+": "+pair[1])
		}
		a := d.Raw(t, "GET", "/v1/sessions/s/file?path=f", "", lines...)
		body := string(a.Body)
		if a.Code == http.StatusPreconditionFailed && strings.Contains(body, "the file has changed") {
			body = ""
		}
		if a.Code != tc.code || body != tc.body || a.Header.Get("Last-Modified") != seen || a.Header.Get("ETag") != tag {
			t.Errorf(`%s: a.Code = %d, a.Body = %q, a.Header = %v, want a.Code == %v and body == tc.body and a.Header.Get("Last-Modified") == seen and a.Header.Get("ETag") == tag`,
				name, a.Code, a.Body, a.Header, tc.code)
		}
	}
	nothingRuns(t, d)
	d.Sh(t, "s", "printf 9876543210 > f")
	if a := d.Raw(t, "GET", "/v1/sessions/s/file?path=f", "", "If-None-Match: "+tag); a.Code != 200 || string(a.Body) != "9876543210" {
		t.Errorf(`changed: a.Code = %d, a.Body = %q, want a.Code == 200 and a.Body == "9876543210"`, a.Code, a.Body)
	}
}

func TestAFileIsReadInRanges(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "printf 0123456789 >f; : >empty; mkfifo fifo")
	const at = "/v1/sessions/s/file?path=f"
	whole := d.Raw(t, "GET", at, "")
	if whole.Code != 200 || string(whole.Body) != "0123456789" || whole.Header.Get("Accept-Ranges") != "bytes" {
		t.Fatalf(`all of it: whole.Code = %d, whole.Header = %v, whole.Body = %q, want whole.Code == 200 and whole.Body == "0123456789" and whole.Header.Get("Accept-Ranges") == "bytes"`,
			whole.Code, whole.Header, whole.Body)
	}
	modified := whole.Header.Get("Last-Modified")
	for header, want := range map[string]string{
		"bytes=2-4": "206 234 bytes 2-4/10", "bytes=7-": "206 789 bytes 7-9/10", "bytes=-3": "206 789 bytes 7-9/10", "bytes=8-100": "206 89 bytes 8-9/10", "bytes=-99": "206 0123456789 bytes 0-9/10",
		"bytes=10-": "416  bytes */10", "bytes=-0": "416  bytes */10", "bytes=1-2,4-5": "200 0123456789 ", "lines=1-2": "200 0123456789 ", "bytes=4-2": "200 0123456789 ", "bytes=+1-2": "200 0123456789 ",
		"bytes=0-9223372036854775807": "206 0123456789 bytes 0-9/10",
	} {
		a := d.Raw(t, "GET", at, "", "Range: "+header)
		if a.Code == http.StatusRequestedRangeNotSatisfiable {
			a.Problem(t)
			a.Body = nil
		}
		if got := fmt.Sprintf("%d %s %s", a.Code, a.Body, a.Header.Get("Content-Range")); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	if a := d.Raw(t, "GET", at, "", "Range: bytes=2-4", "If-Range: "+modified); a.Code != 206 {
		t.Errorf("of the same file: a.Code = %d, want 206", a.Code)
	}
	if a := d.Raw(t, "GET", at, "", "Range: bytes=2-4", "If-Range: Sat, 01 Jan 2000 00:00:00 GMT"); a.Code != 200 || string(a.Body) != "0123456789" {
		t.Errorf(`of another file: a.Code = %d, a.Body = %q, want a.Code == 200 and a.Body == "0123456789"`,
			a.Code, a.Body)
	}
	if a := d.Raw(t, "GET", "/v1/sessions/s/file?path=empty", "", "Range: bytes=0-"); a.Code != 200 || len(a.Body) != 0 {
		t.Errorf("a part of nothing: a.Code = %d, a.Body = %q, want a.Code == 200 and len(a.Body) == 0", a.Code, a.Body)
	}
	for path, want := range map[string]string{"fifo": "not_regular", "none": "not_found", "/workspace": "is_directory", "/proc/self/status": "not_regular"} {
		if a := d.Raw(t, "GET", "/v1/sessions/s/file?path="+path, ""); a.Problem(t).File == nil || a.Problem(t).File.Kind != want {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Problem(t).File != nil and a.Problem(t).File.Kind == want",
				path, a.Code, a.Body)
		}
	}
	nothingRuns(t, d)
}

// A client that disconnects in mid-transfer leaves what it has sent, and no running program.
func TestAClientThatVanishesLeavesNoProgram(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PUT /v1/sessions/s/file?path=half HTTP/1.1\r\nHost: boxd\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the first half of the file is there", func() bool { return d.Sh(t, "s", "cat half 2>&-; :") == "first" })
	conn.Close()
	nothingRuns(t, d)
	if got := d.Sh(t, "s", "cat half"); got != "first" {
		t.Errorf(`it has left %q, want "first"`, got)
	}

	d.Sh(t, "s", "truncate -s 1G big")
	f, err := d.OpenFile(t.Context(), "s", "big", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, f, 1<<20); err != nil {
		t.Error(err)
	}
	f.Close()
	nothingRuns(t, d)

	// A file that is truncated during a download is not reported as complete.
	f, err = d.OpenFile(t.Context(), "s", "big", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d.Sh(t, "s", ": >big")
	if n, err := io.Copy(io.Discard, f); err == nil {
		t.Errorf("%d bytes of a file that is no more, without an error", n)
	}
	nothingRuns(t, d)
}

func TestAFullDiskIsTold(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\ntmp = \"1MiB\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	_, err := d.PutFile(t.Context(), "s", client.PutFile{Path: "/tmp/f"}, io.LimitReader(zeros{}, 16<<20))
	if k := fileKind(t, err); k != "no_space" || boxtest.StatusOf(err) != http.StatusTooManyRequests {
		t.Errorf(`%v: k = %q, boxtest.StatusOf(err) = %d, want k == "no_space" and boxtest.StatusOf(err) == 429`,
			err, k, boxtest.StatusOf(err))
	}
	if got := d.Sh(t, "s", "[ $(stat -c %s /tmp/f) -gt 100000 ] && echo some of it"); got != "some of it\n" {
		t.Errorf(`the file that fits is missing: got %q, want "some of it\n"`, got)
	}
	nothingRuns(t, d)
}

// watcher is a watch on a directory of session s.
type watcher struct {
	events chan api.FileEvent
	over   chan error
	stop   context.CancelFunc
}

func watch(t *testing.T, d *boxtest.Daemon, o client.WatchFiles) *watcher {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	w := &watcher{events: make(chan api.FileEvent), over: make(chan error, 1), stop: stop}
	go func() {
		w.over <- d.WatchFiles(ctx, "s", o, func(e *api.FileEvent) error {
			select {
			case w.events <- *e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	select {
	case e := <-w.events:
		if e.Event != "watching" {
			t.Fatalf(`the first event is %+v, want e.Event == "watching"`, e)
		}
	case err := <-w.over:
		t.Fatalf("watch %+v: %v", o, err)
	}
	return w
}

// until returns the events before the creation of the path mark, in short form.
func (w *watcher) until(t *testing.T, mark string) (list []string) {
	t.Helper()
	for {
		select {
		case e := <-w.events:
			if e.Path == mark {
				return list
			}
			list = append(list, e.Event+" "+e.Path+" "+e.Type)
		case err := <-w.over:
			t.Fatalf("it has ended with %v after %q", err, list)
		}
	}
}

// A watch reports changes made by programs and by boxd on behalf of callers, anywhere in the tree.
func TestADirectoryIsWatched(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false)})
	w := watch(t, d, client.WatchFiles{Recursive: true, Entries: true})
	d.Sh(t, "s", `mkdir -p new/deep; echo x >new/deep/file; printf x >"$(printf 'caf\351')"; mkdir m1`)
	got := w.until(t, "m1")
	for _, want := range []string{"create new directory", "create new/deep directory", "create new/deep/file file", "write new/deep/file file"} {
		if !slices.Contains(got, want) {
			t.Errorf("there is no %q in %q", want, got)
		}
	}
	if _, err := d.PutFile(t.Context(), "s", client.PutFile{Path: "put"}, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	e := <-w.events
	if e.Event != "create" || e.Path != "put" || e.File == nil || e.File.User != "box" || e.File.Mode != "0644" {
		t.Errorf(`boxd has written a file: e = %+v, want e.Event == "create" and e.Path == "put" and e.File != nil and e.File.User == "box" and e.File.Mode == "0644"`,
			e)
	}
	d.Sh(t, "s", "mkdir m2; mv new old; rm old/deep/file; mkdir m3")
	w.until(t, "m2")
	want := []string{"rename new directory", "create old directory", "remove old/deep/file "}
	if got := w.until(t, "m3"); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}

	// The writable root is an overlay; its changes arrive through another mount than those of the image.
	root := watch(t, d, client.WatchFiles{Path: "/opt", Recursive: true})
	d.Sh(t, "s", "mkdir /opt/tool; echo x >/opt/tool/run; mkdir /opt/m4")
	if got := root.until(t, "m4"); !slices.Contains(got, "create tool/run file") {
		t.Errorf("of the root %q", got)
	}
	root.stop()
	w.stop()
	nothingRuns(t, d)
}

// A watch follows no link out of its directory, neither an existing link nor one that replaces a directory.
func TestAWatchStaysInItsDirectory(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "mkdir -p w/real/sub /tmp/out/sub; ln -s /tmp/out w/link; mkfifo fifo; mkdir closed; chmod 0 closed")
	for path, want := range map[string]string{"fifo": "not_directory", "none": "not_found", "closed": "not_permitted", "/proc": "unsupported"} {
		err := d.WatchFiles(t.Context(), "s", client.WatchFiles{Path: path}, func(*api.FileEvent) error { return nil })
		if k := fileKind(t, err); k != want {
			t.Errorf("%s: %q, want %q", path, k, want)
		}
	}
	d.NewProcess(t, "s", "swapper", boxtest.ShellProcess("cd w; while :; do mv -T link tmp && mv -T real link && mv -T tmp real; mv -T link tmp && mv -T real link && mv -T tmp real; done"))
	for range 5 {
		w := watch(t, d, client.WatchFiles{Path: "w", Recursive: true})
		d.Sh(t, "s", "echo x >/tmp/out/secret; echo x >/tmp/out/sub/secret; rm /tmp/out/secret /tmp/out/sub/secret")
		for range 100 {
			if e := <-w.events; strings.Contains(e.Path, "secret") {
				t.Fatalf("unexpected event %+v", e)
			}
		}
		w.stop()
	}
}

// Each watch costs a program in the box, so their number is limited, and none is left once its client has gone.
func TestWatchesAreBoundedAndEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "mkdir w")
	var all []*watcher
	for range 16 {
		all = append(all, watch(t, d, client.WatchFiles{Path: "w"}))
	}
	err := d.WatchFiles(t.Context(), "s", client.WatchFiles{Path: "w"}, func(*api.FileEvent) error { return nil })
	if boxtest.StatusOf(err) != http.StatusTooManyRequests || !strings.Contains(err.Error(), "16 watches") {
		t.Errorf(`one more: err = %v, want boxtest.StatusOf(err) == 429 and err containing "16 watches"`, err)
	}
	for _, w := range all[1:] {
		w.stop()
	}
	boxtest.Eventually(t, "one watch is left", func() bool {
		s, err := d.Session(t.Context(), "s")
		return err == nil && s.Running == 1
	})
	d.Sh(t, "s", "rmdir w")
	last := ""
	for over := false; !over; {
		select {
		case e := <-all[0].events:
			last = e.Event + " " + e.Path
		case err := <-all[0].over:
			if over = true; err != nil || last != "remove ." {
				t.Errorf("after the removal of the directory: %v after %q", err, last)
			}
		}
	}
	nothingRuns(t, d)

	// Too many directories are an error during the watch as well.
	w := watch(t, d, client.WatchFiles{Recursive: true})
	d.Sh(t, "s", "mkdir many; cd many; for i in $(seq 100); do mkdir $i; (cd $i; mkdir $(seq 82)); done")
	for over := false; !over; {
		select {
		case <-w.events:
		case err := <-w.over:
			if over = true; fileKindOrNone(err) != "too_many" {
				t.Errorf("more than 8192 directories: %v", err)
			}
		}
	}
	nothingRuns(t, d)

	// A client that watches over a raw connection and closes it is noticed.
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /v1/sessions/s/fs/watch HTTP/1.1\r\nHost: boxd\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(conn); lines.Scan() && !strings.Contains(lines.Text(), "watching"); {
	}
	conn.Close()
	nothingRuns(t, d)
}

// A watch ends with its boxd: it has no reader any more, and the next boxd does not adopt it.
func TestAWatchEndsWithItsBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	w := watch(t, d, client.WatchFiles{})
	helpers := func() int { return strings.Count(strings.Join(d.Look().Processes, "\n"), "boxfiles") }
	if helpers() != 1 {
		t.Fatalf("d.Look().Processes = %q, want helpers() == 1", d.Look().Processes)
	}
	d.Kill()
	if err := <-w.over; err == nil {
		t.Error("boxd was killed, and the watch ended without an error")
	}
	d.Restart()
	boxtest.Eventually(t, "the worker process of the watch is gone", func() bool { return helpers() == 0 })
	nothingRuns(t, d)
}

// Changes by the host in a directory that is mounted into a box are reported by a watch in the box.
func TestAWatchSeesWhatTheHostDoesToAMount(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.MountSource(t, "one", 0)
	d.NewSession(t, api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: source, Target: "/mnt/one", Mode: "ro"}}})
	w := watch(t, d, client.WatchFiles{Path: "/mnt/one", Recursive: true})
	for _, dir := range []string{"sub", "mark"} {
		if err := os.Mkdir(filepath.Join(source, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.until(t, "mark"); !slices.Equal(got, []string{"create sub directory"}) {
		t.Errorf("events %q", got)
	}
}
