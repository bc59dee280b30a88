// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// typed is the command line that is being run. boxd names the request field that it refuses; the message for the user
// names the flag or argument instead.
type typed struct {
	cmd  *cobra.Command // nil: unknown
	args []string       // of boxctl
}

// flagsOfFields maps request fields to flags, where the flag is not the field's name with hyphens.
func flagsOfFields() map[string]string {
	return map[string]string{
		"mounts": "mount", "network_rules": "network-rule", "env": "env", "labels": "label", "variables": "var",
		"rlimits": "ulimit", "inputs": "input", "skills": "skill", "drives": "drive", "secrets": "secret",
		"read_only_root": "writable-root", "home_on_disk": "home-on-disk", "restart.policy": "restart", "restart.delay": "restart-delay",
		"restart.max_delay": "restart-delay", "restart.window": "restart-limit",
		"restart.limit": "restart-limit", "ready.line": "ready-line", "ready.port": "ready-port", "ready.command": "ready-command",
		"ready.timeout": "ready-timeout", "ready": "ready-line", "stop.signal": "stop-signal", "stop.grace": "grace",
		"for": "until", "changes_with": "changes",
	}
}

// wordsOfFields maps fields to words for the user, where an argument, or no flag of its own, sets the field.
func wordsOfFields() map[string]string {
	return map[string]string{
		"id": "box", "argv": "program", "stdin": "standard input", "stdin_encoding": "standard input", "session": "box",
		"dry_run": "--dry-run", "base64": "text", "body": "what was sent", "output_version": "output", "output_limit": "output",
		"terminal": "-t", "terminal.rows": "the height of the terminal", "terminal.cols": "the width of the terminal",
	}
}

var indexedField = regexp.MustCompile(`^([a-z_]+)\[(\d+)\]\.?(.*)$`)

// flag returns a flag as it was typed, "" if the command has none of the name.
func (t typed) flag(name string) string {
	if t.cmd == nil {
		return ""
	}
	f := t.cmd.Flags().Lookup(name)
	if f == nil {
		return ""
	}
	long := "--" + name
	if f.Shorthand == "" || !f.Changed {
		return long
	}
	for _, arg := range t.args {
		if arg == long || strings.HasPrefix(arg, long+"=") {
			return long
		}
	}
	return "-" + f.Shorthand
}

// flagOfCreate returns a flag of boxctl create, "" if it has none of the name: a box may lack what it was not created with.
func (t typed) flagOfCreate(name string) string {
	if t.cmd == nil {
		return ""
	}
	create, _, err := t.cmd.Root().Find([]string{"create"})
	if err != nil || create.Flags().Lookup(name) == nil {
		return ""
	}
	return "--" + name
}

// list returns the values of a repeatable flag.
func (t typed) list(name string) []string {
	if t.cmd != nil {
		if f := t.cmd.Flags().Lookup(name); f != nil {
			if v, ok := f.Value.(pflag.SliceValue); ok {
				return v.GetSlice()
			}
		}
	}
	return nil
}

// name returns what the user typed for a field. If whole is set, name includes the value, and part is the part of it
// that the field is about, "" for all of it.
func (t typed) name(field string) (name, part string, whole bool) {
	field = strings.TrimPrefix(strings.TrimPrefix(field, "session."), "exec.")
	if m := indexedField.FindStringSubmatch(field); m != nil {
		flag := flagOf(m[1])
		i, err := strconv.Atoi(m[2])
		list := t.list(flag)
		switch {
		case err == nil && i < len(list):
			return t.flag(flag) + " " + render.ShellWord(list[i]), m[3], true
		case m[1] == "mounts" && t.flag("here") != "" && i == len(list):
			return "--here", m[3], true
		}
		field = m[1]
	}
	if name := t.flag(flagOf(field)); name != "" {
		return name, "", false
	}
	if word, ok := wordsOfFields()[field]; ok {
		return word, "", false
	}
	head, rest, below := strings.Cut(field, ".")
	if name := t.flag(flagOf(head)); name != "" && below {
		return name + " " + strings.ReplaceAll(rest, "_", " "), "", false
	}
	return strings.NewReplacer("_", " ", ".", " ").Replace(field), "", false
}

// names returns what the user typed for each of several fields.
func (t typed) names(fields string) string {
	list := strings.Split(fields, ", ")
	for i := range list {
		list[i], _, _ = t.name(list[i])
	}
	return strings.Join(list, ", ")
}

// flagOf returns the flag of a field, without leading hyphens.
func flagOf(field string) string {
	if name, ok := flagsOfFields()[field]; ok {
		return name
	}
	return strings.ReplaceAll(field, "_", "-")
}

const (
	mustBe  = ": must be "
	leftOut = "left out"
	// programFields are the fields that boxd names if there is nothing to run.
	programFields = "argv, command, code"
)

