// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of boxd",
		Args:  usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			s, err := c.Status(cmd.Context())
			return a.answer(s, err, func() error { return render.Status(a.stdout, &s, time.Now()) })
		}),
	}
}

func (a *app) doctorCommand() *cobra.Command {
	var fixes bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can run boxes",
		Long: `doctor prints one line for each thing that boxes need on this host, and how to fix it if it is
missing. It exits with 1 if something required is missing.

With --fix it also prints the commands that fix the problems, for this distribution. It runs none of
them: read them, and paste the ones you want into a root shell.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			d, err := c.Doctor(cmd.Context())
			if err != nil {
				return err
			}
			if err := a.printDoctor(&d, fixes); err != nil {
				return err
			}
			if !d.OK {
				return exitError(exitFailure)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&fixes, "fix", false, "print the commands that fix the problems found, and run none")
	cmd.Flags().BoolVar(&fixes, "fix-hints", false, "the old name of --fix")
	_ = cmd.Flags().MarkHidden("fix-hints") // fails if there is no such flag
	return cmd
}

func (a *app) printDoctor(d *api.Doctor, withFixes bool) error {
	var fixes []render.Fix
	if withFixes {
		release, _ := os.ReadFile("/etc/os-release") // if it is missing, see FamilyOf
		fixes = render.Fixes(d, render.FamilyOf(string(release)))
	}
	switch {
	case !a.json && !withFixes:
		return render.Doctor(a.stdout, d)
	case !a.json:
		return errors.Join(render.Doctor(a.stdout, d), render.PrintFixes(a.stdout, fixes))
	case !withFixes:
		return a.printJSON(d)
	}
	return a.printJSON(struct {
		*api.Doctor
		Fixes []render.Fix `json:"fixes"`
	}{d, fixes})
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of boxctl and boxd",
		Long: `version shows the versions of boxctl and of the running boxd, and warns on standard error if they
differ.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			server := "not reached"
			s, err := c.Status(cmd.Context())
			if err == nil {
				server = s.Version
			}
			if err == nil && server != version {
				fmt.Fprintln(a.stderr, "boxctl: the versions differ; 'systemctl restart boxd' starts the installed one")
			}
			if a.json {
				return a.printJSON(map[string]string{"boxctl": version, "boxd": server})
			}
			_, err = fmt.Fprintf(a.stdout, "boxctl  %s\nboxd    %s\n", version, server)
			return err
		}),
	}
}

// correctHelp makes help for an unknown command a usage mistake.
func correctHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil || help == root {
		return
	}
	help.Use, help.Short, help.Long = "help [COMMAND...]", "Show the help of a command", ""
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = unknownCommand(root, strings.Join(args, " "))
		}
		if err != nil {
			return err
		}
		cmd.InitDefaultVersionFlag()
		return cmd.Help()
	}
}
