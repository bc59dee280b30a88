// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func TestLanguages(t *testing.T) {
	t.Parallel()
	for written, want := range map[string][2]string{"": {"python", "python"}, " Python ": {"python", "python"}, "py": {"python", "python"}, "js": {"javascript", "javascript"}, "TypeScript": {"typescript", "javascript"}, "sh": {"bash", "bash"}} {
		if language, runs, err := parseLanguage(written); err != nil || language != want[0] || runs != want[1] {
			t.Errorf("%q: language = %s, runs = %s, err = %v, want no error and language == want[0] and runs == want[1]",
				written, language, runs, err)
		}
	}
	_, _, err := parseLanguage("r")
	if fault.KindOf(err) != fault.Unsupported || err.Error() != `language = "r": must be bash, javascript, python or typescript` {
		t.Error(err)
	}
}

func TestResultsAsClientsReadThem(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		`{"e":"result","main":true,"data":{"text/plain":"'a'","text/html":"<b>","x/y":[1]}}`:   `{"type":"result","text":"a","html":"\u003cb\u003e","extra":{"x/y":[1]},"is_main_result":true}`,
		`{"e":"result","data":{"text/plain":"'","e2b/chart":{"title":null},"image/png":null}}`: `{"type":"result","text":"'","chart":{"title":null},"extra":{},"is_main_result":false}`,
		`{"e":"result"}`: `{"type":"result","extra":{},"is_main_result":false}`,
		`{"e":"result","data":{"text/plain":[1]}}`: `{"type":"result","extra":{},"is_main_result":false}`,
	} {
		e := &kernelEvent{}
		if err := json.Unmarshal([]byte(said), e); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(newResult(e))
		if err != nil || string(got) != want {
			t.Errorf("%s %v, not %s", got, err, want)
		}
	}
	got, err := json.Marshal([]*codeEvent{newError("E", "", ""), {Type: eventCount, ExecutionCount: 3}, {Type: eventEnd}})
	if want := `[{"type":"error","name":"E","value":"","traceback":""},{"type":"number_of_executions","execution_count":3},{"type":"end_of_execution"}]`; err != nil || string(got) != want {
		t.Errorf("got %s, err = %v, want no error and got == want", got, err)
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	const mark = "\x1enonce"
	long := strings.Repeat("x", 3000)
	for name, c := range map[string]struct{ in, output, events string }{
		"an event between output":         {"a" + mark + ".{\"e\":\"end\"}\nb", "ab", "end "},
		"an event in pieces":              {"a" + mark + "+{\"e\":\"e" + "\nx" + mark + ".nd\"}\nb", "axb", "end "},
		"no JSON":                         {mark + ".{\nb", "b", ""},
		"no kind of frame":                {mark + "?{}\nb" + mark + "\nc", "bc", ""},
		"half a mark":                     {"a\x1enon", "a\x1enon", ""},
		"what only looks like one":        {"a\x1enob\x1e\x1e", "a\x1enob\x1e\x1e", ""},
		"a mark and no frame":             {mark + long + long + "\n" + mark + ".{\"e\":\"end\"}\n", mark + long + long + "\n", "end "},
		"a mark after a mark's beginning": {"\x1enon" + mark + ".{\"e\":\"end\"}\n", "\x1enon", "end "},
	} {
		for _, piece := range []int{1, 2, 7, 10000} {
			var output, events strings.Builder
			f, in := newFrames("nonce"), c.in
			out := func(b []byte) error { output.Write(b); return nil }
			for len(in) > 0 {
				n := min(piece, len(in))
				if err := f.add([]byte(in[:n]), out, func(e *kernelEvent) error { events.WriteString(e.Kind + " "); return nil }); err != nil {
					t.Fatal(err)
				}
				in = in[n:]
			}
			if err := f.flush(out); err != nil {
				t.Fatal(err)
			}
			if output.String() != c.output || events.String() != c.events {
				t.Errorf("%s in pieces of %d: output = %q, events = %q, want output.String() == %q and events.String() == %q",
					name, piece, output.String(), events.String(), c.output, c.events)
			}
		}
	}
	f := newFrames("nonce")
	told := 0
	for range 10_000 {
		if err := f.add([]byte(mark+"+"+long+"\n"), func([]byte) error { return nil }, func(*kernelEvent) error { told++; return nil }); err != nil {
			t.Fatal(err)
		}
		if cap(f.event) > 2*maxEvent {
			t.Fatalf("the buffer of an event has %d bytes", cap(f.event))
		}
	}
	if err := f.add([]byte(mark+".\n"+mark+".{}\n"), nil, func(*kernelEvent) error { told++; return nil }); err != nil || told != 1 {
		t.Errorf("%d events, %v", told, err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("a\x1enonce.{}\nb"), 3)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		piece = max(piece, 1)
		out := func(b []byte) error {
			if len(b) == 0 {
				t.Error("an empty piece of output was passed on")
			}
			return nil
		}
		fr := newFrames("nonce")
		for len(data) > 0 {
			n := min(piece, len(data))
			if err := fr.add(data[:n], out, func(*kernelEvent) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if len(fr.rest) > maxFrame {
				t.Fatalf("%d bytes wait", len(fr.rest))
			}
			data = data[n:]
		}
	})
}