// refusal returns boxd's message about a request, in terms of what was typed.
func (t typed) refusal(p *api.Problem) string {
	if p.Field == programFields { // nor does the image name a program
		return oneProgram
	}
	if text, ok := strings.CutSuffix(p.Detail, p.Field); ok && p.Field != "" && p.Type == api.ProblemType+"conflict" {
		return t.words(text) + t.names(p.Field) // in which the existing one differs from the request
	}
	rest, ok := strings.CutPrefix(p.Detail, p.Field)
	if p.Field == "" || !ok || rest == "" || rest[0] != ' ' && rest[0] != ':' {
		return t.words(p.Detail)
	}
	name, part, whole := t.name(p.Field)
	value, allowed, form := strings.Cut(rest, mustBe)
	value, given := strings.CutPrefix(value, " = ")
	switch {
	case !form && given:
		return name + " " + t.words(value)
	case !form:
		return name + t.words(rest)
	case part != "":
		if name == "--here" {
			name += " (" + value + ")"
		}
		name += ": the " + strings.ReplaceAll(part, "_", " ") + " must be "
	case whole:
		name += mustBe
	case given && len(t.list(flagOf(p.Field))) > 0 && strings.Trim(value, "0123456789") == "":
		name += " is given " + value + " times" + mustBe
	case given && value == `"true"`:
		name += mustBe
	case given:
		name += " " + value + mustBe
	default:
		name += value + mustBe
	}
	if after, ok := strings.CutPrefix(allowed, leftOut); ok {
		return strings.TrimSuffix(name, " must be ") + " leave it out" + t.words(after)
	}
	return name + t.words(allowed)
}

// Request names in running text, but not parts of longer names such as keys of box.toml.
var (
	wireName      = regexp.MustCompile(`(^|[^\w.\[-])([a-z]+(?:_[a-z]+)+)($|[^\w.\]])`)
	wireValue     = regexp.MustCompile(`(^|[^\w.-])([a-z_]+) = ("[a-z_.]+"|false\b)`)
	sessionInText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|(^|[^\w./\[-])([Ss])ession(s?)($|[^\w.\]/])`)
)

// words replaces request fields in a text by flags of this command, and "session" by "box", as boxctl says.
func (t typed) words(text string) string {
	text = sessionInText.ReplaceAllStringFunc(text, func(s string) string {
		m := sessionInText.FindStringSubmatch(s)
		switch {
		case m[2] == "":
			return s
		case m[3] == "s":
			return m[1] + "boxes" + m[4]
		}
		return m[1] + "box" + m[4]
	})
	text = wireValue.ReplaceAllStringFunc(text, func(s string) string {
		m := wireValue.FindStringSubmatch(s)
		flag := cmp.Or(t.flag(flagOf(m[2])), t.flagOfCreate(flagOf(m[2])))
		switch {
		case flag == "":
			return s
		case m[3] == "false": // read_only_root, the only flag with the opposite meaning
			return m[1] + flag
		}
		return m[1] + flag + " " + strings.Trim(m[3], `"`)
	})
	return wireName.ReplaceAllStringFunc(text, func(s string) string {
		m := wireName.FindStringSubmatch(s)
		if flag := cmp.Or(t.flag(flagOf(m[2])), t.flagOfCreate(flagOf(m[2]))); flag != "" {
			return m[1] + flag + m[3]
		}
		return s
	})
}

// otherTarget suggests a mount that boxd would accept instead of one whose target it refuses, "" if it refuses something else.
func (t typed) otherTarget(p *api.Problem) string {
	m := indexedField.FindStringSubmatch(p.Field)
	if m == nil || m[1] != "mounts" || m[3] != "target" {
		return ""
	}
	list := t.list("mount")
	i, err := strconv.Atoi(m[2])
	if err != nil || i >= len(list) {
		return ""
	}
	part := strings.Split(list[i], ":")
	part[1] = path.Join("/mnt", path.Base(part[1])) // a parsed mount has a source and a target
	return t.flag("mount") + " " + render.ShellWord(strings.Join(part, ":"))
}

// sentence returns the text of an error, with typed words in place of boxd's.
func (t typed) sentence(err error) string {
	text := err.Error()
	for _, e := range answers(err) {
		if message := t.refusal(&e.Problem); e.Detail != "" && message != e.Detail {
			text = strings.Replace(text, e.Detail, message, 1)
		}
	}
	return text
}

// answers returns boxd's errors inside an error.
func answers(err error) []*client.Error {
	switch e := err.(type) { //nolint:errorlint // each link is looked at, and not the first that fits
	case nil:
		return nil
	case *client.Error:
		return []*client.Error{e}
	case interface{ Unwrap() []error }:
		var all []*client.Error
		for _, one := range e.Unwrap() {
			all = append(all, answers(one)...)
		}
		return all
	}
	return answers(errors.Unwrap(err))
}

// printMessage prints a message, with a word and a colon before each line. On a terminal it wraps at the width.
func (a *app) printMessage(word, text string) {
	lines := strings.Split(render.Plain(text), "\n")
	size, terminal := render.SizeOfTerminal(a.stderr)
	for _, line := range lines {
		line = word + ": " + line
		if terminal {
			line = fold(line, int(size.Cols))
		}
		fmt.Fprintln(a.stderr, line)
	}
}

// fold wraps a line at spaces, so that no part is wider than width unless a word is. All parts but the first are
// indented by two columns.
func fold(line string, width int) string {
	const indent = "  "
	var out strings.Builder
	column := 0
	for i, word := range strings.Split(line, " ") {
		length := len([]rune(word))
		switch {
		case i == 0:
		case column+1+length > width && column > len(indent):
			out.WriteString("\n" + indent)
			column = len(indent)
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += length
	}
	return out.String()
}
