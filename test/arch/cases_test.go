// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// casesPage is the table of abuse cases, which `make abuse` runs.
const casesPage = "test/abuse/cases.md"

var (
	caseLine = regexp.MustCompile(`^\| ([TE]\d\d) \|`)
	caseTest = regexp.MustCompile(`^Test(T\d\d)(And\d\d)?[A-Z]`)
)

// Every case has one number and one row; a test named after a case is in its row, so that new and renamed tests are noticed.
func TestCasesOfAbuseAndTheirTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(casesPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		m := caseLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if strings.Count(line, " | ") != 3 {
			t.Errorf("%s: case %s has not four columns", casesPage, m[1])
		}
		if _, dup := rows[m[1]]; dup {
			t.Errorf("%s: case %s is there twice", casesPage, m[1])
		}
		rows[m[1]] = line
	}
	for _, first := range []string{"T", "E"} {
		numbers := 0
		for name := range rows {
			if strings.HasPrefix(name, first) {
				numbers++
			}
		}
		for n := 1; n <= numbers; n++ {
			if name := first + string(rune('0'+n/10)) + string(rune('0'+n%10)); rows[name] == "" {
				t.Errorf("%s: there is no case %s", casesPage, name)
			}
		}
	}
	if len(rows) < 110 {
		t.Errorf("%s has only %d cases", casesPage, len(rows))
	}
	for test := range declaredTests(t) {
		dir, name := test[:strings.LastIndexByte(test, '.')], test[strings.LastIndexByte(test, '.')+1:]
		m := caseTest.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		wanted := []string{m[1]}
		if m[2] != "" {
			wanted = append(wanted, "T"+strings.TrimPrefix(m[2], "And"))
		}
		for _, number := range wanted {
			if !slices.Contains(strings.Split(rows[number], "`"), dir+"."+name) {
				t.Errorf("%s: case %s does not name %s of %s, which is called after it", casesPage, number, name, dir)
			}
		}
	}
}
