// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client/show"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what boxd is doing",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.client().Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "boxd\t%s, up %s\n", s.Version, show.Roughly(time.Since(s.StartedAt)))
			fmt.Fprintf(w, "sessions\t%d of %d\n", s.Sessions, s.MaxSessions)
			fmt.Fprintf(w, "executions\t%d under way, %d since the start\n", s.Running, s.Executed)
			fmt.Fprintf(w, "control groups\t%s\n", s.ControlGroups)
			if len(s.Unenforced) > 0 {
				fmt.Fprintf(w, "NOT ENFORCED\t%s: best effort, by the operator's choice\n", strings.Join(s.Unenforced, ", "))
			}
			return w.Flush()
		},
	}
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Examine the host: what boxes need, and what is enforced by what",
		Long:  "doctor prints one line for each thing boxes need of this host, and what to do where it is missing.\nIt ends with 1 if something that is required is missing.",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.client().Doctor(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(d); err != nil {
					return err
				}
			} else {
				w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
				for _, c := range d.Checks {
					fmt.Fprintf(w, "%s\t%s\t%s\n", strings.ToUpper(c.Level), c.Name, c.Detail)
					if c.Hint != "" {
						fmt.Fprintf(w, "\t\thint: %s\n", c.Hint)
					}
				}
				if err := w.Flush(); err != nil {
					return err
				}
			}
			if !d.OK {
				return exitError(exitFailure)
			}
			return nil
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of boxctl and boxd",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server := "not reached"
			s, err := a.client().Status(cmd.Context())
			if err == nil {
				server = s.Version
			}
			if a.json {
				return a.printJSON(map[string]string{"boxctl": version, "boxd": server})
			}
			fmt.Fprintf(a.stdout, "boxctl  %s\nboxd    %s\n", version, server)
			if err == nil && server != version {
				fmt.Fprintln(a.stderr, "boxctl: the versions differ; 'systemctl restart boxd' starts the installed one")
			}
			return nil
		},
	}
}
