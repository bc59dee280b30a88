// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// cutFrame feeds a cutter with pieces; "-N" is a gap of N bytes. It returns the messages, with "-N" for what is missing.
func cutFrame(t *testing.T, k *cutter, pieces ...string) []string {
	t.Helper()
	got := []string{}
	for _, p := range pieces {
		var gap int64
		if n, _ := fmt.Sscanf(p, "-%d", &gap); n == 1 {
			k.skip(gap)
			continue
		}
		err := k.add(t.Context(), []byte(p), func(_ context.Context, line []byte) error {
			got = append(got, string(line))
			return nil
		}, func(n int64, why string) error {
			got = append(got, fmt.Sprintf("-%d", n)+why)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestMessagesAreWholeLines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		k      cutter
		pieces []string
		want   []string
		rest   int64
		why    string // there is a rest
	}{
		{"one", cutter{}, []string{"one\n"}, []string{"one"}, 0, ""},
		{"empty ones", cutter{}, []string{"\n\n", "\n"}, []string{"", "", ""}, 0, ""},
		{"in pieces", cutter{}, []string{"o", "n", "e", "\ntw", "o\n"}, []string{"one", "two"}, 0, ""},
		{"no end", cutter{}, []string{"one\ntw"}, []string{"one"}, 2, "unfinished_line"},
		{"gap at a boundary", cutter{}, []string{"one\n", "-10", "x\ntwo\n"}, []string{"one", "-12", "two"}, 0, ""},
		{"gap in a line", cutter{}, []string{"on", "-10", "x\ntwo\n"}, []string{"-14", "two"}, 0, ""},
		{"two gaps", cutter{}, []string{"on", "-10", "x", "-5", "y\n\n"}, []string{"-20", ""}, 0, ""},
		{"gap and no end", cutter{}, []string{"on", "-10", "x"}, []string{}, 13, ""},
		{"begun behind an end", cutter{skipping: true, lost: -1}, []string{"\none\n"}, []string{"-0", "one"}, 0, ""},
		{"begun in a line", cutter{skipping: true, lost: -1}, []string{"xyz\none\n"}, []string{"-3", "one"}, 0, ""},
	} {
		if got := cutFrame(t, &tc.k, tc.pieces...); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if rest, why := tc.k.unfinished(); rest != tc.rest || rest > 0 && why != tc.why {
			t.Errorf("%s: %d are left out at the end, %q; want %d, %q", tc.name, rest, why, tc.rest, tc.why)
		}
	}
}

// Memory for a long line is reserved once and released with it; a line that is too long is left out.
func TestLongLinesAreBounded(t *testing.T) {
	t.Parallel()
	held, most := 0, 0
	k := cutter{reserve: func(_ context.Context, n int64) (func(), error) {
		held++
		most = max(most, held)
		if n != api.MaxLine {
			t.Errorf("%d bytes are reserved", n)
		}
		return func() { held-- }, nil
	}}
	for _, n := range []int{api.MaxFrame - 2, api.MaxFrame + 2, api.MaxLine, api.MaxLine + 1, 3 * api.MaxLine, 1} {
		var pieces []string
		for data := range slices.Chunk([]byte(strings.Repeat("x", n)+"\n"), 1<<20) {
			pieces = append(pieces, string(data))
		}
		want := strings.Repeat("x", n)
		if n > api.MaxLine {
			want = fmt.Sprintf("-%dlong_line", n+1)
		}
		if got := cutFrame(t, &k, pieces...); len(got) != 1 || got[0] != want {
			t.Errorf("a line of %d bytes: %d messages, %.20q", n, len(got), got)
		}
		if held != 0 || cap(k.line) > 2*api.MaxFrame && n > api.MaxFrame {
			t.Errorf("after a line of %d bytes, %d bytes are reserved, and the buffer has %d bytes", n, held, cap(k.line))
		}
	}
	if most != 1 {
		t.Errorf("%d reservations for one line", most)
	}
	full := errors.New("full")
	k = cutter{reserve: func(context.Context, int64) (func(), error) { return nil, full }}
	if err := k.add(t.Context(), make([]byte, api.MaxFrame+1), nil, nil); !errors.Is(err, full) {
		t.Errorf("without memory for the line: err = %v, want err is %v", err, full)
	}
}

// However a stream is cut into pieces, its lines and gaps add up to all of it.
func FuzzLines(f *testing.F) {
	f.Add("one\ntwo\n\nthree", uint64(1))
	f.Add("\n\n\n", uint64(2))
	f.Add("", uint64(3))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		var k cutter
		var got strings.Builder
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			err := k.add(t.Context(), rest[:n], func(_ context.Context, line []byte) error {
				got.WriteString(string(line) + "\n")
				return nil
			}, func(int64, string) error { t.Error("something is missing"); return nil })
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		rest, _ := k.unfinished()
		if want := text[:strings.LastIndexByte(text, '\n')+1]; got.String() != want || rest != int64(len(text)-len(want)) {
			t.Errorf("%q of %q, and %d left", got.String(), text, rest)
		}
	})
}

