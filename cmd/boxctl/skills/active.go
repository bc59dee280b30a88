// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/ctl"
	"github.com/boxd-dev/boxd/relay/api"
)

func (s commands) activate() *cobra.Command {
	return &cobra.Command{
		Use: "activate SESSION NAME...", Short: "Give a living box skills", Args: ctl.Usage(cobra.MinimumNArgs(2)),
		Long: `activate mounts skills in a living box, read-only, each at /skills/NAME. Programs in it see them at once. What the box
has of a skill stays as it is, whatever becomes of the skill; activated again, it has the skill as it is then.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			list := []api.SessionSkill{}
			for _, name := range args[1:] {
				k, _, err := c.Activate(cmd.Context(), args[0], name)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if list = append(list, k); !s.JSON {
					fmt.Fprintf(s.Stdout, "%s %s\n", k.Target, k.Digest)
				}
			}
			if s.JSON {
				errs = append(errs, s.PrintJSON(list))
			}
			return errors.Join(errs...)
		},
	}
}

func (s commands) deactivate() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "deactivate SESSION NAME...", Short: "Take skills from a living box", Args: ctl.Usage(cobra.MinimumNArgs(2)),
		Long: `deactivate takes skills from a box. One in use stays, and is told with the programs that use it. With --force it goes:
what they have open of it stays open, and nothing else can be opened.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			for _, name := range args[1:] {
				errs = append(errs, c.Deactivate(cmd.Context(), args[0], name, force))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "even if it is in use")
	return cmd
}
