// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestLogsAreAskedForExactly(t *testing.T) {
	t.Parallel()
	end := [2]int64{1000, 20}
	for _, tc := range []struct {
		query, last string
		want        logs
	}{
		{"", "", logs{format: "text"}},
		{"follow=true&timestamps=false", "", logs{format: "text", follow: true}},
		{"stdout=7", "", logs{format: "text", from: [2]int64{7, 0}}},
		{"stdout=1000&stderr=20&format=ndjson", "", logs{format: "ndjson", from: end}},
		{"tail=100", "", logs{format: "text", from: [2]int64{900, 0}, tail: 100}},
		{"tail=1KiB", "", logs{format: "text", tail: quantity.KiB}},
		{"tail=9223372036854775807", "", logs{format: "text", tail: 1<<63 - 1}},
		{"since=2026-11-21T09:30:00Z", "", logs{format: "text", since: time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC)}},
		{"since=2026-11-21T10:30:00.5%2B01:00&format=sse", "7.0", logs{format: "sse", from: [2]int64{7, 0}, resumed: true}},
		{"format=sse&stream=stderr", "", logs{format: "sse"}},
		{"format=sse&stdout=7", "1000.20", logs{format: "sse", from: end, resumed: true}},
		{"format=sse&lines=7", "5.0", logs{format: "sse", from: [2]int64{5, 0}, resumed: true}},
		{"format=ndjson", "5.0", logs{format: "ndjson"}},
	} {
		query, err := url.ParseQuery(tc.query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readLogs(query, tc.last, end)
		if err != nil {
			t.Errorf("%s: %v", tc.query, err)
			continue
		}
		tc.want.end, tc.want.lines, tc.want.only = end, -1, -1
		if query.Has("stream") {
			tc.want.only = 1
		}
		if *got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.query, *got, tc.want)
		}
	}
	for query, field := range map[string]string{
		"follow=yes": "follow", "timestamps=1": "timestamps", "stdout=1001": "stdout", "stderr=21": "stderr", "stdout=-1": "stdout", "stdout=x": "stdout",
		"tail=-1": "tail", "tail=many": "tail", "lines=-1": "lines", "lines=10001": "lines", "lines=x": "lines", "format=xml": "format", "stream=both": "stream",
		"since=yesterday": "since", "since=10m": "since", "since=0001-01-01T00:00:00Z": "since", "since=2026-11-21T09:30:00Z&tail=1": "query", "stdout=1&since=2026-11-21T09:30:00Z": "query",
		"stream=1": "stream", "tail=1&lines=1": "query", "stdout=1&tail=1": "query", "stderr=1&lines=1": "query", "format=sse#1001.0": lastEvent, "format=sse#1": lastEvent,
		"format=sse#1.2.3": lastEvent, "format=sse#-1.0": lastEvent, "format=sse#1.2 ": lastEvent,
	} {
		query, last, _ := strings.Cut(query, "#")
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		_, err = readLogs(values, last, end)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Invalid || f.Field != field {
			t.Errorf("%s and %q: %v, want one about %q", query, last, err, field)
		}
	}
}

// pieces returns chunks of output: "1:text" is standard error, "0-5" a gap.
func pieces(text ...string) []output.Chunk {
	var list []output.Chunk
	at := [2]int64{}
	for i, s := range text {
		c := output.Chunk{Stream: int(s[0] - '0'), Time: time.Date(2026, 11, 21, 9, 30, i, 5e8, time.UTC)}
		c.Offset = at[c.Stream]
		if n, _ := fmt.Sscanf(s[1:], "-%d", &c.Gap); n == 0 {
			c.Data = []byte(s[2:])
		}
		at[c.Stream] += c.Len()
		list = append(list, c)
	}
	return list
}

func TestLogsAsText(t *testing.T) {
	t.Parallel()
	const cut = "\n... [5 bytes omitted] ...\n"
	at := func(i int) string { return fmt.Sprintf("2026-11-21T09:30:0%d.500000000Z ", i) }
	for _, tc := range []struct {
		timestamps bool
		in         []string
		want       string
	}{
		{false, []string{"0:a\nb", "1:x\n", "0:c\xff\n", "0-5", "0:d"}, "a\nbx\nc\xff\n" + cut + "d"},
		{true, []string{"0:a\nb", "1:x\n", "0:c\n\n", "1:y", "1:z\n"}, at(0) + "a\n" + at(0) + "b" + at(1) + "x\nc\n" + at(2) + "\n" + at(3) + "yz\n"},
		{true, []string{"0:a", "0-5", "0:b\n"}, at(0) + "a" + cut + at(2) + "b\n"},
	} {
		f := &logFormat{kind: "text", timestamps: tc.timestamps}
		got := ""
		for _, c := range pieces(tc.in...) {
			got += string(f.piece(&c))
		}
		if got += string(f.end()); got != tc.want {
			t.Errorf("%q became %q, want %q", tc.in, got, tc.want)
		}
	}
}

