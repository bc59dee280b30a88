// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// manualTOML returns the built-in configuration according to box.toml(5): "key = value" of its items, and its displays, under the
// tables of its subsections.
func manualTOML(page string) string {
	var out strings.Builder
	table, display := "", false
	begin := func(line string) {
		if table != "" && !strings.HasPrefix(line, "[") { // a display may contain a table
			out.WriteString(table + "\n")
		}
		table = ""
	}
	_, page, _ = strings.Cut(page, ".Sh DESCRIPTION\n")
	page, _, _ = strings.Cut(page, "\n.Sh ")
	for line := range strings.SplitSeq(page, "\n") {
		line = strings.NewReplacer(`\(dq`, `"`, `\e`, `\`).Replace(line)
		switch {
		case line == ".Ed":
			display = false
		case display:
			begin(line)
			out.WriteString(line + "\n")
		case strings.HasPrefix(line, ".Bd "):
			display = true
		case strings.HasPrefix(line, ".Ss ["):
			table = strings.TrimPrefix(line, ".Ss ")
		case strings.HasPrefix(line, ".It Cm ") && strings.Contains(line, " = "):
			begin("")
			out.WriteString(strings.TrimPrefix(line, ".It Cm ") + "\n")
		}
	}
	return out.String()
}

func TestManualPageHasEveryKeyWithItsValue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../packaging/man/box.toml.5")
	if err != nil {
		t.Fatal(err)
	}
	got := bare()
	got.Profiles = map[string]policy.Profile{"default": {}} // the page describes the others by their differences
	text := manualTOML(string(page))
	if err := got.decode("box.toml(5)", text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(defaultConfig(), got); diff != "" {
		t.Errorf("box.toml(5) differs from the built-in configuration (-built-in +page):\n%s", diff)
	}
	// A key that is zero on both sides would not be missed above.
	shipped, err := os.ReadFile("../../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	has := keysOf(t, text)
	for _, key := range keysOf(t, string(shipped)) {
		other := strings.HasPrefix(key, "profiles.") && !strings.HasPrefix(key, "profiles.default")
		if !other && !slices.Contains(has, key) {
			t.Errorf("box.toml(5) has no %s", key)
		}
	}
}

func keysOf(t *testing.T, text string) (keys []string) {
	t.Helper()
	var all map[string]any
	meta, err := toml.Decode(text, &all)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range meta.Keys() {
		keys = append(keys, k.String())
	}
	return keys
}

// The examples of the page are valid files.
func TestExamplesOfTheManualPageAreValid(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../packaging/man/box.toml.5")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(page), ".Sh EXAMPLES\n")
	cfg := defaultConfig()
	n := 0
	for _, part := range strings.Split(examples, ".Bd -literal -offset indent\n")[1:] {
		text, _, _ := strings.Cut(part, ".Ed\n")
		n++
		if err := cfg.decode("example", text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	if err := cfg.Check("examples"); err != nil || n == 0 {
		t.Errorf("%d examples: err = %v, want no error and n != 0", n, err)
	}
}
