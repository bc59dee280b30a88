// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/isolation/files"
)

// matcher finds matching lines. Go's regular expressions are slow compared to a plain text search, so as many lines as possible
// are skipped because they lack a text that every match contains.
type matcher struct {
	re      *regexp.Regexp // for one line
	across  bool           // re can be used on many lines at once, to find the next that may match
	needles [][]byte       // every match contains one of these; empty: not known
	exact   bool           // and is nothing but one of them
	fold    bool           // needles are lower case, and the text must be lowered before the search
}

func newMatcher(req *files.Grep) (*matcher, error) {
	pattern := req.Pattern
	if len(pattern) == 0 || len(pattern) > maxPattern {
		return nil, badPattern(pattern, "1 to 1024 bytes")
	}
	if req.Literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	flags := "(?m)"
	if req.IgnoreCase {
		flags = "(?mi)"
	}
	re, err := regexp.Compile(flags + pattern)
	if err != nil {
		f := badPattern(req.Pattern, "a regular expression of RE2, see golang.org/s/re2syntax")
		f.Text, f.Hint = f.Text+": "+shortenPattern(err.Error()), "literal = true searches for the text as it is"
		return nil, f
	}
	m := &matcher{re: re, across: true}
	tree, err := syntax.Parse(flags+pattern, syntax.Perl)
	if err != nil {
		return m, nil //nolint:nilerr // it has just been compiled; without the tree the search is only slower
	}
	tree = tree.Simplify()
	m.across = !hasOp(tree, syntax.OpBeginText) && !hasOp(tree, syntax.OpEndText)
	l := literalsOf(tree)
	m.exact, m.fold = l.exact, l.fold
	for _, text := range l.set {
		m.needles = append(m.needles, []byte(text))
	}
	return m, nil
}

func hasOp(re *syntax.Regexp, op syntax.Op) bool {
	if re.Op == op {
		return true
	}
	for _, sub := range re.Sub {
		if hasOp(sub, op) {
			return true
		}
	}
	return false
}

// literals is a set of texts of which every match contains one; empty if there is none. exact: a
// match is one of them and nothing else. fold: they are lower case.
type literals struct {
	set   []string
	exact bool
	fold  bool
}

// maxLiterals bounds a set: each is searched for on its own.
const maxLiterals = 8

func literalsOf(re *syntax.Regexp) literals {
	switch re.Op {
	case syntax.OpLiteral:
		text := string(re.Rune)
		if strings.ContainsRune(text, '\n') {
			return literals{}
		}
		if re.Flags&syntax.FoldCase == 0 {
			return literals{set: []string{text}, exact: true}
		}
		for _, r := range re.Rune {
			if r >= utf8.RuneSelf {
				return literals{}
			}
		}
		return literals{set: []string{strings.ToLower(text)}, exact: true, fold: true}
	case syntax.OpCapture:
		return literalsOf(re.Sub[0])
	case syntax.OpPlus:
		l := literalsOf(re.Sub[0])
		l.exact = false
		return l
	case syntax.OpConcat:
		return concat(re.Sub)
	case syntax.OpAlternate:
		var all literals
		all.exact = true
		for i, sub := range re.Sub {
			l := literalsOf(sub)
			if len(l.set) == 0 || len(all.set)+len(l.set) > maxLiterals || i > 0 && l.fold != all.fold {
				return literals{}
			}
			all = literals{append(all.set, l.set...), all.exact && l.exact, l.fold}
		}
		return all
	default:
		return literals{}
	}
}

// concat joins the literals of consecutive parts, and chooses the best.
func concat(subs []*syntax.Regexp) literals {
	var best, run literals
	whole := true
	for _, sub := range subs {
		l := literalsOf(sub)
		switch {
		case l.exact && run.exact && l.fold == run.fold && len(run.set)*len(l.set) <= maxLiterals:
			var set []string
			for _, a := range run.set {
				for _, b := range l.set {
					set = append(set, a+b)
				}
			}
			run.set = set
		default:
			whole = whole && len(run.set) == 0 && l.exact
			best = better(best, run)
			run = l
			if !l.exact {
				best, run = better(best, l), literals{}
			}
		}
	}
	best = better(best, run)
	best.exact = best.exact && whole
	return best
}

func better(a, b literals) literals {
	if shortest(b.set) > shortest(a.set) {
		return b
	}
	return a
}

func shortest(set []string) int {
	if len(set) == 0 {
		return 0
	}
	n := len(set[0])
	for _, s := range set {
		n = min(n, len(s))
	}
	return n
}

// grepText is a file's content while it is searched.
type grepText struct {
	content []byte
	lower   []byte // in lower case, if the needles are
	m       *matcher
	ahead   []int // offset of the next occurrence of each needle, -1 for none
}

func (m *matcher) match(content, scratch []byte) (t *grepText, grown []byte) {
	t = &grepText{content: content, m: m}
	if len(m.needles) == 0 {
		return t, scratch
	}
	t.lower = content
	if m.fold {
		// Two letters have a third form outside ASCII (unicode.SimpleFold): with those in the
		// text, no line is skipped.
		if bytes.Contains(content, []byte("\u212a")) || bytes.Contains(content, []byte("\u017f")) {
			slow := *m
			slow.needles, slow.exact = nil, false
			t.m = &slow
			return t, scratch
		}
		scratch = lowerBytes(scratch[:0], content)
		t.lower = scratch
	}
	t.ahead = make([]int, len(m.needles))
	for i := range t.ahead {
		t.ahead[i] = -2
	}
	return t, scratch
}

func lowerBytes(to, from []byte) []byte {
	to = append(to, from...)
	for i, c := range to {
		if c-'A' < 26 {
			to[i] = c + 'a' - 'A'
		}
	}
	return to
}

// next finds the first matching line from an offset on, at which a line begins: where the line
// begins and ends, and where in it the match is. start is -1 if there is none.
func (t *grepText) next(pos int) (start, end, column int) {
	for pos < len(t.content) {
		at := pos
		switch {
		case len(t.m.needles) > 0:
			at = t.candidate(pos)
		case t.m.across:
			if loc := t.m.re.FindIndex(t.content[pos:]); loc != nil {
				at = pos + loc[0]
			} else {
				at = -1
			}
		}
		if at < 0 || at >= len(t.content) { // there is no line after the last line's end
			return -1, -1, 0
		}
		start = bytes.LastIndexByte(t.content[:at], '\n') + 1
		end = len(t.content)
		if i := bytes.IndexByte(t.content[at:], '\n'); i >= 0 {
			end = at + i
		}
		if t.m.exact {
			return start, end, at - start
		}
		if loc := t.m.re.FindIndex(t.content[start:end]); loc != nil {
			return start, end, loc[0]
		}
		pos = end + 1
	}
	return -1, -1, 0
}

// candidate returns the offset of the next needle, -1 if there is none.
func (t *grepText) candidate(pos int) int {
	first := -1
	for i, needle := range t.m.needles {
		if t.ahead[i] != -1 && t.ahead[i] < pos {
			if t.ahead[i] = bytes.Index(t.lower[pos:], needle); t.ahead[i] >= 0 {
				t.ahead[i] += pos
			}
		}
		if at := t.ahead[i]; at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}
