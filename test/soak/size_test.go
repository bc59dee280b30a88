// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// reportVariable names the directory that a report of the load is written to; "": there is none.
const reportVariable = "SOAK_REPORT"

// minutes is how long the load goes on; SOAK_MINUTES sets another number.
func minutes() time.Duration {
	if n, err := strconv.Atoi(os.Getenv("SOAK_MINUTES")); err == nil {
		return time.Duration(n) * time.Minute
	}
	if os.Getenv("SOAK") != "" {
		return time.Hour
	}
	return time.Minute
}

// sample is what was seen at one time.
type sample struct {
	at                 time.Duration // since the load began
	memory, keeper     float64       // resident, in MiB
	files, goroutines  float64
	median, slowest99  float64 // of executions since the sample before, in milliseconds
	executions, failed int
}

// prober runs an execution after the other and keeps how long each takes. It is one client among the others.
type prober struct {
	mu     sync.Mutex
	took   []time.Duration
	failed int
}

func (p *prober) run(s *soak, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		begin := time.Now()
		r, err := s.d.Exec(s.t.Context(), "prober", &api.ExecRequest{Argv: []string{"true"}})
		took := time.Since(begin)
		p.mu.Lock()
		if err != nil || r.Status != "exited" {
			p.failed++
		} else {
			p.took = append(p.took, took)
		}
		p.mu.Unlock()
		<-time.After(5 * time.Millisecond)
	}
}

// take returns what there is, and begins anew.
func (p *prober) take() (took []time.Duration, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took, failed = p.took, p.failed
	p.took, p.failed = nil, 0
	slices.Sort(took)
	return took, failed
}

// quantile is in milliseconds, of sorted times.
func quantile(took []time.Duration, q float64) float64 {
	if len(took) == 0 {
		return 0
	}
	return float64(took[min(len(took)-1, int(q*float64(len(took))))]) / float64(time.Millisecond)
}

// look takes a sample. The keeper may be another one by the next.
func (s *soak) look(begun time.Time, watcher *caller, p *prober) sample {
	s.t.Helper()
	took, failed := p.take()
	now := sample{at: time.Since(begun), median: quantile(took, 0.5), slowest99: quantile(took, 0.99), executions: len(took), failed: failed}
	a, err := watcher.once(s.t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(a.body)) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			now.goroutines, _ = strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	now.memory, now.keeper = resident(s.t, s.d.PID()), resident(s.t, s.d.Keeper())
	now.files = float64(len(s.d.Look().OpenFiles))
	return now
}

// resident is how much memory a process has, in MiB.
func resident(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return n / 1024
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}

