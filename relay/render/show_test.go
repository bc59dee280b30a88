// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestDurationsAreShownRoughly(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", time.Second - 1: "0s", time.Second: "1s", 119*time.Second + 999*time.Millisecond: "119s",
		2 * time.Minute: "2m", 2*time.Hour - 1: "119m", 2 * time.Hour: "2h", 48*time.Hour - 1: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		if got := Roughly(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestControlCharactersInAnIDAreQuoted(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"work": "work", "日本 é": "日本 é", "a\x1b[31mb": `"a\x1b[31mb"`, "a\tb": `"a\tb"`, "\u202e": `"\u202e"`, "\u009b": `"\u009b"`,
	} {
		if got := Printable(id); got != want {
			t.Errorf("%q: %s, want %s", id, got, want)
		}
	}
}

func TestSessionsAreListedInLines(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var out bytes.Buffer
	s := api.Session{
		ID: "work", Owner: "uid:4294967294", OwnerUID: 4294967294, Profile: "default", State: "ready", Running: 2, Limits: limits.Limits{Memory: 512 * quantity.MiB, CPUs: 1.5, Pids: 64}, LastUsedAt: now.Add(-3 * time.Minute), ExpiresAt: new(now.Add(time.Hour)),
	}
	forever := s
	forever.ID, forever.ExpiresAt, forever.LastUsedAt = "a\nb", nil, now.Add(time.Second) // a clock that was set back
	agents := s
	agents.Owner, agents.OwnerUID = "agents", 0 // a principal of box.toml, whatever user it has
	if err := Sessions(&out, []api.Session{s, forever, agents}, now); err != nil {
		t.Fatal(err)
	}
	const want = `ID      OWNER           PROFILE  STATE  RUNNING  MEMORY  CPUS  PIDS  LAST USED  EXPIRES IN
work    uid:4294967294  default  ready  2        512MiB  1.5   64    3m ago     60m
"a\nb"  uid:4294967294  default  ready  2        512MiB  1.5   64    0s ago     -
work    agents          default  ready  2        512MiB  1.5   64    3m ago     60m
`
	if got := out.String(); got != want {
		t.Errorf("(-want +got) %s, want got == want", cmp.Diff(want, got))
	}
}

func TestProcessesAreListedInLines(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	list := []api.Process{
		{ID: "web", State: "running", Ready: true, PID: 7, Starts: 2, Readers: 1, StartedAt: now.Add(-3 * time.Minute), Argv: []string{"./serve", "-p", "8080"}},
		{ID: "a\x1bb", State: "ended", Reason: "crash loop", Starts: 6, StartedAt: now.Add(-time.Hour), EndedAt: new(now.Add(-time.Hour + 5*time.Second)), Argv: []string{"sh", "-c", strings.Repeat("x", 100)}},
	}
	var out bytes.Buffer
	if err := Processes(&out, list, now); err != nil {
		t.Fatal(err)
	}
	want := `NAME      STATE               READY  PID  STARTS  CLIENTS  UPTIME  COMMAND
web       running             yes    7    2       1        3m      ./serve -p 8080
"a\x1bb"  ended (crash loop)  no     -    6       0        5s      sh -c ` + strings.Repeat("x", 51) + "...\n"
	if got := out.String(); got != want {
		t.Errorf("(-want +got) %s, want got == want", cmp.Diff(want, got))
	}
}

func TestShellWordsAreQuoted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"work": "work", "a/b": "a/b", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "~": "'~'", "a\tb'": `$'a\tb\''`,
	} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestLogsArePrintedByLines(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 123_000_000)
	pieces := []api.LogLine{
		{Stream: "stdout", Data: "one\ntw"}, {Stream: "stderr", Data: "err\n"}, {Stream: "stdout", Data: "o\n"}, {Stream: "stdout", Gap: 10}, {Stream: "stdout", Data: "\xff\n\n"},
	}
	for _, tc := range []struct {
		timestamps  bool
		out, errOut string
	}{
		{false, "one\ntwo\n\xff\n\n", "err\nboxctl: 10 bytes of stdout are no longer stored\n"},
		{true, "T one\nT two\nT \xff\nT \n", "T err\nboxctl: 10 bytes of stdout are no longer stored\n"},
	} {
		var out, errOut bytes.Buffer
		l := NewLogs(&out, &errOut, tc.timestamps, false)
		for _, p := range pieces {
			p.Time = at
			if err := l.Print(&p); err != nil {
				t.Fatal(err)
			}
		}
		short := func(b *bytes.Buffer) string { return strings.ReplaceAll(b.String(), "2027-01-15T08:00:00.123Z", "T") }
		if err := l.Flush(); err != nil || short(&out) != tc.out || short(&errOut) != tc.errOut {
			t.Errorf("%v: short(&out) = %q, short(&errOut) = %q, err = %v, want no error and short(&out) == %q and short(&errOut) == %q",
				tc.timestamps, short(&out), short(&errOut), err, tc.out, tc.errOut)
		}
	}
}

