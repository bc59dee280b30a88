// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"
)

func TestIDsAreThoseOfTheReference(t *testing.T) {
	t.Parallel()
	ns := Namespace("probe-instance", "w1")
	if ns != "ws-47998c0fa608dea5e8702d8a" { // by sha256sum
		t.Fatalf("namespace %s", ns)
	}
	prefix := Prefix(ns, 1)
	for logical, want := range map[string]string{
		"s-42": "ws-47998c0fa608dea5e8702d8a-g1-s-42", "person_12 34/ä?": prefix + "person_12-34", " x ": prefix + "x", "a//b": prefix + "a-b",
		"": "ValueError: Box session_id must not be empty", " ": "ValueError: Box session_id must not be empty", "??": "ValueError: Box session_id must contain a valid character",
	} {
		got, err := PhysicalID(prefix, logical)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", logical, got, want)
		}
	}
	for id, want := range map[string]int64{prefix + "x": 1, ns + "-g12-g5-x": 12, ns + "-g7": 0, ns + "-gx-y": 0, "other-g1-x": 0, ns + "-g0-x": 0} {
		if n, ok := GenerationOf(ns, id); ok != (want > 0) || ok && n != want {
			t.Errorf("%s: n = %d, ok = %v, want ok == (want > 0) and (ok == false or n == %v)", id, n, ok, want)
		}
	}
}

func FuzzPhysical(f *testing.F) {
	f.Add("person_12 34/ä?")
	f.Fuzz(func(t *testing.T, logical string) {
		prefix := Prefix(Namespace("i", "w"), 3)
		id, err := PhysicalID(prefix, logical)
		if err != nil {
			return
		}
		if n, ok := GenerationOf(Namespace("i", "w"), id); !ok || n != 3 {
			t.Fatalf("%q: id = %s, want ok == true and n == 3", logical, id)
		}
		if again, err := PhysicalID(prefix, strings.TrimPrefix(id, prefix)); err != nil || again != id {
			t.Fatalf("%q: %s, then %s", logical, id, again)
		}
	})
}

func TestAnIDHasItsParts(t *testing.T) {
	t.Parallel()
	ns := Namespace("i", "w")
	if namespace, generation, logical, ok := SplitID(Prefix(ns, 12) + "a-g3-b"); !ok || namespace != ns || generation != 12 || logical != "a-g3-b" {
		t.Errorf(`namespace = %s, generation = %d, logical = %s, ok = %v, want ok == true and namespace == %v and generation == 12 and logical == "a-g3-b"`,
			namespace, generation, logical, ok, ns)
	}
	for _, id := range []string{"", "ws-", ns, ns + "-g1", ns + "-gx-y", "langbot-probe-0123456789abcdef0123456789", "xx" + ns + "-g1-s"} {
		if _, _, _, ok := SplitID(id); ok {
			t.Errorf("%s has parts", id)
		}
	}
}
