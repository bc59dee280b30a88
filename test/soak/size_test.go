// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// phase is how much the clients ask of boxd.
type phase int

// Phases of a load, in their order. The rate of the half load follows from what the clients achieve at full load.
const (
	idle phase = iota
	full       // each client begins as soon as it has its answer
	half       // all clients together begin half as often as they did at full load
	after
)

// sample is what was seen at one time.
type sample struct {
	at                time.Duration // since the beginning
	phase             phase
	memory, keeper    float64 // resident, in MiB
	files, goroutines float64
	boxd, host        times // since the sample before, of executions and of a program that the test starts itself
	failed            int   // executions
}

// times are of sorted durations, in milliseconds.
type times struct{ median, slowest99 float64 }

// prober runs something again and again, at times that do not depend on how long it takes: one that is late because of the one before
// has waited too.
type prober struct {
	run func() error

	mu      sync.Mutex
	elapsed []time.Duration
	failed  int
}

// probing is the time from one beginning to the next.
const probing = 25 * time.Millisecond

func (p *prober) probe(stop <-chan struct{}) {
	for next := time.Now(); ; next = next.Add(probing) {
		select {
		case <-stop:
			return
		case <-time.After(time.Until(next)):
		}
		err := p.run()
		elapsed := time.Since(next)
		p.mu.Lock()
		if err != nil {
			p.failed++
		} else {
			p.elapsed = append(p.elapsed, elapsed)
		}
		p.mu.Unlock()
	}
}

// take returns what there is, and begins anew.
func (p *prober) take() (times, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed, failed := p.elapsed, p.failed
	p.elapsed, p.failed = nil, 0
	slices.Sort(elapsed)
	return times{quantile(elapsed, 0.5), quantile(elapsed, 0.99)}, failed
}

// quantile is in milliseconds, of sorted times.
func quantile(elapsed []time.Duration, q float64) float64 {
	if len(elapsed) == 0 {
		return 0
	}
	return float64(elapsed[min(len(elapsed)-1, int(q*float64(len(elapsed))))]) / float64(time.Millisecond)
}

// load is a run of TestBoxdAndKeeperDoNotGrowUnderLoad.
type load struct {
	*soak
	start   time.Time
	watcher *caller
	boxd    prober
	host    prober
	samples []sample
}

