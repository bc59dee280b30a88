// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

type skillCommands struct{ *app }

// skillCommand returns boxctl skills with its subcommands.
func (a *app) skillCommand() *cobra.Command {
	s := skillCommands{a}
	return group("skills", "Manage skills: instructions for AI agents", `A skill is a directory with a file SKILL.md. It tells an AI agent what the skill does, when to use
it, and how (agentskills.io). Each user has their own skills. boxd-skills(7) has the rules.`,
		lsCommand(a, "List skills, newest first", (*client.Client).Skills, func(list []api.Skill) any { return api.SkillList{Skills: list} }, s.print, func(k *api.Skill) string { return k.Name }),
		s.show(), s.create(), s.update(), s.remove(), s.files(), s.cat(), s.write(), s.index(), s.preview(), s.install(), s.scan(), s.activate(),
		a.takeCommand("deactivate BOX NAME...", "Unmount skills in a running box",
			`deactivate unmounts skills in a running box. A skill in use stays, and the programs that use it are
listed. With --force it is unmounted anyway: files that are open stay open, and nothing else can be
opened.`, (*client.Client).DeactivateSkill))
}

func (s skillCommands) print(list []api.Skill) error {
	return table(s.stdout, "NAME\tFILES\tSIZE\tDESCRIPTION", list, func(k *api.Skill) string {
		return fmt.Sprintf("%s\t%d\t%v\t%s", render.Printable(k.Name), k.Entries, roundSize(k.Bytes), oneLine(k.Description))
	})
}

// oneLine returns the beginning of a text as one line, without control characters, since the text of a skill is untrusted.
func oneLine(text string) string {
	const limit = 72
	r := []rune(render.Plain(strings.Join(strings.Fields(text), " ")))
	if len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return string(r)
}

func (s skillCommands) show() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a skill and its instructions", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			k, err := c.Skill(cmd.Context(), args[0])
			return s.answer(k, err, func() error {
				w := tabwriter.NewWriter(s.stdout, 0, 8, 2, ' ', 0)
				row := func(name, text string) {
					if text != "" {
						fmt.Fprintf(w, "%s\t%s\n", name, render.Plain(text))
					}
				}
				row("name", k.Name)
				row("description", oneLine(k.Description))
				row("license", k.License)
				row("needs", oneLine(k.Compatibility))
				row("digest", k.Digest)
				row("origin", k.Origin)
				row("size", fmt.Sprintf("%v in %d entries", roundSize(k.Bytes), k.Entries))
				for _, a := range k.Advice {
					row("advice", a)
				}
				if err := w.Flush(); err != nil {
					return err
				}
				_, err = fmt.Fprintf(s.stdout, "\n%s", render.Plain(k.Instructions))
				return err
			})
		}),
	}
}

// text reads the file that a flag names, - for standard input.
func (s skillCommands) text(name string) (string, error) {
	const limit = 1 << 20
	in := s.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%s has more than 1 MiB", name)
	}
	return string(data), err
}

func (s skillCommands) create() *cobra.Command {
	var req api.SkillRequest
	var from string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a skill from texts", Args: usage(cobra.ExactArgs(1)),
		Example: "  boxctl skills create make-report --description 'Makes reports.' --instructions report.md",
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) (err error) {
			req.Name = args[0]
			if from != "" {
				if req.Instructions, err = s.text(from); err != nil {
					return err
				}
			}
			k, err := c.CreateSkill(cmd.Context(), &req)
			return s.printDone(err, k)
		}),
	}
	cmd.Flags().StringVar(&req.Description, "description", "", "`TEXT` what the skill does and when to use it")
	cmd.Flags().StringVar(&req.License, "license", "", "`TEXT` license of the skill")
	cmd.Flags().StringVar(&from, "instructions", "", "`FILE` file with the instructions; - is standard input")
	return cmd
}

func (s skillCommands) update() *cobra.Command {
	var description, license, from, match string
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change the texts of a skill", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req := api.SkillChange{IfMatch: match}
			if cmd.Flags().Changed("description") {
				req.Description = &description
			}
			if cmd.Flags().Changed("license") {
				req.License = &license
			}
			if from != "" {
				text, err := s.text(from)
				if err != nil {
					return err
				}
				req.Instructions = &text
			}
			k, err := c.ChangeSkill(cmd.Context(), args[0], &req)
			return s.printDone(err, k)
		}),
	}
	cmd.Flags().StringVar(&description, "description", "", "`TEXT` what the skill does and when to use it")
	cmd.Flags().StringVar(&license, "license", "", "`TEXT` license of the skill")
	cmd.Flags().StringVar(&from, "instructions", "", "`FILE` file with the instructions; - is standard input")
	cmd.Flags().StringVar(&match, "if-match", "", "`DIGEST` change the skill only if it has this digest")
	return cmd
}

