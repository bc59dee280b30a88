// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/output"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func resolved(t *testing.T, change func(*Spec)) *Spec {
	t.Helper()
	s := &Spec{ID: "p", Command: isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Env: []string{"A=secret"}, Output: isolation.Output{Tail: 1 << 20}, Durable: true}}
	if change != nil {
		change(s)
	}
	if err := s.Resolve(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFromEveryStateAProcessCanEnd(t *testing.T) {
	t.Parallel()
	for from, to := range moves() {
		if !slices.Contains(to, StateEnded) {
			t.Errorf("not from %s", from)
		}
	}
	if len(moves()[StateEnded]) > 0 {
		t.Error("there are state changes after the final state")
	}
	p := newProcess(Hooks{}, resolved(t, nil))
	for _, to := range []State{StateRunning, StateStarting, StateWaiting, StateEnded, StateRunning} {
		p.setState(to)
	}
	if p.state != StateEnded {
		t.Errorf("p.state = %s, want StateEnded", p.state)
	}
}

// TestRestarts checks what a restart policy does after a series of exits.
func TestRestarts(t *testing.T) {
	t.Parallel()
	exit := func(code int) *ending { return &ending{exit: &isolation.Exit{Code: code}, ran: time.Second} }
	long := &ending{exit: &isolation.Exit{Code: 1}, ran: time.Hour}
	killed := &ending{exit: &isolation.Exit{Reason: isolation.ReasonSignaled, Signal: 9}}
	late := &ending{exit: &isolation.Exit{Reason: isolation.ReasonTimedOut}}
	unready := &ending{exit: &isolation.Exit{Reason: isolation.ReasonExited}, unready: true}
	none := &ending{err: &isolation.StepError{}}
	for _, tc := range []struct {
		name    string
		restart Restart
		ends    []*ending
		every   time.Duration // how long one start takes
		want    string
	}{
		{"no", Restart{}, []*ending{exit(1)}, time.Second, "end"},
		{"success is no failure", Restart{Policy: RestartOnFailure}, []*ending{exit(0)}, time.Second, "end"},
		{"what is a failure", Restart{Policy: RestartOnFailure, Limit: new(0)}, []*ending{exit(1), killed, late, unready, none}, time.Hour, "100ms 200ms 400ms 800ms 1.6s"},
		{"always", Restart{Policy: RestartAlways}, []*ending{exit(0), exit(0)}, time.Second, "100ms 200ms"},
		{"one that has run long begins anew", Restart{Policy: RestartAlways}, []*ending{exit(0), exit(0), long, exit(0)}, time.Second, "100ms 200ms 100ms 200ms"},
		{"at most so long", Restart{Policy: RestartAlways, Delay: new(time.Second), MaxDelay: new(3 * time.Second)}, []*ending{exit(0), exit(0), exit(0), exit(0)}, time.Second, "1s 2s 3s 3s"},
		{"crash loop", Restart{Policy: RestartAlways, Limit: new(2)}, []*ending{exit(0), exit(0), exit(0)}, time.Second, "100ms 200ms loop"},
		{"slowly is no loop", Restart{Policy: RestartAlways, Limit: new(2)}, []*ending{exit(0), exit(0), exit(0)}, 30 * time.Second, "100ms 200ms 400ms"},
		{"loop of failures", Restart{Policy: RestartOnFailure, Limit: new(1)}, []*ending{none, none}, time.Second, "100ms loop"},
		{"no limit", Restart{Policy: RestartAlways, Limit: new(0), MaxDelay: new(time.Second)}, slices.Repeat([]*ending{exit(0)}, 6), 0, "100ms 200ms 400ms 800ms 1s 1s"},
	} {
		spec := resolved(t, func(s *Spec) { s.Restart = tc.restart })
		var r restarts
		var got []string
		now := time.Unix(1000, 0)
		for _, e := range tc.ends {
			delay, again, looping := r.next(&spec.Restart, e, now)
			switch {
			case looping:
				got = append(got, "loop")
			case !again:
				got = append(got, "end")
			default:
				got = append(got, delay.String())
			}
			now = now.Add(delay + tc.every)
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, text, tc.want)
		}
	}
}

