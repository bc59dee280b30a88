// SPDX-License-Identifier: Apache-2.0

package network

import (
	"os"
	"path/filepath"
	"testing"
)

// The outcome for packets of boxes is right for tables of iptables-legacy as read from a kernel (testdata/README.md).
func TestTablesOfIptablesLegacy(t *testing.T) {
	t.Parallel()
	const tag = "bxabcd"
	for name, c := range map[string]struct {
		ipv6 bool
		want *blockingChain
		hint string
	}{
		"empty":         {false, nil, ""},
		"policy":        {false, &blockingChain{Chain: "FORWARD", At: "FORWARD"}, letThrough("iptables-legacy", "FORWARD", tag)},
		"docker":        {false, &blockingChain{Chain: "FORWARD", At: "FORWARD"}, letThrough("iptables-legacy", "DOCKER-USER", tag)},
		"docker-told":   {false, nil, ""},
		"one-direction": {false, &blockingChain{Chain: "FORWARD", At: "FORWARD", Answers: true}, letThrough("iptables-legacy", "DOCKER-USER", tag)},
		"rejects":       {false, &blockingChain{Chain: "FORWARD", At: "far"}, letThrough("iptables-legacy", "FORWARD", tag)},
		"elsewhere":     {false, nil, ""},
		"six":           {true, &blockingChain{Chain: "FORWARD", At: "far"}, letThrough("ip6tables-legacy", "FORWARD", tag)},
		"six-elsewhere": {true, nil, ""},
	} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		list := legacyLayouts(true)
		l := &list[map[bool]int{false: 0, true: 1}[c.ipv6]]
		tb, err := l.read(data[:infoSize], data[infoSize:])
		if err != nil || tb == nil {
			t.Errorf("%s: tb = %v, err = %v, want no error and tb != nil", name, tb, err)
			continue
		}
		w, err := tb.blockingChain(legacyForward, tag, false)
		if err != nil || (w == nil) != (c.want == nil) || w != nil && *w != *c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, w, err, c.want)
		}
		if hint := tb.legacyHint(l, "filter", tag); w != nil && hint != c.hint {
			t.Errorf("%s: hint = %q, want w == nil or hint == %q", name, hint, c.hint)
		}
		for cut := infoSize; cut < len(data); cut += 7 { // a truncated table is an error, or finds less
			_, _ = l.read(data[:infoSize], data[infoSize:cut])
		}
	}
}
