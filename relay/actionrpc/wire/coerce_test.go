// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"math"
	"testing"
)

func TestNumbersAreReadAsTheReferenceDoes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		n      int64
		ok     bool
		strict bool
	}{
		"30": {30, true, true}, `"30"`: {30, true, false}, "30.0": {30, true, false}, `" 30 "`: {30, true, false}, "true": {1, true, false}, "false": {0, true, false},
		"30.5": {}, `"x"`: {}, "null": {}, "{}": {}, "1e30": {}, `""`: {}, "-2": {-2, true, true},
	} {
		if n, ok := CoerceInt(json.RawMessage(text)); n != want.n || ok != want.ok {
			t.Errorf("Int(%s) = %d, %v", text, n, ok)
		}
		if _, ok := StrictInt(json.RawMessage(text)); ok != want.strict {
			t.Errorf("Strict(%s) = %v", text, ok)
		}
	}
	for text, want := range map[string]float64{"1": 1, `"1.5"`: 1.5, "0.25": 0.25, "true": 1} {
		if f, ok := CoerceFloat(json.RawMessage(text)); !ok || f != want {
			t.Errorf("Float(%s) = %v, %v", text, f, ok)
		}
	}
	for _, text := range []string{`"NaN"`, `"inf"`, "null", "[]", `"x"`} {
		if f, ok := CoerceFloat(json.RawMessage(text)); ok {
			t.Errorf("Float(%s) = %v", text, f)
		}
	}
}

func TestBooleansAreReadAsTheReferenceDoes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]bool{
		"true": {true, true}, "0": {false, true}, "1": {true, true}, `"YES"`: {true, true}, `"off"`: {false, true}, `"on"`: {true, true}, `"False"`: {false, true},
		"2": {}, `"maybe"`: {}, "null": {}, "[]": {},
	} {
		if v, ok := CoerceBool(json.RawMessage(text)); v != want[0] || ok != want[1] {
			t.Errorf("Bool(%s) = %v, %v", text, v, ok)
		}
	}
}

func FuzzValues(f *testing.F) {
	for _, seed := range []string{"1", `"1"`, "1.5", "null", "true", `"on"`, "{}", "[", "1e400", `"\ud800"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if n, ok := CoerceInt(raw); ok {
			if f, is := CoerceFloat(raw); !is || n < 1<<53 && n > -1<<53 && f != float64(n) {
				t.Errorf("%q is %d, and %v", raw, n, f)
			}
		}
		if f, ok := CoerceFloat(raw); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			t.Errorf("%q is %v, want ok == false or not math.IsNaN(f) and not math.IsInf(f, 0)", raw, f)
		}
		_, _ = CoerceBool(raw)
		_, _ = StringOf(raw)
		_, _ = ObjectOf(raw)
	})
}
