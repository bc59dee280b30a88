// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"

	"github.com/boxd-dev/boxd/isolation/files"
)

// maxPattern bounds a pattern, in bytes.
const maxPattern = 1024

// maxAlternatives bounds the number of braces in a glob.
const maxAlternatives = 32

// compileGlob translates a glob into a regular expression: * is anything within a name, ** any
// directories, ? one character, [a-z] one of several characters, {a,b} one of several texts, and
// a backslash takes the next character literally.
func compileGlob(glob string) (*regexp.Regexp, error) {
	if len(glob) > maxPattern {
		return nil, badPattern(glob, "a pattern of at most 1024 bytes")
	}
	var b strings.Builder
	b.WriteString(`(?s)\A(?:`)
	braces, opened := 0, 0
	for i := 0; i < len(glob); i++ {
		rest := glob[i:]
		switch c := glob[i]; {
		case strings.HasPrefix(rest, "**/") && (i == 0 || glob[i-1] == '/'):
			b.WriteString(`(?:[^/]*/)*`)
			i += 2
		case rest == "**" && (i == 0 || glob[i-1] == '/'):
			b.WriteString(`.*`)
			i++
		case c == '*':
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '[':
			class, n := classOf(rest)
			if n == 0 {
				return nil, badPattern(glob, "a pattern with a ] for each [")
			}
			b.WriteString(class)
			i += n - 1
		case c == '{':
			braces++
			if opened++; opened > maxAlternatives {
				return nil, badPattern(glob, "a pattern with at most 32 braces")
			}
			b.WriteString(`(?:`)
		case c == '}' && braces > 0:
			braces--
			b.WriteString(`)`)
		case c == ',' && braces > 0:
			b.WriteString(`|`)
		case c == '\\' && i+1 < len(glob):
			i++
			quoteByte(&b, glob[i])
		default:
			quoteByte(&b, c)
		}
	}
	if braces > 0 {
		return nil, badPattern(glob, "a pattern with a } for each {")
	}
	b.WriteString(`)\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, badPattern(glob, "a pattern with *, **, ?, [a-z] and {a,b}")
	}
	return re, nil
}

// quoteByte writes a byte of the pattern literally. The bytes of a longer character follow each
// other.
func quoteByte(b *strings.Builder, c byte) {
	if strings.IndexByte(`\.+*?()|[]{}^$`, c) >= 0 {
		b.WriteByte('\\')
	}
	b.WriteByte(c)
}

// classOf translates the bracket expression at the beginning of s, and returns its length; 0 if
// it has no end.
func classOf(s string) (class string, n int) {
	i := 1
	out := "["
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		out += "^/"
		i++
	}
	for first := true; i < len(s); i++ {
		switch c := s[i]; {
		case c == ']' && !first:
			return out + "]", i + 1
		case c == '\\' && i+1 < len(s):
			i++
			out += `\` + string(s[i])
		case c == '[' || c == ']' || c == '^' || c == '&' || c == '~':
			out += `\` + string(c)
		default:
			out += s[i : i+1]
		}
		first = false
	}
	return "", 0
}

func badPattern(pattern, allowed string) *files.Failure {
	return &files.Failure{Kind: files.BadPattern, Field: "pattern", Text: "not a pattern: " + shortenPattern(pattern), Allowed: allowed}
}

func shortenPattern(s string) string {
	const limit = 64
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
