// SPDX-License-Identifier: Apache-2.0

package quantity_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
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
		{"512", 512, true},
		{"512 pigs", 0, false},
		{"512MB", 512 * quantity.MiB, true},
		{"512M", 512 * quantity.MiB, true},
		{"512m", 512 * quantity.MiB, true},
		{"2g", 2 * quantity.GiB, true},
		{"2G", 2 * quantity.GiB, true},
		{"2GB", 2 * quantity.GiB, true},
		{"2gib", 2 * quantity.GiB, true},
		{"64k", 64 * quantity.KiB, true},
		{"1t", quantity.TiB, true},
		{"7b", 7, true},
		{"1.5g", 3 * quantity.GiB / 2, true},
		{"0.5m", 512 * quantity.KiB, true},
		{"9007199254740993B", 9007199254740993, true}, // a float64 cannot represent this number
		{"1.g", 0, false},
		{".5g", 0, false},
		{"1.5.5g", 0, false},
		{"1e3m", 0, false},
		{"0x10m", 0, false},
		{"NaNg", 0, false},
		{"8388608.5t", 0, false},
		{"2gg", 0, false},
		{"2 g", 0, false},
		{"2i", 0, false},
		{"-1MiB", 0, false},
		{"+1MiB", 0, false},
		{"1.5GiB", 3 * quantity.GiB / 2, true},
		{"MiB", 0, false},
		{"99999999999TiB", 0, false},
	} {
		got, err := quantity.ParseSize(tc.in)
		if (err == nil) != tc.ok || got != tc.want {
			t.Errorf("ParseSize(%q) = %d, %v", tc.in, got, err)
		}
		if tc.ok {
			if back, err := quantity.ParseSize(got.String()); err != nil || back != got {
				t.Errorf("%q does not survive String: got %q, want no error and back == got", tc.in, got)
			}
		}
	}
}

func TestDurationText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"5m": "5m", "90s": "1m30s", "24h": "24h", "0": "0s", "1500ms": "1.5s", "1h30m": "1h30m", "1d": "24h", "1D": "24h", "1d12h": "36h", "1.5d": "36h", "90": "1m30s", "0.5": "500ms"} {
		d, err := quantity.ParseDuration(in)
		if err != nil || d.String() != want {
			t.Errorf("%q: %q, %v, want %q", in, d, err, want)
		}
	}
	for _, in := range []string{"-1s", "-1", "soon", "", "d", "1d-1h", "1d1d", "1dx", "200000d", "106751d24h", "1.", "1e9"} {
		if _, err := quantity.ParseDuration(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestTextOfAConfigurationHasAUnit(t *testing.T) {
	t.Parallel()
	var size quantity.Size
	var time quantity.Duration
	for text, ok := range map[string]bool{"0": true, "5": false, "1.5": false, "": false, "x": false} {
		if err := size.UnmarshalText([]byte(text)); (err == nil) != ok {
			t.Errorf("size %q: err = %v, want (err == nil) == ok", text, err)
		}
		if err := time.UnmarshalText([]byte(text)); (err == nil) != ok {
			t.Errorf("duration %q: err = %v, want (err == nil) == ok", text, err)
		}
	}
	if err := size.UnmarshalText([]byte("2g")); err != nil || size != 2*quantity.GiB {
		t.Errorf("2g: size = %v, err = %v, want no error and size == 2 * quantity.GiB", size, err)
	}
	if err := time.UnmarshalText([]byte("1d")); err != nil || time.String() != "24h" {
		t.Errorf(`1d: time = %v, err = %v, want no error and time.String() == "24h"`, time, err)
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
			t.Errorf("%s: err = %v, want (err == nil) == %v", tc.in, err, tc.ok)
		}
		if tc.ok && (v.S != tc.size || time.Duration(v.D) != tc.dur) {
			t.Errorf("%s: v = %+v, want tc.ok == false or v.S == %v and time.Duration(v.D) == tc.dur",
				tc.in, v, tc.size)
		}
	}
	out, err := json.Marshal(v)
	if err != nil || string(out) == "" {
		t.Fatalf(`out = %s, err = %v, want no error and out != ""`, out, err)
	}
}

func TestShortSizeHasOneDecimal(t *testing.T) {
	t.Parallel()
	for want, size := range map[string]quantity.Size{"0": 0, "100 B": 100, "3.5 GiB": 3584 * quantity.MiB, "1 GiB": quantity.GiB + 1, "512 MiB": 512 * quantity.MiB, "1.5 KiB": 1536} {
		if got := size.Short(); got != want {
			t.Errorf("%d: %q, want %q", size, got, want)
		}
	}
}
