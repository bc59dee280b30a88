// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestProgressIsOneLineThatGoes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		of   int64
		add  []int64
		want string
	}{
		{0, []int64{1 << 20}, ""},
		{0, []int64{8 << 20, 1, 16 << 20}, "\rsent 8MiB\rsent 24MiB\r          \r"},
		{32 << 20, []int64{8 << 20, 8<<20 + 1}, "\rsent [#####...............]  25% of 32MiB\rsent [##########..........]  50% of 32MiB"},
		{8 << 20, []int64{9 << 20}, "\rsent [####################] 100% of 8MiB"}, // there was more than was said
	} {
		var out bytes.Buffer
		p := &Progress{to: &out, word: "sent", of: tc.of}
		for _, n := range tc.add {
			p.add(n)
		}
		p.end()
		p.add(1 << 30)
		p.end()
		if got := out.String(); !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" || tc.want != "" && !strings.HasSuffix(got, " \r") || strings.Contains(got, "\x1b") {
			t.Errorf("%+v: %q", tc, got)
		}
	}
	var out bytes.Buffer
	p := (&app{stderr: &out}).progress("sent", 1)
	p.add(1 << 30)
	p.end()
	if out.Len() > 0 {
		t.Errorf("nobody looks on, and it says %q", out.String())
	}
}