// Logs as JSON contain what was written, whatever that is, and the ids say where to resume.
func TestLogsAsLines(t *testing.T) {
	t.Parallel()
	in := []string{"0:a\n€", "1:\xe2\x82", "0:\xe2", "1:\xac<&>\n", "0:\x82\xac\n", "0:b\xffc", "0:\xe2\x82", "0-5", "0:d", "1:\xf0\x9f"}
	written := map[string]string{"stdout": "a\n€€\nb\xffc\xe2\x82d", "stderr": "€<&>\n\xf0\x9f"}
	for _, kind := range []string{"ndjson", "sse"} {
		f := &logFormat{kind: kind}
		text := ""
		for _, c := range pieces(in...) {
			text += string(f.piece(&c))
		}
		text += string(f.end())
		got := map[string]string{}
		at := map[string]int64{}
		base64s := 0
		for line := range strings.Lines(text) {
			if kind == "sse" {
				id, isID := strings.CutPrefix(line, "id: ")
				data, isData := strings.CutPrefix(line, "data: ")
				if isID {
					var n [2]int64
					if _, err := fmt.Sscanf(id, "%d.%d", &n[0], &n[1]); err != nil {
						t.Fatal(err)
					}
					at["id0"], at["id1"] = n[0], n[1]
				}
				if !isData || data == "{}\n" {
					continue
				}
				line = data
			}
			var l api.LogLine
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			data := []byte(l.Data)
			if l.Base64 {
				base64s++
				data, _ = base64.StdEncoding.DecodeString(l.Data)
			}
			if l.Offset != at[l.Stream] || l.Time.IsZero() {
				t.Errorf("%s: %q is at %d, want %d", kind, line, l.Offset, at[l.Stream])
			}
			got[l.Stream] += string(data)
			at[l.Stream] += int64(len(data)) + l.Gap
			if kind == "sse" && (at["id0"] != at["stdout"] || at["id1"] != at["stderr"]) {
				t.Errorf("%q has the id of %v", line, at)
			}
		}
		if got["stdout"] != written["stdout"] || got["stderr"] != written["stderr"] || base64s != 3 {
			t.Errorf("%s: %q, %d of it in base64", kind, got, base64s)
		}
		if ends := strings.HasSuffix(text, "event: end\nid: 20.9\ndata: {}\n\n"); ends != (kind == "sse") {
			t.Errorf(`%s ends with %q, want ends == (kind == "sse")`, kind, text[max(len(text)-60, 0):])
		}
	}
}

func TestAStreamThatWasNotAskedForCounts(t *testing.T) {
	t.Parallel()
	f := &logFormat{kind: "sse"}
	for _, c := range pieces("1:abc", "1-4") {
		f.pass(&c)
	}
	if got := string(f.piece(&pieces("0:x")[0])); !strings.HasPrefix(got, "id: 1.7\n") {
		t.Errorf(`got %q, want got starting with "id: 1.7\n"`, got)
	}
}

func TestTheLastLines(t *testing.T) {
	t.Parallel()
	in := pieces("0:1\n2\n", "1:a\nb", "0:3", "1:c\n", "0:3\n4", "0-5", "0:5\n\n")
	end := [2]int64{16, 5}
	for lines, want := range [][2]int64{end, {15, 5}, {7, 5}, {4, 3}, {4, 2}, {4, 0}, {2, 0}, {0, 0}, {0, 0}} {
		last, at := tail{lines: lines}, [2]int64{}
		for _, c := range in {
			last.add(at, &c)
			at[c.Stream] += c.Len()
		}
		if got := last.begin(end); got != want || at != end {
			t.Errorf("the last %d lines begin at %v, want %v", lines, got, want)
		}
	}
	last := tail{lines: 3}
	for i := range int64(1000) {
		last.add([2]int64{2 * i, 0}, &output.Chunk{Offset: 2 * i, Data: []byte("x\n")})
	}
	if got := last.begin([2]int64{2000, 0}); got != [2]int64{1994, 0} || cap(last.starts) > 64 {
		t.Errorf("with many lines, the last ones begin at %v, and the starts of %d are kept", got, cap(last.starts))
	}
}
