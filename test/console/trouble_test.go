// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// before starts a proxy between the console and a boxd that answers with a function, which may pass requests on to boxd.
func before(t *testing.T, d *boxtest.Daemon, answer func(boxd http.Handler, w http.ResponseWriter, r *http.Request)) (socket string) {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "boxd" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
		}},
		FlushInterval: -1,
	}
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(proxy, w, r)
	}))
}

// Each reason why the console cannot show boxes has its own state, which says what to do, and disappears with the reason.
func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "work"})
	t.Run("not installed", func(t *testing.T) {
		t.Parallel()
		browse(t, "trouble.mjs", login(t, admin, filepath.Join(t.TempDir(), "none"), ""), nil, "CONSOLE_STATE=not-installed")
	})
	t.Run("older", func(t *testing.T) {
		t.Parallel()
		socket := before(t, d, func(boxd http.Handler, w http.ResponseWriter, r *http.Request) { // as an older boxd would
			switch {
			case r.URL.Query().Has("usage"):
				problem(w, http.StatusBadRequest, "invalid", `unknown query parameter "usage" (known: all, label, metadata, owner)`)
			case strings.HasSuffix(r.URL.Path, "/usage/history"):
				problem(w, http.StatusNotFound, "not-found", "no route GET "+r.URL.Path)
			default:
				boxd.ServeHTTP(w, r)
			}
		})
		browse(t, "trouble.mjs", login(t, admin, socket, boxtest.Programs(t)), nil, "CONSOLE_STATE=older")
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		again := make(chan string, 64)
		socket := before(t, d, func(boxd http.Handler, w http.ResponseWriter, r *http.Request) { // like a dead connection without any error
			if r.URL.Path != "/v1/events" {
				boxd.ServeHTTP(w, r)
				return
			}
			select {
			case again <- r.URL.Query().Get("after"):
			default: // the result is not read any more
			}
			_, _ = io.WriteString(w, ": boxd\n\nid: x-7\nevent: config.reloaded\ndata: {\"id\":\"x-7\",\"type\":\"config.reloaded\"}\n\n") // the client sees failures
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		browse(t, "trouble.mjs", login(t, admin, socket, boxtest.Programs(t)), acts{"after": func(string) string {
			select {
			case after := <-again:
				return after
			case <-time.After(time.Minute):
				return "nothing"
			}
		}}, "CONSOLE_STATE=silent")
	})
	t.Run("not boxd", func(t *testing.T) {
		t.Parallel()
		browse(t, "trouble.mjs", login(t, admin, serve(t, http.NotFoundHandler()), boxtest.Programs(t)), nil, "CONSOLE_STATE=not-boxd")
	})
	t.Run("not running", func(t *testing.T) {
		t.Parallel()
		stopped := boxtest.Start(t)
		stopped.Stop()
		browse(t, "trouble.mjs", login(t, admin, stopped.Socket, boxtest.Programs(t)), manage(t, stopped), "CONSOLE_STATE=not-running")
	})
}

func problem(w http.ResponseWriter, status int, kind, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemType + kind, Status: status, Detail: detail}) // the client sees failures
}

// manyBoxes is the size of a list that must be shown in time.
const manyBoxes = 2000

// many returns made-up sessions: that many real ones need more memory than test hosts have. Their usage differs each time.
func many(look int64) []byte {
	list := api.SessionList{Sessions: make([]api.Session, manyBoxes)}
	now := time.Now()
	ends := now.Add(time.Hour)
	for i := range list.Sessions {
		list.Sessions[i] = api.Session{
			ID: fmt.Sprintf("box-%04d", i), Owner: "uid:" + strconv.Itoa(1000+i%7), State: "ready", Profile: "default", Image: "host", Hostname: "box", Network: "off",
			Limits: limits.Limits{CPUs: 1, Memory: 512 << 20, Pids: 128}, Enforcement: map[string]string{"memory": "cgroup2"}, CreatedAt: now, LastUsedAt: now, ExpiresAt: &ends,
			Usage: &api.SessionUsage{CPUMS: float64(look) * 1000, Memory: quantity.Size(1+7*look%500) << 20, Pids: int(look)%100 + 1},
		}
	}
	data, _ := json.Marshal(list) // cannot fail
	return data
}

// Two thousand boxes are shown, and each update of the list takes less than 100 ms in the browser. While the page is hidden it
// makes no requests, so boxd can exit when idle.
func TestTwoThousandBoxesAreShownInTime(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	requireSources(t)
	d := boxtest.Start(t)
	var looks, requests atomic.Int64
	socket := before(t, d, func(boxd http.Handler, w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/v1/sessions" {
			boxd.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(many(looks.Add(1))) // the client sees failures
	})
	browse(t, "many.mjs", login(t, admin, socket, boxtest.Programs(t)), acts{
		"requests": func(string) string { return strconv.FormatInt(requests.Load(), 10) },
	})
}
