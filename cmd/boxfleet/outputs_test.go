// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// outputBoxd is a boxd that has one session, whose processes have written something.
type outputBoxd struct {
	fakeBoxd

	stopped   bool                     // the session
	has       []api.Process            // that it has
	written   map[string][]api.LogLine // by each
	hangs     bool                     // reading their output fails
	away      bool                     // it is being started
	onRequest func()                   // called when output is requested; nil: nothing
	does      []string
}

func (b *outputBoxd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/sessions/s"), "/processes")
	b.mu.Lock()
	defer b.mu.Unlock()
	switch name, _, _ := strings.Cut(strings.TrimPrefix(what, "/"), "/"); {
	case b.away:
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.Method == http.MethodDelete:
		b.does = append(b.does, "end")
		w.WriteHeader(http.StatusNoContent)
	case at == "" && r.URL.Path == "/v1/sessions/s":
		is := api.Session{Owner: "ci", ID: "s"}
		if b.stopped {
			is.StoppedAt = &time.Time{}
		}
		_ = json.NewEncoder(w).Encode(is)
	case what == "":
		b.does = append(b.does, "list")
		_ = json.NewEncoder(w).Encode(api.ProcessList{Processes: b.has})
	case path.Base(what) == "stop":
		b.does = append(b.does, "stop "+name)
		for i := range b.has {
			if b.has[i].ID == name {
				b.has[i].State, b.has[i].Reason = "ended", "stopped"
			}
		}
		_ = json.NewEncoder(w).Encode(api.Process{})
	case b.hangs:
		b.mu.Unlock()
		if b.onRequest != nil {
			b.onRequest()
		}
		<-r.Context().Done()
		b.mu.Lock()
	default:
		if b.onRequest != nil {
			b.onRequest()
		}
		b.does = append(b.does, "read "+name+" "+r.URL.Query().Get("tail"))
		b.writeTails(w, name, r.URL.Query().Get("tail"))
	}
}

// writeTails writes the last bytes of each stream, as boxd does.
func (b *outputBoxd) writeTails(w io.Writer, name, tail string) {
	last, ends := quantity.TiB, map[string]int64{}
	if tail != "" {
		_ = last.UnmarshalJSON([]byte(tail)) // it is a number
	}
	for _, line := range b.written[name] {
		ends[line.Stream] = line.Offset + int64(len(line.Data)) + line.Gap
	}
	to := json.NewEncoder(w)
	for _, line := range b.written[name] {
		if skip := ends[line.Stream] - int64(last) - line.Offset; skip > 0 {
			line.Data = line.Data[min(skip, int64(len(line.Data))):]
			line.Offset += skip
		}
		if line.Data == "" && line.Gap == 0 {
			continue
		}
		line.Data, line.Base64 = base64.StdEncoding.EncodeToString([]byte(line.Data)), true
		if to.Encode(line) != nil {
			return // the client reads nothing
		}
	}
}

// handing is a node that has to end a session, and a gateway that stores the output of that session.
type handing struct {
	t    *testing.T
	a    *agent
	g    *gateway
	boxd *outputBoxd
}

// hands returns them. perOwner is the limit of stored bytes of one owner.
func hands(t *testing.T, js jetstream.JetStream, size, perOwner int64) *handing {
	t.Helper()
	h := &handing{t: t, boxd: &outputBoxd{written: map[string][]api.LogLine{}}}
	h.a, h.g = anAgent(t, js, h.boxd), aGateway(js, &clock{t: time.Unix(1e9, 0)})
	h.a.timeout = 10 * time.Minute // a busy host cuts nothing short
	h.g.nodes["a"] = &nodeState{FleetNode: api.FleetNode{Name: "a"}}
	h.g.cfg.Outputs, h.g.cfg.OwnerOutputs = size, perOwner
	if err := h.g.subscribeOutputs(); err != nil {
		t.Fatal(err)
	}
	if err := js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	return h
}

