// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessagesThatAreNoRequestsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "[]", "null", "7", `"action"`, "{}", `{"seq_id":1}`, `{"seq_id":1,"code":0}`, `{"seq_id":1,"action":"a","code":0,"data":{}}`} {
		if req, _, err := ParseRequest([]byte(text)); req != nil || err != nil {
			t.Errorf("%s: req = %+v, err = %v, want req == nil and no error", text, req, err)
		}
	}
}

func TestRequestsAreReadAndRefused(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("a", 64)
	for _, tc := range []struct {
		text string
		want *Request
		seq  int64
	}{
		{`{"seq_id":7,"action":"__ping","data":{}}`, &Request{Seq: 7, Action: "__ping", Data: map[string]json.RawMessage{}}, 7},
		{`{"seq_id":"7","action":"a","data":{"x":null},"context":null,"more":1}`, &Request{Seq: 7, Action: "a", Data: map[string]json.RawMessage{"x": json.RawMessage("null")}}, 7},
		{
			`{"seq_id":1,"action":"a","data":{},"context":{"instance_uuid":" i ","workspace_uuid":"w","placement_generation":3}}`,
			&Request{Seq: 1, Action: "a", Data: map[string]json.RawMessage{}, Context: &Context{Instance: "i", Workspace: "w", Generation: 3}}, 1,
		},
		{
			`{"seq_id":1,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","installation_uuid":"x","runtime_revision":2,"artifact_digest":"` + hex + `"}}`,
			&Request{Seq: 1, Action: "a", Data: map[string]json.RawMessage{}, Context: &Context{Instance: "i", Workspace: "w", Generation: 1}}, 1,
		},
		{`{"action":"a","data":{}}`, nil, -1},
		{`{"seq_id":[],"action":"a","data":{}}`, nil, -1},
		{`{"seq_id":9,"action":7,"data":{}}`, nil, 9},
		{`{"seq_id":9,"action":"a"}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":[]}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":{},"context":[]}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":" "}}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","placement_generation":0}}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","other":0}}`, nil, 9},
		{`{"seq_id":9,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","runtime_revision":1}}`, nil, 9},
	} {
		got, seq, err := ParseRequest([]byte(tc.text))
		if seq != tc.seq || !cmp.Equal(got, tc.want) || (err != nil) != (tc.want == nil) {
			t.Errorf("%s: got %+v, seq = %d, err = %v, want seq == %v and got == %+v and (err != nil) == (tc.want == nil)",
				tc.text, got, seq, err, tc.seq, tc.want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "ValidationError: ") {
			t.Errorf(`%s: err = %v, want no error or err starting with "ValidationError: "`, tc.text, err)
		}
	}
}

func TestAnswersAreThoseOfTheReference(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		got  []byte
		want string
	}{
		{Success(85338, struct{}{}), `{"seq_id":85338,"code":0,"message":"success","data":{},"chunk_status":"continue"}`},
		{Failure(5, Refusef("KeyError", "'session_id'")), `{"seq_id":5,"code":1,"message":"KeyError: 'session_id'","data":{},"chunk_status":"continue"}`},
		{Failure(unknownSeq, TooManyCalls()), `{"seq_id":-1,"code":1,"message":"Runtime connection is busy (max 128 concurrent actions)","data":{},"chunk_status":"continue"}`},
		{
			Success(1, strings.Repeat("x", MaxMessage)),
			`{"seq_id":1,"code":1,"message":"ValueError: Runtime message exceeds 16777216 byte limit","data":{},"chunk_status":"continue"}`,
		},
	} {
		if string(tc.got) != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestALongErrorIsCut(t *testing.T) {
	t.Parallel()
	text := Refusef("BoxError", "%s", strings.Repeat("é", 5000)).Error()
	want := "BoxError: " + strings.Repeat("é", 4096) + "... [protocol error truncated]"
	if text != want {
		t.Errorf("%d bytes, want %d", len(text), len(want))
	}
}

// What a gateway passes on is what it has got, but for the numbers.
func TestAForwardedRequestIsUnchanged(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"seq_id":7,"action":"a","data":{"x":null,"y":"ä"}}`,
		`{"seq_id":7,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","placement_generation":3}}`,
	} {
		r, _, err := ParseRequest([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := EncodeRequest(r, 9)
		if want := strings.Replace(text, `"seq_id":7`, `"seq_id":9`, 1); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	const answer = `{"seq_id":7,"code":1,"message":"BoxError: x","data":{"a":[1]},"chunk_status":"continue"}`
	a, err := ParseAnswer([]byte(answer))
	if err != nil || a.Seq != 7 {
		t.Fatalf("a = %+v, err = %v, want no error and a.Seq == 7", a, err)
	}
	if got, want := string(a.Encode(9)), strings.Replace(answer, `"seq_id":7`, `"seq_id":9`, 1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, text := range []string{"", "{}", "[]", `{"seq_id":1,"code":0,"message":"success"}`, `{"seq_id":1,"message":"x","data":{}}`} {
		if a, err := ParseAnswer([]byte(text)); err == nil {
			t.Errorf("%s: a = %+v, want an error", text, a)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"seq_id":1,"code":0,"message":"success","data":{},"chunk_status":"continue"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := ParseAnswer(text)
		if err != nil {
			return
		}
		if again, err := ParseAnswer(a.Encode(3)); err != nil || again.Seq != 3 || again.Code != a.Code {
			t.Fatalf("%s: again = %+v, err = %v, want no error and again.Seq == 3 and again.Code == %v",
				text, again, err, a.Code)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"seq_id":1,"action":"a","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w"}}`))
	f.Add([]byte(`{"seq_id":"x","action":"a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		req, seq, err := ParseRequest(text)
		if req != nil && err != nil {
			t.Fatalf("both: req = %+v, err = %v, want req == nil or no error", req, err)
		}
		if c := req; c != nil && c.Context != nil && (c.Context.Generation < 1 || c.Context.Workspace == "" || c.Context.Instance == "") {
			t.Fatalf(`c.Context = %+v, want c == nil or c.Context == nil or c.Context.Generation >= 1 and c.Context.Workspace != "" and c.Context.Instance != ""`,
				c.Context)
		}
		if err == nil {
			return
		}
		if _, ok := errors.AsType[*Refusal](err); !ok {
			t.Fatalf("err = %T, want ok == true", err)
		}
		var back struct {
			Seq  int64 `json:"seq_id"`
			Code int   `json:"code"`
		}
		if json.Unmarshal(Failure(seq, err), &back) != nil || back.Seq != seq || back.Code != 1 {
			t.Fatalf("%d: back = %+v, want json.Unmarshal(Failure(seq, err), &back) == nil and back.Seq == seq and back.Code == 1",
				seq, back)
		}
	})
}

func TestValuesInAMessageAreBounded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		ok   bool
	}{
		{"", true},
		{`{"a":1}`, true},
		{"[" + strings.Repeat("1,", maxValues-3) + "1]", true},
		{"[" + strings.Repeat("1,", maxValues) + "1]", false},
		{strings.Repeat("[", maxValues), false},
		{strings.Repeat(`{"a":`, maxValues), false},
		{`{"a":"` + strings.Repeat(`,:[{\"\\`, maxValues) + `"}`, true},
		{`{"a":"` + strings.Repeat(`,`, maxValues), true}, // invalid JSON: it is not decoded
	} {
		if ok := fewValues([]byte(tc.text)); ok != tc.ok {
			t.Errorf("%.20s… (%d bytes): ok = %v, want %v", tc.text, len(tc.text), ok, tc.ok)
		}
	}
}

// What is passed on does not grow.
func TestMessagesKeepTheirLength(t *testing.T) {
	t.Parallel()
	const text = `"<a href='x'>&</a>"`
	asked, err := EncodeRequest(&Request{Action: "a", Data: map[string]json.RawMessage{"x": json.RawMessage(text)}}, 1)
	if want := `{"seq_id":1,"action":"a","data":{"x":` + text + `}}`; err != nil || string(asked) != want {
		t.Errorf("%s, %v, want %s", asked, err, want)
	}
	if got, want := Success(1, json.RawMessage(text)), `{"seq_id":1,"code":0,"message":"success","data":`+text+`,"chunk_status":"continue"}`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}
