// SPDX-License-Identifier: Apache-2.0

// Package render shows people what boxd answers, as text or on their terminal: tables, output, the picture of top.
package render

import (
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable shows an id without letting it speak to the terminal.
func Printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == '\t' }) {
		return strconv.Quote(s)
	}
	return s
}

// Plain shows a text of several lines without letting it speak to the terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\r\n", "\n"))
}

// Roughly is a duration as people say it: its largest unit alone.
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

// ShellWord is a word as it can be typed.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@%+,") == "" {
		return s
	}
	if quoted := Printable(s); quoted != s {
		return "$'" + strings.ReplaceAll(quoted[1:len(quoted)-1], "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