// wrote adds a process that has written to its standard output.
func (h *handing) wrote(name string, pieces ...string) {
	at := int64(0)
	for _, data := range pieces {
		h.boxd.written[name] = append(h.boxd.written[name], api.LogLine{Stream: "stdout", Offset: at, Time: time.Unix(1e9, at).UTC(), Data: data})
		at += int64(len(data))
	}
	h.boxd.has = append(h.boxd.has, api.Process{ID: name, State: "running", StartedAt: time.Unix(int64(len(h.boxd.has)), 0), Output: [2]api.StreamState{{Bytes: at}}})
}

// ends makes the node end the session, which it had in a generation.
func (h *handing) ends(generation uint64) {
	h.t.Helper()
	h.boxd.mu.Lock()
	h.boxd.does = nil
	h.boxd.mu.Unlock()
	h.a.handed = nil // as by a node that was started since
	if err := h.a.end(h.t.Context(), "key", &fencedSession{Owner: "ci", ID: "s", Generation: generation}, "node b has claimed it"); err != nil {
		h.t.Error(err)
	}
	h.boxd.mu.Lock()
	defer h.boxd.mu.Unlock()
	if n := len(h.boxd.does); n == 0 || h.boxd.does[n-1] != "end" {
		h.t.Errorf("requests to boxd: %q: the session has not ended", h.boxd.does)
	}
}

// kept lists the stored outputs of an owner.
func (h *handing) listKept(owner string) []api.FleetOutput {
	h.t.Helper()
	var list api.FleetOutputList
	if err := json.Unmarshal(h.gets(owner, nil), &list); err != nil {
		h.t.Fatal(err)
	}
	return list.Outputs
}

// gets sends a request of an owner to the gateway.
func (h *handing) gets(owner string, path []string) []byte {
	h.t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodGet, "/v1/fleet/outputs", nil)
	if err := h.g.manageOutputs(&call{w: w, r: r, pass: access.Pass{Principal: access.Principal{Name: owner, Role: access.User}}}, path); err != nil {
		h.t.Fatal(err)
	}
	return w.Body.Bytes()
}

// reads returns the standard output that is stored under a name, read as ci.
func (h *handing) reads(name string) string {
	h.t.Helper()
	var out strings.Builder
	for d := json.NewDecoder(bytes.NewReader(h.gets("ci", []string{name}))); ; {
		var line api.LogLine
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return out.String()
		} else if err != nil {
			h.t.Fatal(err)
		}
		data := []byte(line.Data)
		if line.Base64 {
			var err error
			if data, err = base64.StdEncoding.DecodeString(line.Data); err != nil {
				h.t.Fatal(err)
			}
		}
		out.Write(data)
	}
}

// awaitEvents waits for events of a kind, and returns their details.
func (h *handing) awaitEvents(kind string, n int) (details []string) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%d events %s", n, kind), func() bool {
		details = nil
		for _, e := range h.g.events.all() {
			if e.Type == kind && e.Session != barrier {
				details = append(details, e.Detail)
			}
		}
		return len(details) >= n // if a gateway answers late there are more
	})
	return details
}

// barrier is a session that is lost after all others.
const barrier = "barrier"

// lostNothing fails the test if the gateway got a report of output that was not stored.
func (h *handing) lostNothing() {
	h.t.Helper()
	h.a.outputLost(&outputPart{FleetOutput: api.FleetOutput{Owner: "ci", Session: barrier, Node: "a"}}, errors.New("a test"))
	eventually(h.t, "the gateway has heard all", func() bool {
		return slices.ContainsFunc(h.g.events.all(), func(e api.FleetEvent) bool { return e.Session == barrier })
	})
	if lost := h.awaitEvents("output_lost", 0); len(lost) > 0 {
		h.t.Errorf("lost: lost = %q, want len(lost) == 0", lost)
	}
}

