// SPDX-License-Identifier: Apache-2.0

// Package render formats boxd's responses for people, as text or on their terminal: tables, output, the display of top.
package render

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Printable returns an id without control characters for the terminal, which may take bytes that are not UTF-8 for such.
func Printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == '\t' }) {
		return strconv.Quote(s)
	}
	return s
}

// Plain returns a text of several lines without control characters for the terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\r\n", "\n"))
}

// Roughly formats a duration for people: its largest unit only.
func Roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + "d"
}

// ShellWord quotes a word for the shell.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@%+,") == "" {
		return s
	}
	if quoted := Printable(s); quoted != s {
		return "$'" + strings.ReplaceAll(quoted[1:len(quoted)-1], "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
