// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/supervisor/events"
)

var all = &events.Filter{Everybody: true}

func add(t *testing.T, l *events.Log, session string) {
	t.Helper()
	l.Add(t.Context(), events.Event{Type: events.SessionStarted, Session: session, Owner: "uid:1"})
}

func sessions(b events.Batch) (list []string) {
	for _, e := range b.Events {
		list = append(list, e.Session)
	}
	return list
}

func TestAReaderGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	l := events.New(8)
	add(t, l, "a")
	add(t, l, "b")
	b, more := l.Read(l.Start(), all)
	if got := sessions(b); !slices.Equal(got, []string{"a", "b"}) || b.Restarted || b.Missed != 0 {
		t.Fatalf("read %+v", b)
	}
	select {
	case <-more:
		t.Fatal("there is more, and nothing was added")
	default:
	}
	add(t, l, "c")
	<-more
	place, err := events.ParsePosition(b.Next.String())
	if err != nil {
		t.Fatal(err)
	}
	b, _ = l.Read(place, all)
	if got := sessions(b); !slices.Equal(got, []string{"c"}) || b.Events[0].Seq != 3 || b.Events[0].Time.IsZero() {
		t.Errorf("then %+v", b)
	}
}

// Ids in denied requests are made up by the caller and may have any length: they are cut, so that 8000 events do not fill the memory.
func TestIDsThatNobodyCanHaveAreCut(t *testing.T) {
	t.Parallel()
	l := events.New(8)
	long, most := strings.Repeat("é", 20000), strings.Repeat("i", 256)
	l.Add(t.Context(), events.Event{Type: events.Denied, Session: long, Process: long, Exec: long, Profile: long, Detail: long})
	l.Add(t.Context(), events.Event{Type: events.Denied, Session: most, Process: most})
	b, _ := l.Read(l.Start(), all)
	for _, text := range []string{b.Events[0].Session, b.Events[0].Process, b.Events[0].Exec, b.Events[0].Profile} {
		if len(text) > 300 || !strings.HasPrefix(long, strings.TrimSuffix(text, "…")) {
			t.Errorf("%d bytes are kept: %.50q", len(text), text)
		}
	}
	if e := b.Events[1]; e.Session != most || e.Process != most {
		t.Errorf("ids that there are: %+v", e)
	}
}

func TestALateEventReaderGetsTheNumberOfMissedEvents(t *testing.T) {
	t.Parallel()
	l := events.New(4)
	start := l.Start()
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		add(t, l, id)
	}
	b, _ := l.Read(start, all)
	if got := sessions(b); !slices.Equal(got, []string{"d", "e", "f", "g"}) || b.Missed != 3 || b.Restarted {
		t.Errorf("read %v, missed %d, restarted %v", got, b.Missed, b.Restarted)
	}
	if b, _ = l.Read(b.Next, all); b.Missed != 0 || len(b.Events) != 0 {
		t.Errorf("then %+v", b)
	}
}

