// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const good = "---\nname: make-report\ndescription: Makes reports. Use it for CSV files.\n---\n\n# Reports\n"

func read(t *testing.T, text string) *manifest {
	t.Helper()
	d, err := readManifest([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func keys(list []Problem) (out []string) {
	for _, p := range list {
		out = append(out, p.Key)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// T28: Check reports all problems, and all at once.
func TestCheckSaysEverythingAtOnce(t *testing.T) {
	t.Parallel()
	head := func(lines ...string) string { return "---\n" + strings.Join(lines, "\n") + "\n---\nbody\n" }
	const name, description = "name: make-report", "description: d"
	bomb := []string{"a: &a [x, x, x, x, x, x, x, x]"}
	for c := 'b'; c < 'k'; c++ {
		bomb = append(bomb, fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1))
	}
	for title, tc := range map[string]struct {
		text string
		dir  string
		want []string // keys
	}{
		"good":                  {good, "make-report", nil},
		"no directory yet":      {good, "", nil},
		"windows lines":         {strings.ReplaceAll(good, "\n", "\r\n"), "make-report", nil},
		"with a mark of order":  {"\ufeff" + good, "make-report", nil},
		"64 characters":         {head("name: "+strings.Repeat("a", 64), description), "", nil},
		"1024 characters":       {head(name, "description: "+strings.Repeat("ä", 1024)), "", nil},
		"unknown keys":          {head(name, description, "model: [1, {a: b}]"), "", nil},
		"another directory":     {good, "report", []string{"name"}},
		"65 characters":         {head("name: "+strings.Repeat("a", 65), description), "", []string{"name"}},
		"1025 characters":       {head(name, "description: "+strings.Repeat("ä", 1025)), "", []string{"description"}},
		"bad characters":        {head("name: Make_Report", description), "", []string{"name"}},
		"hyphen first":          {head("name: -a", description), "", []string{"name"}},
		"hyphen last":           {head("name: a-", description), "", []string{"name"}},
		"two hyphens":           {head("name: a--b", description), "", []string{"name"}},
		"parent":                {head("name: ..", description), "", []string{"name"}},
		"a number":              {head("name: 12", description), "", []string{"name"}},
		"a list":                {head("name: [a]", description), "", []string{"name"}},
		"nothing":               {head("name:", "description: \"  \""), "", []string{"description", "name"}},
		"missing":               {head("x: y"), "", []string{"description", "name"}},
		"keys twice":            {head(name, name, description, "metadata: {a: b, a: c}"), "", []string{"metadata.a", "name"}},
		"alias bomb":            {head(append(bomb, name, description)...), "", []string{""}},
		"alias":                 {head("name: &n make-report", "description: *n"), "", []string{""}},
		"merge":                 {head(name, description, "<<: {a: b}"), "", nil},
		"no front matter":       {"# Reports\n", "", []string{""}},
		"no end":                {"---\nname: a\n", "", []string{""}},
		"no mapping":            {head("- a"), "", []string{""}},
		"no YAML":               {head("a: ]"), "", []string{""}},
		"two documents":         {"---\nname: a\n--- \nname: b\n---\n", "", []string{"description"}},
		"much too long":         {head("a: " + strings.Repeat("x", 70<<10)), "", []string{""}},
		"metadata of numbers":   {head(name, description, "metadata: {version: 1.0}"), "", []string{"metadata.version"}},
		"metadata as a list":    {head(name, description, "metadata: [a]"), "", []string{"metadata"}},
		"compatibility empty":   {head(name, description, "compatibility: ''"), "", []string{"compatibility"}},
		"compatibility long":    {head(name, description, "compatibility: "+strings.Repeat("x", 501)), "", []string{"compatibility"}},
		"all of it":             {head("name: A", "description: ''", "compatibility: ''", "license: [a]", "allowed-tools: {}", "metadata: x"), "b", []string{"allowed-tools", "compatibility", "description", "license", "metadata", "name"}},
		"control in text":       {head(name, `description: "a\x1b[31mb"`), "", []string{"description"}},
		"deep":                  {head("a: " + strings.Repeat("[", 20000)), "", []string{""}},
		"empty":                 {"", "", []string{""}},
		"three dashes and text": {"--- \nname: a\ndescription: b\n---x\n---\n", "", []string{""}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			d := read(t, tc.text)
			if got := d.Check(tc.dir); !slices.Equal(keys(got), tc.want) {
				t.Errorf("%v, want %q", got, tc.want)
			}
		})
	}
}

func TestASkillManifestIsReadLeniently(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][3]string{ // name, description, body
		good:                                 {"make-report", "Makes reports. Use it for CSV files.", "# Reports\n"},
		"no front matter\n":                  {"", "", "no front matter\n"},
		"---\nname: a\n":                     {"", "", "---\nname: a\n"},
		"---\nname: 12\n---\n\n\n\nb":        {"12", "", "b"},
		"---\nname: a\nname: b\n---\n":       {"b", "", ""},
		"---\nname: null\n---\n":             {"", "", ""},
		"---\n- a\n---\nb\n":                 {"", "", "b\n"},
		"---\nname: &a b\nx: *a\n---\nb\n":   {"", "", "b\n"},
		"---\ndescription: |\n  a\n  b\n---": {"", "a\nb", ""},
		"---":                                {"", "", "---"},
	} {
		d := read(t, text)
		if got := [3]string{d.Text("name"), d.Text("description"), d.Body}; got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	for name, data := range map[string][]byte{"no text": {0xff, 0xfe}, "too long": make([]byte, maxManifest+1)} {
		if _, err := readManifest(data); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

func TestWritingASkillManifestKeepsUnknownKeys(t *testing.T) {
	t.Parallel()
	d := read(t, "---\n# whose it is\nmodel: {name: m, size: 3} # small\nname: a\nmetadata:\n  version: '1.0'\ndescription: old\nx-list:\n  - 1\n  - two\n---\n\nold body\n")
	d.Set(keyDescription, "new: with # signs, \"quotes\" and Ümläute")
	d.Set(keyLicense, "MIT")
	d.setMetadata(map[string]string{"b": "2", "a": "yes"}, []string{"b", "a"})
	d.Body = "new body"
	got, err := d.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	want := "---\n# whose it is\nmodel: {name: m, size: 3} # small\nname: a\nmetadata:\n  b: \"2\"\n  a: \"yes\"\n" +
		"description: 'new: with # signs, \"quotes\" and Ümläute'\nx-list:\n  - 1\n  - two\nlicense: MIT\n---\n\nnew body"
	if string(got) != want {
		t.Errorf("wrote\n%s\nwant\n%s", got, want)
	}
	d = read(t, string(got))
	if list := d.Check("a"); len(list) != 0 {
		t.Errorf("the written manifest is refused: list = %v, want len(list) == 0", list)
	}
	if m := d.Metadata(); m["a"] != "yes" || m["b"] != "2" {
		t.Errorf("metadata %v", m)
	}
	d.Set(keyLicense, "")
	d.setMetadata(nil, nil)
	if got, _ := d.Bytes(); strings.Contains(string(got), "license") || strings.Contains(string(got), "metadata") {
		t.Errorf("the key was not removed:\n%s", got)
	}
	var empty manifest
	empty.Set(keyName, "a")
	empty.Set(keyDescription, "b")
	if got, err := empty.Bytes(); err != nil || string(got) != "---\nname: a\ndescription: b\n---\n\n" {
		t.Errorf(`got %q, err = %v, want no error and got == "---\nname: a\ndescription: b\n---\n\n"`, got, err)
	}
}

func TestLooseSkillNamesAreValidated(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a": "", "My_Skill-2": "", "Übung": "", "技能": "",
		"": "required", "-_-": "can only contain", "a/b": "can only contain", "a b": "can only contain", "..": "can only contain",
		strings.Repeat("é", 65): "cannot exceed", strings.Repeat("é", 64): "",
		strings.Repeat("𠀀", 63): "", strings.Repeat("𠀀", 64): "255 bytes",
	} {
		err := CheckLooseName(name)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// Whatever is read can be written and read again with the same meaning.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		good, "---\nname: a\n---", "---\n- a\n---\nb", "---\na: &a [*a]\n---\n", "---\na: |\n  ---\n  b\n---\n", "---\n? {a: b}\n: c\n---\n",
		"---\na: !!binary aGk=\nb: \"x\\\n  y\"\n---\n\n", "---\n# c\n\na: b # d\n# e\n---\n", "---\na: 'b\n\n  c'\n---\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := readManifest(data)
		if err != nil {
			return
		}
		problems := d.Check("")
		out, err := d.Bytes()
		if err != nil {
			return
		}
		again, err := readManifest(out)
		if err != nil {
			t.Fatalf("the written manifest cannot be read: %v\n%q", err, out)
		}
		if len(problems) > 0 {
			return
		}
		if list := again.Check(""); len(list) > 0 {
			t.Fatalf("the manifest was valid before it was written again: list = %v, want len(list) == 0:\n%q\n%q", list, data, out)
		}
		for _, key := range []string{"name", "description", "license", "compatibility"} {
			if again.Text(key) != d.Text(key) {
				t.Fatalf("%s was %q and is %q, want again.Text(key) == d.Text(key)", key, d.Text(key), again.Text(key))
			}
		}
		if strings.TrimRight(again.Body, "\n") != strings.TrimRight(d.Body, "\n") {
			t.Fatalf(`the body was %q and is %q, want strings.TrimRight(again.Body, "\n") == strings.TrimRight(d.Body, "\n")`,
				d.Body, again.Body)
		}
	})
}
