// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// withKey adds an API key to a principal.
func (h *host) withKey(t *testing.T, name, principal, more string) {
	t.Helper()
	h.keys[name], h.entries[name] = newKey(name, principal, more)
	h.reload(t)
	boxtest.Eventually(t, "the key "+name+" is accepted", func() bool {
		status, _, _ := h.asks(t, name, "GET", "/v2/nothing", "")
		return status != http.StatusUnauthorized
	})
}

// reload makes boxd reload its keys.
func (h *host) reload(t *testing.T) {
	t.Helper()
	h.writeTokens(t)
	if err := syscall.Kill(h.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// api sends a request to boxd's own API.
func (h *host) api(t *testing.T, who, method, path, body string) boxtest.Answer {
	t.Helper()
	return h.Raw(t, method, path, body, "Authorization: Bearer "+h.keys[who])
}

// A key that allows less than the tokens of a sandbox is not given them by any route, and a sandbox does not stay usable through
// a key that allows less than before.
func TestAKeyGetsNoMoreThanItAllows(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	h.withKey(t, "narrow", "agent", `routes = ["GET /v1/sessions*", "POST /v1/sessions", "PATCH /v1/sessions*", "POST /v1/sessions/{id}/freeze"]`)
	for _, who := range []string{"viewer", "listing", "narrow"} {
		for _, path := range []string{"/sandboxes/" + sb.ID, "/v1/sandboxes/" + sb.ID, "/v1/sandboxes", "/v2/sandboxes"} {
			status, text, _ := h.asks(t, who, "GET", path, "")
			if status != http.StatusOK || !strings.Contains(text, sb.ID) || strings.Contains(text, sb.Token) || strings.Contains(text, sb.Traffic) {
				t.Errorf("%s GET %s: status = %d, text = %s, want status == 200 and text containing %q and text without %q and text without %q",
					who, path, status, text, sb.ID, sb.Token, sb.Traffic)
			}
		}
		for _, path := range []string{"/sandboxes", "/v2/sandboxes", "/v1/sandboxes", "/sandboxes/" + sb.ID + "/connect", "/v2/sandboxes/" + sb.ID + "/connect", "/v1/sandboxes/" + sb.ID + "/connect", "/sandboxes/" + sb.ID + "/resume"} {
			if status, text, _ := h.asks(t, who, "POST", path, "{}"); status != http.StatusForbidden {
				t.Errorf("%s POST %s: status = %d, text = %s, want status == 403", who, path, status, text)
			}
		}
	}
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID, ""); !strings.Contains(text, sb.Token) {
		t.Errorf("a key that allows everything: status = %d, text = %s, want text containing %q",
			status, text, sb.Token)
	}
	if status, text, _ := h.asks(t, "narrow", "POST", "/sandboxes/"+sb.ID+"/timeout", `{"timeout":600}`); status != http.StatusNoContent {
		t.Errorf("a request that the key allows: status = %d, text = %s, want status == 204", status, text)
	}
	if status, text, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...); status != http.StatusOK {
		t.Errorf("the owner of the sandbox has lost it: status = %d, text = %s, want status == 200",
			status, text)
	}
	name := h.entries["agent"]
	h.entries["agent"] = name + "routes = [\"GET /v1/sessions*\"]\n"
	h.reload(t)
	boxtest.Eventually(t, "the new, smaller set of routes of the key is in force", func() bool {
		status, _, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...)
		return status == http.StatusUnauthorized
	})
}

