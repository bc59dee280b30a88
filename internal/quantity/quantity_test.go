// SPDX-License-Identifier: Apache-2.0

package quantity_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/quantity"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want quantity.Size
		ok   bool
	}{
		{"0", 0, true},
		{"100B", 100, true},
		{"512MiB", 512 * quantity.MiB, true},
		{"1TiB", quantity.TiB, true},
		{"", 0, false},
		{"512", 0, false},
		{"512 pigs", 0, false},
		{"512MB", 0, false},
		{"-1MiB", 0, false},
		{"+1MiB", 0, false},
		{"1.5GiB", 0, false},
		{"MiB", 0, false},
		{"99999999999TiB", 0, false},
	} {
		got, err := quantity.ParseSize(tc.in)
		if (err == nil) != tc.ok || got != tc.want {
			t.Errorf("ParseSize(%q) = %d, %v", tc.in, got, err)
		}
		if tc.ok {
			if back, err := quantity.ParseSize(got.String()); err != nil || back != got {
				t.Errorf("%q does not survive String: %q", tc.in, got)
			}
		}
	}
}

func TestDurationText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"5m": "5m", "90s": "1m30s", "24h": "24h", "0": "0s", "1500ms": "1.5s", "1h30m": "1h30m"} {
		d, err := quantity.ParseDuration(in)
		if err != nil || d.String() != want {
			t.Errorf("%q: %q, %v, want %q", in, d, err, want)
		}
	}
	for _, in := range []string{"5", "-1s", "soon", ""} {
		if _, err := quantity.ParseDuration(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var v struct {
		S quantity.Size
		D quantity.Duration
	}
	for _, tc := range []struct {
		in   string
		size quantity.Size
		dur  time.Duration
		ok   bool
	}{
		{`{"S":1024,"D":"30s"}`, 1024, 30 * time.Second, true},
		{`{"S":"1KiB","D":1.5}`, 1024, 1500 * time.Millisecond, true},
		{`{"S":-1}`, 0, 0, false},
		{`{"S":1.5}`, 0, 0, false},
		{`{"S":true}`, 0, 0, false},
		{`{"D":-1}`, 0, 0, false},
		{`{"D":1e300}`, 0, 0, false},
		{`{"D":9223372036.854776}`, 0, 0, false},
		{`{"D":[]}`, 0, 0, false},
	} {
		err := json.Unmarshal([]byte(tc.in), &v)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.in, err)
		}
		if tc.ok && (v.S != tc.size || time.Duration(v.D) != tc.dur) {
			t.Errorf("%s: %+v", tc.in, v)
		}
	}
	out, err := json.Marshal(v)
	if err != nil || string(out) == "" {
		t.Fatalf("%s %v", out, err)
	}
}