func TestTheRestartPolicyDecidesWhatFollowsAnExit(t *testing.T) {
	t.Parallel()
	failed := &ending{exit: &isolation.Exit{Code: 1}}
	for _, tc := range []struct {
		name   string
		change func(p *Process)
		end    *ending
		reason string
		again  bool
	}{
		{"a start", nil, failed, "", true},
		{"not after a stop", func(p *Process) { p.requestStop(ReasonStopped) }, failed, ReasonStopped, false},
		{"not after the lease", func(p *Process) { p.requestStop(ReasonLease) }, failed, ReasonLease, false},
		{"not without a box", nil, &ending{err: client.ErrBoxLost}, ReasonShutdown, false},
		{"not if it never ran", func(p *Process) { p.log = nil }, &ending{err: &isolation.StepError{}}, "", false},
		{"a start, though it is frozen", func(p *Process) { p.spec.Restart.Limit, p.at.Restarts.Recent = new(1), []time.Time{time.Now()} }, &ending{err: &isolation.StepError{Step: isolation.StepFreeze}}, "", true},
		{"a loop", func(p *Process) { p.spec.Restart.Limit, p.at.Restarts.Recent = new(1), []time.Time{time.Now()} }, failed, ReasonCrashLoop, false},
		{"not ready", func(p *Process) { p.spec.Restart.Policy = RestartNo }, &ending{exit: &isolation.Exit{}, unready: true}, ReasonNotReady, false},
		{"another boxd has seen the end", func(p *Process) { p.at.Ended, p.at.Reason = time.Now(), ReasonCrashLoop }, failed, ReasonCrashLoop, false},
	} {
		p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Restart.Policy = RestartAlways }))
		p.log = &output.Log{}
		if tc.change != nil {
			tc.change(p)
		}
		if _, reason, again := p.nextStep(tc.end, time.Now()); reason != tc.reason || again != tc.again {
			t.Errorf("%s: reason = %q, again = %v, want reason == %q and again == %v",
				tc.name, reason, again, tc.reason, tc.again)
		}
	}
}

// A stop requested while a program is being restarted is not lost, neither by this boxd nor by the next.
func TestAStopThatComesDuringAStartCounts(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(p *Process, start func()){
		"before the program is known": func(p *Process, start func()) { p.requestStop(ReasonStopped); start() },
		"before it has begun":         func(p *Process, start func()) { start(); p.requestStop(ReasonStopped) },
	} {
		p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Restart.Policy = RestartAlways }))
		at := progress{Starts: 2} // the state when the start began
		file, err := newPrivate(&p.spec, &at)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		stop(p, func() { p.launched(&client.Program{}, &at, file) })
		if got := p.stopReason(); got != ReasonStopped {
			t.Errorf("%s: it is to end for %q", name, got)
		}
		if _, next, err := readPrivate(file); err != nil || next.Stopping != ReasonStopped || next.Starts != 2 {
			t.Errorf("%s: the next boxd reads %+v, %v, want no error and next.Stopping == ReasonStopped and next.Starts == 2",
				name, next, err)
		}
		p.requestStop(ReasonRevoked) // the first request counts
		if got := p.stopReason(); got != ReasonStopped {
			t.Errorf("%s: it is to end for %q by now", name, got)
		}
	}
}

func TestALeaseExpiresWhenNoClientIsAttached(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, tc := range []struct {
		name     string
		lease    *time.Duration
		attached bool
		seen     bool
		want     time.Duration // 0: never
	}{
		{"none", nil, false, true, 0},
		{"somebody is there", new(time.Minute), true, true, 0},
		{"nobody is", new(time.Minute), false, true, time.Minute},
		{"nobody has ever been", new(time.Second), false, false, firstLease},
		{"long", new(time.Hour), false, false, time.Hour},
	} {
		p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Lease = tc.lease }))
		p.used, p.seen = start, tc.seen
		if tc.attached {
			p.all[&Attachment{}] = struct{}{}
		}
		wait := p.checkReady(start)
		if tc.want == 0 && wait != rarely || tc.want > 0 && wait != tc.want || p.stopReason() != "" {
			t.Errorf("%s: checks again after %v, %q", tc.name, wait, p.stopReason())
		}
		if tc.want == 0 {
			continue
		}
		p.checkReady(start.Add(tc.want))
		if p.stopReason() != ReasonLease {
			t.Errorf("%s: the process was not stopped", tc.name)
		}
	}
	// A lease of zero ends when the last client leaves.
	p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Lease = new(time.Duration(0)) }))
	p.used, p.seen = start, true
	if p.checkReady(start); p.stopReason() != ReasonLease {
		t.Error("the process with an expired lease was not stopped")
	}
}

