// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Files of the abuse suite: its table of cases, the findings so far, and the report of a run.
const (
	casesFile    = "test/abuse/cases.md"
	findingsFile = "test/abuse/findings.md"
	callsFile    = "test/boxes/testdata/calls-amd64.txt"
	reportFile   = "docs/abuse-report.md"
)

// abuseCase is a row of the table.
type abuseCase struct {
	number, class, tried string
	shown                string // the last column: tests, or why there are none
	tests                []test
}

var testName = regexp.MustCompile("`([a-z0-9_/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// readCases reads the table.
func readCases() ([]abuseCase, error) {
	text, err := os.ReadFile(casesFile)
	if err != nil {
		return nil, err
	}
	var cases []abuseCase
	class := ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			class = strings.TrimSpace(name)
		}
		columns := strings.Split(strings.TrimSpace(line), " | ")
		if len(columns) != 4 || columns[0] == "| case" {
			continue
		}
		c := abuseCase{number: strings.TrimPrefix(columns[0], "| "), class: class, tried: columns[1], shown: strings.TrimSuffix(columns[3], " |")}
		for _, m := range testName.FindAllStringSubmatch(c.shown, -1) {
			c.tests = append(c.tests, test{m[1], m[2]})
		}
		cases = append(cases, c)
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("%s has no cases", casesFile)
	}
	return cases, nil
}

// testsOf returns the tests of all cases, by package.
func testsOf(cases []abuseCase) map[string][]string {
	byPackage := map[string][]string{}
	for _, c := range cases {
		for _, t := range c.tests {
			if !slices.Contains(byPackage[t.pkg], t.name) {
				byPackage[t.pkg] = append(byPackage[t.pkg], t.name)
			}
		}
	}
	return byPackage
}

// outcome returns the result of a case: "passed", or why it is not.
func (r *runner) outcome(c *abuseCase) string {
	switch {
	case strings.Contains(c.shown, "*does not apply*"):
		return "does not apply"
	case strings.Contains(c.shown, "*open*"):
		return "open"
	}
	word := "passed"
	for _, t := range c.tests {
		passed := false
		for _, res := range r.results[t] {
			switch res.action {
			case "fail":
				word = "failed"
			case "pass":
				passed = true
			}
		}
		if !passed && word != "failed" {
			word = "not run"
		}
	}
	return word
}

// report writes a report of every case for human readers.
func (r *runner) report(ctx context.Context, machineGround string) error {
	version, err := r.do(ctx, nil, "packaging/version.sh")
	if err != nil {
		return err
	}
	findings, err := os.ReadFile(findingsFile)
	if err != nil {
		return err
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return err
	}
	kernel := strings.Join(strings.SplitN(unix.ByteSliceToString(host.Release[:]), ".", 3)[:2], ".") // the rest is of no use elsewhere
	grounds := []string{hostGround}
	if machineGround != "" && !r.skips(layerMachine) {
		grounds = append(grounds, machineGround)
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "# What was tried against boxd\n\nWritten by `make abuse` on %s, of version %s, in %.0f minutes. This host ran Linux %s.\n",
		time.Now().UTC().Format("2 January 2006"), version, time.Since(r.start).Minutes(), kernel)
	if len(grounds) > 1 {
		fmt.Fprintf(b, "The machine (%s) is a Debian (%s) with systemd and cgroups of version 2.\n", machineGround, r.system)
	} else {
		b.WriteString("No machine with systemd and cgroups of version 2 was used: what needs one was not run.\n")
	}
	fmt.Fprintf(b, "The cases, one by one, with what has to come of each and the tests that try it, are in [%s](../%s).\n\n", casesFile, casesFile)
	r.counts(b, grounds)
	if err := calls(b); err != nil {
		return err
	}
	for _, part := range []struct{ word, title string }{
		{"failed", "Failed"}, {"not run", "Not run"}, {"open", "Open"}, {"does not apply", "What does not apply, and why"},
	} {
		r.listed(b, part.word, part.title)
	}
	b.WriteString("\n")
	b.Write(findings)
	return os.WriteFile(reportFile, []byte(b.String()), 0o644)
}

