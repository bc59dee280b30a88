// SPDX-License-Identifier: Apache-2.0

package quantity_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/boxd-dev/boxd/quantity"
)

// A size that is accepted is not negative, and is the same when it is written and read again, in a configuration and in
// JSON.
func FuzzSize(f *testing.F) {
	for _, text := range []string{"0", "1", "512MiB", "2g", "1.5KiB", "9223372036854775807", "8EiB", ".5m", "1.", "18446744073709551616", "1e3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := quantity.ParseSize(text)
		if err != nil {
			return
		}
		written, err := s.MarshalText()
		var again, inJSON quantity.Size
		if err != nil || s > math.MaxInt64 || again.UnmarshalText(written) != nil || again != s {
			t.Errorf("%q is %d, written %q, and then %d: err = %v, want no error and s <= math.MaxInt64 and again.UnmarshalText(written) == nil and again == s",
				text, s, written, again, err)
		}
		data, err := json.Marshal(s)
		if err != nil || json.Unmarshal(data, &inJSON) != nil || inJSON != s {
			t.Errorf("%q is %d, in JSON %s, and then %d: err = %v, want no error and json.Unmarshal(data, &inJSON) == nil and inJSON == s",
				text, s, data, inJSON, err)
		}
	})
}

// The same of times.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{"0", "30", "30s", "5m", "1d", "1d12h", "1.5d", "106751d", "106752d", "-1s", "1d-1s", "292y", "1h1", "9223372036854775807ns"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := quantity.ParseDuration(text)
		if err != nil {
			return
		}
		written, err := d.MarshalText()
		var again, inJSON quantity.Duration
		if err != nil || d < 0 || again.UnmarshalText(written) != nil || again != d {
			t.Errorf("%q is %v, written %q, and then %v: err = %v, want no error and d >= 0 and again.UnmarshalText(written) == nil and again == d",
				text, d, written, again, err)
		}
		data, err := json.Marshal(d)
		if err != nil || json.Unmarshal(data, &inJSON) != nil || inJSON != d {
			t.Errorf("%q is %v, in JSON %s, and then %v: err = %v, want no error and json.Unmarshal(data, &inJSON) == nil and inJSON == d",
				text, d, data, inJSON, err)
		}
	})
}