// Of contexts made for one execution, the least recently used one that runs no code makes room for another; others are kept.
func TestOnlyIdleImplicitContextsAreEvicted(t *testing.T) {
	t.Parallel()
	c, sb := newContexts(&Server{}), &sandbox{Session: &session.Session{}}
	start := time.Now().Add(-time.Hour)
	var made []*codeContext
	for n := range maxContexts - len(c.list(sb)) {
		x := newContext(fmt.Sprint(n), languagePython, "/", originImplicit, start.Add(time.Duration(n)*time.Second))
		if n == 3 {
			x.origin = originExplicit
		}
		if err := c.add(t.Context(), sb, x); err != nil {
			t.Fatal(err)
		}
		made = append(made, x)
	}
	made[0].turn <- struct{}{} // code runs
	made[1].touch()            // code has run
	another := func(how string) (*codeContext, error) {
		x := newContext(how, languagePython, "/", how, start)
		return x, c.add(t.Context(), sb, x)
	}
	if _, err := another(originExplicit); fault.KindOf(err) != fault.Exhausted {
		t.Error(err)
	}
	if _, err := another(originImplicit); err != nil {
		t.Error(err)
	}
	for n, x := range made {
		if _, err := c.get(sb, x.ID); (err != nil) != (n == 2) || x.isRemoved() != (n == 2) {
			t.Errorf("context %d: err = %v, want (err != nil) == (n == 2) and x.isRemoved() == (n == 2)", n, err)
		}
	}
	if n := len(c.list(sb)); n != maxContexts {
		t.Errorf("%d contexts", n)
	}
}

// Other callers see a context in the list while its kernel starts, and cannot use it yet.
func TestAContextIsTakenUntilItsKernelHasStarted(t *testing.T) {
	t.Parallel()
	c, sb := newContexts(&Server{}), &sandbox{Session: &session.Session{}} // it never starts
	known := len(c.list(sb))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := c.create(ctx, sb, languagePython, "/", true)
		failed <- err
	}()
	var x *codeContext
	for x == nil {
		select {
		case err := <-failed:
			t.Fatal(err)
		default:
		}
		if list := c.list(sb); len(list) > known {
			x = list[len(list)-1]
		}
		runtime.Gosched()
	}
	if len(x.turn) == 0 {
		t.Error("the context is free although its kernel has not started")
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want err is context.Canceled", err)
	}
	if len(x.turn) > 0 || len(c.list(sb)) > known {
		t.Errorf("afterwards %d use it, and %d contexts are there", len(x.turn), len(c.list(sb)))
	}
}