// A session that another user creates with the id and labels of a sandbox neither hides that sandbox nor gives access to it.
func TestASandboxIsNotTakenForAnothers(t *testing.T) {
	h := start(t, "public_ports = true\n"+boxtest.Kept)
	sb := h.create(t, "agent", `{}`)
	forged, err := json.Marshal(map[string]any{"id": sb.ID, "labels": map[string]string{"e2b.template": "base", "e2b.key": "agent"}, "ttl": "0s"})
	if err != nil {
		t.Fatal(err)
	}
	if a := h.api(t, "other", "POST", "/v1/sessions", string(forged)); a.Code != http.StatusCreated {
		t.Fatalf("a.Code = %d, a.Body = %s, want a.Code == 201", a.Code, a.Body)
	}
	var his struct{ EnvdAccessToken string }
	status, text, _ := h.asks(t, "other", "GET", "/sandboxes/"+sb.ID, "")
	if err := json.Unmarshal([]byte(text), &his); err != nil || status != http.StatusOK || his.EnvdAccessToken == "" || his.EnvdAccessToken == sb.Token {
		t.Fatalf(`status = %d, text = %s, want no error and status == 200 and his.EnvdAccessToken != "" and his.EnvdAccessToken != sb.Token`,
			status, text)
	}
	for range 3 { // whichever is adopted first
		h.Stop()
		h.Restart()
		if status, text, _ := h.sends(t, "POST", "/process.Process/List", "{}", append(sb.of("49983"), "Content-Type", "application/json")...); status != http.StatusOK {
			t.Errorf("its own token: status = %d, text = %s, want status == 200", status, text)
		}
		if status, text, _ := h.sends(t, "GET", "/", "", "Host", "8000-"+sb.ID+".localhost"); status != http.StatusBadGateway { // nothing listens there
			t.Errorf("its public port: status = %d, text = %s, want status == 502", status, text)
		}
		if status, text, _ := h.sends(t, "POST", "/process.Process/List", "{}", "E2b-Sandbox-Id", sb.ID, "X-Access-Token", his.EnvdAccessToken, "Content-Type", "application/json"); status != http.StatusUnauthorized {
			t.Errorf("a session that names another's key: status = %d, text = %s, want status == 401", status, text)
		}
	}
	if status, text, _ := h.asks(t, "other", "DELETE", "/sandboxes/"+sb.ID, ""); status != http.StatusNoContent {
		t.Fatalf("the sandbox of the other key: status = %d, text = %s, want status == 204", status, text)
	}
	if status, text, _ := h.sends(t, "GET", "/envs", "", sb.of("49983")...); status != http.StatusOK {
		t.Errorf("after the sandbox of the other key has ended: status = %d, text = %s, want status == 200", status, text)
	}
}

// Files of a sandbox with any name or modification time are reported; operations on what is no file are refused at once.
func TestFilesOfAnyKindAreTold(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	o := sb.sh(t, `mkdir /tmp/d && cd /tmp/d && python3 -c '
import os
open(b"\xff\xfe\n", "w").close()
open("late", "w").close(); os.utime("late", (1<<40, 1<<40))
open("early", "w").close(); os.utime("early", (-(1<<40), -(1<<40)))
os.mkfifo("fifo")
os.symlink("loop", "loop")
os.symlink("/etc/shadow", "out")
os.symlink("/proc/1/mem", "mem")'`)
	if o.end.ExitCode != 0 {
		t.Fatal(o.stderr.String())
	}
	list, err := sb.filesystem().ListDir(t.Context(), &protocol.ListDirRequest{Path: "/tmp/d"})
	if err != nil || len(list.Entries) != 7 {
		t.Fatalf("err = %v, list = %v, want no error and len(list.Entries) == 7", err, list)
	}
	for _, e := range list.Entries {
		if !utf8.ValidString(e.Name) || e.ModifiedTime.CheckValid() != nil {
			t.Errorf("e = %v, want utf8.ValidString(e.Name) and e.ModifiedTime.CheckValid() == nil", e)
		}
	}
	for path, least := range map[string]int{
		"/tmp/d/fifo": 400, "/tmp/d/loop": 400, "/tmp/d": 400, "/dev/zero": 400, "/tmp/d/out": 400, "/tmp/d/mem": 400, "/tmp/d/a%00b": 400, "": 400, "/tmp/" + strings.Repeat("x", 5000): 400,
		"/tmp/d/../../../../../../etc/shadow": 400, "/tmp/d/late": 200, "/tmp/d/%FF%FE%0A": 200,
	} {
		if status, text, _ := h.sends(t, "GET", "/files?path="+path, "", sb.of("49983")...); status/100 != least/100 {
			t.Errorf("%.40q: status = %d, text = %s, want status / 100 == least / 100", path, status, text)
		}
	}
	for _, path := range []string{"", "\x00", "/tmp/\x00", "/proc/1/root", strings.Repeat("/a", 4000)} {
		if _, err := sb.filesystem().MakeDir(t.Context(), &protocol.MakeDirRequest{Path: path}); err == nil {
			t.Errorf("a directory was made at %.20q", path)
		}
	}
}

