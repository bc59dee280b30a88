// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestKindOfSeesThroughWrapping(t *testing.T) {
	t.Parallel()
	base := fault.Errorf(fault.Exhausted, "sessions: %w", fs.ErrExist)
	for _, tc := range []struct {
		name string
		in   error
		want fault.Kind
	}{
		{"plain", errors.New("x"), fault.Internal},
		{"direct", base, fault.Exhausted},
		{"wrapped", fmt.Errorf("create: %w", base), fault.Exhausted},
		{"outermost wins", fault.Errorf(fault.Denied, "policy: %w", base), fault.Denied},
		{"nil", nil, fault.Internal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := fault.KindOf(tc.in); got != tc.want {
				t.Fatalf("KindOf = %v, want %v", got, tc.want)
			}
		})
	}
	if !errors.Is(base, fs.ErrExist) {
		t.Fatal("errors.Is does not find the wrapped cause")
	}
}

func TestFieldNamesFieldValueAndAllowed(t *testing.T) {
	t.Parallel()
	err := fault.Field("memory", "512 pigs", "a size such as 512MiB")
	if err.Kind != fault.Invalid || err.Field != "memory" || err.Value != "512 pigs" {
		t.Fatalf("got %+v", err)
	}
	for _, part := range []string{"memory", "512 pigs", "a size such as 512MiB"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}

func TestShowShortensWithoutBreakingRunes(t *testing.T) {
	t.Parallel()
	got := fault.Show(strings.Repeat("é", 5000))
	if len(got) > 200 || !strings.Contains(got, "10000 bytes") || strings.Contains(got, `\x`) {
		t.Fatalf("Show = %s", got)
	}
	if got := fault.Show(fault.Word("missing")); got != "missing" {
		t.Fatalf("Show(missing) = %s", got)
	}
	if got := fault.Show(42); got != "42" {
		t.Fatalf("Show(42) = %s", got)
	}
}

func TestOneOfListsAlternativesInWords(t *testing.T) {
	t.Parallel()
	for want, words := range map[string][]string{"": nil, "off": {"off"}, "off or host": {"off", "host"}, "a, b or c": {"a", "b", "c"}} {
		if got := fault.OneOf(words...); got != want {
			t.Errorf("OneOf(%q) = %q, want %q", words, got, want)
		}
	}
}

func TestWithTextKeepsTheStructuredFields(t *testing.T) {
	t.Parallel()
	err := fault.Field("network_rules", 1, "no rules without a network").WithText("this box has no %s", "network")
	if err.Error() != "this box has no network" || err.Field != "network_rules" || err.Value != "1" || err.Allowed != "no rules without a network" || err.Kind != fault.Invalid {
		t.Fatalf("got %q %+v", err, err)
	}
}
