// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/quantity"
)

const (
	// helpWidth is the maximum width of help, in columns.
	helpWidth = 100
	// manyFlags is the number of flags from which they are shown in groups.
	manyFlags = 16
	// valueAnnotation holds the name of a flag's value, which setHelp removes from the usage text.
	valueAnnotation = "boxctl_value"
)

// topic is a heading of help, with its commands or flags in order.
type topic struct {
	title string
	names []string
}

// commandTopics orders the commands of boxctl. Commands in no topic are shown at the end.
func commandTopics() []topic {
	return []topic{
		{"Boxes", []string{"run", "shell", "create", "ls", "inspect", "set", "renew", "freeze", "thaw", "export", "import", "rm", "top"}},
		{"Programs and processes", []string{"exec", "start", "ps", "logs", "attach", "wait", "stop"}},
		{"Files", []string{"cp", "cat", "diff", "fs"}},
		{"Mounts, network and ports", []string{"mount", "umount", "forward", "preview"}},
		{"Images, workspaces, snapshots, drives and skills", []string{"images", "workspaces", "snapshots", "drives", "skills"}},
		{"Agents", []string{"mcp", "e2b"}},
		{"Administration", []string{
			"status", "doctor", "config", "usage", "events", "errors", "audit", "grant", "revoke", "token", "drain", "undrain", "fleet", "version", "completion", "help",
		}},
	}
}

// flagTopics orders the flags of commands that have many. A flag has the same place in all commands.
func flagTopics() []topic {
	return []topic{
		{"Program", []string{"command", "code", "language", "cwd", "cwd-must-exist", "env", "user", "user-name", "home"}},
		{"Limits", []string{
			"memory", "memory-high", "swap", "oom", "cpus", "cpu-weight", "pids", "io-read", "io-write", "io-weight",
			"tmp", "workspace-quota", "workspace-inodes", "ulimit",
		}},
		{"Network", []string{"network", "network-rule", "network-strict", "network-connections", "network-bandwidth", "secret"}},
		{"Mounts and files", []string{"here", "mount", "workspace", "input", "drive", "skill", "image", "writable-root", "home-on-disk"}},
		{"Input and output", []string{
			"interactive", "terminal", "detach", "detach-keys", "no-stdin", "stdin", "merge-output", "output", "spool", "changes", "changes-include", "changes-exclude", "output-version", "push",
		}},
		{"Lifetime", []string{
			"timeout", "ttl", "max-lifetime", "lease", "stop-signal", "grace", "restart", "restart-delay", "restart-limit",
			"ready-line", "ready-port", "ready-command", "ready-timeout", "wait",
		}},
		{"MCP server", []string{"session", "any-session", "from", "as-is", "health", "install-timeout", "start-timeout"}},
		{"Other", []string{"name", "profile", "template", "var", "label", "metadata", "dry-run"}},
	}
}

// setHelp gives every command the help of this file.
func setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd) })
	eachCommand(root, func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("help") == nil {
			cmd.Flags().BoolP("help", "h", false, "show this help")
		}
		cmd.Flags().VisitAll(nameValue)
		cmd.PersistentFlags().VisitAll(nameValue)
	})
}

// eachCommand calls do for a command and all its subcommands.
func eachCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		eachCommand(sub, do)
	}
}

// nameValue moves the name of a flag's value, in back quotes in the usage text, to an annotation. Help shows it beside
// the flag; in completions it would only disturb.
func nameValue(f *pflag.Flag) {
	rest, ok := strings.CutPrefix(f.Usage, "`")
	if !ok {
		return
	}
	name, text, ok := strings.Cut(rest, "` ")
	if !ok {
		return
	}
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[valueAnnotation], f.Usage = []string{name}, text
}

// valueName returns the name of a flag's value, "" for a flag without one.
func valueName(f *pflag.Flag) string {
	if name := f.Annotations[valueAnnotation]; len(name) > 0 {
		return name[0]
	}
	return ""
}

// flagName returns a flag as it is typed, with the name of its value.
func flagName(f *pflag.Flag) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	switch value := valueName(f); {
	case value == "":
		return name
	case f.NoOptDefVal != "":
		return name + "[=" + value + "]"
	default:
		return name + " " + value
	}
}

// flagText describes a flag and its default.
func flagText(f *pflag.Flag) string {
	text := f.Usage
	if kind := f.Value.Type(); kind == "stringArray" {
		text += " (repeatable)"
	}
	switch value := defaultOf(f); value {
	case "", "0", "false", "[]", "0s":
	default:
		text += " (default " + value + ")"
	}
	return text
}

// defaultOf returns the default of a flag, as a user would type it.
func defaultOf(f *pflag.Flag) string {
	if d, err := time.ParseDuration(f.DefValue); err == nil && f.Value.Type() == "duration" {
		return quantity.Duration(d).String()
	}
	return f.DefValue
}

