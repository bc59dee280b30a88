// SPDX-License-Identifier: Apache-2.0

package policy

import "testing"

const pressureOfCPU = "some avg10=12.34 avg60=0.01 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"

func TestPressure(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		pressureOfCPU:               12.34,
		"some avg10=0.00":           0,
		"full x\nsome avg10=100.00": 100,
		"":                          -1,
		"some avg10=":               -1,
		"some avg10=NaN avg60=0":    -1,
		"some avg10=101 avg60=0":    -1,
		"some avg10=-1 avg60=0":     -1,
		"full avg10=1.00":           -1,
	} {
		got, err := parsePressure(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: got %v, err = %v, want (err != nil) == (want < 0) and (an error or got == %v)",
				text, got, err, want)
		}
	}
	if _, err := ReadPressure(); err != nil {
		t.Error(err)
	}
}

func FuzzPressure(f *testing.F) {
	f.Add(pressureOfCPU)
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePressure(text); err == nil && !(p >= 0 && p <= 100) {
			t.Errorf("%q: p = %v, want an error or p >= 0 and p <= 100", text, p)
		}
	})
}
