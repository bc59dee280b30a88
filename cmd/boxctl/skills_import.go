// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// openSource opens a source: a URL, standard input, a local archive, or a directory, which is packed while it is sent.
// done releases it.
func (s skillCommands) openSource(source string, i *client.SkillImport) (done func(), err error) {
	if strings.Contains(source, "://") {
		i.URL = source
		return func() {}, nil
	}
	i.Archive, done, err = s.source(source, true)
	return done, err
}

// skillFlags adds the flags of every import.
func skillFlags(cmd *cobra.Command, i *client.SkillImport) {
	cmd.Flags().StringVar(&i.Subdir, "subdir", "", "`DIRECTORY` search only this directory of the source")
	cmd.Flags().StringSliceVar(&i.Select, "select", nil, "`PATHS` install only the skills at these paths, separated by commas")
	cmd.Flags().BoolVar(&i.Replace, "replace", false, "replace skills of the same name")
	cmd.Flags().StringVar(&i.Digest, "digest", "", "`DIGEST` install only if the skill has this digest")
}

const sources = `SOURCE is a directory, a zip or tar archive (- is standard input), or a URL: of an archive, or on
GitHub, GitLab or Gitea of a repository, a directory in it, a SKILL.md or a release. boxd downloads
only from the hosts listed in skills.hosts of box.toml.`

func (s skillCommands) preview() *cobra.Command {
	var i client.SkillImport
	cmd := &cobra.Command{
		Use: "preview SOURCE", Short: "Check skills before installing them", Args: usage(cobra.ExactArgs(1)),
		Long: "preview checks skills without installing them, and exits with 1 if one cannot be installed.\n\n" + sources,
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := s.openSource(args[0], &i)
			if err != nil {
				return err
			}
			defer done()
			return s.printCandidates(cmd, &i)
		},
	}
	cmd.Flags().StringVar(&i.Subdir, "subdir", "", "`DIRECTORY` search only this directory of the source")
	return cmd
}

// printCandidates prints candidates; it fails if one cannot be installed.
func (s skillCommands) printCandidates(cmd *cobra.Command, i *client.SkillImport) error {
	c := s.client()
	defer c.Close()
	list, err := c.PreviewSkills(cmd.Context(), i)
	if err != nil {
		return err
	}
	bad := false
	for _, x := range list {
		bad = bad || len(x.Problems) > 0
	}
	if s.json {
		err = s.printJSON(api.SkillCandidates{Candidates: list})
	} else {
		for _, x := range list {
			fmt.Fprintf(s.stdout, "%s: %s, %v in %d entries, %s\n", render.Printable(x.Path), render.Printable(x.Skill.Name), roundSize(x.Skill.Bytes), x.Skill.Entries, x.Skill.Digest)
			for _, p := range x.Problems {
				fmt.Fprintf(s.stdout, "  wrong: %s\n", render.Plain(strings.TrimPrefix(p.Key+": "+p.Text, ": ")))
			}
			for _, a := range x.Skill.Advice {
				fmt.Fprintf(s.stdout, "  advice: %s\n", render.Plain(a))
			}
		}
	}
	if err == nil && bad {
		err = exitError(1)
	}
	return err
}

func (s skillCommands) install() *cobra.Command {
	var i client.SkillImport
	cmd := &cobra.Command{
		Use: "install SOURCE", Short: "Install skills from a directory, archive or URL", Args: usage(cobra.ExactArgs(1)),
		Long: "install installs all selected skills or none. It executes nothing from them.\n\n" + sources,
		Example: `  boxctl skills install ./make-report
  boxctl skills install https://github.com/OWNER/REPO/tree/main/skills/make-report`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			done, err := s.openSource(args[0], &i)
			if err != nil {
				return err
			}
			defer done()
			list, err := c.InstallSkills(cmd.Context(), &i)
			return s.printDone(err, list...)
		}),
	}
	skillFlags(cmd, &i)
	return cmd
}

func (s skillCommands) scan() *cobra.Command {
	var i client.SkillImport
	var install bool
	cmd := &cobra.Command{
		Use: "scan BOX DIRECTORY", Short: "Find skills in a directory of a box and install them", Args: usage(cobra.ExactArgs(2)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			i.Session, i.Path = args[0], args[1]
			if !install {
				return s.printCandidates(cmd, &i)
			}
			list, err := c.InstallSkills(cmd.Context(), &i)
			return s.printDone(err, list...)
		}),
	}
	cmd.Flags().BoolVar(&install, "install", false, "install the skills found")
	skillFlags(cmd, &i)
	return cmd
}