// A signature for a path is valid for no other, whatever the form contains.
func TestASignatureIsForItsPath(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	sum := sha256.Sum256([]byte("/tmp/a:write::" + sb.Token))
	address := "/files?path=/tmp/a&signature=" + url.QueryEscape("v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	const form = "--b\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n/tmp/b\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/c\"\r\n\r\nx\r\n--b--\r\n"
	for _, path := range []string{"/files", "/upload"} {
		status, text, _ := h.sends(t, "POST", strings.Replace(address, "/files", path, 1), form, "Content-Type", "multipart/form-data; boundary=b")
		if status != http.StatusOK || !strings.Contains(text, "/tmp/a") {
			t.Errorf(`%s: status = %d, text = %s, want status == 200 and text containing "/tmp/a"`, path, status, text)
		}
	}
	for name, changed := range map[string]string{"another path": strings.Replace(address, "/tmp/a", "/tmp/b", 1), "a time more": address + "&signature_expiration=99999999999", "a user": address + "&username=root"} {
		if status, text, _ := h.sends(t, "POST", changed, form, "Content-Type", "multipart/form-data; boundary=b"); status != http.StatusUnauthorized {
			t.Errorf("%s: status = %d, text = %s, want status == 401", name, status, text)
		}
	}
	if status, text, _ := h.sends(t, "GET", address, ""); status != http.StatusUnauthorized {
		t.Errorf("to read: status = %d, text = %s, want status == 401", status, text)
	}
	if o := sb.sh(t, "ls /tmp/b /tmp/c"); o.stdout.Len() != 0 {
		t.Errorf("%s was written", o.stdout.String())
	}
}

// A request that violates the protocol is refused, and leaves no trace in boxd's metrics.
func TestWhatIsNoRequestIsRefused(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	bomb := new(bytes.Buffer)
	packed := gzip.NewWriter(bomb)
	_, _ = packed.Write([]byte(`{"path":"`))
	for range 64 {
		_, _ = packed.Write(bytes.Repeat([]byte("x"), 1<<20))
	}
	_, _ = packed.Write([]byte(`"}`))
	_ = packed.Close()
	for name, tc := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		message            string
	}{
		"an unknown RPC":       {"POST", "/process.Process/Madeup1", "{}", []string{"Content-Type", "application/json"}, 404, ""},
		"an unknown service":   {"POST", "/sandboxagent.Madeup2/List", "{}", []string{"Content-Type", "application/json"}, 404, ""},
		"an unclean path":      {"POST", "/process.Process/../process.Process/List", "{}", []string{"Content-Type", "application/json"}, 404, ""},
		"an unknown method":    {"MADEUP3", "/files?path=/tmp/x", "", nil, 405, ""},
		"an unknown codec":     {"POST", "/process.Process/List", "{}", []string{"Content-Type", "application/madeup4"}, 415, ""},
		"half a frame":         {"POST", "/process.Process/Start", "\x00\x00\x00\x01\x00{", []string{"Content-Type", "application/connect+json"}, 200, "error"},
		"a frame without end":  {"POST", "/process.Process/Start", "\x00\xff\xff\xff\xff{", []string{"Content-Type", "application/connect+json"}, 200, "resource_exhausted"},
		"a bomb":               {"POST", "/filesystem.Filesystem/Stat", bomb.String(), []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 429, "resource_exhausted"},
		"a bomb that is none":  {"POST", "/filesystem.Filesystem/Stat", "x", []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 400, ""},
		"an upload of nothing": {"POST", "/files?path=/tmp/x", "x", []string{"Content-Encoding", "gzip"}, 400, "gzip"},
		"a form without end":   {"POST", "/files", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/x\"\r\n\r\nx", []string{"Content-Type", "multipart/form-data; boundary=b"}, 400, ""},
		"a token twice over":   {"GET", "/v2/sandboxes?nextToken=OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5IGE", "", []string{"X-Api-Key", h.keys["agent"]}, 400, "nextToken"},
	} {
		t.Run(name, func(t *testing.T) {
			header := append(sb.of("49983"), tc.header...)
			if strings.HasPrefix(tc.path, "/v2/") {
				header = tc.header
			}
			status, text, _ := h.sends(t, tc.method, tc.path, tc.body, header...)
			if status != tc.status || !strings.Contains(text, tc.message) {
				t.Errorf("status = %d, text = %.300s, want status == %v and text containing %q",
					status, text, tc.status, tc.message)
			}
		})
	}
	if text := string(h.Raw(t, "GET", "/metrics", "").Body); strings.Contains(text, "adeup") || strings.Contains(text, "MADEUP") || !strings.Contains(text, "e2b filesystem.Filesystem/Stat") {
		t.Errorf(`text = %s, want text without "adeup" and text without "MADEUP" and text containing "e2b filesystem.Filesystem/Stat"`,
			text)
	}
}