func TestAttachSaysWhereAndHow(t *testing.T) {
	t.Parallel()
	info := process.Info{Stdin: true, Output: [2]process.StreamState{{Bytes: 100, From: 50}, {Bytes: 10}}}
	at := func(a, b int64) *[2]int64 { return &[2]int64{a, b} }
	for _, tc := range []struct {
		name  string
		asked api.StreamAttach
		want  process.AttachOptions
		field string
	}{
		{"nothing", api.StreamAttach{}, process.AttachOptions{}, ""},
		{"replay", api.StreamAttach{Replay: true}, process.AttachOptions{From: at(0, 0)}, ""},
		{"both", api.StreamAttach{Stdout: new(int64(100)), Stderr: new(int64(3))}, process.AttachOptions{From: at(100, 3)}, ""},
		{"one", api.StreamAttach{Stdout: new(int64(7))}, process.AttachOptions{From: at(7, 0)}, ""},
		{"lines from now", api.StreamAttach{Lines: true}, process.AttachOptions{From: at(99, 10)}, ""},
		{"lines from there", api.StreamAttach{Lines: true, Stdout: new(int64(7))}, process.AttachOptions{From: at(7, 0)}, ""},
		{"lines of all", api.StreamAttach{Lines: true, Replay: true}, process.AttachOptions{From: at(0, 0)}, ""},
		{"everything", api.StreamAttach{Write: true, TakeOver: true, Lossless: new(true), Stdin: new(int64(5))}, process.AttachOptions{Write: true, TakeOver: true, Lossless: true}, ""},
		{"a writer", api.StreamAttach{Write: true}, process.AttachOptions{Write: true, Lossless: true}, ""},
		{"a writer that drops", api.StreamAttach{Write: true, Lossless: new(false)}, process.AttachOptions{Write: true}, ""},
		{"what only a writer needs", api.StreamAttach{TakeOver: true, Stdin: new(int64(5))}, process.AttachOptions{TakeOver: true}, ""},
		{"a writer that comes again", api.StreamAttach{Write: true, WriterID: "w"}, process.AttachOptions{Write: true, WriterID: "w", Lossless: true}, ""},
		{"a long id", api.StreamAttach{Write: true, WriterID: strings.Repeat("w", 65)}, process.AttachOptions{}, "attach.writer_id"},
		{"too far", api.StreamAttach{Stdout: new(int64(101))}, process.AttachOptions{}, "attach.stdout"},
		{"too far in the other", api.StreamAttach{Stderr: new(int64(11))}, process.AttachOptions{}, "attach.stderr"},
		{"negative", api.StreamAttach{Stderr: new(int64(-1))}, process.AttachOptions{}, "attach.stderr"},
		{"negative input", api.StreamAttach{Write: true, Stdin: new(int64(-1))}, process.AttachOptions{}, "attach.stdin"},
		{"two beginnings", api.StreamAttach{Replay: true, Stdout: new(int64)}, process.AttachOptions{}, "attach.replay"},
	} {
		got, err := attachOptions(info, &tc.asked)
		if tc.field != "" {
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Invalid || f.Field != tc.field {
				t.Errorf("%s: err = %v, want ok == true and f.Kind == fault.Invalid and f.Field == tc.field",
					tc.name, err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, -want +got:\n%s", tc.name, err, diff)
		}
	}
	_, err := attachOptions(process.Info{}, &api.StreamAttach{Write: true})
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "attach.write" {
		t.Errorf(`input for a process without: err = %v, want ok == true and f.Field == "attach.write"`, err)
	}
	if _, err := attachOptions(process.Info{Terminal: &process.Size{Rows: 1, Cols: 1}}, &api.StreamAttach{Write: true}); err != nil {
		t.Errorf("input for a terminal: %v", err)
	}
}

// The start offset and the gaps that a client is told add up to its position.
func TestAnOutputBeginsWhereItsClientBelieves(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		asked        api.StreamAttach
		from         *[2]int64
		at           [2]int64
		begin, moved [2]int64
		skipping     bool
	}{
		{"from now", api.StreamAttach{}, nil, [2]int64{5, 6}, [2]int64{5, 6}, [2]int64{}, false},
		{"resumed", api.StreamAttach{Stdout: new(int64)}, &[2]int64{3, 4}, [2]int64{3, 4}, [2]int64{3, 4}, [2]int64{}, false},
		{"resumed too late", api.StreamAttach{Stdout: new(int64)}, &[2]int64{3, 4}, [2]int64{30, 4}, [2]int64{3, 4}, [2]int64{27, 0}, false},
		{"replayed", api.StreamAttach{Replay: true}, &[2]int64{}, [2]int64{30, 4}, [2]int64{30, 4}, [2]int64{}, false},
		{"lines from now", api.StreamAttach{Lines: true}, &[2]int64{9, 4}, [2]int64{9, 4}, [2]int64{10, 4}, [2]int64{}, true},
		{"lines from the beginning", api.StreamAttach{Lines: true}, nil, [2]int64{0, 4}, [2]int64{0, 4}, [2]int64{}, false},
		{"lines resumed", api.StreamAttach{Lines: true, Stdout: new(int64)}, &[2]int64{9, 4}, [2]int64{9, 4}, [2]int64{9, 4}, [2]int64{}, false},
		{"lines replayed", api.StreamAttach{Lines: true, Replay: true}, &[2]int64{}, [2]int64{9, 4}, [2]int64{9, 4}, [2]int64{}, true},
	} {
		o := newOutput(&conn{streamOpening: &streamOpening{}}, &tc.asked, tc.from, tc.at)
		if o.start != tc.begin || o.moved != tc.moved || (o.lines != nil) != tc.asked.Lines || o.lines != nil && o.lines.skipping != tc.skipping {
			t.Errorf("%s: begins at %v, moved by %v, lines %+v", tc.name, o.start, o.moved, o.lines)
		}
	}
}

func TestAControlMessageIsOneThing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		msg api.ClientControl
		ok  bool
	}{
		{api.ClientControl{Signal: "SIGINT"}, true},
		{api.ClientControl{Resize: &api.Terminal{Rows: 24, Cols: 80}}, true},
		{api.ClientControl{}, false},
		{api.ClientControl{Signal: "INT"}, false},
		{api.ClientControl{Signal: "SIGINT", Resize: &api.Terminal{Rows: 24, Cols: 80}}, false},
		{api.ClientControl{Signal: "SIGINT", Attach: &api.StreamAttach{}}, false},
		{api.ClientControl{Start: &api.StreamStart{}}, false},
	} {
		if _, err := signalOf(&tc.msg); (err == nil) != tc.ok {
			t.Errorf("%+v: err = %v, want (err == nil) == %v", tc.msg, err, tc.ok)
		}
	}
}