// counts writes the table of counts, by class and ground.
func (r *runner) counts(b *strings.Builder, grounds []string) {
	b.WriteString("| class | cases | all refused | failed | not run | open | do not apply | tests |")
	for _, g := range grounds {
		fmt.Fprintf(b, " passed on %s |", g)
	}
	b.WriteString("\n|" + strings.Repeat("---|", 8+len(grounds)) + "\n")
	row := func(class string, in func(*abuseCase) bool) {
		words, tests := map[string]int{}, map[test]bool{}
		cases := 0
		for i := range r.cases {
			if c := &r.cases[i]; in(c) {
				word := r.outcome(c)
				words[word]++
				cases++
				for _, t := range c.tests {
					tests[t] = true
				}
			}
		}
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d |", class, cases, words["passed"], words["failed"], words["not run"], words["open"], words["does not apply"], len(tests))
		for _, g := range grounds {
			passed := 0
			for t := range tests {
				if slices.ContainsFunc(r.results[t], func(res result) bool { return res.ground == g && res.action == "pass" }) {
					passed++
				}
			}
			fmt.Fprintf(b, " %d |", passed)
		}
		b.WriteString("\n")
	}
	var classes []string
	for _, c := range r.cases {
		if !slices.Contains(classes, c.class) {
			classes = append(classes, c.class)
			row(c.class, func(other *abuseCase) bool { return other.class == c.class })
		}
	}
	row("all", func(*abuseCase) bool { return true })
	b.WriteString("\nA test may show several cases. A case counts as refused when each of its tests has passed on some ground, and none has failed on any.\n")
}

// calls writes the results of system calls, as T43 has recorded them in boxes.
func calls(b *strings.Builder) error {
	list, err := lines(callsFile)
	if err != nil {
		return err
	}
	kinds := map[string]int{}
	for _, line := range list {
		_, rest, _ := strings.Cut(line, ": ")
		kind, _, _ := strings.Cut(rest, ";")
		kinds[kind]++
	}
	fmt.Fprintf(b, "\nOf the %d system calls of x86-64 a box may make %d, %d more with some arguments and not with others; %d answer EPERM and %d ENOSYS (%s), and so does every other number, and every call by the doors of x32 and of 32 bits.\n",
		len(list), kinds["allow"], kinds["arguments"], kinds["EPERM"], kinds["ENOSYS"], callsFile)
	return nil
}

// listed writes a list of the cases with this outcome.
func (r *runner) listed(b *strings.Builder, word, title string) {
	started := false
	for i := range r.cases {
		c := &r.cases[i]
		if r.outcome(c) != word {
			continue
		}
		if !started {
			fmt.Fprintf(b, "\n## %s\n\n", title)
			started = true
		}
		why := ""
		if _, after, ok := strings.Cut(c.shown, "*: "); ok {
			why = ": " + after
		}
		if word == "not run" || word == "failed" {
			why = ": " + r.missingOf(c)
		}
		fmt.Fprintf(b, "- %s, %s%s\n", c.number, c.tried, why)
	}
}

// missingOf returns the tests of a case that have not passed, with what they lack.
func (r *runner) missingOf(c *abuseCase) string {
	var list []string
	for _, t := range c.tests {
		if r.hasPassed(t) {
			continue
		}
		words := []string{"`" + t.pkg + "." + t.name + "`"}
		for _, res := range r.results[t] {
			if res.why != "" {
				words = append(words, "needs "+res.why)
			}
		}
		list = append(list, strings.Join(words, " "))
	}
	return strings.Join(list, ", ")
}

// hasPassed reports whether a test has passed on some ground and failed on none.
func (r *runner) hasPassed(t test) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := func(action string) func(result) bool {
		return func(res result) bool { return res.action == action }
	}
	return slices.ContainsFunc(r.results[t], of("pass")) && !slices.ContainsFunc(r.results[t], of("fail"))
}

// reported writes the report of a run, whether or not it succeeded.
func (r *runner) reported(ctx context.Context, ran error, machineGround string) error {
	if ctx.Err() != nil {
		return ran
	}
	err := r.report(ctx, machineGround)
	if err == nil {
		r.printf("the report is %s", reportFile)
	}
	return errors.Join(ran, err)
}
