// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeVariable makes the tests of this file write what the packages ship instead of comparing with it:
//
//	BOXCTL_WRITE=1 CGO_ENABLED=0 go test ./cmd/boxctl -run TestShipped
const writeVariable = "BOXCTL_WRITE"

// shipped is where the packages take manual pages and completion from.
const shipped = "../../packaging"

// manualDate is when the text of the pages was last reviewed. Pages must not differ from build to build.
const manualDate = "2026-11-26"

// shippedRoot returns the command table with default settings.
func shippedRoot(t *testing.T) *cobra.Command {
	t.Helper()
	t.Setenv("BOXD_SOCKET", "")
	var a app
	root := a.root()
	root.InitDefaultHelpCmd()
	return root
}

// Not parallel, like the rest of this file: the environment is set.
func TestShippedManualPagesAreOfTheCommands(t *testing.T) {
	root := shippedRoot(t)
	want := map[string]string{"boxctl.1": rootPage(root)}
	for _, cmd := range documented(root) {
		want[pageName(cmd)+".1"] = commandPage(cmd)
	}
	comparePages(t, filepath.Join(shipped, "man"), "boxctl*.1", want)
}

func TestShippedCompletionIsOfTheCommands(t *testing.T) {
	root := shippedRoot(t)
	want := map[string]string{}
	for name, generate := range map[string]func(*bytes.Buffer) error{
		"boxctl.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"_boxctl":     func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"boxctl.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
	} {
		var text bytes.Buffer
		if err := generate(&text); err != nil {
			t.Fatal(err)
		}
		want[name] = text.String()
	}
	comparePages(t, filepath.Join(shipped, "completion"), "*boxctl*", want)
}

// comparePages checks that a directory has exactly the expected files.
func comparePages(t *testing.T, dir, pattern string, want map[string]string) {
	t.Helper()
	have, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range have {
		if _, ok := want[filepath.Base(path)]; !ok {
			t.Errorf("%s is of no command", path)
		}
	}
	for name, text := range want {
		path := filepath.Join(dir, name)
		if os.Getenv(writeVariable) != "" {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(data) != text {
			t.Errorf("%s is not that of this boxctl; run the test with %s=1 to write it\n%s", path, writeVariable, gocmp.Diff(string(data), text))
		}
	}
}

// documented returns the commands with a page of their own.
func documented(root *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(root.Commands()), func(c *cobra.Command) bool { return c.Hidden || c.Name() == "help" })
}

// use returns how a command is called, after the name of its parent.
func use(cmd *cobra.Command) string {
	return strings.TrimPrefix(useLine(cmd), cmd.Parent().CommandPath()+" ")
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// roffText returns text for a page, escaped so that nothing in it is a request, a macro or a special character.
func roffText(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// filled returns text broken into lines of the right length for a page.
func filled(text string) string {
	const most = 78
	var b strings.Builder
	n := 0
	for word := range strings.FieldsSeq(text) {
		word = roffText(word)
		switch {
		case n == 0:
		case n+1+len(word) > most:
			b.WriteString("\n")
			n = 0
		default:
			b.WriteString(" ")
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	return b.String()
}

// placeholder is a word to be replaced by a value.
var placeholder = regexp.MustCompile(`\b[A-Z][A-Z]+\b(\.\.\.)?`)

// roffUse returns a usage line with its placeholders marked.
func roffUse(use string) string {
	name, rest, _ := strings.Cut(use, " ")
	return strings.TrimSpace(`\fB` + roffText(name) + `\fR ` + placeholder.ReplaceAllString(roffText(rest), `\fI$0\fR`))
}

func pageHeader(b *bytes.Buffer, name, what string) {
	fmt.Fprintf(b, ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made from the commands of boxctl by a test, see cmd/boxctl/manual_test.go.\n")
	fmt.Fprintf(b, ".TH %s 1 %s boxd \"User Commands\"\n", strings.ToUpper(name), manualDate)
	fmt.Fprintf(b, ".SH NAME\n%s \\-\n%s\n", roffText(name), filled(strings.ToLower(what[:1])+what[1:]))
}

// paragraphs writes the text of a command: paragraphs, and indented examples.
func paragraphs(b *bytes.Buffer, text string) {
	for i, part := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if !strings.HasPrefix(part, "  ") {
			b.WriteString(filled(part) + "\n")
			continue
		}
		b.WriteString(".EX\n")
		for line := range strings.SplitSeq(part, "\n") {
			b.WriteString(roffText(line) + "\n")
		}
		b.WriteString(".EE\n")
	}
}

// options writes flags as in the help of their command: many of them under headings.
func options(b *bytes.Buffer, set *pflag.FlagSet) {
	titles, flags := flagsByTopic(set)
	for i, list := range flags {
		if titles[i] != "" {
			fmt.Fprintf(b, ".SS %s\n", titles[i])
		}
		for _, f := range list {
			option(b, f)
		}
	}
}

func option(b *bytes.Buffer, f *pflag.Flag) {
	b.WriteString(".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(b, `\fB\-%s\fR, `, f.Shorthand)
	}
	fmt.Fprintf(b, `\fB\-\-%s\fR`, roffText(f.Name))
	switch value := roffText(valueName(f)); {
	case value == "":
	case f.NoOptDefVal != "":
		fmt.Fprintf(b, `[=\fI%s\fR]`, value)
	default:
		fmt.Fprintf(b, ` \fI%s\fR`, value)
	}
	text := flagText(f)
	fmt.Fprintf(b, "\n%s.\n", filled(strings.ToUpper(text[:1])+text[1:]))
}

func commandPage(cmd *cobra.Command) string {
	var b bytes.Buffer
	pageHeader(&b, pageName(cmd), cmd.Short)
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fBboxctl\\fR %s\n", roffUse(use(cmd)))
	for _, alias := range cmd.Aliases {
		fmt.Fprintf(&b, ".br\n\\fBboxctl\\fR %s\n", roffUse(alias+strings.TrimPrefix(use(cmd), cmd.Name())))
	}
	b.WriteString(".SH DESCRIPTION\n")
	paragraphs(&b, cmp.Or(cmd.Long, cmd.Short+"."))
	b.WriteString(".SH OPTIONS\n")
	before := b.Len()
	if options(&b, cmd.LocalFlags()); b.Len() > before {
		b.WriteString(".PP\n")
	}
	b.WriteString("See\n.BR boxctl (1)\nfor the options of all commands.\n")
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		examplesOf(&b, cmd.Example)
	}
	subcommands(&b, cmd)
	b.WriteString(".SH SEE ALSO\n.BR boxctl (1)")
	for _, other := range related(cmd) {
		fmt.Fprintf(&b, ",\n.BR boxctl\\-%s (1)", other)
	}
	return b.String() + "\n"
}

func examplesOf(b *bytes.Buffer, text string) {
	b.WriteString(".EX\n")
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(roffText(strings.TrimPrefix(line, "  ")) + "\n")
	}
	b.WriteString(".EE\n")
}

// subcommands writes the subcommands of a command, with their own options.
func subcommands(b *bytes.Buffer, cmd *cobra.Command) {
	if cmd.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
	}
	for _, sub := range cmd.Commands() {
		fmt.Fprintf(b, ".SS \\fBboxctl %s\\fR %s\n", roffText(cmd.Name()), roffUse(use(sub)))
		paragraphs(b, cmp.Or(sub.Long, sub.Short+"."))
		own := pflag.NewFlagSet(sub.Name(), pflag.ContinueOnError)
		shared := false
		sub.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if cmd.LocalFlags().Lookup(f.Name) == nil {
				own.AddFlag(f)
			} else if f.Name != "help" {
				shared = true
			}
		})
		options(b, own)
		if shared {
			b.WriteString(".PP\nIt also takes the options above.\n")
		}
		if sub.Example != "" {
			b.WriteString(".PP\n")
			examplesOf(b, sub.Example)
		}
	}
}

