// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// sent sends a request for files of the sandbox.
func (sb *sandbox) sent(t *testing.T, method, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	return sb.host.sends(t, method, path, body, append(sb.of("49983"), header...)...)
}

// File errors have the codes that clients know.
func TestFilesAreRefusedByCode(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	sb.sh(t, "mkdir dir; echo x > file; ln -s nowhere dangling; ln -s dir link; ln -s /etc out")
	fs := sb.filesystem()
	for name, tc := range map[string]struct {
		do   func() error
		code connect.Code
	}{
		"stat of nothing":   {func() error { _, err := fs.Stat(t.Context(), &protocol.StatRequest{Path: "nothing"}); return err }, connect.CodeNotFound},
		"a directory twice": {func() error { _, err := fs.MakeDir(t.Context(), &protocol.MakeDirRequest{Path: "dir"}); return err }, connect.CodeAlreadyExists},
		"a directory over":  {func() error { _, err := fs.MakeDir(t.Context(), &protocol.MakeDirRequest{Path: "file"}); return err }, connect.CodeInvalidArgument},
		"a list of a file":  {func() error { _, err := fs.ListDir(t.Context(), &protocol.ListDirRequest{Path: "file"}); return err }, connect.CodeInvalidArgument},
		"a list of nothing": {func() error { _, err := fs.ListDir(t.Context(), &protocol.ListDirRequest{Path: "nothing"}); return err }, connect.CodeNotFound},
		"to move nothing": {func() error {
			_, err := fs.Move(t.Context(), &protocol.MoveRequest{Source: "nothing", Destination: "x"})
			return err
		}, connect.CodeNotFound},
		"to write into the host": {func() error { _, err := fs.MakeDir(t.Context(), &protocol.MakeDirRequest{Path: "/proc/x"}); return err }, connect.CodeNotFound},
		"to remove nothing":      {func() error { _, err := fs.Remove(t.Context(), &protocol.RemoveRequest{Path: "nothing"}); return err }, 0},
		"a path with a NUL":      {func() error { _, err := fs.Stat(t.Context(), &protocol.StatRequest{Path: "a\x00b"}); return err }, connect.CodeInvalidArgument},
	} {
		err := tc.do()
		if got := connect.CodeOf(err); err != nil && got != tc.code || err == nil && tc.code != 0 {
			t.Errorf("%s: err = %v, want (no error or got == tc.code) and (an error or tc.code == 0)", name, err)
		}
	}
	dangling, err := fs.Stat(t.Context(), &protocol.StatRequest{Path: "dangling"})
	if err != nil || dangling.Entry.Type != protocol.FileType_FILE_TYPE_UNSPECIFIED || dangling.Entry.GetSymlinkTarget() == "" {
		t.Errorf(`err = %v, dangling = %v, want no error and dangling.Entry.Type == protocol.FileType_FILE_TYPE_UNSPECIFIED and dangling.Entry.GetSymlinkTarget() != ""`,
			err, dangling)
	}
	link, err := fs.Stat(t.Context(), &protocol.StatRequest{Path: "link"})
	if err != nil || link.Entry.Type != protocol.FileType_FILE_TYPE_DIRECTORY || !strings.HasSuffix(link.Entry.GetSymlinkTarget(), "/dir") || link.Entry.Permissions[0] != 'L' {
		t.Errorf("err = %v, link = %v", err, link)
	}
}

