// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Charts are what the Python kernel makes of figures, see chart() there, or what code has made up.
func TestChartsAsClientsOfScaleboxReadThem(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"type":"line","title":"T","x_label":"time (s)","x_unit":"s","y_label":null,"x_ticks":[1,2],"elements":[{"label":"a","points":[[1,2.5],["2026-01-01","b"],[null,true]]}]}`: `{"type":"line","title":"T","elements":[{"pointData":{"label":"a","points":[{"xNum":1,"yNum":2.5},{"xStr":"2026-01-01","yStr":"b"},{"xStr":"","yStr":""}]}}],"extra":{"x_label":"time (s)","x_ticks":"[1,2]","x_unit":"s"}}`,
		`{"type":"scatter","title":null,"elements":[]}`:                                                                                         `{"type":"scatter"}`,
		`{"type":"bar","elements":[{"label":"a","group":"g","value":7},{"label":"b","group":"","value":0.1},{"label":1}]}`:                      `{"type":"bar","elements":[{"barData":{"label":"a","group":"g","value":"7"}},{"barData":{"label":"b","value":"0.1"}}]}`,
		`{"type":"pie","elements":[{"label":"a","angle":90,"radius":1}]}`:                                                                       `{"type":"pie","elements":[{"pieData":{"label":"a","angle":90,"radius":1}}]}`,
		`{"type":"box_and_whisker","elements":[{"label":"a","min":1,"first_quartile":2,"median":3,"third_quartile":4,"max":5,"outliers":[9]}]}`: `{"type":"box_and_whisker","elements":[{"boxWhiskerData":{"label":"a","min":1,"firstQuartile":2,"median":3,"thirdQuartile":4,"max":5,"outliers":[9]}}]}`,
		`{"type":"superchart","elements":[{"type":"pie","title":"x","elements":[]},7]}`:                                                         `{"type":"superchart","elements":[{"nestedChart":{"type":"pie","title":"x"}}]}`,
		`{"type":"unknown","elements":[{"label":"a"}]}`:                                                                                         `{"type":"unknown"}`,
		strings.Repeat(`{"type":"superchart","elements":[`, 99) + strings.Repeat("]}", 99):                                                      `{"type":"superchart","elements":[{"nestedChart":{"type":"superchart","elements":[{"nestedChart":{"type":"superchart","elements":[{"nestedChart":{"type":"superchart"}}]}}]}}]}`,
		`null`: "", `7`: "", `{}`: "", `{"type":7}`: "", `{"type":"pie","elements":7}`: "", ``: "",
	} {
		m := chartOf(json.RawMessage(raw))
		if m == nil || want == "" {
			if m != nil || want != "" {
				t.Errorf("%.80s: %v, want %s", raw, m, want)
			}
			continue
		}
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var got, expected any
		if json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(want), &expected) != nil {
			t.Fatalf("text = %s, want json.Unmarshal(text, &got) == nil and json.Unmarshal([]byte(want), &expected) == nil:\n%s",
				text, want)
		}
		if a, b := asText(got), asText(expected); a != b {
			t.Errorf("%.80s: %s, want %s", raw, a, b)
		}
		if _, err := proto.Marshal(m); err != nil {
			t.Errorf("%.80s: %v", raw, err)
		}
	}
}

func asText(v any) string {
	text, _ := json.Marshal(v) // it was decoded from JSON
	return string(text)
}
