// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/hashchain"
)

// boxd is killed repeatedly while many clients make it write records. No record of an answered call is lost, and the hash chain
// is intact, across rotation too.
func TestTheAuditLogSurvivesKills(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting+"[audit]\nmax_size = \"64KiB\"\nmax_files = 1000\n")
	audit := filepath.Join(d.State, "audit")
	tr := &http.Transport{MaxIdleConnsPerHost: 8, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
	}}
	defer tr.CloseIdleConnections()
	call := func(id string) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://boxd/v1/sessions/none", nil)
		if err != nil {
			t.Error(err)
			return false
		}
		req.Header.Set("X-Request-Id", id)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return false // boxd was killed
		}
		resp.Body.Close()
		return resp.Header.Get("X-Request-Id") == id
	}
	answered := map[string]bool{}
	var mu sync.Mutex
	for round := range 5 {
		var callers sync.WaitGroup
		var calls atomic.Int64
		enough := make(chan struct{})
		for caller := range 8 {
			callers.Go(func() {
				for n := 0; ; n++ {
					id := strings.Join([]string{"r", string(rune('a' + round)), string(rune('a' + caller)), strconv.Itoa(n)}, "-")
					if !call(id) {
						return
					}
					mu.Lock()
					answered[id] = true
					mu.Unlock()
					if calls.Add(1) == 300 {
						close(enough)
					}
				}
			})
		}
		<-enough
		d.Kill()
		callers.Wait()
		d.Restart()
	}
	report, err := hashchain.Verify(os.DirFS(audit), nil)
	if err != nil || len(report.Problems) > 0 || report.Files < 3 || report.Lost > 0 {
		t.Fatalf("err = %v, report = %+v, want no error and len(report.Problems) == 0 and report.Files >= 3 and report.Lost <= 0",
			err, report)
	}
	names, err := hashchain.Files(os.DirFS(audit))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(audit, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if _, rest, ok := strings.Cut(line, `"request":"`); ok {
				id, _, _ := strings.Cut(rest, `"`)
				delete(answered, id)
			}
		}
	}
	if len(answered) > 0 {
		t.Errorf("%d calls were answered and have no record", len(answered))
	}
}

// A full disk stops calls that would not be recorded, and nothing else; once there is space again, everything is recorded.
func TestAFullDiskStopsWhatWouldHaveNoRecord(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	audit := filepath.Join(d.State, "audit")
	d.Stop()
	if err := unix.Mount("tmpfs", audit, "tmpfs", 0, "size=64k"); err != nil {
		boxtest.Missing(t, "mount: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(audit, unix.MNT_DETACH) })
	d.Restart()
	c := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
	}}
	ask := func(method, path, body string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://boxd"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := ask(http.MethodPost, "/v1/sessions", `{"id":"s"}`); got != http.StatusCreated {
		t.Fatal(got)
	}
	filler := filepath.Join(audit, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	refused := false
	for range 100 { // records that fit into the last block are still written
		if got := ask(http.MethodPost, "/v1/sessions/s/exec", `{"argv":["true"]}`); got == http.StatusServiceUnavailable {
			refused = true
			break
		}
	}
	if !refused {
		t.Error("calls without a record are served")
	}
	if got := ask(http.MethodGet, "/v1/sessions/s", ""); got != http.StatusOK {
		t.Errorf("looking: got %d, want 200", got)
	}
	if got := ask(http.MethodDelete, "/v1/sessions/s", ""); got != http.StatusNoContent {
		t.Errorf("ending: got %d, want 204", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if got := ask(http.MethodPost, "/v1/sessions", `{"id":"after"}`); got != http.StatusCreated {
		t.Errorf("with free space again: got %d, want 201", got)
	}
	report, err := hashchain.Verify(os.DirFS(audit), nil)
	if err != nil || len(report.Problems) > 0 || report.Lost > 0 {
		t.Errorf("err = %v, report = %+v, want no error and len(report.Problems) == 0 and report.Lost <= 0",
			err, report)
	}
	if !strings.Contains(d.Log(), "audit record not written") || !strings.Contains(d.Log(), "audit records are written again") {
		t.Error("the log does not say that audit records could not be written, and then could")
	}
}
