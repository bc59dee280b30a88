// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagsOf returns the flags in the help of a command, except --help, which all have.
func flagsOf(cmd *cobra.Command) (list []*pflag.Flag) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			list = append(list, f)
		}
	})
	return list
}

func TestEveryFlagHasATopicWhereThereAreMany(t *testing.T) {
	root := shippedRoot(t)
	used := map[string]bool{}
	topics := flagTopics()
	placed := map[string]string{}
	for _, topic := range topics {
		for _, name := range topic.names {
			if other := placed[name]; other != "" {
				t.Errorf("--%s is in %q and in %q", name, other, topic.title)
			}
			placed[name] = topic.title
		}
	}
	many := 0
	eachCommand(root, func(cmd *cobra.Command) {
		list := flagsOf(cmd)
		titles, grouped := flagsByTopic(cmd.LocalFlags())
		if n := len(slices.Concat(grouped...)); n != len(list) {
			t.Errorf("%s: %d flags, %d in help", cmd.CommandPath(), len(list), n)
		}
		if len(list) < manyFlags {
			if len(titles) != 1 || titles[0] != "" {
				t.Errorf("%s: topics %q for %d flags", cmd.CommandPath(), titles, len(list))
			}
			return
		}
		many++
		for _, f := range list {
			if used[f.Name] = true; placed[f.Name] == "" {
				t.Errorf("%s --%s is in no topic of flagTopics", cmd.CommandPath(), f.Name)
			}
		}
	})
	if many < 5 {
		t.Errorf("%d commands with many flags", many)
	}
	for name, title := range placed {
		if !used[name] {
			t.Errorf("--%s of topic %q is no flag of a command with many", name, title)
		}
	}
}

func TestEveryCommandHasATopic(t *testing.T) {
	root := shippedRoot(t)
	placed := map[string]bool{}
	for _, topic := range commandTopics() {
		for _, name := range topic.names {
			if cmd, _, err := root.Find([]string{name}); placed[name] || err != nil || cmd == root {
				t.Errorf("%q of topic %q: named twice, or no command", name, topic.title)
			}
			placed[name] = true
		}
	}
	for _, cmd := range root.Commands() {
		if !cmd.Hidden && !placed[cmd.Name()] {
			t.Errorf("%s is in no topic of commandTopics", cmd.Name())
		}
	}
}

func helpOf(cmd *cobra.Command) string {
	var b bytes.Buffer
	printHelp(&b, cmd)
	return b.String()
}

func TestHelpHasEveryFlagAndCommand(t *testing.T) {
	eachCommand(shippedRoot(t), func(cmd *cobra.Command) {
		help := helpOf(cmd)
		for _, f := range flagsOf(cmd) {
			line := regexp.MustCompile(`(?m)^ +` + regexp.QuoteMeta(flagName(f)) + `  +\S`)
			if n := len(line.FindAllString(help, -1)); n != 1 {
				t.Errorf("%s: --%s is %d times in its help", cmd.CommandPath(), f.Name, n)
			}
		}
		for _, sub := range cmd.Commands() {
			if n := strings.Count(help, "\n  "+sub.Name()+" "); sub.Hidden == (n == 1) {
				t.Errorf("%s: %s is %d times in its help", cmd.CommandPath(), sub.Name(), n)
			}
		}
	})
}

// privateWords are words that a reader of the help does not know.
var privateWords = regexp.MustCompile(`(?i)\b(who ?ever|some ?body|every ?body|no ?body|whom|such an?|anew|of which|as it is|leads? connections|` +
	`lent|lend|heeds?|told|tells? which|keeps? (drives|images|skills|workspaces|an?|the|them|its?)|of others|of yours|may be repeated|repeatable|` +
	`is there|gives way|what it|what is|takes? the place|begins? with what|control groups?|living|lives)\b`)

// sessionWord is the API's word for a box where it is a word, not a flag or a route.
var sessionWord = regexp.MustCompile(`(?m)(^|[ (])[Ss]essions?($|[ ,;:)]|\.($|\s))`)

func TestHelpIsInPlainWords(t *testing.T) {
	eachCommand(shippedRoot(t), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		texts := []string{cmd.Short, cmd.Long, cmd.Example}
		for _, f := range flagsOf(cmd) {
			texts = append(texts, f.Usage)
		}
		for _, text := range texts {
			for _, word := range privateWords.FindAllString(text, -1) {
				t.Errorf("%s: %q in: %s", path, word, text)
			}
			if sessionWord.MatchString(strings.ReplaceAll(text, "program or session", "")) {
				t.Errorf("%s: want box, which is the word for people, and not session, which is the word of the API: %s", path, text)
			}
		}
		for line := range strings.Lines(helpOf(cmd)) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > helpWidth {
				t.Errorf("%s: a line of %d columns in its help: line = %s, want n <= helpWidth", path, n, line)
			}
		}
	})
}

// verbs are the words that may introduce a command.
var verbs = strings.Fields(`Accept Add Apply Attach Change Check Copy Create Delete Describe Detach Discard Edit End Execute Export Fetch Find Forward Freeze
	Grant Import Install List Manage Mount Move Open Preview Print Promote Publish Pull Push Read Remove Rename Replace Reset Restore Resume Revoke Run Save Search
	Set Show Start Stop Switch Turn Undo Unmount Update Validate Verify Wait Write`)