// look takes a sample. The keeper may be another one by the next.
func (l *load) look(ph phase) *sample {
	s := l.soak
	s.t.Helper()
	now := sample{at: time.Since(l.start), phase: ph}
	now.boxd, now.failed = l.boxd.take()
	now.host, _ = l.host.take()
	watcher := l.watcher
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
	l.samples = append(l.samples, now)
	return &l.samples[len(l.samples)-1]
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
func TestBoxdAndKeeperDoNotGrowUnderLoad(t *testing.T) {
	s := start(t)
	s.d.Warm()
	s.d.NewSession(t, api.SessionRequest{ID: "prober"})
	l := &load{soak: s, start: time.Now(), watcher: newCaller(s, 0, "watcher", rand.New(rand.NewPCG(0, 0)))}
	l.boxd.run = func() error {
		r, err := s.d.Exec(t.Context(), "prober", &api.ExecRequest{Argv: []string{"true"}})
		if err == nil && r.Status != "exited" {
			err = errors.New(r.Status)
		}
		return err
	}
	l.host.run = func() error { return exec.CommandContext(t.Context(), "true").Run() }
	stop := make(chan struct{})
	var probing sync.WaitGroup
	halt := sync.OnceFunc(func() { close(stop); probing.Wait() })
	t.Cleanup(halt)
	probing.Go(func() { l.boxd.probe(stop) })
	probing.Go(func() { l.host.probe(stop) })
	end := minutes()
	quiet := end / 12
	<-time.After(quiet)
	before := *l.look(idle)
	each, rate := l.underLoad(full, quiet+(end-quiet)/2, 0)
	_, lower := l.underLoad(half, end, 2*each)
	calls := l.calls()
	for _, c := range s.callers {
		for id := range c.own {
			c.remove(id)
		}
	}
	<-time.After(max(quiet, 5*time.Second)) // what has ended is given back meanwhile
	halt()
	last := *l.look(after)
	if last.goroutines > before.goroutines+10 || last.files > before.files+10 {
		t.Errorf("afterwards there are %v goroutines and %v open files, were %v and %v", last.goroutines, last.files, before.goroutines, before.files)
	}
	l.sizeIsKept()
	s.recordedSoFar()
	if err := s.d.DeleteSession(t.Context(), "prober"); err != nil {
		t.Error(err)
	}
	if dir := os.Getenv(reportVariable); dir != "" {
		if err := l.report(dir, rate, lower); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d calls of %d clients in %v; boxd %.0f to %.0f MiB", calls, len(s.callers), time.Since(l.start).Round(time.Second), before.memory, last.memory)
	for _, ph := range []phase{idle, full, half, after} {
		t.Logf("phase %d: %+v", ph, l.worst(ph))
	}
}

// underLoad has all clients work until a time after the beginning, and takes samples. Each begins something so long after it has begun the thing
// before, at the soonest. It returns how long that was, and how many calls were answered in a second.
func (l *load) underLoad(ph phase, until, each time.Duration) (was time.Duration, rate float64) {
	l.t.Helper()
	var loading sync.WaitGroup
	l.t.Cleanup(loading.Wait)
	var done atomic.Int64
	before, start := l.calls(), time.Now()
	for _, c := range l.callers {
		loading.Go(func() {
			for next := time.Now(); time.Since(l.start) < until && !l.t.Failed(); next = next.Add(each) {
				<-time.After(time.Until(next))
				c.work()
				done.Add(1)
			}
		})
	}
	every := max(minutes()/240, time.Second)
	for next := time.Since(l.start) + every; next < until && !l.t.Failed(); next += every {
		<-time.After(next - time.Since(l.start))
		l.look(ph)
	}
	loading.Wait()
	l.look(ph)
	elapsed := time.Since(start)
	return elapsed * time.Duration(len(l.callers)) / time.Duration(max(done.Load(), 1)), float64(l.calls()-before) / elapsed.Seconds()
}

// calls is how many have been answered that change something.
func (l *load) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

// sizeIsKept checks that boxd does not grow when it has got used to the load.
func (l *load) sizeIsKept() {
	l.t.Helper()
	var loaded []sample
	for _, x := range l.samples {
		if x.phase == full || x.phase == half {
			loaded = append(loaded, x)
		}
	}
	most := l.samples[0].memory
	for _, x := range loaded[len(loaded)/8 : len(loaded)/4] {
		most = max(most, x.memory)
	}
	for _, x := range loaded[len(loaded)/4:] {
		if x.memory > 2*most {
			l.t.Errorf("at %v boxd has %.0f MiB, after an eighth of the load it had %.0f at most", x.at.Round(time.Second), x.memory, most)
			return
		}
	}
}

// worst is the most of each size that was seen in a phase, and the median of the samples' times.
func (l *load) worst(ph phase) sample {
	w := sample{phase: ph}
	var boxd, host []float64
	for _, x := range l.samples {
		if x.phase != ph {
			continue
		}
		w.memory, w.keeper = max(w.memory, x.memory), max(w.keeper, x.keeper)
		w.files, w.goroutines = max(w.files, x.files), max(w.goroutines, x.goroutines)
		w.failed += x.failed
		boxd, host = append(boxd, x.boxd.slowest99), append(host, x.host.slowest99)
	}
	slices.Sort(boxd)
	slices.Sort(host)
	w.boxd.slowest99, w.host.slowest99 = boxd[len(boxd)/2], host[len(host)/2]
	return w
}

// recordedSoFar checks that each call that was answered has its record.
func (s *soak) recordedSoFar() {
	s.t.Helper()
	s.stop()
	s.recorded()
}

// report writes a page and its picture.
func (l *load) report(dir string, rate, lower float64) error {
	last := l.samples[len(l.samples)-1]
	b := &strings.Builder{}
	fmt.Fprintf(b, `# boxd under load

Written by `+"`make soak`"+` on %s. Six clients of four users made %d calls in %v: sessions, commands, processes and files by chance, without a
kill. At first they made as many as they could, %.0f in a second; then half as many, %.0f. One more client ran `+"`true`"+` in a box of its
own, 40 times in a second; the times are its, from when each should have begun, so that one which had to wait for the one before is slow too. What
the host itself did to a program meanwhile is in the last two lines: `+"`true`"+` started by the test, without boxd. They depend on the host, and decide nothing.

| | before | under all load | under half of it | afterwards |
|---|---|---|---|---|
`, time.Now().UTC().Format("2 January 2006"), l.calls(), last.at.Round(time.Second), rate, lower)
	worst := []sample{l.worst(idle), l.worst(full), l.worst(half), l.worst(after)}
	line := func(name, format string, of func(*sample) float64) {
		fmt.Fprintf(b, "| %s |", name)
		for i := range worst {
			fmt.Fprintf(b, " "+format+" |", of(&worst[i]))
		}
		b.WriteByte('\n')
	}
	line("memory of boxd, MiB, at most", "%.0f", func(x *sample) float64 { return x.memory })
	line("memory of its keeper, MiB, at most", "%.0f", func(x *sample) float64 { return x.keeper })
	line("open files of both, at most", "%.0f", func(x *sample) float64 { return x.files })
	line("goroutines of boxd, at most", "%.0f", func(x *sample) float64 { return x.goroutines })
	line("an execution, 99 of 100 within, ms", "%.1f", func(x *sample) float64 { return x.boxd.slowest99 })
	line("times as long as before", "%.1f", func(x *sample) float64 { return x.boxd.slowest99 / max(worst[0].boxd.slowest99, 0.001) })
	line("a program without boxd, 99 of 100 within, ms", "%.1f", func(x *sample) float64 { return x.host.slowest99 })
	line("times as long as before", "%.1f", func(x *sample) float64 { return x.host.slowest99 / max(worst[0].host.slowest99, 0.001) })
	fmt.Fprintf(b, `
The times are the medians of samples, of which there are %d under load. Of the executions of that client %d failed.

![Memory, open files, goroutines and times under load](soak.svg)
`, len(l.samples)-2, worst[0].failed+worst[1].failed+worst[2].failed+worst[3].failed)
	if err := os.WriteFile(filepath.Join(dir, "soak-report.md"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "soak.svg"), []byte(picture(l.samples)), 0o644)
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
		{"an execution, median, ms", func(x *sample) float64 { return x.boxd.median }},
		{"an execution, 99 of 100 within, ms", func(x *sample) float64 { return x.boxd.slowest99 }},
		{"a program without boxd, 99 of 100 within, ms", func(x *sample) float64 { return x.host.slowest99 }},
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