func TestAnEventReaderIsNotifiedOfARestart(t *testing.T) {
	t.Parallel()
	before, l := events.New(4), events.New(4)
	add(t, before, "old")
	add(t, l, "new")
	b, _ := l.Read(before.End(), all)
	if got := sessions(b); !b.Restarted || !slices.Equal(got, []string{"new"}) {
		t.Errorf("read %+v", b)
	}
	end := l.End()
	end.Seq += 5
	if b, _ = l.Read(end, all); !b.Restarted || len(b.Events) != 1 {
		t.Errorf("from a place that has not been: %+v", b)
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	l := events.New(16)
	for _, e := range []events.Event{
		{Type: events.SessionStarted, Session: "s", Owner: "uid:1", Principal: "uid:1"},
		{Type: events.SessionEnded, Session: "s", Owner: "uid:1", Principal: "uid:0"},
		{Type: events.SessionStarted, Session: "s", Owner: "uid:2", Principal: "uid:2"},
		{Type: events.Denied, Principal: "uid:1", Reason: "role"},
		{Type: events.ConfigReloaded},
		{Type: events.SessionEnded, Session: "other", Owner: "uid:2", Principal: "uid:1"},
	} {
		l.Add(t.Context(), e)
	}
	for name, test := range map[string]struct {
		filter events.Filter
		want   []uint64
	}{
		"all":                 {events.Filter{Everybody: true}, []uint64{1, 2, 3, 4, 5, 6}},
		"one's own":           {events.Filter{Owner: "uid:1"}, []uint64{1, 2, 4}},
		"the other's own":     {events.Filter{Owner: "uid:2"}, []uint64{3, 6}},
		"a stranger's":        {events.Filter{Owner: "uid:3"}, nil},
		"nobody's":            {events.Filter{}, nil},
		"of a session":        {events.Filter{Everybody: true, Session: "other"}, []uint64{6}},
		"of types":            {events.Filter{Everybody: true, Types: []events.Type{events.Denied, events.ConfigReloaded}}, []uint64{4, 5}},
		"one's own and typed": {events.Filter{Owner: "uid:1", Session: "s", Types: []events.Type{events.SessionEnded}}, []uint64{2}},
	} {
		b, _ := l.Read(l.Start(), &test.filter)
		var got []uint64
		for _, e := range b.Events {
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestWritersWaitForNoReader(t *testing.T) {
	t.Parallel()
	l := events.New(64)
	start := l.Start()
	_, more := l.Read(start, all) // the reader never comes back
	const writers, perWriter = 8, 1000
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range perWriter {
				l.Add(context.Background(), events.Event{Type: events.ExecEnded})
			}
		})
	}
	wg.Wait()
	<-more
	b, _ := l.Read(start, all)
	if len(b.Events) != 64 || b.Missed != writers*perWriter-64 {
		t.Fatalf("%d events, %d missed", len(b.Events), b.Missed)
	}
	for i := 1; i < len(b.Events); i++ {
		if b.Events[i].Seq != b.Events[i-1].Seq+1 || b.Events[i].Time.Before(b.Events[i-1].Time) {
			t.Fatal("events are out of order")
		}
	}
}

func TestManyEventsComeInBatches(t *testing.T) {
	t.Parallel()
	l := events.New(1000)
	for range 1000 {
		add(t, l, "s")
	}
	n := 0
	for at := l.Start(); ; {
		b, more := l.Read(at, all)
		n, at = n+len(b.Events), b.Next
		if more != nil {
			break
		}
	}
	if n != 1000 {
		t.Errorf("read %d", n)
	}
}

func TestEventWatchersGetTheRequestID(t *testing.T) {
	t.Parallel()
	var seen []events.Event
	l := events.New(2, func(_ context.Context, e *events.Event) { seen = append(seen, *e) })
	ctx := trace.With(t.Context(), trace.Request{ID: "r1"})
	l.Add(ctx, events.Event{Type: events.SessionEnded, Reason: "idle", Detail: strings.Repeat("é", events.MaxDetail)})
	if len(seen) != 1 || seen[0].Request.ID != "r1" || seen[0].Seq != 1 || len(seen[0].Detail) > events.MaxDetail+len("…") || seen[0].Describe() != "session ended (idle)" {
		t.Errorf("saw %+v", seen)
	}
	(*events.Log)(nil).Add(ctx, events.Event{Type: events.OOM}) // a nil Log accepts and drops events
}

func FuzzParsePosition(f *testing.F) {
	f.Add(events.New(1).End().String())
	f.Add("latest")
	f.Add("aaaaaaaaaaaa-18446744073709551615")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := events.ParsePosition(s); err == nil && p.String() != s {
			t.Errorf("%q is taken for %q", s, p)
		}
	})
}

// The catalog of the journal explains every event type, and no others.
func TestTheCatalogHasEveryType(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../systemd/catalog/boxd.catalog")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^-- ([0-9a-f]{32})$`).FindAllSubmatch(data, -1) {
		listed = append(listed, string(m[1]))
	}
	var want []string
	for _, typ := range events.Types() {
		if !typ.Valid() || len(typ.MessageID()) != 32 || typ.Text() == "" {
			t.Errorf("%s has no class", typ)
		}
		want = append(want, typ.MessageID())
	}
	slices.Sort(listed)
	slices.Sort(want)
	if !slices.Equal(listed, want) || len(slices.Compact(want)) != len(want) {
		t.Errorf("the catalog has %q, the types are %q", listed, want)
	}
	if events.Type("session.vanished").Valid() {
		t.Error("the set is open")
	}
}