// A request that states its length twice is refused and its connection closed, whoever it is for.
func TestABodyHasOneLength(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	for name, head := range map[string]string{
		"the control plane": "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + h.keys["agent"],
		"a sandbox":         "POST /process.Process/List HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Access-Token: " + sb.Token,
		"a port":            "POST / HTTP/1.1\r\nHost: 8000-" + sb.ID + ".localhost\r\nE2b-Traffic-Access-Token: " + sb.Traffic,
	} {
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, head+"\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if resp.StatusCode != http.StatusBadRequest || !resp.Close {
			t.Errorf("%s: resp.Status = %s, want resp.StatusCode == 400 and resp.Close == true", name, resp.Status)
		}
		resp.Body.Close()
		conn.Close()
	}
}

// Clients that disconnect in the middle of an operation leave nothing of it except what they have started.
func TestClientsThatVanishLeaveNothing(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	sb.sh(t, "true")
	descriptors := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := descriptors()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			stream, err := sb.filesystem().WatchDir(ctx, &protocol.WatchDirRequest{Path: "/tmp", Recursive: true})
			if err != nil || !stream.Receive() {
				t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
			}
		}
		upload, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.address+"/files?path=/tmp/half", io.MultiReader(strings.NewReader("begun"), halted(ctx.Done())))
		if err != nil {
			t.Fatal(err)
		}
		upload.Header.Set("X-Access-Token", sb.Token)
		uploaded := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(upload)
			if err == nil {
				resp.Body.Close()
			}
			uploaded <- err
		}()
		boxtest.Eventually(t, "the upload has begun", func() bool {
			return strings.Contains(sb.sh(t, "grep -sl boxfiles /proc/[0-9]*/cmdline; ls -A /tmp").stdout.String(), "proc")
		})
		cancel()
		<-uploaded
		boxtest.Eventually(t, "no program of the vanished clients runs", func() bool {
			return !strings.Contains(sb.sh(t, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep boxfile[s]").stdout.String(), "boxfiles")
		})
	}
	http.DefaultClient.CloseIdleConnections()
	boxtest.Eventually(t, "boxd has no more open descriptors than before", func() bool { return descriptors() <= before+2 })
	for range 16 { // the maximum number of watches is still available
		if _, err := sb.filesystem().CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: "/tmp"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sb.filesystem().CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: "/tmp"}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one watch more: err = %v, want connect.CodeOf(err) == connect.CodeResourceExhausted", err)
	}
}

// Of thousands of watches a sandbox has 16, and the others are refused and leave nothing.
func TestThousandsOfWatchesAreRefused(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	fs := sb.filesystem()
	var ids []string
	watched, peak := 0, 0
	for n := range 2000 {
		var err error
		if n%2 == 0 {
			var w *protocol.CreateWatcherResponse
			if w, err = fs.CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: "/tmp", Recursive: true}); err == nil {
				ids = append(ids, w.WatcherId)
			}
		} else {
			var stream *connect.ServerStreamForClient[protocol.WatchDirResponse]
			if stream, err = fs.WatchDir(t.Context(), &protocol.WatchDirRequest{Path: "/tmp", Recursive: true}); err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if !stream.Receive() {
				err = stream.Err()
			}
		}
		switch {
		case err == nil:
			watched++
		case connect.CodeOf(err) != connect.CodeResourceExhausted:
			t.Fatalf("watch %d: err = %v, want connect.CodeOf(err) == connect.CodeResourceExhausted", n, err)
		}
		if n == 20 {
			peak = residentPeak(t, h.PID())
		}
	}
	if watched != 16 {
		t.Errorf("%d watches", watched)
	}
	if grown := residentPeak(t, h.PID()) - peak; grown > 32<<10 {
		t.Errorf("boxd has grown by %d KiB", grown)
	}
	for _, id := range ids {
		if _, err := fs.RemoveWatcher(t.Context(), &protocol.RemoveWatcherRequest{WatcherId: id}); err != nil {
			t.Error(err)
		}
	}
	boxtest.Eventually(t, "another watch can be created", func() bool {
		_, err := fs.CreateWatcher(t.Context(), &protocol.CreateWatcherRequest{Path: "/tmp"})
		return err == nil
	})
}

