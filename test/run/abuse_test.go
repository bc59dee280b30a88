// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The whole table of cases is parsed: every row is a case with tests, or says why it has none.
func TestTheTableOfCasesIsRead(t *testing.T) {
	t.Chdir("../..")
	cases, err := readCases()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(casesFile)
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Count(string(text), "\n| T") + strings.Count(string(text), "\n| E")
	if len(cases) != rows || rows < 110 {
		t.Errorf("%d cases of %d rows", len(cases), rows)
	}
	for _, c := range cases {
		if word := newRunner(t).outcome(&c); len(c.tests) == 0 && word != "open" && word != "does not apply" || c.class == "" {
			t.Errorf(`%s of %q has no tests and no reason: c.shown = %s, want (len(c.tests) != 0 or word == "open" or word == "does not apply") and c.class != ""`,
				c.number, c.class, c.shown)
		}
	}
	if list := testsOf(cases)["test/boxes"]; !slices.Contains(list, "TestT43EveryCallOfEveryABI") {
		t.Errorf(`tests of test/boxes: list = %q, want list containing "TestT43EveryCallOfEveryABI"`, list)
	}
}

// A case counts as refused when each of its tests has passed on some ground and none has failed on any.
func TestTheReportSaysWhatCameOfACase(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	pass, fail, skip := result{ground: hostGround, action: "pass"}, result{ground: groundUML, action: "fail"}, result{ground: hostGround, action: "skip", why: "a disk"}
	r.results = map[test][]result{{"p", "TestGood"}: {pass}, {"p", "TestBad"}: {pass, fail}, {"p", "TestLeft"}: {skip}}
	of := func(names ...string) abuseCase {
		c := abuseCase{number: "T01", class: "a class", tried: "something", shown: "tests"}
		for _, n := range names {
			c.tests = append(c.tests, test{"p", n})
		}
		return c
	}
	for want, c := range map[string]abuseCase{
		"passed": of("TestGood"), "failed": of("TestGood", "TestBad"), "not run": of("TestGood", "TestLeft"),
		"open": {shown: "*open*: not yet"}, "does not apply": {shown: "*does not apply*: there is none"},
	} {
		if got := r.outcome(&c); got != want {
			t.Errorf("%v: %s, want %s", c.tests, got, want)
		}
	}
	r.cases = []abuseCase{of("TestGood"), of("TestBad"), of("TestLeft"), {number: "T04", class: "another", tried: "a thing", shown: "*does not apply*: there is none"}}
	var b strings.Builder
	r.counts(&b, []string{hostGround})
	for _, want := range []string{"| a class | 3 | 1 | 1 | 1 | 0 | 0 | 3 | 2 |\n", "| another | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |\n", "| all | 4 | 1 | 1 | 1 | 0 | 1 | 3 | 2 |\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	r.listed(&b, "not run", "Not run")
	r.listed(&b, "does not apply", "Does not apply")
	for _, want := range []string{"- T01, something: `p.TestLeft` needs a disk\n", "- T04, a thing: there is none\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
