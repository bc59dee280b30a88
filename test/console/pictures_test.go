// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// picturesVariable names the directory for the pictures of the guide; "": they are taken, and discarded.
const picturesVariable = "BOXD_TEST_PICTURES"

// largestPicture keeps the repository and the guide small.
const largestPicture = 150 << 10

// example is the usage shown for a box in the pictures: it depends neither on what the host counts nor on its load.
type example struct {
	cpu, memory, disk float64 // shares of the limits
	pids              int
}

var examples = map[string]example{
	"build-1842":  {0.93, 0.71, 0.42, 61},
	"agent-anna":  {0.12, 0.34, 0.08, 9},
	"agent-bela":  {0.03, 0.83, 0.27, 14},
	"crawler":     {0.38, 0.52, 0.97, 22},
	"notebook-7":  {0.00, 0.19, 0.03, 3},
	"review-bot":  {0.21, 0.45, 0.11, 17},
	"test-py-3.9": {0.64, 0.28, 0.19, 35},
}

func (e example) usage(s *api.Session, seconds float64) *api.SessionUsage {
	return &api.SessionUsage{
		CPUMS: seconds * 1000 * e.cpu * s.CPUs, Memory: quantity.Size(e.memory * float64(s.Memory)), Pids: e.pids, Pressure: api.Pressure{CPU: 20 * e.cpu},
	}
}

// Limits of the boxes in the examples.
const (
	exampleMemory    = 512 << 20
	exampleWorkspace = 1 << 30
)

// history returns an hour of a box with changing load.
func (e example) history(now time.Time) api.UsageHistory {
	h := api.UsageHistory{Interval: quantity.Duration(5 * time.Second), Kept: quantity.Duration(time.Hour)}
	for i := range 720 {
		x := float64(i) / 720
		work := math.Max(0, math.Sin(2*math.Pi*(4*x+0.1)))*(0.8+0.2*math.Sin(float64(i)/3)) + 0.03
		h.Samples = append(h.Samples, api.UsageSample{
			At: now.Add(time.Duration(i-720) * 5 * time.Second),
			Usage: &api.SampledUsage{
				CPUPercent: 100 * e.cpu * work, Memory: quantity.Size(exampleMemory * e.memory * (0.4 + 0.4*x + 0.2*work)), Pids: 3 + int(float64(e.pids)*work),
				Pressure: api.Pressure{CPU: 25 * work * work, Memory: 4 * x * work, IO: 9 * math.Max(0, work-0.6)},
			},
			Workspace: &api.WorkspaceUsage{Used: quantity.Size(exampleWorkspace * e.disk * (0.3 + 0.7*math.Floor(8*x)/8))},
		})
	}
	return h
}

// told makes answers about boxes report the usage of the examples, and those about the host that of a healthy one.
func told(boxd http.Handler, w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	seconds := float64(now.UnixMilli()%(1<<30)) / 1000
	send := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client sees failures
	}
	fill := func(s *api.Session) {
		if e, ok := examples[s.ID]; ok {
			s.Usage = e.usage(s, seconds)
			s.Enforcement = map[string]string{"memory": "cgroup2", "cpu": "cgroup2", "pids": "cgroup2", "tmp": "tmpfs", "workspace": "project-quota"}
			s.Workspace = &api.Quota{Kind: "workspace", Used: quantity.Size(e.disk * float64(s.WorkspaceQuota)), Limit: s.WorkspaceQuota}
		}
	}
	id, part, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/sessions/"), "/")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/v1/doctor":
		send(api.Doctor{OK: true, Checks: []api.Check{
			{Name: "kernel", Level: "ok", Detail: "Linux 6.12"},
			{Name: "user namespaces", Level: "ok", Detail: "up to 126962"},
			{Name: "box network", Level: "warn", Detail: "boxes cannot have a network: IP forwarding is off on this host", Hint: "sysctl -w net.ipv4.ip_forward=1, and add it to a file in /etc/sysctl.d (affects the whole host)"},
			{Name: "test box", Level: "ok", Detail: "started in 2.4 ms"},
			{Name: "cgroups", Level: "ok", Detail: "version 2"},
			{Name: "workspace limit", Level: "ok", Detail: "project quotas"},
			{Name: "disk", Level: "ok", Detail: "211 GiB free in /var/lib/boxd"},
		}})
	case r.Method == http.MethodGet && (r.URL.Path == "/v1/sessions" || part == "" && examples[id].pids > 0 || r.URL.Path == "/v1/status"):
		answer := httptest.NewRecorder()
		boxd.ServeHTTP(answer, r)
		switch {
		case answer.Code != http.StatusOK:
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		case r.URL.Path == "/v1/sessions":
			var list api.SessionList
			_ = json.Unmarshal(answer.Body.Bytes(), &list) // from boxd itself
			for i := range list.Sessions {
				fill(&list.Sessions[i])
			}
			send(list)
		case r.URL.Path == "/v1/status":
			var s api.Status
			_ = json.Unmarshal(answer.Body.Bytes(), &s) // from boxd itself
			s.Version, s.ControlGroups, s.Unenforced, s.StartedAt = "v1.0.0", "systemd", []string{}, now.Add(-26*time.Hour)
			s.Warm = []api.Warm{{Profile: "default", Ready: 2, Want: 2}}
			send(s)
		default:
			var s api.Session
			_ = json.Unmarshal(answer.Body.Bytes(), &s) // from boxd itself
			fill(&s)
			send(s)
		}
	case part == "usage/history":
		h := examples[id].history(now)
		if r.URL.Query().Has("after") {
			h.Samples = h.Samples[:0]
		}
		send(h)
	default:
		boxd.ServeHTTP(w, r)
	}
}

// The pictures of the guide show the console, with example usage, and are small.
func TestPicturesOfTheGuide(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	requireSources(t)
	d := boxtest.Start(t)
	for id := range examples {
		d.NewSession(t, api.SessionRequest{ID: id})
	}
	d.NewProcess(t, "build-1842", "server", boxtest.ShellProcess("echo listening on port 8000; sleep 600"))
	d.Sh(t, "build-1842", "mkdir src tests; echo '# Notes' > README.md; echo 'print(6 * 7)' > src/main.py")
	socket := before(t, d, told)
	dir := os.Getenv(picturesVariable)
	if dir == "" {
		dir = t.TempDir()
	}
	browse(t, "pictures.mjs", login(t, admin, socket, boxtest.Programs(t)), nil, "CONSOLE_PICTURES="+dir)
	guide, err := os.ReadFile("../../docs/guide/console.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"boxes.png", "create.png", "box.png", "terminal.png", "host.png"} {
		about, err := os.Stat(filepath.Join(dir, name))
		if err != nil || about.Size() > largestPicture {
			t.Errorf("%s: %v, %+v: at most %d bytes", name, err, about, largestPicture)
		}
		if !strings.Contains(string(guide), "console/"+name) {
			t.Errorf("docs/guide/console.md does not show %s", name)
		}
	}
}