// Output that was stored is not sent again if its session could not be ended; output that boxd could not deliver is.
func TestOutputIsHandedOverOnce(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	h.wrote("p", "text")
	h.ends(1)
	for _, again := range []struct {
		generation uint64
		away, read bool
	}{{1, false, false}, {2, false, true}, {3, true, false}, {3, false, true}, {1, false, true}} {
		h.boxd.mu.Lock()
		h.boxd.does, h.boxd.away = nil, again.away
		h.boxd.mu.Unlock()
		if err := h.a.end(t.Context(), "key", &fencedSession{Owner: "ci", ID: "s", Generation: again.generation}, "why"); (err != nil) != again.away {
			t.Errorf("generation %d: err = %v, want (err != nil) == again.away", again.generation, err)
		}
		h.boxd.mu.Lock()
		if slices.Contains(h.boxd.does, "read p ") != again.read || slices.Contains(h.boxd.does, "end") == again.away {
			t.Errorf("generation %d: requests to boxd %q", again.generation, h.boxd.does)
		}
		h.boxd.mu.Unlock()
	}
}

// A gateway answers a node on the subject that only this node receives, and on no other, whatever a message says.
func TestAGatewayAnswersTheNodeAlone(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	p := outputPart{FleetOutput: api.FleetOutput{Owner: "ci", Session: "s", Node: "a"}, Ask: true}
	lost := p
	lost.Node, lost.Lost, lost.Ask = "unknown", "a reason", false
	for _, elsewhere := range []string{"$KV.boxd_nodes.b", nodeSubject + "b.output.x", nodeSubject + "a.outputs", ""} {
		if m, err := lost.message(lostSubject, nil); err == nil {
			m.Reply = elsewhere
			err = h.a.nc.PublishMsg(m)
			if err != nil {
				t.Fatal(err)
			}
		}
		m, err := p.message(outputSubject, nil)
		if err != nil {
			t.Fatal(err)
		}
		heard, err := h.a.nc.SubscribeSync(">")
		if err != nil {
			t.Fatal(err)
		}
		m.Reply = elsewhere
		if err := errors.Join(h.a.nc.PublishMsg(m), h.a.findTaker(t.Context(), &p)); err != nil {
			t.Fatal(err)
		}
		for {
			got, err := heard.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if got.Subject == elsewhere {
				t.Errorf("an answer at %s", elsewhere)
			}
			if strings.HasPrefix(got.Subject, nodeSubject+"a.output.") {
				break // the answer to the request that followed
			}
		}
		if err := heard.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// Of two gateways only the one that is addressed stores the output.
func TestAnotherGatewayKeepsTheOutput(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	h := hands(t, js, 64<<20, 64<<20)
	off := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	off.nodes["a"] = &nodeState{FleetNode: api.FleetNode{Name: "a"}}
	if err := errors.Join(off.subscribeOutputs(), js.Conn().Flush()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		h.wrote(fmt.Sprint("p", i), "text")
	}
	h.ends(1)
	if kept := h.listKept("ci"); len(kept) != 10 {
		t.Errorf("%d outputs are stored", len(kept))
	}
}

// Processes end, then a gateway stores all their output, in parts if it is large, then the session ends. A node that does that
// again, as after a crash, changes nothing.
func TestOutputIsHandedOver(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	much := string(noise(900 << 10))
	h.wrote("little", "a line\n", "\xff\x00")
	h.wrote("much", much[:1000], much[1000:])
	h.wrote("nothing")
	h.boxd.has[2].State, h.boxd.has[2].Result = "ended", &api.ExecResult{Status: "exited", ExitCode: new(int)}
	for range 2 {
		h.ends(1)
		kept := h.listKept("ci")
		if len(kept) != 3 || kept[0].Process != "little" || kept[1].Process != "much" || kept[2].Process != "nothing" {
			t.Fatalf(`kept = %+v, want len(kept) == 3 and kept[0].Process == "little" and kept[1].Process == "much" and kept[2].Process == "nothing"`,
				kept)
		}
		if got := h.reads(kept[0].Name); got != "a line\n\xff\x00" || kept[0].Size != 9 || kept[0].Reason != "stopped" || kept[0].Why != "node b has claimed it" || kept[0].Node != "a" {
			t.Errorf(`got %q, kept[0] = %+v, want got == "a line\n\xff\x00" and kept[0].Size == 9 and kept[0].Reason == "stopped" and kept[0].Why == "node b has claimed it" and kept[0].Node == "a"`,
				got, kept[0])
		}
		if got := h.reads(kept[1].Name); got != much {
			t.Errorf("%d bytes, want %d", len(got), len(much))
		}
		if got := h.reads(kept[2].Name); got != "" || kept[2].Status != "exited" || kept[2].ExitCode == nil || kept[2].Reason != "" {
			t.Errorf(`got %q, kept[2] = %+v, want got == "" and kept[2].Status == "exited" and kept[2].ExitCode != nil and kept[2].Reason == ""`,
				got, kept[2])
		}
	}
	h.boxd.has[0].State = "running"
	h.ends(2)
	if want := []string{"list", "stop little", "list", "read little ", "read much ", "read nothing ", "end"}; !slices.Equal(h.boxd.does, want) {
		t.Errorf("boxd was asked for %q, want %q", h.boxd.does, want)
	}
	if kept := h.listKept("ci"); len(kept) != 6 {
		t.Errorf("that of another generation is another: kept = %+v, want len(kept) == 6", kept)
	}
	if kept := h.listKept("other"); len(kept) != 0 {
		t.Errorf("another owner has %+v, want len(kept) == 0", kept)
	}
	h.awaitEvents("output_kept", 9)
	h.lostNothing()
	// A session that was stopped has no output, and the rest of a canceled move is not the session's.
	h.boxd.stopped = true
	h.ends(3)
	h.boxd.stopped = false
	h.boxd.does = nil
	if err := h.a.end(t.Context(), "key", &fencedSession{Owner: "ci", ID: "s", Generation: 4, Coming: true}, ""); err != nil || !slices.Equal(h.boxd.does, []string{"end"}) {
		t.Errorf("%v, requests to boxd: %q", err, h.boxd.does)
	}
	if kept := h.listKept("ci"); len(kept) != 6 {
		t.Errorf("kept = %+v, want len(kept) == 6", kept)
	}
}

// Of a long stream the end is stored, of many tiny pieces less, and the record says how much is missing.
func TestWhatIsHandedOverIsBounded(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	long := string(noise(3 << 19))
	h.wrote("long", long[:1<<20], long[1<<20:])
	h.ends(1)
	h.boxd.has = nil
	h.a.bounds.stream /= 64 // as many pieces as the race detector reads in a second
	h.a.bounds.packed /= 64
	tiny := make([]string, 7000) // of 8 bytes each, packed
	letters := string(noise(len(tiny)))
	for i := range tiny {
		tiny[i] = letters[i : i+1]
	}
	h.wrote("tiny", tiny...)
	h.ends(2)
	kept := h.listKept("ci")
	if len(kept) != 2 {
		t.Fatalf("kept = %+v, want len(kept) == 2", kept)
	}
	if got := h.reads(kept[0].Name); got != long[1<<19:] || kept[0].Size != 1<<20 || kept[0].Omitted != 1<<19 {
		t.Errorf("%d bytes, %+v", len(got), kept[0])
	}
	whole := strings.Join(tiny, "")
	if got := h.reads(kept[1].Name); len(got) < 1<<10 || len(got) == len(whole) || !strings.HasSuffix(whole, got) || kept[1].Size != int64(len(got)) || kept[1].Omitted != int64(len(whole)-len(got)) {
		t.Errorf("%d bytes of %d, %+v", len(got), len(whole), kept[1])
	}
}

// The oldest output of an owner is removed for the newest, but no output of another owner. Output that is too large by itself is
// not stored, nor any when the store is full: an event reports that.
func TestAnOwnersOldestOutputMakesRoomForItsNewest(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 2<<20, 500<<10)
	h.wrote("p", string(noise(200<<10)))
	for generation := range uint64(5) {
		h.ends(generation + 1)
	}
	kept := h.listKept("ci")
	if len(kept) != 2 || h.reads(kept[1].Name) != h.boxd.written["p"][0].Data {
		t.Errorf(`kept = %+v, want len(kept) == 2 and h.reads(kept[1].Name) == h.boxd.written["p"][0].Data`, kept)
	}
	h.ends(5) // again, as after a crash: it replaces itself
	if again := h.listKept("ci"); !slices.Equal(namesOf(again), namesOf(kept)) {
		t.Errorf("%+v, was %+v, want namesOf(again) == namesOf(kept)", again, kept)
	}
	newest := kept[1].Name
	h.lostNothing()
	h.wrote("large", string(noise(600<<10)))
	h.ends(6)
	if details := h.awaitEvents("output_lost", 1); !strings.Contains(details[0], "process large of ci: ") || !strings.Contains(details[0], "owner_size") {
		t.Errorf(`details = %q, want details[0] containing "process large of ci: " and details[0] containing "owner_size"`,
			details)
	}
	kept = h.listKept("ci")
	if len(kept) != 2 || kept[0].Name != newest {
		t.Errorf("kept = %+v, want len(kept) == 2 and kept[0].Name == newest", kept)
	}
	kv, err := h.a.js.KeyValue(t.Context(), outputBucket)
	if err == nil {
		_, err = kv.Put(t.Context(), "somebody", noise(800<<10))
	}
	if err == nil {
		_, err = kv.Put(t.Context(), "else", noise(700<<10))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.boxd.has = h.boxd.has[:1]
	h.g.cfg.OwnerOutputs = 2 << 20
	h.ends(7)
	if details := h.awaitEvents("output_lost", 2); !strings.Contains(details[1], "the outputs of all owners together would have more than their limit") {
		t.Errorf(`details = %q, want details[1] containing "the outputs of all owners together would have more than their limit"`,
			details)
	}
	if again := h.listKept("ci"); !slices.Equal(namesOf(again), namesOf(kept)) {
		t.Errorf("%+v, was %+v, want namesOf(again) == namesOf(kept)", again, kept)
	}
	// A new size applies from the next output on.
	h.g.cfg.Outputs = 8 << 20
	h.ends(8)
	if kept := h.listKept("ci"); len(kept) != 3 {
		t.Errorf("kept = %+v, want len(kept) == 3", kept)
	}
	eventually(t, "the new size is in the metrics, once JetStream has answered in time", func() bool {
		return strings.Contains(scrape(t, h.g), `boxfleet_store_max_bytes{store="outputs"} 8.388608e+06`)
	})
}

func namesOf(list []api.FleetOutput) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// A session ends although its output cannot be stored: no gateway is there, boxd does not deliver it, or NATS is down.
func TestASessionEndsThoughNoGatewayTakesItsOutput(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(*handing, *nats.Conn){
		"no gateway":     func(_ *handing, away *nats.Conn) {},
		"NATS is closed": func(_ *handing, away *nats.Conn) { away.Close() },
		"boxd hangs":     func(h *handing, _ *nats.Conn) { h.boxd.hangs = true },
		"no turn":        func(h *handing, _ *nats.Conn) { h.a.handing = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := startServer(t)
			h := &handing{t: t, boxd: &outputBoxd{written: map[string][]api.LogLine{}}}
			h.a = anAgent(t, js, h.boxd)
			h.a.timeout = 300 * time.Millisecond
			lost, err := js.Conn().SubscribeSync(lostSubject)
			if err != nil {
				t.Fatal(err)
			}
			if name == "boxd hangs" || name == "no turn" {
				h.a.timeout = 3 * time.Second
				if _, err := js.Conn().Subscribe(outputSubject, func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil { // a gateway that takes all
					t.Fatal(err)
				}
			}
			h.wrote("p", "text")
			breaks(h, js.Conn())
			h.ends(1)
			if h.a.gaveUp.Load() != 1 {
				t.Error("the session has not ended")
			}
			if name == "NATS is closed" {
				return
			}
			for {
				m, err := lost.NextMsg(time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if p, err := readPart(m); err != nil || p.Lost == "" {
					continue // no gateway has answered that
				} else if p.Session != "s" || p.Owner != "ci" {
					t.Errorf(`p = %+v, want p.Session == "s" and p.Owner == "ci"`, p)
				}
				return
			}
		})
	}
}

// An agent that ends leaves the session and its output to the next one, and reports nothing.
func TestAnAgentThatEndsLosesNoOutput(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	told, err := h.a.nc.SubscribeSync(lostSubject)
	if err != nil {
		t.Fatal(err)
	}
	h.wrote("p", "text")
	h.boxd.hangs = true
	ctx, end := context.WithCancel(t.Context())
	h.boxd.onRequest = end
	if err := h.a.end(ctx, "key", &fencedSession{Owner: "ci", ID: "s", Generation: 1}, "why"); err == nil || ctx.Err() == nil {
		t.Errorf("err = %v, ctx.Err() = %v, want an error and ctx.Err() != nil", err, ctx.Err())
	}
	h.boxd.mu.Lock()
	if slices.Contains(h.boxd.does, "end") {
		t.Errorf("requests to boxd: %q", h.boxd.does)
	}
	h.boxd.hangs = false
	h.boxd.mu.Unlock()
	if err := h.a.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, err := told.Pending(); err != nil || n > 0 {
		t.Errorf("%d messages, %v", n, err)
	}
	h.ends(1)
	if kept := h.listKept("ci"); len(kept) != 1 {
		t.Errorf("kept = %+v, want len(kept) == 1", kept)
	}
}

// A node waits for a gateway that does not know it yet, or whose JetStream does not answer, but not for one that refuses.
func TestAnOutputPartIsSentAgainUntilTakenOrRefused(t *testing.T) {
	t.Parallel()
	h := hands(t, startServer(t), 64<<20, 64<<20)
	node := h.g.nodes["a"]
	h.boxd.onRequest = sync.OnceFunc(func() { // the node was told that output is stored
		h.g.mu.Lock()
		defer h.g.mu.Unlock()
		delete(h.g.nodes, "a")
	})
	tried, err := h.a.nc.SubscribeSync(outputSubject)
	if err != nil {
		t.Fatal(err)
	}
	h.wrote("p", "text")
	done := make(chan struct{})
	go func() { // ends with the session
		defer close(done)
		h.ends(1)
	}()
	for parts := 0; parts < 2; {
		m, err := tried.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		p, err := readPart(m)
		if err != nil || p.Part != 0 {
			t.Fatalf("%+v, %v: the first part was not stored", p, err)
		}
		if !p.Ask {
			parts++
		}
	}
	h.g.mu.Lock()
	h.g.nodes["a"] = node
	h.g.mu.Unlock()
	<-done
	if kept := h.listKept("ci"); len(kept) != 1 {
		t.Errorf("kept = %+v, want len(kept) == 1", kept)
	}
	h.g.cfg.Outputs = 0
	h.ends(2)
	if details := h.awaitEvents("output_lost", 1); !strings.Contains(details[0], "this gateway keeps no output") {
		t.Errorf(`details = %q, want details[0] containing "this gateway keeps no output"`, details)
	}
}

// What a node sends is bounded, whatever it is.
func TestPartsThatBreakTheBounds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		about string
		data  int
	}{
		"nothing":         {"", 0},
		"no owner":        {`{"session":"s","parts":1}`, 1},
		"no session":      {`{"owner":"ci","parts":1}`, 1},
		"many parts":      {`{"owner":"ci","session":"s","parts":25}`, 1},
		"a later part":    {`{"owner":"ci","session":"s","part":3,"parts":2}`, 1},
		"an earlier part": {`{"owner":"ci","session":"s","part":-1,"parts":2}`, 1},
		"a large part":    {`{"owner":"ci","session":"s","parts":2}`, partSize + 1},
		"data at the end": {`{"owner":"ci","session":"s","part":2,"parts":2}`, 1},
		"many bytes":      {`{"owner":"ci","session":"s","parts":2,"packed":3145729}`, 1},
		"fewer than none": {`{"owner":"ci","session":"s","parts":2,"packed":-1}`, 1},
		"a long story":    {`{"owner":"ci","session":"s","parts":2,"why":"` + strings.Repeat("x", maxAbout) + `"}`, 1},
	} {
		m := &nats.Msg{Header: nats.Header{outputHeader: {tc.about}}, Data: make([]byte, tc.data)}
		if p, err := readPart(m); err == nil {
			t.Errorf("%s: p = %+v, err = %v, want an error", name, p, err)
		}
	}
	if _, err := readPart(&nats.Msg{Header: nats.Header{outputHeader: {`{"owner":"ci","session":"s","parts":2,"packed":3145728}`}}, Data: make([]byte, partSize)}); err != nil {
		t.Error(err)
	}
}
