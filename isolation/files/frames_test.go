// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation/files"
)

func frame(kind byte, payload string) string {
	return string(binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))) + payload
}

func TestAMalformedFileAnswerIsRefused(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]string{
		"nothing":               "",
		"no frame":              "hello, I am a program of the box",
		"half a frame":          frame('a', `{"Done":true}`)[:9],
		"a length":              "a\xff\xff\xff\xff{}",
		"a long frame of data":  frame('d', strings.Repeat("x", files.MaxData+1)) + frame('a', `{"Done":true}`),
		"no end":                frame('d', "x"),
		"no answer":             frame('a', `{}`),
		"two answers":           frame('a', `{"Done":true,"Stat":{"Type":"file","Size":1,"Mode":420,"Time":"2026-01-01T00:00:00Z"}}`),
		"more after the answer": frame('a', `{"Done":true}`) + "x",
		"no JSON":               frame('a', `{"Done":`),
		"a wrong type":          frame('a', `{"Stat":{"Type":"unicorn","Time":"2026-01-01T00:00:00Z"}}`),
		"a negative size":       frame('a', `{"Stat":{"Type":"file","Size":-1,"Time":"2026-01-01T00:00:00Z"}}`),
		"a wild mode":           frame('a', `{"Stat":{"Type":"file","Mode":4000000000,"Time":"2026-01-01T00:00:00Z"}}`),
		"a wrong digest":        frame('a', `{"Stat":{"Type":"file","Digest":"sha256:<script>","Time":"2026-01-01T00:00:00Z"}}`),
		"a wrong kind":          frame('a', `{"Failure":{"Kind":"fine","Text":"x"}}`),
		"an endless text":       frame('a', `{"Failure":{"Kind":"busy","Text":"`+strings.Repeat("x", 2000)+`"}}`),
		"a wrong cut":           frame('a', `{"List":{"Cut":"scissors"}}`),
		"a negative count":      frame('a', `{"Grep":{"Matches":-1}}`),
		"a negative line":       frame('a', `{"Grep":{"Files":[{"Lines":[{"Number":-1}]}]}}`),
		"a request":             frame('q', `{}`),
		"unheard of changes":    frame('a', `{"Changes":{"Created":1,"Changes":[{"What":"eaten","Entry":{"Type":"file","Time":"2026-01-01T00:00:00Z"}}]}}`),
		"more than are counted": frame('a', `{"Changes":{"Changes":[{"What":"created","Entry":{"Type":"file","Time":"2026-01-01T00:00:00Z"}}]}}`),
		"a notice":              frame('n', `{"Events":[{"What":"create","Path":"YQ=="}]}`) + frame('a', `{"Done":true}`),
		"a name without end":    frame('a', `{"Stat":{"Type":"file","Time":"2026-01-01T00:00:00Z","Owner":{"User":"`+strings.Repeat("x", 300)+`"}}}`),
		"a wrong target":        frame('a', `{"Stat":{"Type":"symlink","Time":"2026-01-01T00:00:00Z","TargetType":"unicorn"}}`),
		"a negative snapshot":   frame('a', `{"Snapshot":{"Entries":-1}}`),
	} {
		if a, err := files.Receive(strings.NewReader(said), io.Discard, 1<<20); !errors.Is(err, files.ErrMalformed) {
			t.Errorf("%s: a = %+v, err = %v, want err is files.ErrMalformed", name, a, err)
		}
	}
	said := frame('d', "12345") + frame('d', "6") + frame('a', `{"Done":true}`)
	if _, err := files.Receive(strings.NewReader(said), io.Discard, 5); !errors.Is(err, files.ErrTooMuch) {
		t.Errorf("more data than requested: err = %v, want err is files.ErrTooMuch", err)
	}
	var data bytes.Buffer
	if a, err := files.Receive(strings.NewReader(said), &data, 6); err != nil || !a.Done || data.String() != "123456" {
		t.Errorf(`a good one: a = %+v, err = %v, data = %q, want no error and a.Done == true and data.String() == "123456"`,
			a, err, data.String())
	}
}