// Under load for a long time, without a kill, boxd and its keeper keep their size: what the load took is given back when
// it has ended. How long executions take is written down and decides nothing.
func TestLoadKeepsItsSize(t *testing.T) {
	s := start(t)
	s.d.Warm()
	s.d.NewSession(t, api.SessionRequest{ID: "prober"})
	watcher := newCaller(s, 0, "watcher", rand.New(rand.NewPCG(0, 0)))
	p, stop := &prober{}, make(chan struct{})
	var probing sync.WaitGroup
	probing.Go(func() { p.run(s, stop) })
	begun, end := time.Now(), minutes()
	idle := end / 12
	<-time.After(idle)
	samples := []sample{s.look(begun, watcher, p)}
	before := samples[0]
	var loading sync.WaitGroup
	for _, c := range s.callers {
		loading.Go(func() {
			for time.Since(begun) < end && !t.Failed() {
				c.work()
			}
		})
	}
	t.Cleanup(loading.Wait)
	every := max(end/240, time.Second)
	for next := time.Since(begun); next < end && !t.Failed(); next += every {
		<-time.After(max(next-time.Since(begun), 0))
		samples = append(samples, s.look(begun, watcher, p))
	}
	loading.Wait()
	calls := len(s.asked)
	for _, c := range s.callers {
		for id := range c.own {
			c.remove(id)
		}
	}
	<-time.After(max(idle, 5*time.Second)) // what has ended is given back meanwhile
	close(stop)
	probing.Wait()
	after := s.look(begun, watcher, p)
	samples = append(samples, after)
	if after.goroutines > before.goroutines+10 || after.files > before.files+10 {
		t.Errorf("afterwards there are %v goroutines and %v open files, were %v and %v", after.goroutines, after.files, before.goroutines, before.files)
	}
	most := before.memory
	for _, x := range samples[len(samples)/4 : len(samples)/2] { // when it has got used to the load
		most = max(most, x.memory)
	}
	for _, x := range samples[len(samples)*3/4:] {
		if x.memory > 2*most {
			t.Errorf("at %v boxd has %.0f MiB, after a quarter of the load it had %.0f at most", x.at.Round(time.Second), x.memory, most)
			break
		}
	}
	s.recordedSoFar()
	if err := s.d.DeleteSession(t.Context(), "prober"); err != nil {
		t.Error(err)
	}
	if dir := os.Getenv(reportVariable); dir != "" {
		if err := report(dir, samples, calls); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d calls of %d clients in %v; boxd %.0f to %.0f MiB", calls, len(s.callers), time.Since(begun).Round(time.Second), before.memory, after.memory)
}

// recordedSoFar checks that each call that was answered has its record.
func (s *soak) recordedSoFar() {
	s.t.Helper()
	s.stop()
	s.recorded()
}

// report writes a page and its picture.
func report(dir string, samples []sample, calls int) error {
	before, after := samples[0], samples[len(samples)-1]
	var most sample
	var slow []float64
	failed := 0
	for _, x := range samples[1 : len(samples)-1] {
		most.memory, most.keeper = max(most.memory, x.memory), max(most.keeper, x.keeper)
		most.files, most.goroutines = max(most.files, x.files), max(most.goroutines, x.goroutines)
		slow = append(slow, x.slowest99)
		failed += x.failed
	}
	slices.Sort(slow)
	middle := slow[len(slow)/2]
	text := fmt.Sprintf(`# boxd under load

Written by `+"`make soak`"+` on %s. Six clients of four users made %d calls in %v: sessions, commands, processes and files by chance, without a
kill. One more client ran `+"`true`"+` in a box of its own all the time; the times are its. They depend on the host, and decide nothing.

| | before | most under load | afterwards |
|---|---|---|---|
| memory of boxd, MiB | %.0f | %.0f | %.0f |
| memory of its keeper, MiB | %.0f | %.0f | %.0f |
| open files of both | %.0f | %.0f | %.0f |
| goroutines of boxd | %.0f | %.0f | %.0f |
| an execution, 99 of 100 within, ms | %.1f | %.1f (median of the samples; %.1f times as long) | %.1f |

Of the executions of that client %d failed.

![Memory, open files, goroutines and times under load](soak.svg)
`, time.Now().UTC().Format("2 January 2006"), calls, after.at.Round(time.Second), before.memory, most.memory, after.memory, before.keeper, most.keeper, after.keeper,
		before.files, most.files, after.files, before.goroutines, most.goroutines, after.goroutines, before.slowest99, middle, middle/max(before.slowest99, 0.001), after.slowest99, failed)
	if err := os.WriteFile(filepath.Join(dir, "soak-report.md"), []byte(text), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "soak.svg"), []byte(picture(samples)), 0o644)
}

// Sizes of the picture, in pixels.
const (
	chartWidth, chartHeight = 720, 120
	chartGap                = 40
)

// picture draws what was seen over time.
func picture(samples []sample) string {
	charts := []struct {
		name string
		of   func(*sample) float64
	}{
		{"memory of boxd, MiB", func(x *sample) float64 { return x.memory }},
		{"memory of the keeper, MiB", func(x *sample) float64 { return x.keeper }},
		{"open files of both", func(x *sample) float64 { return x.files }},
		{"goroutines of boxd", func(x *sample) float64 { return x.goroutines }},
		{"an execution, median, ms", func(x *sample) float64 { return x.median }},
		{"an execution, 99 of 100 within, ms", func(x *sample) float64 { return x.slowest99 }},
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", chartWidth+80, len(charts)*(chartHeight+chartGap)+chartGap)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	last := samples[len(samples)-1].at
	for i, c := range charts {
		top := chartGap + i*(chartHeight+chartGap)
		most := 0.0
		for j := range samples {
			most = max(most, c.of(&samples[j]))
		}
		fmt.Fprintf(b, `<text x="60" y="%d">%s</text><text x="55" y="%d" text-anchor="end">%.0f</text><text x="55" y="%d" text-anchor="end">0</text>`, top-6, c.name, top+10, most, top+chartHeight)
		fmt.Fprintf(b, `<rect x="60" y="%d" width="%d" height="%d" fill="none" stroke="#ccc"/><polyline fill="none" stroke="#06c" points="`, top, chartWidth, chartHeight)
		for j := range samples {
			x := 60 + float64(samples[j].at)/float64(max(last, 1))*chartWidth
			fmt.Fprintf(b, "%.1f,%.1f ", x, float64(top+chartHeight)-c.of(&samples[j])/max(most, 0.001)*chartHeight)
		}
		b.WriteString(`"/>` + "\n")
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%v</text></svg>`+"\n", chartWidth+60, len(charts)*(chartHeight+chartGap)+16, last.Round(time.Second))
	return b.String()
}
