// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/relay/api"
)

// used is a principal's usage, of all days.
type used struct{ Executions, Started int }

// ledgerCopy is a ledger as found on disk.
type ledgerCopy struct {
	use     map[string]used
	at      time.Duration // when it was written; a kill has lost what came later
	inOrder bool          // its boxd was stopped: nothing is lost
}

// read reads the ledger of a boxd that has ended.
func (s *soak) read() ledgerCopy {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.d.State, "usage", "*.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	b := ledgerCopy{use: map[string]used{}}
	for _, name := range files {
		var day struct {
			At  time.Duration
			Use map[string]used
		}
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &day)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		b.at = max(b.at, day.At)
		for who, u := range day.Use {
			b.use[who] = used{b.use[who].Executions + u.Executions, b.use[who].Started + u.Started}
		}
	}
	return b
}

// usage returns the usage that boxd reports.
func (s *soak) usage() map[string]used {
	s.t.Helper()
	list, err := s.d.Usage(s.t.Context(), 400, true)
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]used{}
	for _, d := range list.Days {
		all[d.Principal] = used{all[d.Principal].Executions + int(d.Executions), all[d.Principal].Started + int(d.Sessions)}
	}
	return all
}

// bounds returns the minimum and maximum in the ledger of a boxd that started from its predecessor's: calls answered before it
// was written, and calls made before then.
func (s *soak) bounds(boxd int, at time.Duration) (least, most map[string]used) {
	begun := s.books[boxd-1].use
	least, most = maps.Clone(begun), maps.Clone(begun)
	for _, d := range s.deeds {
		if d.first > boxd || d.last < boxd {
			continue
		}
		if d.sure() && d.end < at {
			least[d.who] = used{least[d.who].Executions + d.execs, least[d.who].Started + d.sessions}
		}
		if d.begin < at {
			most[d.who] = used{most[d.who].Executions + d.execs, most[d.who].Started + d.sessions}
		}
	}
	return least, most
}

// within checks counts against their bounds.
func (s *soak) within(what string, got, least, most map[string]used) {
	s.t.Helper()
	for who := range most {
		g, l, m := got[who], least[who], most[who]
		if g.Executions < l.Executions || g.Executions > m.Executions || g.Started < l.Started || g.Started > m.Started {
			s.t.Errorf("%s: %s has %+v, that is not from %+v to %+v", what, who, g, l, m)
		}
	}
}

// always is later than everything.
const always = time.Duration(math.MaxInt64)

// quiet checks, while no caller is active, that the state matches what the callers know.
//
// The ledger of a killed boxd has every execution and session that was answered before it was last written (at most ledger.Every
// before the kill), and none that was requested later. That of a boxd that was stopped has them all.
func (s *soak) quiet() {
	s.t.Helper()
	s.sessions()
	for boxd := s.checked; boxd < len(s.books); boxd++ {
		b := s.books[boxd]
		at := b.at
		if b.inOrder {
			at = always
		}
		least, most := s.bounds(boxd, at)
		s.within("what a boxd has left", b.use, least, most)
	}
	s.checked = len(s.books)
	least, most := s.bounds(s.checked, always)
	s.within("/v1/usage", s.usage(), least, most)
	s.deeds = slices.DeleteFunc(s.deeds, func(d callEffect) bool { return d.last < s.checked })
}

// exactly checks that during do, while boxd is not killed, the ledger gets exactly what was answered.
func (s *soak) exactly(do func()) {
	s.t.Helper()
	from, first := s.usage(), len(s.deeds)
	status := s.status()
	do()
	execs := 0
	for _, d := range s.deeds[first:] {
		if !d.sure() {
			s.t.Errorf("boxd ran all the time, and the outcome of %+v is unknown", d)
		}
		from[d.who] = used{from[d.who].Executions + d.execs, from[d.who].Started + d.sessions}
		execs += d.execs
	}
	s.within("/v1/usage of a round without kills", s.usage(), from, from)
	if got := int(s.status().Executed - status.Executed); got != execs {
		s.t.Errorf("status counts %d executions, of which %d were answered", got, execs)
	}
}

func (s *soak) status() api.Status {
	s.t.Helper()
	st, err := s.d.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// sessions checks that exactly the expected sessions and processes exist. One whose client has given up may still be ending.
func (s *soak) sessions() {
	s.t.Helper()
	want, sessions, processes := map[string][]string{}, 0, 0
	for _, c := range s.callers {
		for id, b := range c.own {
			want[c.name] = append(want[c.name], id)
			sessions++
			processes += len(b.processes)
		}
	}
	var st api.Status
	defer func() {
		if s.t.Failed() {
			s.t.Logf("status %+v, want %d sessions with %d processes", st, sessions, processes)
		}
	}()
	boxtest.Eventually(s.t, "the status counts the sessions and processes that exist", func() bool {
		st = s.status()
		return st.Sessions == sessions && st.Processes == processes && st.Running == processes && st.Queue.Waiting == 0 && st.Queue.Executions == 0
	})
	for _, c := range s.callers {
		a, err := c.once(s.t.Context(), http.MethodGet, "/v1/sessions", nil)
		var list api.SessionList
		if err == nil {
			err = json.Unmarshal(a.body, &list)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		got := []string{}
		for _, found := range list.Sessions {
			got = append(got, found.ID)
		}
		slices.Sort(got)
		slices.Sort(want[c.name])
		if !slices.Equal(got, want[c.name]) {
			s.t.Errorf("%s has %q, want %q", c.name, got, want[c.name])
		}
	}
}

// noLeaks checks that boxd has found no leaks, in two of its checks, which it makes every five seconds.
func (s *soak) noLeaks() {
	s.t.Helper()
	root := s.callers[len(s.callers)-1]
	look := func() {
		a, err := root.once(s.t.Context(), http.MethodGet, "/metrics", nil)
		kinds := 0
		for line := range strings.Lines(string(a.body)) {
			if strings.HasPrefix(line, "boxd_leaks{") {
				if kinds++; !strings.HasSuffix(line, "} 0\n") {
					s.t.Errorf(`line = %s, want line ending with "} 0\n"`, line)
				}
			}
		}
		if err != nil || kinds == 0 {
			s.t.Errorf("%v: a.status = %d, a.body = %s, want no error and kinds != 0", err, a.status, a.body)
		}
	}
	look()
	again := now() + 6*time.Second
	boxtest.Eventually(s.t, "six seconds have passed since the last check", func() bool { return now() > again })
	look()
}

// recorded checks that the audit log is intact, with one record for each answered call.
func (s *soak) recorded() {
	s.t.Helper()
	dir := filepath.Join(s.d.State, "audit")
	report, err := hashchain.Verify(os.DirFS(dir), nil)
	if err != nil || len(report.Problems) > 0 || report.Lost > 0 || report.First != 1 {
		s.t.Errorf("err = %v, report = %+v, want no error and len(report.Problems) == 0 and report.Lost <= 0 and report.First == 1",
			err, report)
	}
	names, err := hashchain.Files(os.DirFS(dir))
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[string]int{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, rest, ok := strings.Cut(line, `"request":"`); ok && strings.Contains(line, `"kind":"call"`) {
				id, _, _ := strings.Cut(rest, `"`)
				found[id]++
			}
		}
	}
	for id, n := range s.asked {
		if n != 1 || found[id] != 1 {
			s.t.Errorf("of call %s there were %d answers, and there are %d records", id, n, found[id])
		}
	}
}