func TestEveryCommandIsIntroducedByAVerb(t *testing.T) {
	eachCommand(shippedRoot(t), func(cmd *cobra.Command) {
		verb, _, _ := strings.Cut(cmd.Short, " ")
		if !slices.Contains(verbs, strings.TrimSuffix(verb, ",")) || strings.HasSuffix(cmd.Short, ".") || len(cmd.Short) > 60 {
			t.Errorf("%s: %q: want a verb first, no full stop, and at most 60 columns", cmd.CommandPath(), cmd.Short)
		}
		if cmd.Long != "" && !strings.HasSuffix(strings.TrimSpace(cmd.Long), ".") {
			t.Errorf(`%s: its description does not end with a full stop: cmd.Long = %s, want cmd.Long == "" or strings.TrimSpace(cmd.Long) ending with "."`,
				cmd.CommandPath(), cmd.Long)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf(`%s: an example that is not indented: line = %s, want line starting with " "`,
					cmd.CommandPath(), line)
			}
		}
	})
}

// properNames may start a flag's text with a capital letter.
var properNames = []string{"CPU", "S3"}

// valueNames are value names that are not all capital letters.
var valueNames = []string{"NAME=value", "s3://BUCKET/PREFIX"}

func TestEveryFlagSaysWhatItTakes(t *testing.T) {
	eachCommand(shippedRoot(t), func(cmd *cobra.Command) {
		for _, f := range flagsOf(cmd) {
			name := cmd.CommandPath() + " --" + f.Name
			value := valueName(f)
			switch {
			case (f.Value.Type() == "bool") != (value == ""):
				t.Errorf("%s: its value is called %q", name, value)
			case value != strings.ToUpper(value) && !slices.Contains(valueNames, value):
				t.Errorf("%s: the name %s of its value has small letters", name, value)
			}
			first, _, _ := strings.Cut(f.Usage, " ")
			switch {
			case f.Usage == "" || strings.ContainsAny(f.Usage, "`\n"):
				t.Errorf("%s: %q: want one line, with the name of the value in back quotes at its beginning", name, f.Usage)
			case unicode.IsUpper([]rune(first)[0]) && !slices.Contains(properNames, first):
				t.Errorf("%s: %q: want a small letter first", name, f.Usage)
			case strings.HasSuffix(f.Usage, "."), strings.Contains(f.Usage, ". "):
				t.Errorf("%s: %q: want no sentence", name, f.Usage)
			case len(f.Usage) > 100:
				t.Errorf("%s: %q: %d columns, of at most 100", name, f.Usage, len(f.Usage))
			case value != "" && strings.HasPrefix(f.Usage, value+" "):
				t.Errorf("%s: %q names its value twice", name, f.Usage)
			}
		}
	})
}

func TestAWrongNumberOfArgumentsIsAnsweredWithTheUse(t *testing.T) {
	root := shippedRoot(t)
	refused := 0
	eachCommand(root, func(cmd *cobra.Command) {
		if cmd.Args == nil || cmd == root {
			return
		}
		for _, args := range [][]string{nil, slices.Repeat([]string{"x"}, 50)} {
			err := cmd.Args(cmd, args)
			if err == nil {
				continue
			}
			refused++
			want := "usage: " + strings.Replace(useLine(cmd), " [flags]", "", 1)
			if cmd.HasSubCommands() && len(args) > 0 {
				want = `unknown command "` + strings.TrimPrefix(cmd.CommandPath(), "boxctl ") + ` x"`
			}
			if got, _, _ := strings.Cut(err.Error(), "\n"); !errors.As(err, new(*usageError)) || !strings.HasPrefix(got, want) {
				t.Errorf("%s with %d arguments: %v, want %s", cmd.CommandPath(), len(args), err, want)
			}
		}
	})
	if refused < 100 {
		t.Errorf("%d refusals in all", refused)
	}
	var out bytes.Buffer
	if code := realMain([]string{"logs", "work", "web", "more"}, nil, &out, &out); code != exitUsage || out.String() != "usage: boxctl logs BOX [PROCESS]\nhint: boxctl logs --help\n" {
		t.Errorf(`code = %d, out = %s, want code == exitUsage and out.String() == "usage: boxctl logs BOX [PROCESS]\nhint: boxctl logs --help\n"`,
			code, out.String())
	}
}

func TestTheTextOfAFlag(t *testing.T) {
	t.Parallel()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.StringP("memory", "m", "", "`SIZE` memory limit")
	set.StringArray("label", nil, "`NAME=value` label")
	set.Duration("health", 90e9, "`TIME` ping interval")
	set.String("keys", "ctrl-p", "`KEYS` key sequence")
	set.String("here", "", "`MODE` use this directory")
	set.Lookup("here").NoOptDefVal = "rw"
	set.Int("lines", 0, "`N` number of lines")
	set.Bool("all", false, "show all")
	set.VisitAll(nameValue)
	var got []string
	set.VisitAll(func(f *pflag.Flag) { got = append(got, flagName(f)+": "+flagText(f)) })
	want := []string{
		"--all: show all", "--health TIME: ping interval (default 1m30s)", "--here[=MODE]: use this directory", "--keys KEYS: key sequence (default ctrl-p)",
		"--label NAME=value: label (repeatable)", "--lines N: number of lines", "-m, --memory SIZE: memory limit",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTextIsWrappedBetweenWords(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text  string
		width int
		want  []string
	}{
		{"", 5, []string{""}},
		{"a bc def", 8, []string{"a bc def"}},
		{"a bc def", 7, []string{"a bc", "def"}},
		{"abcdefgh ij", 4, []string{"abcdefgh", "ij"}},
	} {
		if got := wrap(tc.text, tc.width); !slices.Equal(got, tc.want) {
			t.Errorf("%q in %d: got %q, want %q", tc.text, tc.width, got, tc.want)
		}
	}
}
