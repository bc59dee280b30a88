// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// elements returns the JSON of a list or map with n elements.
func elements(field string, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		switch field {
		case "mounts":
			b.WriteString("{}")
		case "argv":
			b.WriteString(`""`)
		default:
			fmt.Fprintf(&b, `"%d":""`, i)
		}
	}
	if field == "mounts" || field == "argv" {
		return fmt.Sprintf(`{%q:[%s]}`, field, &b)
	}
	return fmt.Sprintf(`{%q:{%s}}`, field, &b)
}

func TestListsAndMapsAreBounded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		field string
		into  any
		most  int
	}{
		{"mounts", new(api.SessionRequest), 249},
		{"env", new(api.SessionRequest), 256},
		{"labels", new(api.SessionRequest), 32},
		{"argv", new(api.ExecRequest), 16384},
		{"env", new(api.ExecRequest), 256},
	} {
		if err := decodeStrictly([]byte(elements(tc.field, tc.most)), tc.into); err != nil {
			t.Errorf("%d elements of %s: %v", tc.most, tc.field, err)
		}
		err := decodeStrictly([]byte(elements(tc.field, tc.most+1)), tc.into)
		want := fmt.Sprintf("%s has %d elements: must have at most %d", tc.field, tc.most+1, tc.most)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Invalid || f.Field != tc.field || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Policy accepts as many elements as the wire format, so that neither limit makes the other pointless.
func TestPolicyAcceptsAsManyElementsAsTheWireFormat(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	for _, field := range []string{"mounts", "env", "labels"} {
		f, _ := fieldNamed(reflect.TypeFor[api.SessionRequest](), field)
		most := mostOf(f)
		var req api.SessionRequest
		if err := decodeStrictly([]byte(elements(field, most)), &req); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Merge(sessionRequestOf(&req)); err != nil {
			t.Errorf("%d of %s: %v", most, field, err)
		}
		switch field {
		case "mounts":
			req.Mounts = append(req.Mounts, api.Mount{})
		case "env":
			req.Env["more"] = ""
		case "labels":
			req.Labels["more"] = ""
		}
		_, _, err := c.Merge(sessionRequestOf(&req))
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != field {
			t.Errorf("one more of %s: err = %v, want ok == true and f.Field == field", field, err)
		}
	}
}

func TestEveryListOfARequestIsBounded(t *testing.T) {
	t.Parallel()
	found := 0
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for f := range typ.Fields() {
			inner := f.Type
			if k := inner.Kind(); k == reflect.Slice || k == reflect.Map {
				found++
				if mostOf(f) < 1 {
					t.Errorf("%v.%s has no tag max", typ, f.Name)
				}
			}
			for k := inner.Kind(); k == reflect.Slice || k == reflect.Map || k == reflect.Pointer; k = inner.Kind() {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(inner)
			}
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[api.OneShotRequest](), reflect.TypeFor[api.ClientControl](), reflect.TypeFor[api.ProcessRequest]()} {
		walk(typ)
	}
	if found < 10 {
		t.Errorf("only %d lists and maps were checked", found)
	}
}

// A body of empty elements is not decoded before they are counted. Not parallel: it counts what the process allocates.
func TestRefusingABodyTakesNoMemory(t *testing.T) {
	const size, most = 2 << 20, 64 << 10
	repeat := func(begin, s, end string) []byte {
		return []byte(begin + strings.Repeat(s, (size-len(begin)-len(end))/len(s)) + end)
	}
	for name, body := range map[string][]byte{
		"mounts":    repeat(`{"session":{"mounts":[{}`, `,{}`, `]}}`),
		"arguments": repeat(`{"exec":{"argv":[""`, `,""`, `]}}`),
		"variables": repeat(`{"exec":{"env":{"":""`, `,"":""`, `}}}`),
		"lists":     repeat(`{"exec":{"argv":[[]`, `,[]`, `]}}`),
		"unknown":   repeat(`{"exec":{"x":[0`, `,0`, `]}}`),
		"no list":   repeat(`{"session":{"mounts":{"a":[0`, `,0`, `]}}}`),
	} {
		var before, after runtime.MemStats
		var req api.OneShotRequest
		runtime.ReadMemStats(&before)
		err := decodeStrictly(body, &req)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; err == nil || got > most || len(err.Error()) > 1000 {
			t.Errorf("%s: %d bytes were allocated for the error %.1000v", name, got, err)
		}
	}
	// Nor does the answer repeat what was sent.
	for name, body := range map[string][]byte{
		"key":  repeat(`{"`, `\u0001`, `":1}`),
		"text": repeat(`{"session":{"mounts":"`, "x", `"}}`),
	} {
		var req api.OneShotRequest
		if err := decodeStrictly(body, &req); err == nil || len(err.Error()) > 1000 {
			t.Errorf("%s: err = %.1000v, want an error and len(err.Error()) <= 1000", name, err)
		}
	}
}

func TestErrorsShowWhatWasSentAndQuoteItOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	for body, want := range map[string]string{
		`{"session":{"mounts":"x"}}`:                                    `session.mounts = "x": must be a list`,
		`{"session":{"mounts":null}}`:                                   `session.mounts is null: must be a list`,
		`{"session":{"mounts":{"a":1}}}`:                                `session.mounts is {"a":1}: must be a list`,
		`{"session":{"id":1}}`:                                          `session.id is 1: must be a string`,
		`{"session":{"id":null}}`:                                       `session.id is null: must be a string`,
		`{"session":{"pids":"\"64\""}}`:                                 `session.pids = "\"64\"": must be a whole number`,
		`{"session":"x"}`:                                               `session = "x": must be a JSON object`,
		`{"session":{"pids":[` + strings.Repeat("1,", 100) + `1]}}`:     `session.pids is [` + strings.Repeat("1,", 31) + `1…: must be a whole number`,
		`{"exec":{"argv":"` + long + `"}}`:                              `exec.argv = "` + long[:64] + `"… (100 bytes): must be a list`,
		`{"exec":{"env":3}}`:                                            `exec.env is something else: must be a JSON object`,
		`{"exec":{"stdin":["s3cret"]}}`:                                 `exec.stdin is something else: must be text in UTF-8`,
		"{\"exec\":{\"stdin\":\"s3cret\xff\"}}":                         `exec.stdin is something else: must be text in UTF-8`,
		"{\"exec\":{\"code\":\"s3cret\xff\"}}":                          `exec.code is something else: must be text in UTF-8`,
		`{"session":{"id":"a","id":"b"}}`:                               `session.id is given twice: must be given once`,
		`{"session":{"mounts":[{"` + long + `":1}]}}`:                   `unknown field session.mounts[0].` + long[:64] + `… (known: mode, nosymfollow, owner, source, source_base64, target, target_base64)`,
		`{"session":{"mounts" : [ { "source" : "/a" , "owner":"7" }]}}`: `session.mounts[0].owner = "7": must be a whole number`,
	} {
		var req api.OneShotRequest
		if err := decodeStrictly([]byte(body), &req); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", body, err, want)
		}
	}
}

func TestBadBase64IsNotShown(t *testing.T) {
	t.Parallel()
	_, err := execRequestOf(&api.ExecRequest{Stdin: "s3cret!", StdinEncoding: "base64"})
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "stdin" || strings.Contains(err.Error()+f.Value, "s3cret") {
		t.Errorf(`err = %v, want ok == true and f.Field == "stdin" and err.Error() + f.Value without "s3cret"`, err)
	}
}