// sampleTwice samples twice from a stand-in of boxd with the given answers.
func sampleTwice(t *testing.T, l Sampler, answers map[string]any) (first, second *Top) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, ok := answers[r.URL.RequestURI()]
		if f, isFunc := v.(func() any); isFunc {
			v = f()
		}
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			v = api.Problem{Type: api.ProblemType + "not_found", Status: http.StatusNotFound}
		}
		_ = json.NewEncoder(w).Encode(v)
	})}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	l.Client = client.New(socket)
	defer l.Client.Close()
	if first, err = l.Sample(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if second, err = l.Sample(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	return first, second
}

func TestTopSeesWhatHasBeenUsed(t *testing.T) {
	t.Parallel()
	busy := api.Session{ID: "busy", Owner: "uid:0", Usage: &api.SessionUsage{}}
	idle := api.Session{ID: "idle", Owner: "uid:0"}
	_, v := sampleTwice(t, Sampler{}, map[string]any{
		"/v1/status": api.Status{},
		"/v1/sessions?usage=true": func() any {
			busy.Usage = &api.SessionUsage{CPUMS: busy.Usage.CPUMS + 1000, Read: busy.Usage.Read + quantity.MiB}
			return api.SessionList{Sessions: []api.Session{idle, busy}}
		},
	})
	if len(v.Sessions) != 2 || v.Sessions[0].ID != "busy" || v.Sessions[0].CPUPercent <= 0 || v.Sessions[0].ReadRate <= 0 || v.Sessions[0].WriteRate != 0 || v.Sessions[1].rates {
		t.Errorf("v.Sessions = %+v", v.Sessions)
	}
}

func TestTopFitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	usage := &api.SessionUsage{Memory: 1023 * quantity.MiB, Pids: 12345}
	v := Top{
		now: now, one: true, Status: api.Status{Version: "1.2.3", StartedAt: now.Add(-26 * time.Hour), Sessions: 3, MaxSessions: 256, Running: 2, Executed: 123456},
		Sessions: []topSession{
			{Session: api.Session{ID: "work", State: "ready", Limits: limits.Limits{Memory: 512 * quantity.MiB}, Usage: &api.SessionUsage{Memory: 100 * quantity.KiB, Pids: 3}, Running: 1}, rates: true, CPUPercent: 3.14, ReadRate: 999},
			{Session: api.Session{ID: "with-a-very-long-name", State: "creating", Limits: limits.Limits{Memory: 1023 * quantity.GiB}, Usage: usage, Running: 9999}, rates: true, CPUPercent: 6400, ReadRate: 1e9, WriteRate: 1023 << 20},
			{Session: api.Session{ID: "a\x1b[2J日本語日本語日本語", State: "frozen", Limits: limits.Limits{Memory: quantity.GiB}}},
		},
		Processes: []api.Process{
			{ID: "web", State: "running", Ready: true, PID: 7, Starts: 1, StartedAt: now.Add(-time.Minute), Argv: []string{"./serve"}},
			{ID: "worker-with-a-long-name", State: "starting", PID: 4194303, Starts: 123456, Readers: 64, StartedAt: now.Add(-100 * time.Hour), Argv: []string{"python3", "-m", "http.server", strings.Repeat("x", 70)}},
		},
	}
	const want = `boxd 1.2.3, up 26h: 3 of 256 boxes, 2 programs running, 123456 executions

BOX                 STATE      CPU% MEMORY  LIMIT  PIDS READ/s WRITE/s  RUN
work                ready       3.1   100K   512M     3   999B      0B    1
with-a-very-long-~  creating 6400.0  1023M  1023G 12345   954M   1023M 9999
"a\x1b[2J日本語日~  frozen        -      -   1.0G     -      -       -    0

PROCESS             STATE    READY     PID STARTS CLIENTS UPTIME COMMAND
web                 running  yes         7      1       0    60s ./serve
worker-with-a-lon~  starting no    4194303 123456      64     4d python3 -m http
`
	got := ""
	for _, line := range v.lines() {
		text := line.in(palette{}, topColumns)
		got += text + "\n"
		if cutColumns(text, 80) != text {
			t.Errorf("longer than 80 columns: text = %q, want cutColumns(text, 80) == text", text)
		}
	}
	if got != want {
		t.Errorf("got %s, want got == want:\n%s", got, cmp.Diff(want, got))
	}
}