// flagsByTopic returns the flags of a set in the order of help, without --help, which all commands have. A small set is
// one topic without a title, sorted by name.
func flagsByTopic(set *pflag.FlagSet) (titles []string, flags [][]*pflag.Flag) {
	var all []*pflag.Flag
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			all = append(all, f)
		}
	})
	if len(all) < manyFlags {
		return []string{""}, [][]*pflag.Flag{all}
	}
	topics := flagTopics()
	placed := map[string]bool{}
	for i, t := range topics {
		var list []*pflag.Flag
		for _, name := range t.names {
			if f := set.Lookup(name); f != nil && !f.Hidden {
				list = append(list, f)
				placed[name] = true
			}
		}
		if i == len(topics)-1 { // with the flags that no topic has
			for _, f := range all {
				if !placed[f.Name] {
					list = append(list, f)
				}
			}
		}
		if len(list) > 0 {
			titles, flags = append(titles, t.title), append(flags, list)
		}
	}
	return titles, flags
}

// useLine returns the usage line of a command.
func useLine(cmd *cobra.Command) string {
	own := false
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { own = own || f.Name != "help" && !f.Hidden })
	name, rest, _ := strings.Cut(cmd.Use, " ")
	if own && !strings.Contains(rest, "[flags]") {
		rest = "[flags] " + rest
	}
	if cmd.HasParent() {
		name = cmd.Parent().CommandPath() + " " + name
	}
	return strings.TrimSpace(name + " " + rest)
}

// shortUse returns the usage line without flags.
func shortUse(cmd *cobra.Command) string { return strings.Replace(useLine(cmd), " [flags]", "", 1) }

func printHelp(w io.Writer, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", strings.TrimSpace(text))
	use, above := useLine(cmd), cmd.HasAvailableSubCommands()
	if cmd.HasParent() && (!above || use != cmd.CommandPath()) { // otherwise it only shows this help
		fmt.Fprintf(w, "  %s\n", use)
	}
	if above {
		fmt.Fprintf(w, "  %s COMMAND\n", cmd.CommandPath())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "\nAlso known as: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	printCommands(w, cmd)
	printFlags(w, cmd)
	if above {
		fmt.Fprintf(w, "\n\"%s COMMAND --help\" shows the help of a command.\n", cmd.CommandPath())
	}
}

// commandsByTopic returns the subcommands of a command in the order of help.
func commandsByTopic(cmd *cobra.Command) (titles []string, commands [][]*cobra.Command) {
	var all []*cobra.Command
	byName := map[string]*cobra.Command{}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			all = append(all, sub)
			byName[sub.Name()] = sub
		}
	}
	if cmd.HasParent() {
		return []string{"Commands"}, [][]*cobra.Command{all}
	}
	for _, t := range commandTopics() {
		var list []*cobra.Command
		for _, name := range t.names {
			if sub := byName[name]; sub != nil {
				list = append(list, sub)
				delete(byName, name)
			}
		}
		titles, commands = append(titles, t.title), append(commands, list)
	}
	last := len(commands) - 1
	for _, sub := range all {
		if byName[sub.Name()] != nil {
			commands[last] = append(commands[last], sub)
		}
	}
	return titles, commands
}

func printCommands(w io.Writer, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	titles, commands := commandsByTopic(cmd)
	width := 0
	for _, sub := range slices.Concat(commands...) {
		width = max(width, len(sub.Name()))
	}
	for i, list := range commands {
		fmt.Fprintf(w, "\n%s:\n", titles[i])
		for _, sub := range list {
			fmt.Fprintf(w, "  %-*s  %s\n", width, sub.Name(), sub.Short)
		}
	}
}

func printFlags(w io.Writer, cmd *cobra.Command) {
	set := cmd.LocalFlags()
	width := 0
	titles, flags := flagsByTopic(set)
	for _, f := range slices.Concat(flags...) {
		width = max(width, len(margin(f)+flagName(f)))
	}
	for i, list := range flags {
		title := titles[i]
		if title == "" {
			title = "Flags"
		}
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", title)
		for _, f := range list {
			for line, text := range wrap(flagText(f), helpWidth-width-2) {
				name := ""
				if line == 0 {
					name = margin(f) + flagName(f)
				}
				fmt.Fprintf(w, "%-*s  %s\n", width, name, text)
			}
		}
	}
	if cmd.HasParent() {
		fmt.Fprintln(w, "\nFlags of all commands (see boxctl --help):")
		const joint = "\x00" // joins the words of one line
		names := []string{"-h," + joint + "--help"}
		cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) { names = append(names, strings.ReplaceAll(flagName(f), " ", joint)) })
		for _, line := range wrap(strings.Join(names, ", "), helpWidth-2) {
			fmt.Fprintf(w, "  %s\n", strings.ReplaceAll(line, joint, " "))
		}
	}
}

// margin returns the indentation of a flag, so that the long names are aligned.
func margin(f *pflag.Flag) string {
	if f.Shorthand == "" {
		return "      "
	}
	return "  "
}

// wrap breaks text between words into lines of at most width columns, and has at least one line.
func wrap(text string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case len(*last)+1+len(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}