// halted is the rest of an upload that stalls.
type halted <-chan struct{}

// Read blocks until the client gives up.
func (r halted) Read([]byte) (int, error) {
	<-r
	return 0, context.Canceled
}

// An upload or download of any size, also after decompression, passes through boxd without being kept in memory.
func TestAnUploadDoesNotStayInBoxd(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	const size = 2 << 30 // more than a signed 32-bit number holds
	packed := func(before string, size int, after string) string {
		sent := new(bytes.Buffer)
		w, err := gzip.NewWriterLevel(sent, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, before)
		for range size >> 20 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
		_, _ = io.WriteString(w, after)
		_ = w.Close()
		return sent.String()
	}
	before := residentPeak(t, h.PID())
	for _, tc := range []struct {
		size        int
		body, media string
	}{
		{size / 8, packed("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n", size/8, "\r\n--b--\r\n"), "multipart/form-data; boundary=b"},
		{size, packed("", size, ""), "application/octet-stream"},
	} {
		if status, text, _ := sb.sent(t, "POST", "/files?path=/home/user/big", tc.body, "Content-Encoding", "gzip", "Content-Type", tc.media); status != http.StatusOK {
			t.Fatalf("%s: status = %d, text = %s, want status == 200", tc.media, status, text)
		}
		if o := sb.sh(t, "stat -c %s /home/user/big"); o.stdout.String() != fmt.Sprintln(tc.size) {
			t.Errorf("%s: %s%s", tc.media, o.stdout.String(), o.stderr.String())
		}
	}
	resp, err := (&http.Client{Transport: sb}).Get("http://" + h.address + "/files?path=/home/user/big")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
		t.Errorf("%d bytes of the download arrived: err = %v, want no error and n == size", n, err)
	}
	if grown := residentPeak(t, h.PID()) - before; grown > 64<<10 {
		t.Errorf("boxd has grown by %d KiB", grown)
	}
}

// residentPeak returns the peak resident memory of a process, in KiB.
func residentPeak(t *testing.T, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// When a key is removed, running streams end with an error, and running uploads fail.
func TestStreamsEndWithTheirKey(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	output, err := sb.processes().Start(t.Context(), shell("while :; do echo x; sleep 0.05; done"))
	if err != nil || !output.Receive() {
		t.Fatalf("err = %v, output.Err() = %v, want no error and output.Receive()", err, output.Err())
	}
	defer output.Close()
	watch, err := sb.filesystem().WatchDir(t.Context(), &protocol.WatchDirRequest{Path: "/tmp"})
	if err != nil || !watch.Receive() {
		t.Fatalf("err = %v, watch.Err() = %v, want no error and watch.Receive()", err, watch.Err())
	}
	defer watch.Close()
	upload, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+h.address+"/files?path=/tmp/half", io.MultiReader(strings.NewReader("begun"), halted(t.Context().Done())))
	if err != nil {
		t.Fatal(err)
	}
	upload.Header.Set("X-Access-Token", sb.Token)
	answered := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(upload)
		if err != nil {
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	boxtest.Eventually(t, "the upload has begun", func() bool { return sb.sh(t, "ls /tmp/half").end.ExitCode == 0 })
	h.withoutKey(t, "agent")
	for output.Receive() {
	}
	for watch.Receive() {
	}
	if output.Err() == nil || watch.Err() == nil {
		t.Errorf("output.Err() = %v, watch.Err() = %v, want output.Err() != nil and watch.Err() != nil",
			output.Err(), watch.Err())
	}
	if status := <-answered; status == http.StatusOK {
		t.Errorf("an upload: status = %d, want status != 200", status)
	}
}

// Visitors of a port, who have the traffic token from a client, cannot keep the owner out, however many they are.
func TestVisitorsOfAPortDoNotKeepTheOwnerOut(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	taken, refused := 0, 0
	for range 400 {
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: 8000-%s.localhost\r\nE2b-Traffic-Access-Token: %s\r\n\r\n", sb.ID, sb.Traffic)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusBadGateway: // no server listens on the port
			taken++
		case http.StatusTooManyRequests:
			refused++
		default:
			t.Fatal(resp.Status)
		}
	}
	if taken != 256 || refused != 400-256 {
		t.Errorf("%d connections were accepted, and %d refused", taken, refused)
	}
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID, ""); status != http.StatusOK {
		t.Errorf("the owner: status = %d, text = %s, want status == 200", status, text)
	}
}