// related returns the commands related to one: those about the same objects.
func related(cmd *cobra.Command) (list []string) {
	for _, group := range [][]string{
		{"run", "create", "exec", "shell", "start"},
		{"create", "exec", "inspect", "ls", "rm", "set"},
		{"freeze", "set", "thaw"},
		{"attach", "logs", "ps", "start", "stop", "wait"},
		{"ls", "status", "top"},
		{"config", "doctor", "status", "version"},
	} {
		if slices.Contains(group, cmd.Name()) {
			list = append(list, group...)
		}
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(s string) bool { return s == cmd.Name() })
}

// rootEnd are the sections of boxctl(1) that apply to all commands.
const rootEnd = `.SH EXIT STATUS
.BR run " and " exec
exit with the exit code of the program. So does
.BR attach ,
if the program ends while it is attached.
.TP
.B 0
Success.
.TP
.B 1
The request failed.
.TP
.B 2
The command line is wrong. Nothing was done.
.TP
.B 124
The program timed out.
.TP
.B 125
boxd failed, for
.BR run ", " exec ", " start " and " attach ,
where 1 could be the exit code of the program.
.TP
.B 126
The program cannot be run.
.TP
.B 127
The program was not found.
.TP
.BI 128+ n
Signal
.I n
ended the program. 137 also means that it ran out of memory.
.SH ENVIRONMENT
.TP
.B BOXD_SOCKET
Path of the Unix socket of boxd, if
.B \-\-socket
is not given.
.TP
.BR BOXD_TOKEN ", " BOXD_TOKEN_FILE
Access token, or a file that contains it, if
.B \-\-token
is not given.
.TP
.BR BOXD_TLS_CA ", " BOXD_TLS_CERT ", " BOXD_TLS_KEY
Files for an https address, if
.BR \-\-tls\-ca ", " \-\-tls\-cert " and " \-\-tls\-key
are not given.
.TP
.B TERM
Passed on to programs with a terminal.
.SH FILES
.TP
.I /run/boxd/boxd.sock
The socket of boxd. Members of the group
.I boxd
may use it.
.TP
.I /usr/share/doc/boxd/guide
The user guide, with a chapter on troubleshooting.
.SH NOTES
Messages begin with
.B boxctl:
and go to standard error; a line
.B hint:
says what to do next. With
.B \-\-json
the answer is printed as JSON to standard output.
.SH SEE ALSO
.BR boxd (8),
.BR box.toml (5),
.BR boxd\-security (7)
`

func rootPage(root *cobra.Command) string {
	var b bytes.Buffer
	pageHeader(&b, root.Name(), root.Short)
	b.WriteString(".SH SYNOPSIS\n\\fBboxctl\\fR [\\fIflags\\fR] \\fICOMMAND\\fR [\\fIARG\\fR...]\n.SH DESCRIPTION\n")
	paragraphs(&b, root.Long)
	b.WriteString(".SH COMMANDS\nEach command has its own manual page.\n")
	titles, commands := commandsByTopic(root)
	for i, list := range commands {
		fmt.Fprintf(&b, ".SS %s\n", titles[i])
		for _, cmd := range list {
			if cmd.Name() != "help" {
				fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s.\n", roffText(pageName(cmd)), filled(cmd.Short))
			}
		}
	}
	b.WriteString(".SH OPTIONS\nThese apply to all commands.\n")
	options(&b, root.PersistentFlags())
	options(&b, root.LocalNonPersistentFlags())
	return b.String() + rootEnd
}
