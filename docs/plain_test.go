// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// unclear are the phrases that texts for people do not use.
func unclear(t *testing.T) (phrases []string) {
	t.Helper()
	data, err := os.ReadFile("testdata/unclear-words.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "#") {
			phrases = append(phrases, line)
		}
	}
	if len(phrases) < 20 {
		t.Fatalf("only %d phrases", len(phrases))
	}
	return phrases
}

// A sentence ends with a period, or where a clause of its own begins; a period within a name is none.
var sentenceEnd = regexp.MustCompile(`[.;:](\s|$)`)

// unplain returns what makes a text hard to read: phrases of the list, and sentences of more than most words.
func unplain(phrases []string, text string, most int) (faults []string) {
	text = strings.Join(strings.Fields(text), " ")
	lower := " " + strings.ToLower(text) + " "
	for _, phrase := range phrases {
		if strings.Contains(lower, " "+strings.TrimSpace(phrase)+" ") {
			faults = append(faults, "it says "+phrase)
		}
	}
	for _, sentence := range sentenceEnd.Split(text, -1) {
		if len(strings.Fields(sentence)) > most {
			faults = append(faults, "a long sentence: "+sentence)
		}
	}
	return faults
}

func TestUnplainTextsAreFound(t *testing.T) {
	t.Parallel()
	phrases := unclear(t)
	for text, want := range map[string]int{
		"Timeout in seconds. 0: none.":                                    0,
		"What whoever calls may have, of which there\nis one":             2,
		"one two three four five six seven eight nine ten eleven":         1,
		"one two three four five six. Seven eight nine ten eleven twelve": 0,
	} {
		if got := unplain(phrases, text, 10); len(got) != want {
			t.Errorf("%q: got %q, want len(got) == %v", text, got, want)
		}
	}
}

// An example is a table, or a key with its value, in a comment.
var example = regexp.MustCompile(`^ (\[\S+\]$|\w+ = )`)

// The comment of a key says in a few short sentences what it does.
func TestCommentsOfTheConfigurationArePlain(t *testing.T) {
	t.Parallel()
	const mostLines, mostWords, widest = 6, 24, 112
	phrases, n := unclear(t), 0
	data, err := os.ReadFile("../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	var comment []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "#"); ok {
			if len(line) > widest {
				t.Errorf("%q has %d columns", line, len(line))
			}
			if example.MatchString(text) {
				text = "."
			}
			comment = append(comment, text)
			continue
		}
		_, beside, _ := strings.Cut(line, " # ")
		for _, fault := range unplain(phrases, strings.Join(comment, "\n")+". "+beside, mostWords) {
			t.Errorf("%s: %s", line, fault)
		}
		if len(comment) > 0 {
			n++
		}
		if strings.Contains(line, " = ") && len(comment) > mostLines {
			t.Errorf("%s: %d lines of comment", line, len(comment))
		}
		comment = nil
	}
	if n < 150 {
		t.Errorf("only %d comments", n)
	}
}

var (
	display = regexp.MustCompile(`(?ms)^\.Bd.*?^\.Ed$`)
	block   = regexp.MustCompile(`(?m)^(\.(Bl|Dd|Dl|Dt|El|It|Nd|Nm|Os|Pp|Sh|Ss)\b|\.\\"|-- )`)
	inline  = regexp.MustCompile(`(?m)^\.[A-Z][a-z] `)
)

// Manual page, units and journal catalog are read by the same people.
func TestOtherTextsOfTheHostArePlain(t *testing.T) {
	t.Parallel()
	phrases := unclear(t)
	for file, most := range map[string]int{
		"../packaging/man/box.toml.5": 40, "../packaging/man/boxd.8": 40, "../packaging/man/boxkeeper.8": 40,
		"../packaging/man/boxd-security.7": 60, "../packaging/man/boxd-skills.7": 60, "../systemd/catalog/boxd.catalog": 30,
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := display.ReplaceAllString(string(data), "\n.Pp\n")
		text = block.ReplaceAllString(text, ". ") // begins something else
		text = inline.ReplaceAllString(text, "")
		for _, fault := range unplain(phrases, text, most) {
			t.Errorf("%s: %s", file, fault)
		}
	}
}