func TestARequestIsRefusedByItsField(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*Spec){
		"restart.policy":    func(s *Spec) { s.Restart.Policy = "sometimes" },
		"restart.delay":     func(s *Spec) { s.Restart.Delay = new(time.Duration(0)) },
		"restart.max_delay": func(s *Spec) { s.Restart.Delay, s.Restart.MaxDelay = new(time.Minute), new(time.Second) },
		"restart.limit":     func(s *Spec) { s.Restart.Limit = new(-1) },
		"restart.window":    func(s *Spec) { s.Restart.Window = new(time.Duration(0)) },
		"ready":             func(s *Spec) { s.Ready = &Ready{} },
		"ready.line":        func(s *Spec) { s.Ready = &Ready{Line: new("(")} },
		"ready.port":        func(s *Spec) { s.Ready = &Ready{Port: new(70000)} },
		"ready.command":     func(s *Spec) { s.Ready = &Ready{Command: []string{}} },
		"ready.timeout":     func(s *Spec) { s.Ready = &Ready{Port: new(80), Timeout: new(-time.Second)} },
		"stop.signal":       func(s *Spec) { s.Stop.Signal = "TERM" },
		"stop.grace":        func(s *Spec) { s.Stop.Grace = new(-time.Second) },
		"lease":             func(s *Spec) { s.Lease = new(-time.Second) },
		"labels":            func(s *Spec) { s.Labels = map[string]string{"": "x"} },
		"id":                func(s *Spec) { s.ID = "" },
		"terminal.rows":     func(s *Spec) { s.Command.Terminal = &isolation.Terminal{Cols: 80} },
		"terminal.cols":     func(s *Spec) { s.Command.Terminal = &isolation.Terminal{Rows: 24} },
	} {
		s := &Spec{ID: "p"}
		change(s)
		f, ok := errors.AsType[*fault.Error](s.Resolve())
		if !ok || f.Field != field {
			t.Errorf("%s: f = %v, want ok == true and f.Field == field", field, f)
		}
	}
	s := resolved(t, func(s *Spec) { s.Ready = &Ready{Port: new(80)}; s.Restart.Delay = new(time.Minute) })
	if *s.Restart.MaxDelay != time.Minute || *s.Restart.Limit != defaultLimit || s.Stop.Signal != "SIGTERM" || *s.Ready.Timeout != defaultReady {
		t.Errorf(`s = %+v, want *s.Restart.MaxDelay == time.Minute and *s.Restart.Limit == defaultLimit and s.Stop.Signal == "SIGTERM" and *s.Ready.Timeout == defaultReady`,
			s)
	}
}

