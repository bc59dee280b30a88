// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A rule is one line of the policy, for one of its calls.
type rule struct {
	line    int
	where   string // "": in every box, otherwise a word of the grammar
	verdict uint32
	tests   []test // all must hold; none: always
}

// Words before a line that applies only in some boxes, see Options.
const (
	hostrw = "hostrw"
	noaio  = "noaio"
	root   = "root"
)

// counts reports whether a rule applies in boxes with these options.
func (o *Options) counts(r *rule) bool {
	switch r.where {
	case hostrw:
		return o.HostWritable
	case noaio:
		return !o.AIO
	case root:
		return o.Root
	}
	return true
}

// A test compares the bits of an argument that are in mask.
type test struct {
	arg    uint32
	mask   uint32
	not    bool
	values []uint32 // any of them
}

// maxValues keeps the jump over a list of comparisons within its 8 bits.
const maxValues = 64

// parse parses a policy into the rules of each call, in the order of the lines.
func parse(policy string) (map[string][]rule, error) {
	rules := make(map[string][]rule)
	line := 0
	for text := range strings.Lines(policy) {
		line++
		if err := parseLine(rules, line, text); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	for _, name := range sortedNames(rules) {
		if err := checkOrder(name, rules[name]); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

func sortedNames(rules map[string][]rule) []string {
	names := make([]string, 0, len(rules))
	for name := range rules {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func parseLine(rules map[string][]rule, line int, text string) error {
	body, reason, _ := strings.Cut(text, "#")
	words := strings.Fields(body)
	if len(words) == 0 {
		return nil
	}
	if strings.TrimSpace(reason) == "" {
		return errors.New("no reason given after #")
	}
	r := rule{line: line}
	if words[0] == hostrw || words[0] == noaio || words[0] == root {
		r.where = words[0]
		words = words[1:]
	}
	names, tests := words, []string(nil)
	if i := slices.Index(words, "when"); i >= 0 {
		names, tests = words[:i], words[i+1:]
		if len(tests) == 0 {
			return errors.New("no test after when")
		}
	}
	names, err := parseVerdict(&r, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := findSyscall(name); !ok {
			return fmt.Errorf("unknown system call %q", name)
		}
		r.tests, err = parseTests(name, tests)
		if err != nil {
			return err
		}
		rules[name] = append(rules[name], r)
	}
	return nil
}

// parseVerdict parses "allow NAME..." or "deny NAME... ERRNO" and returns the names.
func parseVerdict(r *rule, words []string) ([]string, error) {
	if len(words) < 2 {
		return nil, errors.New("want allow NAME... or deny NAME... ERRNO")
	}
	switch words[0] {
	case "allow":
		r.verdict = unix.SECCOMP_RET_ALLOW
		return words[1:], nil
	case "deny":
		last := len(words) - 1
		errno, ok := findNamed(errnos[:], words[last])
		if !ok || last == 1 {
			return nil, fmt.Errorf("want deny NAME... ERRNO, not %q at the end", words[last])
		}
		r.verdict = unix.SECCOMP_RET_ERRNO | errno
		return words[1:last], nil
	}
	return nil, fmt.Errorf("want allow or deny, not %q", words[0])
}

// parseTests parses "TEST and TEST ..." for one call.
func parseTests(name string, words []string) ([]test, error) {
	var tests []test
	for len(words) > 0 {
		one, rest := words, []string(nil)
		if i := slices.Index(words, "and"); i >= 0 {
			one, rest = words[:i], words[i+1:]
			if len(rest) == 0 {
				return nil, errors.New("no test after and")
			}
		}
		t, err := parseTest(name, one)
		if err != nil {
			return nil, err
		}
		tests = append(tests, t)
		words = rest
	}
	return tests, nil
}

// parseTest parses "argN [& MASK] == VALUE", or "!=" or "in VALUE...".
func parseTest(name string, words []string) (test, error) {
	if len(words) < 3 {
		return test{}, fmt.Errorf("want argN [& MASK] ==, != or in VALUE..., not %q", strings.Join(words, " "))
	}
	arg, err := parseArg(words[0])
	if err != nil {
		return test{}, err
	}
	bits, ok := findKept(name, arg)
	if !ok {
		return test{}, fmt.Errorf("arg%d of %s is not in the list of arguments whose width is known", arg, name)
	}
	t := test{arg: arg, mask: bits}
	words = words[1:]
	if words[0] == "&" {
		if t.mask, err = parseValue(words[1]); err != nil {
			return test{}, err
		}
		if t.mask == 0 || t.mask&^bits != 0 {
			return test{}, fmt.Errorf("mask %q is empty or outside the bits the kernel keeps of arg%d", words[1], arg)
		}
		words = words[2:]
	}
	if len(words) < 2 {
		return test{}, fmt.Errorf("no value to compare arg%d with", arg)
	}
	if err := parseComparison(&t, words[0], words[1:]); err != nil {
		return test{}, err
	}
	return t, nil
}

func parseComparison(t *test, op string, words []string) error {
	switch {
	case op != "==" && op != "!=" && op != "in":
		return fmt.Errorf("want ==, != or in, not %q", op)
	case op != "in" && len(words) != 1:
		return fmt.Errorf("%s takes one value, in takes several", op)
	case len(words) > maxValues:
		return fmt.Errorf("%d values, at most %d fit into one test", len(words), maxValues)
	}
	t.not = op == "!="
	for _, w := range words {
		v, err := parseValue(w)
		if err != nil {
			return err
		}
		// Such a test would be always true or always false, which cannot be intended.
		if v&^t.mask != 0 {
			return fmt.Errorf("value %q has bits the mask takes away", w)
		}
		t.values = append(t.values, v)
	}
	return nil
}

func parseArg(word string) (uint32, error) {
	n, ok := strings.CutPrefix(word, "arg")
	if !ok || len(n) != 1 || n[0] < '0' || n[0] > '5' {
		return 0, fmt.Errorf("want arg0 to arg5, not %q", word)
	}
	return uint32(n[0] - '0'), nil
}

// parseValue parses numbers and constants joined by "|".
func parseValue(word string) (uint32, error) {
	var value uint32
	for part := range strings.SplitSeq(word, "|") {
		v, ok := findNamed(constants[:], part)
		if !ok {
			n, err := strconv.ParseUint(part, 0, 32)
			if err != nil {
				return 0, fmt.Errorf("%q is neither a known constant nor a 32-bit number", part)
			}
			v = uint32(n)
		}
		value |= v
	}
	return value, nil
}

// checkOrder makes sure that every line about a call can decide something and that every case is
// decided, with and without the lines that apply only in some boxes.
func checkOrder(name string, rules []rule) error {
	shared, some := 0, 0 // line that decides everything left, in every box and in some
	for _, r := range rules {
		if shared != 0 || r.where != "" && some != 0 {
			return fmt.Errorf("line %d: %s is decided in line %d already", r.line, name, max(shared, some))
		}
		if len(r.tests) > 0 {
			continue
		}
		some = r.line
		if r.where == "" {
			shared = r.line
		}
	}
	last := rules[len(rules)-1]
	if some == 0 || shared == 0 && slices.ContainsFunc(rules, func(r rule) bool { return r.where == "" }) {
		return fmt.Errorf("line %d: %s needs a last line without when", last.line, name)
	}
	return nil
}
