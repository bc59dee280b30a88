// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
)

// longText has what an encoder escapes, and is longer than longOutput.
func longText() string {
	return strings.Repeat("a line with \"quotes\", a tab\t, <b>&</b>, \\, ü, 😀, \u2028 and \x01\r\n", longOutput/32)
}

func TestLongOutputsAreDecodedAsJSONIs(t *testing.T) {
	t.Parallel()
	code := 3
	for name, want := range map[string]api.ExecResult{
		"both":      {Session: "s", Status: "exited", ExitCode: &code, Stdout: longText(), Stderr: longText() + "x", Clamped: []api.Clamp{{Field: "stdout"}}},
		"stdout":    {Session: "s", Status: "exited", Stdout: longText(), Stderr: "short"},
		"stderr":    {Session: "s", Status: "exited", Stderr: longText(), DurationMS: 1.5},
		"short":     {Session: "s", Status: "exited", Stdout: "short"},
		"elsewhere": {Session: longText(), Stdout: "short", Stderr: `"stdout":"`},
	} {
		data, err := json.Marshal(&want)
		if err != nil {
			t.Fatal(err)
		}
		var got api.ExecResult
		if err := decodeResult(data, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, equal: %t", name, err, reflect.DeepEqual(got, want))
		}
		o := outputs{all: data}
		if cut, long := o.cut(), len(want.Stdout) > longOutput || len(want.Stderr) > longOutput; cut != long {
			t.Errorf("%s: an output is decoded apart: %t, want %t", name, cut, long)
		}
	}
}

// FuzzDecodeResult sees whether a result is what json.Unmarshal makes of it. The pieces stand around and within long outputs.
func FuzzDecodeResult(f *testing.F) {
	for _, s := range [][3]string{
		{`{"session":"s","stdout":"`, ``, `","stderr":"x"}`},
		{`{"stderr":"`, `\u00e9\ud83d\ude00\ud83dx\ude00`, `","stdout":""}`},
		{`{"stdout":"`, `\"\\\/\b\f\n\r\t`, `"}`},
		{`{"stdout":"a","stdout":"`, ``, `"}`},
		{`{"Stdout":"`, ``, `","stdout":"b"}`},
		{`{"\u0073tdout":"`, ``, `"}`},
		{`{"stdout" : "`, ``, `"}`},
		{`{"stdout":"`, ``, `","stdout" : "b"}`},
		{`{"changes":{"stdout":"`, ``, `"}}`},
		{`["stdout":"`, ``, `"]`},
		{`{"stdout":"`, "\xff", `"}`},
		{`{"stdout":"`, "\n", `"}`},
		{`{"stdout":"`, `\x`, `"}`},
		{`{"stdout":"`, ``, `"x}`},
		{`{"stdout":"`, ``, `\`},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, before, within, after string) {
		data := []byte(before + strings.Repeat("y", longOutput) + within + strings.Repeat("z", longOutput) + after)
		var got, want api.ExecResult
		gotErr, wantErr := decodeResult(data, &got), json.Unmarshal(data, &want)
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("%v, want %v", gotErr, wantErr)
		}
		if wantErr == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%.100q… is not what json.Unmarshal makes of it", got.Stdout)
		}
	})
}

func BenchmarkDecodeResult(b *testing.B) {
	data, err := json.Marshal(&api.ExecResult{Status: "exited", Stdout: strings.Repeat("some words of output, as a compiler prints them\n", 1<<20/48)})
	if err != nil {
		b.Fatal(err)
	}
	for name, decode := range map[string]func(*api.ExecResult) error{
		"apart": func(r *api.ExecResult) error { return decodeResult(data, r) },
		"json":  func(r *api.ExecResult) error { return json.Unmarshal(data, r) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				var r api.ExecResult
				if err := decode(&r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