func TestProcessRecordsAreReadBackByTheNextBoxd(t *testing.T) {
	t.Parallel()
	spec := resolved(t, func(s *Spec) {
		s.Restart.Policy, s.Script, s.Input = RestartAlways, []byte("echo"), []byte{0, 255}
		s.Ready, s.Lease, s.Labels = &Ready{Line: new("^up$")}, new(time.Minute), map[string]string{"a": "b"}
	})
	at := &progress{Starts: 2, First: time.Unix(1, 0).UTC(), Began: time.Unix(2, 0).UTC(), From: [2]int64{3, 4}, Input: 5}
	f, err := newPrivate(spec, at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at.Stopping = ReasonStopped
	if err := appendLine(f, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(`{"Starts":9,"Fi`), size(t, f)); err != nil { // boxd dies in the middle of a write
		t.Fatal(err)
	}
	gotSpec, gotAt, err := readPrivate(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, gotSpec); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(at, gotAt); diff != "" {
		t.Error(diff)
	}
	// A process that is never restarted keeps no script and no input.
	spec.Restart.Policy = RestartNo
	once, err := newPrivate(spec, at)
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	if gotSpec, _, err = readPrivate(once); err != nil || gotSpec.Script != nil || gotSpec.Input != nil {
		t.Errorf("gotSpec = %+v, err = %v, want no error and gotSpec.Script == nil and gotSpec.Input == nil",
			gotSpec, err)
	}
}

func size(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// PID 1 of a box may hand over anything: what is no valid process is refused.
func TestNonsenseFromPID1IsNoProcess(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, _, err := readPrivate(r); !errors.Is(err, output.ErrNotMemory) {
		t.Errorf("a pipe: err = %v, want err is output.ErrNotMemory", err)
	}
	good := `{"ID":"p","Restart":{"Policy":"no"}}` + "\n"
	for _, text := range []string{
		"", "{}", "[]", "null\nnull\n", good, good + `{"Starts":-1}`, good + `{"Starts":1,"Input":-1}`, good + `{"Starts":1,"From":[-1,0]}`,
		`{"ID":"\u0000"}` + "\n" + `{"Starts":1}`, `{"ID":"p","Restart":{"Delay":-5}}` + "\n" + `{"Starts":1}`, `{"ID":"p","Ready":{"Line":"("}}` + "\n" + `{"Starts":1}`,
	} {
		f, err := MemoryFile("test", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := readPrivate(f); err == nil {
			t.Errorf("%q is a process", text)
		}
		f.Close()
	}
}

func TestTheReadyLineIsFoundHoweverOutputIsSplit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	for _, tc := range []struct {
		pieces []string
		want   bool
	}{
		{[]string{"ready\n"}, true},
		{[]string{"rea", "dy\n"}, true},
		{[]string{"not\nrea", "dy", "\r\nmore"}, true},
		{[]string{"ready"}, false},
		{[]string{"already\n", "ready!\n"}, false},
		{[]string{long, "ready\n"}, false},
		{[]string{long, "x\nready\n"}, true},
	} {
		var l line
		found := false
		for _, piece := range tc.pieces {
			found = l.add([]byte(piece), regexp.MustCompile("^ready$")) || found
		}
		if found != tc.want {
			t.Errorf("%.40q: found = %v, want %v", tc.pieces, found, tc.want)
		}
	}
}

func TestAListenerIsFoundInTheKernelsList(t *testing.T) {
	t.Parallel()
	const list = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 12346 1
`
	const six = `  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1
`
	for port, want := range map[int]bool{8080: true, 8081: false, 80: false} {
		if listening(list, port) != want {
			t.Errorf("port = %d, want listening(list, port) == want", port)
		}
	}
	if !listening(six, 80) || listening("garbage\nx y z 0A\n", 80) {
		t.Error("listening does not read the IPv6 list, or accepts an invalid one")
	}
}

// fed is a running process whose output a test writes.
type fed struct {
	*Process
	t       *testing.T
	rings   [2]output.Ring
	journal output.Journal
}

func feed(t *testing.T, spec *Spec) *fed {
	t.Helper()
	f := &fed{Process: newProcess(Hooks{}, spec), t: t}
	var fds [3]int
	var err error
	if f.journal, err = output.NewJournal(); err != nil {
		t.Fatal(err)
	}
	for i := range f.rings {
		f.rings[i] = output.NewRing(spec.Command.Output.Head, spec.Command.Output.Tail)
		if err := f.rings[i].Create(); err != nil {
			t.Fatal(err)
		}
		fds[i] = f.rings[i].FD
	}
	fds[2] = f.journal.FD
	if f.log, err = output.NewLog(fds[0], fds[1], fds[2], spec.Command.Output.Tail); err != nil {
		t.Fatal(err)
	}
	close(f.up)
	f.setState(StateRunning)
	t.Cleanup(f.log.Close)
	return f
}

func (f *fed) write(stream int, text string) {
	f.journal.Note(stream, [2]int64{f.rings[0].Size(), f.rings[1].Size()})
	if err := f.rings[stream].Append([]byte(text)); err != nil {
		f.t.Fatal(err)
	}
	f.log.Wake()
}

// end ends the process.
func (f *fed) end() {
	f.setState(StateEnded)
	close(f.done)
}

func (f *fed) attach(o AttachOptions) *Attachment {
	f.t.Helper()
	a, err := f.Attach(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(a.Close)
	return a
}

// all reads the output to its end.
func (f *fed) all(a *Attachment) string {
	f.t.Helper()
	text := ""
	for {
		c, err := a.Next(f.t.Context())
		switch {
		case errors.Is(err, io.EOF):
			return text
		case err != nil:
			f.t.Fatal(err)
		case c.Gap > 0:
			text += fmt.Sprintf("[%d: %d gone]", c.Stream, c.Gap)
		default:
			text += fmt.Sprintf("[%d: %s]", c.Stream, c.Data)
		}
	}
}

func TestReadersBeginWhereTheyWantAndEndWithTheProcess(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, nil))
	f.write(0, "one ")
	f.write(1, "two ")
	now, begin, middle := f.attach(AttachOptions{}), f.attach(AttachOptions{From: &[2]int64{}}), f.attach(AttachOptions{From: &[2]int64{2, 4}})
	if at := now.Position(); at != [2]int64{4, 4} {
		t.Errorf("at = %v, want [2]int64{4, 4}", at)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := now.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want err is context.DeadlineExceeded", err)
	}
	f.write(0, "three")
	f.end()
	for a, want := range map[*Attachment]string{now: "[0: three]", begin: "[0: one ][1: two ][0: three]", middle: "[0: e three]"} {
		if got := strings.ReplaceAll(f.all(a), "][0: three", map[bool]string{true: " three", false: "][0: three"}[a == middle]); strings.ReplaceAll(got, "  ", " ") != want {
			t.Errorf("%s, want %s", got, want)
		}
		if at := a.Position(); at != [2]int64{9, 4} {
			t.Errorf("at %v", at)
		}
	}
	for _, from := range [][2]int64{{-1, 0}, {10, 0}, {0, 5}} {
		if _, err := f.Attach(t.Context(), AttachOptions{From: &from}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("from %v: err = %v, want a fault.Invalid error", from, err)
		}
	}
}

func TestAReaderThatIsBehindGetsAGap(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, func(s *Spec) { s.Command.Output.Tail = 4096 }))
	a := f.attach(AttachOptions{From: &[2]int64{}})
	for range 100 {
		f.write(0, strings.Repeat("x", 8192))
	}
	f.end()
	c, err := a.Next(t.Context())
	if err != nil || c.Gap == 0 || c.Offset != 0 {
		t.Errorf("c = %+v, err = %v, want no error and c.Gap != 0 and c.Offset == 0", c, err)
	}
	rest := int64(len(strings.ReplaceAll(strings.ReplaceAll(f.all(a), "[0: ", ""), "]", "")))
	if c.Gap+rest != 100*8192 {
		t.Errorf("%d bytes missing and %d received", c.Gap, rest)
	}
	if info := f.Info(); info.Output[0].Bytes != 100*8192 || info.Output[0].From != c.Gap {
		t.Errorf("info.Output = %+v, want info.Output[0].Bytes == 100 * 8192 and info.Output[0].From == c.Gap",
			info.Output)
	}
}

func TestOneOfManyAttachedClientsIsTheWriter(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, func(s *Spec) { s.Command.Stdin = isolation.StdinPipe }))
	first := f.attach(AttachOptions{Write: true})
	second := f.attach(AttachOptions{Write: true})
	if !first.Writer() || second.Writer() {
		t.Error("the first is not the writer")
	}
	third := f.attach(AttachOptions{Write: true, TakeOver: true})
	<-first.Lost()
	if first.Writer() || !third.Writer() {
		t.Error("the third client is not the writer")
	}
	for _, a := range []*Attachment{first, second} {
		if err := a.Write(t.Context(), 0, []byte("x")); fault.KindOf(err) != fault.Conflict {
			t.Errorf("err = %v, want a fault.Conflict error", err)
		}
		if err := a.CloseWrite(); fault.KindOf(err) != fault.Conflict {
			t.Errorf("err = %v, want a fault.Conflict error", err)
		}
	}
	if err := third.Write(t.Context(), 1, []byte("x")); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a hole: err = %v, want a fault.Invalid error", err)
	}
	third.Close()
	if info := f.Info(); info.Writer || info.Readers != 2 {
		t.Errorf("info = %+v, want info.Writer == false and info.Readers == 2", info)
	}
	for range maxReaders - 2 {
		f.attach(AttachOptions{})
	}
	if _, err := f.Attach(t.Context(), AttachOptions{}); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("err = %v, want a fault.Exhausted error", err)
	}
	f.end()
}

func TestInputBetweenTwoStartsOfAProcessWaits(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, func(s *Spec) { s.Command.Stdin = isolation.StdinPipe }))
	a := f.attach(AttachOptions{Write: true})
	f.setState(StateWaiting)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Write(ctx, 0, []byte("x")) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want err is context.Canceled", err)
	}
	go func() { done <- a.Write(t.Context(), 0, []byte("x")) }()
	b := f.attach(AttachOptions{Write: true, TakeOver: true})
	if err := <-done; fault.KindOf(err) != fault.Conflict {
		t.Errorf("err = %v, want a fault.Conflict error", err)
	}
	if b.Taken() != 0 {
		t.Errorf("%d bytes were written to the process", b.Taken())
	}
	go func() { done <- b.Write(t.Context(), 0, []byte("x")) }()
	for len(f.typing) == 0 {
		<-time.After(time.Millisecond)
	}
	b.Close()
	if err := <-done; fault.KindOf(err) != fault.Conflict {
		t.Errorf("err = %v, want a fault.Conflict error", err)
	}
	if c := f.attach(AttachOptions{Write: true}); !c.Writer() || b.Writer() {
		t.Error("the client that left is still the writer")
	}
	f.end()
}

func TestTheSlowestLosslessReaderCounts(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, nil))
	now := time.Now()
	slowest := func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		at := f.slowestLocked(now)
		if at == nil {
			return "none"
		}
		return fmt.Sprint(*at)
	}
	f.write(0, "0123456789")
	f.write(1, "01234")
	f.attach(AttachOptions{From: &[2]int64{}})
	if got := slowest(); got != "none" {
		t.Errorf(`got %s, want "none"`, got)
	}
	one, two := f.attach(AttachOptions{From: &[2]int64{3, 4}, Lossless: true}), f.attach(AttachOptions{From: &[2]int64{5, 1}, Lossless: true})
	if got := slowest(); got != "[3 1]" {
		t.Errorf(`got %s, want "[3 1]"`, got)
	}
	if _, err := two.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := slowest(); got != "[3 1]" { // it may not have processed what it has received
		t.Errorf(`got %s, want "[3 1]"`, got)
	}
	now = time.Now().Add(stall + time.Second)
	if got := slowest(); got != "[3 4]" { // the other one only waits for output
		t.Errorf(`got %s, want "[3 4]"`, got)
	}
	one.Close()
	two.Close()
	if got := slowest(); got != "none" {
		t.Errorf(`got %s, want "none"`, got)
	}
	f.end()
}

func TestReaderProgressIsSentToPID1BeforeTheProgramBlocks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		tail uint64
		to   [2]int64
		want bool
	}{
		{1 << 20, [2]int64{paceStep - 1, 0}, false},
		{1 << 20, [2]int64{paceStep, 0}, true},
		{1 << 20, [2]int64{0, paceStep}, true},
		{4096, [2]int64{2048, 0}, true},
		{1, [2]int64{1, 0}, true},
	} {
		if got := farther([2]int64{}, tc.to, tc.tail); got != tc.want {
			t.Errorf("tc = %+v, want got == tc.want", tc)
		}
	}
}

func TestDifferencesAreNamed(t *testing.T) {
	t.Parallel()
	a, b := map[string]string{"argv": "1", "env": "2"}, map[string]string{"argv": "1", "env": "3", "cwd": "4"}
	if got := Differences(a, b); !slices.Equal(got, []string{"cwd", "env"}) || len(Differences(a, a)) > 0 || len(Differences(nil, nil)) > 0 {
		t.Errorf(`got %v, want got == []string{"cwd", "env"} and len(Differences(a, a)) == 0 and len(Differences(nil, nil)) == 0`,
			got)
	}
}

func TestTheOutputStaysUntilItsLastReaderHasGone(t *testing.T) {
	t.Parallel()
	f := feed(t, resolved(t, nil))
	f.write(0, "x")
	a := f.attach(AttachOptions{From: &[2]int64{}})
	f.end()
	f.Release()
	f.Release()
	if f.use() != nil {
		t.Error("output that is being removed can be used again")
	}
	if got := f.all(a); got != "[0: x]" {
		t.Errorf(`got %s, want "[0: x]"`, got)
	}
	if _, err := unix.FcntlInt(uintptr(f.rings[0].FD), unix.F_GETFD, 0); err != nil {
		t.Error(err)
	}
	if b := f.attach(AttachOptions{}); f.all(b) != "" {
		t.Error("the reader got output")
	}
}

// A clock change, or a suspended host, is no reason to give a box up: PID 1 measures the time itself.
func TestATimestampOfAnEarlierBoxdEndsNoBox(t *testing.T) {
	t.Parallel()
	p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Command.Timeout = time.Minute }))
	for _, start := range []time.Time{time.Now().Add(-24 * time.Hour), time.Now().Add(24 * time.Hour)} {
		p.at.Began = start
		if got := p.timeout(); got != time.Minute+KillPatience {
			t.Errorf("for a start at %v the supervisor waits %v", start, got)
		}
	}
}
