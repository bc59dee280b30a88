// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func parse(t testing.TB, text string) *policy.Template {
	t.Helper()
	tmpl, err := policy.ParseTemplate(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tmpl
}

func TestATemplateIsFilled(t *testing.T) {
	t.Parallel()
	chat := map[string]string{"launcher_type": "group", "launcher_id": "7", "sender_id": "ann", "conversation_id": "c1", "query_id": "q9", "unused": "x"}
	for _, tc := range []struct{ template, want string }{
		{"per_chat", "group_7"},
		{"per_user", "group_7_ann"},
		{"per_conversation", "group_7_c1"},
		{"per_message", "q9"},
		{"global", "global"},
		{"{launcher_type}_{launcher_id}", "group_7"},
		{"x-{absent:none}", "x-none"},
		{"{absent:}-x", "-x"},
		{"{{{query_id}}}", "{q9}"},
		{"only text", "only text"},
		{"чат/{query_id}", "чат/q9"},
		{"{query_id}{query_id:a}"[:10] + "/{query_id}", "q9/q9"},
	} {
		got, err := parse(t, tc.template).Fill(chat)
		if err != nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.template, got, err, tc.want)
		}
	}
}

func TestWhatATemplateNeedsIsNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		template string
		values   map[string]string
		field    string
	}{
		{"per_chat", nil, "variables.launcher_type"},
		{"per_chat", map[string]string{"launcher_type": "x"}, "variables.launcher_id"},
		{"{a}", map[string]string{"a": "x\x00"}, "variables.a"},
		{"{a}", map[string]string{"a": "\xff"}, "variables.a"},
		{"{a}", map[string]string{"a": strings.Repeat("x", policy.MaxValue+1)}, "variables.a"},
		{"{a}", map[string]string{"a": ""}, "variables"},
	} {
		_, err := parse(t, tc.template).Fill(tc.values)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != fault.Invalid || f.Field != tc.field {
			t.Errorf("%s of %q: %v, want %s", tc.template, tc.values, err, tc.field)
		}
	}
}

func TestATemplateThatCouldMeanTwoThingsIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{", "}", "a{b", "a}b", "{}", "{a b}", "{:x}", "{a}{b}", "{a}x{b}", "{a}9{b}", "{a}%{b}", "%{a}", "{a}_%#{b}", "a\nb", "\xff", "{a:{b}", strings.Repeat("x", 513),
		"{" + strings.Repeat("x", 65) + "}", "{а}",
	} {
		if _, err := policy.ParseTemplate(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Different values give different ids, so no caller can get into another's session by the values it sends.
func TestDifferentValuesAreDifferentIds(t *testing.T) {
	t.Parallel()
	texts := []string{"", "_", "a", "a_", "_a", "a_b", "b", "%", "%5F", "a%5Fb", "__", "%%", "ä", "/", "a/b", strings.Repeat("a", 300), strings.Repeat("a", 299) + "_", strings.Repeat("a", 301)}
	for _, text := range []string{"{a}_{b}", "{a}/_{b}", "x{a}_b{b}y", "{a}-#{b}"} {
		tmpl, seen := parse(t, text), map[string][2]string{}
		for _, a := range texts {
			for _, b := range texts {
				id, err := tmpl.Fill(map[string]string{"a": a, "b": b})
				if err != nil {
					t.Fatal(err)
				}
				if other, ok := seen[id]; ok {
					t.Errorf("%s: %q and %q are both %q", text, other, [2]string{a, b}, id)
				}
				seen[id] = [2]string{a, b}
			}
		}
	}
}

func TestALongIdKeepsItsBeginning(t *testing.T) {
	t.Parallel()
	tmpl := parse(t, "{a}")
	long := strings.Repeat("é", 200)
	id, err := tmpl.Fill(map[string]string{"a": long})
	if err != nil || len(id) > policy.MaxID || !utf8.ValidString(id) || !strings.HasPrefix(id, "éééé") {
		t.Fatalf(`id = %q, err = %v, want no error and len(id) <= policy.MaxID and utf8.ValidString(id) and id starting with "éééé"`,
			id, err)
	}
	if other, _ := tmpl.Fill(map[string]string{"a": long + "x"}); other == id {
		t.Error("two different long values have the same id")
	}
	if forged, _ := tmpl.Fill(map[string]string{"a": id}); forged == id {
		t.Error("a value that looks like a shortened id yields that id")
	}
}

func TestPresetsAreTemplates(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(policy.TemplatePresets())) {
		parse(t, name)
	}
}

// FuzzTemplate compares two sets of values: each gives a valid id, and equal ids only if the values are equal.
func FuzzTemplate(f *testing.F) {
	f.Add("{a}_{b}", "x", "y", "x_y", "")
	f.Add("per_chat", "_", "%5F", "%", "_")
	f.Add("{a}/{b:z}", "é/", "\x00", "{", strings.Repeat("a", 400))
	f.Fuzz(func(t *testing.T, text, a1, b1, a2, b2 string) {
		tmpl, err := policy.ParseTemplate(text)
		if err != nil {
			return
		}
		fill := func(a, b string) (string, bool) {
			id, err := tmpl.Fill(map[string]string{"a": a, "b": b, "launcher_type": a, "launcher_id": b})
			if err != nil {
				return "", false
			}
			if id == "" || len(id) > policy.MaxID || !utf8.ValidString(id) || strings.IndexFunc(id, unicode.IsControl) >= 0 {
				t.Fatalf(`%q of %q, %q is %q, want id != "" and len(id) <= policy.MaxID and utf8.ValidString(id) and strings.IndexFunc(id, unicode.IsControl) < 0`,
					text, a, b, id)
			}
			return id, true
		}
		one, ok1 := fill(a1, b1)
		two, ok2 := fill(a2, b2)
		uses := func(name string) bool {
			return strings.Contains(text, "{"+name+"}") || strings.Contains(text, "{"+name+":")
		}
		if ok1 && ok2 && one == two && !strings.Contains(text, "{{") && (uses("a") && a1 != a2 || uses("b") && b1 != b2) {
			t.Fatalf("%q: %q, %q and %q, %q are both %q", text, a1, b1, a2, b2, one)
		}
	})
}