// printDone prints the changed skills.
func (s skillCommands) printDone(err error, list ...api.Skill) error {
	return s.answer(api.SkillList{Skills: list}, err, func() error {
		for i := range list {
			fmt.Fprintf(s.stdout, "%s %s\n", list[i].Name, list[i].Digest)
		}
		return nil
	})
}

func (s skillCommands) remove() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Delete skills, or a file of one", Args: usage(cobra.MinimumNArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if file != "" && len(args) > 1 {
				return &usageError{err: errors.New("--file needs one skill")}
			}
			for _, name := range args {
				var err error
				if file != "" {
					_, err = c.RemoveSkillFile(cmd.Context(), name, file, "")
				} else {
					err = c.DeleteSkill(cmd.Context(), name)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&file, "file", "", "`PATH` delete only this file or directory of the skill")
	return cmd
}

func (s skillCommands) files() *cobra.Command {
	var all bool
	var l *listing[api.SkillEntry]
	cmd := &cobra.Command{
		Use: "files NAME [PATH]", Short: "List a directory of a skill", Args: usage(cobra.RangeArgs(1, 2)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			at := "."
			if len(args) > 1 {
				at = args[1]
			}
			list, err := c.SkillFiles(cmd.Context(), args[0], at, all, 1000)
			return l.print(list.Entries, list, err, func() error {
				var entries []entry
				for _, e := range list.Entries {
					entries = append(entries, entry{e.Type, e.Executable, e.Size, e.Path})
				}
				return s.printEntries(entries)
			})
		}),
	}
	l = newListing(s.app, cmd, "paths", func(e *api.SkillEntry) string { return e.Path })
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list names that start with a dot")
	return cmd
}

func (s skillCommands) cat() *cobra.Command {
	return &cobra.Command{
		Use: "cat NAME PATH", Short: "Print a file of a skill", Args: usage(cobra.ExactArgs(2)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			f, err := c.ReadSkillFile(cmd.Context(), args[0], args[1])
			return s.answer(f, err, func() error {
				data := []byte(f.Content)
				if f.Encoding == "base64" {
					if data, err = base64.StdEncoding.DecodeString(f.Content); err != nil {
						return fmt.Errorf("answer of boxd: %w", err)
					}
				}
				_, err = s.stdout.Write(data)
				return err
			})
		}),
	}
}

func (s skillCommands) write() *cobra.Command {
	var req api.SkillFileWrite
	cmd := &cobra.Command{
		Use: "write NAME PATH", Short: "Write standard input to a file of a skill", Args: usage(cobra.ExactArgs(2)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			text, err := s.text("-")
			if err != nil {
				return err
			}
			req.Path, req.Content, req.Encoding = args[1], base64.StdEncoding.EncodeToString([]byte(text)), "base64"
			k, err := c.WriteSkillFile(cmd.Context(), args[0], &req)
			return s.printDone(err, k)
		}),
	}
	cmd.Flags().BoolVarP(&req.Executable, "executable", "x", false, "make the file executable")
	cmd.Flags().StringVar(&req.IfMatch, "if-match", "", "`DIGEST` change the skill only if it has this digest")
	return cmd
}

func (s skillCommands) index() *cobra.Command {
	var req api.SkillIndexRequest
	cmd := &cobra.Command{
		Use: "index [NAME...]", Short: "Print a list of skills for a prompt",
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Names = args
			text, err := c.SkillIndex(cmd.Context(), &req)
			return s.answer(text, err, func() error {
				for _, name := range text.Missing {
					fmt.Fprintf(s.stderr, "boxctl: there is no skill %q\n", name)
				}
				_, err = io.WriteString(s.stdout, text.Text)
				return err
			})
		}),
	}
	cmd.Flags().StringVar(&req.Location, "location", "", "`DIRECTORY` directory where the agent finds the skills")
	return cmd
}