// What doctor says is in these files, among the few other texts that they have.
func TestTextsOfDoctorArePlain(t *testing.T) {
	t.Parallel()
	const mostWords = 22
	phrases := append(unclear(t), "control group", "control groups", "kept by", "mend", "lend", "lent", "what others have")
	for _, name := range []string{
		"supervisor/doctor.go", "supervisor/policy/enforcement.go", "supervisor/driver/scope.go", "cmd/boxkeeper/examine.go",
		"isolation/network/check.go", "isolation/network/firewall.go", "isolation/disk/errors.go", "isolation/hostnetwork.go", "relay/render/doctor.go",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		ast.Inspect(file, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Errorf("%s: %v", literal.Value, err)
			}
			text, _, _ = strings.Cut(text, "%[1]s -I ") // a command
			for _, fault := range unplain(phrases, text, mostWords) {
				t.Errorf("%s: %s", name, fault)
			}
			n++
			return true
		})
		if n < 5 {
			t.Errorf("%s: only %d texts", name, n)
		}
	}
}

// texts calls found with every summary and description of a document, and with where it is.
func texts(node any, where string, found func(where, text string)) {
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			if text, ok := value.(string); ok && (key == "summary" || key == "description") {
				found(where, text)
			}
			texts(value, where+"/"+key, found)
		}
	case []any:
		for i, value := range node {
			texts(value, where+"/"+strconv.Itoa(i), found)
		}
	}
}

func TestDescriptionsOfTheAPIArePlain(t *testing.T) {
	t.Parallel()
	const mostWords = 40 // some sentences have a list of characters or directories
	data, err := os.ReadFile("../relay/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	phrases, n := append(unclear(t), "control groups", "lend", "lent", "left out", "gives way"), 0
	texts(document, "", func(where, text string) {
		n++
		for _, fault := range unplain(phrases, text, mostWords) {
			t.Errorf("%s: %s", where, fault)
		}
	})
	if n < 800 {
		t.Errorf("only %d texts", n)
	}
}

// systemctl cat shows the comments of a unit.
func TestCommentsOfUnitsArePlain(t *testing.T) {
	t.Parallel()
	phrases := append(unclear(t), "control group", "control groups", "left out on purpose", "lend", "who", "whom")
	units, err := filepath.Glob("../systemd/units/*")
	if err != nil || len(units) < 15 {
		t.Fatalf("%d units: err = %v, want no error and len(units) >= 15", len(units), err)
	}
	for _, unit := range units {
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), "\nDescription=box") {
			t.Errorf("%s does not say that it is part of boxd", unit)
		}
		for comment := range strings.SplitSeq(assignment.ReplaceAllString(string(data), "\n\n"), "\n\n") {
			for _, fault := range unplain(phrases, strings.ReplaceAll(comment, "#", ""), 45) {
				t.Errorf("%s: %s", unit, fault)
			}
		}
	}
}

var assignment = regexp.MustCompile(`(?m)^[^#\n].*\n`)

var (
	indented = regexp.MustCompile(`(?m)^ {4}.*$`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	code     = regexp.MustCompile("`[^`\n]*`")
	item     = regexp.MustCompile(`(?m)^(#+ |[*-] |\d+\. |\|)`)
)

// prose is the running text of a page in Markdown: a word stands for each piece of code, and what begins a line of its own begins
// another sentence.
func prose(page string) string {
	page = fenced.ReplaceAllString(page, "\n.\n")
	page = indented.ReplaceAllString(page, ".")
	page = code.ReplaceAllString(page, "x")
	page = item.ReplaceAllString(page, ". ")
	page = strings.ReplaceAll(page, " | ", " . ")
	return strings.ReplaceAll(page, "\n\n", "\n.\n")
}

// README and guide are in the words of their readers.
func TestTheGuideIsPlain(t *testing.T) {
	t.Parallel()
	const mostWords = 40
	pages, err := filepath.Glob("guide/*.md")
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	phrases := unclear(t)
	for _, name := range append(pages, "../README.md") {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range unplain(phrases, prose(string(data)), mostWords) {
			t.Errorf("%s: %s", name, fault)
		}
	}
}