// Files can be read in ranges, compressed or not, and written from a form or directly, compressed or not.
func TestFilesGoUpAndDown(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d/one\"\r\n\r\n0123456789\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/two\"\r\n\r\n2\r\n--b--\r\n"
	status, text, _ := sb.sent(t, "POST", "/files", form, "Content-Type", "multipart/form-data; boundary=b")
	if status != 200 || !strings.Contains(text, `"path":"/home/user/d/one"`) || !strings.Contains(text, `"path":"/tmp/two"`) {
		t.Fatalf("status = %d, text = %s, want status == 200 and text containing `\"path\":\"/home/user/d/one\"` and text containing `\"path\":\"/tmp/two\"`",
			status, text)
	}
	for name, tc := range map[string]struct {
		header []string
		status int
		body   string
	}{
		"all of it":       {nil, 200, "0123456789"},
		"from the middle": {[]string{"Range", "bytes=3-5"}, 206, "345"},
		"the end":         {[]string{"Range", "bytes=-2"}, 206, "89"},
		"to the end":      {[]string{"Range", "bytes=8-"}, 206, "89"},
		"beyond it":       {[]string{"Range", "bytes=50-60"}, 416, "10 bytes"},
		"several parts":   {[]string{"Range", "bytes=1-2,4-5"}, 200, "0123456789"},
		"no range":        {[]string{"Range", "bytes=x"}, 200, "0123456789"},
		"no encoding":     {[]string{"Accept-Encoding", "identity;q=0"}, 406, "Accept-Encoding"},
	} {
		status, text, header := sb.sent(t, "GET", "/files?path=d/one", "", tc.header...)
		if status != tc.status || !strings.Contains(text, tc.body) || status == 206 && header.Get("Content-Range") == "" {
			t.Errorf(`%s: status = %d, text = %q, header = %v, want status == %v and text containing %q and (status != 206 or header.Get("Content-Range") != "")`,
				name, status, text, header, tc.status, tc.body)
		}
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("packed")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path, body string
		header     []string
		status     int
		has        string
	}{
		"as it is":               {"/files?path=raw", "raw", []string{"Content-Type", "application/octet-stream"}, 200, "raw"},
		"packed":                 {"/files?path=packed", packed.String(), []string{"Content-Type", "application/octet-stream", "Content-Encoding", "gzip"}, 200, "packed"},
		"packed by nobody":       {"/files?path=bad", "no gzip", []string{"Content-Encoding", "gzip"}, 400, "gzip"},
		"packed otherwise":       {"/files?path=bad", "x", []string{"Content-Encoding", "br"}, 415, "br"},
		"without a path":         {"/files", "x", []string{"Content-Type", "application/octet-stream"}, 400, "path"},
		"to a directory":         {"/files?path=d", "x", nil, 400, "is a directory"},
		"twice":                  {"/files", strings.ReplaceAll(form, "/tmp/two", "d/one"), []string{"Content-Type", "multipart/form-data; boundary=b"}, 400, "twice"},
		"half a form":            {"/files", form[:60], []string{"Content-Type", "multipart/form-data; boundary=b"}, 400, "form"},
		"a form of nothing":      {"/files", "--b--\r\n", []string{"Content-Type", "multipart/form-data; boundary=b"}, 400, "file"},
		"with bad metadata":      {"/files?path=m", "x", []string{"X-Metadata-A", "\u00e9"}, 400, "ASCII"},
		"with a user of no name": {"/files?path=m&username=stranger", "x", nil, 401, "stranger"},
	} {
		status, text, _ := sb.sent(t, "POST", tc.path, tc.body, tc.header...)
		if status != tc.status || !strings.Contains(text, tc.has) {
			t.Errorf("%s: status = %d, text = %s, want status == %v and text containing %q",
				name, status, text, tc.status, tc.has)
		}
	}
	if got := sb.sh(t, "cat raw packed; ls -A").stdout.String(); !strings.HasPrefix(got, "rawpacked") || strings.Contains(got, "bad") {
		t.Errorf(`got %q, want got starting with "rawpacked" and got without "bad"`, got)
	}
}

