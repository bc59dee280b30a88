// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/render"
)

func (s skillCommands) activate() *cobra.Command {
	var environment bool
	var timeout string
	cmd := &cobra.Command{
		Use: "activate BOX NAME...", Short: "Mount skills in a running box", Args: usage(cobra.MinimumNArgs(2)),
		Long: `activate mounts skills read-only in a running box, each at /skills/NAME. Later changes of a skill do
not affect the box; activate it again to update it.

With --environment it also creates a Python virtual environment for each skill and prints its
directory. pip installs the packages of requirements.txt or pyproject.toml of the skill, in the box
and with its variables, for example PIP_INDEX_URL. The environment is created once in the workspace,
for all boxes that share the workspace, and removed with it.`,
		Example: `  boxctl skills activate work make-report
  boxctl skills activate --environment --timeout 2m work make-report`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var req *api.SkillEnvironmentRequest
			if environment {
				req = &api.SkillEnvironmentRequest{}
			}
			if timeout != "" {
				d, err := quantity.ParseDuration(timeout)
				if err == nil && req == nil {
					err = errors.New("it needs --environment")
				}
				if err != nil {
					return &usageError{err: fmt.Errorf("--timeout %s: %w", timeout, err)}
				}
				req.Timeout = &d
			}
			return s.activateAll(cmd.Context(), args[0], args[1:], req)
		},
	}
	cmd.Flags().BoolVar(&environment, "environment", false, "also create a Python virtual environment for each skill")
	cmd.Flags().StringVar(&timeout, "timeout", "", "`TIME` limit for creating one environment, for example 5m")
	return cmd
}

// activateAll adds skills to a session, with environments if req is not nil.
func (s skillCommands) activateAll(ctx context.Context, session string, names []string, req *api.SkillEnvironmentRequest) error {
	type active struct {
		api.SessionSkill
		Environment *api.SkillEnvironment `json:"environment,omitempty"`
	}
	c := s.client()
	defer c.Close()
	var errs []error
	list := []active{}
	for _, name := range names {
		k, _, err := c.ActivateSkill(ctx, session, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		now := active{SessionSkill: k}
		if !s.json {
			fmt.Fprintf(s.stdout, "%s %s\n", k.Target, k.Digest)
		}
		if req != nil {
			e, err := c.MakeSkillEnvironment(ctx, session, name, req)
			if err != nil {
				errs = append(errs, err)
			} else if now.Environment = &e; !s.json {
				fmt.Fprintln(s.stdout, render.Printable(e.Path))
			}
		}
		list = append(list, now)
	}
	if s.json {
		errs = append(errs, s.printJSON(list))
	}
	return errors.Join(errs...)
}
