// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
)

// Language says how to run code of a language. Exactly one argument of each form is the placeholder: {code} for the code itself,
// {file} for a file with code that is longer than one argument may be.
type Language struct {
	Inline []string `toml:"inline"`
	File   []string `toml:"file"`
	Suffix string   `toml:"suffix"`
}

// Placeholders of a Language.
const (
	codePlaceholder = "{code}"
	filePlaceholder = "{file}"
)

// MaxArg is the longest argument the kernel takes, without its NUL (MAX_ARG_STRLEN, execve(2)).
const MaxArg = 128<<10 - 1

// Command returns the arguments that run code. Code too long for an argument must be in a file: then script is the index of the
// argument for its path, otherwise -1.
func (l Language) Command(code string) (argv []string, script int) {
	if len(code) <= MaxArg {
		argv = slices.Clone(l.Inline)
		argv[slices.Index(argv, codePlaceholder)] = code
		return argv, -1
	}
	return slices.Clone(l.File), slices.Index(l.File, filePlaceholder)
}

// typescript returns a script that runs its argument with the first available runtime, with the flags of each.
func typescript(script, deno, node string) string {
	return `has() { command -v "$1" >/dev/null; }
if has tsx; then exec tsx ` + script + `"$1"; fi
if has bun; then exec bun ` + script + `"$1"; fi
if has deno; then exec deno ` + deno + ` "$1"; fi
node="node --no-warnings --experimental-strip-types"
if $node -e 0 2>/dev/null; then exec $node ` + node + `"$1"; fi
echo "typescript: tsx, bun, deno or Node.js 22.7 or later is needed" >&2
exit 127
`
}

// FindLanguage returns a language by its name, or by a common alias that is no other language's name.
func FindLanguage(all map[string]Language, name string) (Language, bool) {
	l, ok := all[name]
	if ok {
		return l, true
	}
	l, ok = all[map[string]string{
		"javascript": "node", "js": "node", "nodejs": "node", "ts": "typescript", "shell": "sh", "py": "python", "python3": "python", "pl": "perl", "rb": "ruby",
	}[name]]
	return l, ok
}

// Lacks returns what the forms of a language must be, "" if they are valid.
func (l *Language) Lacks() string {
	if count(l.Inline, codePlaceholder) != 1 || count(l.File, filePlaceholder) != 1 || strings.ContainsAny(l.Suffix, "/\x00") {
		return "inline with one " + codePlaceholder + ", file with one " + filePlaceholder + ", a suffix without /"
	}
	return ""
}

func count(list []string, s string) (n int) {
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}

// defaultLanguages are the built-in languages of box.toml.
func defaultLanguages() map[string]Language {
	return map[string]Language{
		"sh":     {Inline: []string{"/bin/sh", "-c", "{code}"}, File: []string{"/bin/sh", "{file}"}, Suffix: ".sh"},
		"bash":   {Inline: []string{"bash", "-c", "{code}"}, File: []string{"bash", "{file}"}, Suffix: ".sh"},
		"python": {Inline: []string{"python3", "-c", "{code}"}, File: []string{"python3", "{file}"}, Suffix: ".py"},
		"node":   {Inline: []string{"node", "-e", "{code}"}, File: []string{"node", "{file}"}, Suffix: ".js"},
		"typescript": {
			Inline: []string{"/bin/sh", "-c", typescript("-e ", "eval --ext=ts", "--input-type=commonjs-typescript -e "), "typescript", "{code}"},
			File:   []string{"/bin/sh", "-c", typescript("", "run -A", ""), "typescript", "{file}"}, Suffix: ".ts",
		},
		"perl": {Inline: []string{"perl", "-e", "{code}"}, File: []string{"perl", "{file}"}, Suffix: ".pl"},
		"ruby": {Inline: []string{"ruby", "-e", "{code}"}, File: []string{"ruby", "{file}"}, Suffix: ".rb"},
	}
}