// A file that the client already has is not sent again; a range request for a file that has changed meanwhile gets the whole file.
func TestAFileIsSentIfItHasChanged(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	sb.sh(t, "printf 0123456789 > f; touch -d @1700000000.5 f")
	const seen, before = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT"
	const tag, other = `"17979cfe53f76500-a"`, `"17979cfe53f76501-a"`
	for name, tc := range map[string]struct {
		header []string
		status int
		body   string
	}{
		"unchanged since":                {[]string{"If-Modified-Since", seen}, 304, ""},
		"changed since":                  {[]string{"If-Modified-Since", before}, 200, "0123456789"},
		"since no time":                  {[]string{"If-Modified-Since", "yesterday"}, 200, "0123456789"},
		"another tag":                    {[]string{"If-None-Match", other, "If-Modified-Since", seen}, 200, "0123456789"},
		"its tag among others":           {[]string{"If-None-Match", other + " , " + tag, "If-Modified-Since", before}, 304, ""},
		"its tag of what was packed":     {[]string{"If-None-Match", "W/" + tag}, 304, ""},
		"any tag":                        {[]string{"If-None-Match", "*"}, 304, ""},
		"unmodified since":               {[]string{"If-Unmodified-Since", seen}, 200, "0123456789"},
		"modified since":                 {[]string{"If-Unmodified-Since", before}, 412, ""},
		"only its tag":                   {[]string{"If-Match", tag, "If-Unmodified-Since", before}, 200, "0123456789"},
		"only another tag":               {[]string{"If-Match", other}, 412, ""},
		"only what was packed":           {[]string{"If-Match", "W/" + tag}, 412, ""},
		"the rest of its tag":            {[]string{"If-Range", tag, "Range", "bytes=8-"}, 206, "89"},
		"the rest of the same":           {[]string{"If-Range", seen, "Range", "bytes=8-"}, 206, "89"},
		"the rest of another":            {[]string{"If-Range", before, "Range", "bytes=8-"}, 200, "0123456789"},
		"the rest of what has a tag":     {[]string{"If-Range", `"tag"`, "Range", "bytes=8-"}, 200, "0123456789"},
		"beyond the end of another file": {[]string{"If-Range", before, "Range", "bytes=50-"}, 200, "0123456789"},
	} {
		status, text, header := sb.sent(t, "GET", "/files?path=f", "", tc.header...)
		if status == http.StatusPreconditionFailed && strings.Contains(text, "has changed") {
			text = ""
		}
		if status != tc.status || text != tc.body || header.Get("Last-Modified") != seen || header.Get("ETag") != tag {
			t.Errorf(`%s: status = %d, text = %q, header = %v, want status == %v and text == %q and header.Get("Last-Modified") == seen and header.Get("ETag") == tag`,
				name, status, text, header, tc.status, tc.body)
		}
	}
}

// A watcher stores events until they are fetched, for its own sandbox only.
func TestAWatcherKeepsWhatHappens(t *testing.T) {
	h := start(t)
	sb, other := h.create(t, "agent", `{}`), h.create(t, "agent", `{}`)
	fs := sb.filesystem()
	if _, err := fs.CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: "nowhere"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("err = %v, want connect.CodeOf(err) == connect.CodeNotFound", err)
	}
	w, err := fs.CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: ".", Recursive: true, IncludeEntry: true})
	if err != nil {
		t.Fatal(err)
	}
	sb.sh(t, "echo x > a; rm a")
	var seen []string
	for range 100 {
		got, err := fs.GetWatcherEvents(t.Context(), &protocol.GetWatcherEventsRequest{WatcherId: w.WatcherId})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got.Events {
			seen = append(seen, e.Type.String()+" "+e.Name)
		}
		if text := strings.Join(seen, ","); strings.Contains(text, "REMOVE a") && strings.Contains(text, "WRITE a") && strings.Contains(text, "CREATE a") {
			break
		}
		sb.sh(t, "sleep 0.05")
	}
	if len(seen) < 3 {
		t.Errorf("seen = %v, want len(seen) >= 3", seen)
	}
	if _, err := other.filesystem().GetWatcherEvents(t.Context(), &protocol.GetWatcherEventsRequest{WatcherId: w.WatcherId}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another sandbox has it: err = %v, want connect.CodeOf(err) == connect.CodeNotFound", err)
	}
	if _, err := fs.RemoveWatcher(t.Context(), &protocol.RemoveWatcherRequest{WatcherId: w.WatcherId}); err != nil {
		t.Error(err)
	}
	if _, err := fs.GetWatcherEvents(t.Context(), &protocol.GetWatcherEventsRequest{WatcherId: w.WatcherId}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("after it was removed: err = %v, want connect.CodeOf(err) == connect.CodeNotFound", err)
	}
}