func TestAMalformedFileNoticeIsRefused(t *testing.T) {
	t.Parallel()
	file := `"File":{"Type":"file","Time":"2026-01-01T00:00:00Z"}`
	for name, said := range map[string]string{
		"an unheard of event":   `{"Events":[{"What":"explode"}]}`,
		"a wrong type":          `{"Events":[{"What":"create","Type":"unicorn"}]}`,
		"a wrong entry":         `{"Events":[{"What":"create","Entry":{"Type":"file","Size":-1,"Time":"2026-01-01T00:00:00Z"}}]}`,
		"a negative length":     `{"Opening":{` + file + `,"Length":-1}}`,
		"a negative offset":     `{"Opening":{` + file + `,"Offset":-1}}`,
		"a file of no type":     `{"Opening":{"Offset":1}}`,
		"an opening with event": `{"Opening":{` + file + `},"Events":[{"What":"create"}]}`,
		"no JSON":               `{"Events":`,
	} {
		if p, err := files.NewIncoming(strings.NewReader(frame('n', said))).Next(); !errors.Is(err, files.ErrMalformed) {
			t.Errorf("%s: p.Notice = %+v, err = %v, want err is files.ErrMalformed", name, p.Notice, err)
		}
	}
	if p, err := files.NewIncoming(strings.NewReader("n\xff\xff\xff\x7f{}")).Next(); !errors.Is(err, files.ErrMalformed) {
		t.Errorf("a notice of 2 GiB: p = %+v, err = %v, want err is files.ErrMalformed", p, err)
	}
	in := files.NewIncoming(strings.NewReader(frame('n', `{"Opening":{`+file+`,"Offset":2,"Length":3}}`) + frame('d', "abc") + frame('a', `{"Done":true}`)))
	if p, err := in.Next(); err != nil || p.Notice == nil || p.Notice.Opening.Length != 3 {
		t.Errorf("a good one: p = %+v, err = %v, want no error and p.Notice != nil and p.Notice.Opening.Length == 3",
			p, err)
	}
	if p, err := in.Next(); err != nil || string(p.Data) != "abc" {
		t.Errorf(`its data: p = %+v, err = %v, want no error and p.Data == "abc"`, p, err)
	}
	if p, err := in.Next(); err != nil || p.Answer == nil || !p.Answer.Done {
		t.Errorf("its answer: p = %+v, err = %v, want no error and p.Answer != nil and p.Answer.Done == true", p, err)
	}
}

func TestABodyHasAnEnd(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := files.NewWriter(&b)
	body := bytes.Repeat([]byte("0123456789"), 20000)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	got, err := io.ReadAll(files.NewReader(bytes.NewReader(whole)))
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	for _, cut := range []int{0, 1, 4, 5, 100, len(whole) / 2, len(whole) - 5, len(whole) - 1} {
		if _, err := io.ReadAll(files.NewReader(bytes.NewReader(whole[:cut]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of %d bytes %d: err = %v, want err is io.ErrUnexpectedEOF", len(whole), cut, err)
		}
	}
}

func TestTooLongAnAnswerIsAFailure(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	a := &files.Answer{List: &files.ListAnswer{Entries: []files.Entry{{Path: bytes.Repeat([]byte("x"), files.MaxAnswer), Type: files.TypeFile, Time: time.Unix(0, 0)}}}}
	if err := files.NewWriter(&b).Answer(a); err != nil {
		t.Fatal(err)
	}
	if a, err := files.Receive(&b, io.Discard, 0); err != nil || a.Failure == nil || a.Failure.Kind != files.TooMany {
		t.Errorf("a = %+v, err = %v, want no error and a.Failure != nil and a.Failure.Kind == files.TooMany", a, err)
	}
}

// boxfiles is as untrusted as a program of the box: whatever it sends is a valid answer, or an
// error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(frame('d', "content") + frame('a', `{"Read":{"File":{"Type":"file","Time":"2026-01-01T00:00:00Z"},"Next":7}}`)))
	f.Add([]byte(frame('a', `{"Failure":{"Kind":"not_found","Path":"Lw==","Text":"no such file"}}`)))
	f.Add([]byte(frame('a', `{"Grep":{"Files":[{"Path":"YQ==","Lines":[{"Number":1,"Match":true,"Text":"eA=="}]}],"Matches":1}}`)))
	f.Fuzz(func(t *testing.T, said []byte) {
		var data bytes.Buffer
		a, err := files.Receive(bytes.NewReader(said), &data, 100)
		if data.Len() > 100 {
			t.Fatalf("%d bytes of data", data.Len())
		}
		if err != nil {
			return
		}
		if _, err := json.Marshal(a); err != nil {
			t.Fatalf("an answer too large to encode: %v", err)
		}
	})
}
